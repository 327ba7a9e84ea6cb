"""A name server and a broker in this process, with a topic of one queue; also on a thread, for tests without a loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

from gantry_broker.app import Broker
from gantry_client import Admin
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.client import wait_until
from gantry_testing.local import running_broker
from gantry_testing.loop_thread import LoopThread
from gantry_wire.commands.clients import MessageQueue

TOPIC: Final = "orders"
QUEUE: Final = MessageQueue(topic=TOPIC, broker_name="test-broker", queue_id=0)

T = TypeVar("T")


@asynccontextmanager
async def named_cluster(folder: Path, **conf: str) -> AsyncIterator[tuple[str, Broker]]:
    """The name server's address, and the broker; ``conf`` holds keys of its `broker.conf`."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), folder / "ns")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        async with (
            running_broker(folder, disk=None, clock=None, namesrvAddr=address, **conf) as broker,
            Admin(address) as admin,
        ):

            async def is_known() -> bool:
                return bool(await admin.brokers.all())

            await wait_until(is_known, timeout_s=120, what="the broker's registration")
            await admin.topics.create(TOPIC, queues=1)
            yield address, broker
    finally:
        await server.close()


@final
class ThreadedNamedCluster:
    """A `named_cluster` on a thread of its own. Its broker belongs to that thread: use it only through `run`."""

    def __init__(self, folder: Path, **conf: str) -> None:
        self.address = ""
        self._cluster = named_cluster(folder, **conf)
        self._stack = AsyncExitStack()
        self._loop = LoopThread("named-cluster")

    def __enter__(self) -> Self:
        self._loop.__enter__()
        self.address, self.broker = self.run(self._stack.enter_async_context(self._cluster))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self._loop.__exit__(None, None, None)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 120.0) -> T:
        """What `work` returns, run on the cluster's loop."""
        return self._loop.run(work, timeout_s=timeout_s)
