"""What the features of a soak share: clients with the account of the application, paced sends, and the outcome of each.

A feature is a coroutine that sends until ``World.stop`` is set, and receives until ``World.drained`` is. Errors of the
client are expected during faults: they are counted by feature and kind. Any other exception ends the soak.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from gantry_access import Credentials
from gantry_client import (
    Admin,
    ClientError,
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Selector,
    SendReceipt,
    Sql,
    StartFrom,
)
from gantry_soak.group import SoakGroup
from gantry_soak.ledger import Ledger, Stream

ROUTE_POLL_MS: Final = 5_000
"""How often clients refresh routes; shorter than by default, since masters change more often than in production."""
RETRY_S: Final = 1.0
"""The pause of a feature after a failed step."""

Feature = Callable[["World"], Coroutine[Any, Any, None]]
Handler = Callable[[ReceivedMessage], Awaitable[None]]
FEATURES: Final[dict[str, Feature]] = {}
"""All features by name, in the order of their definition."""


def feature(function: Feature) -> Feature:
    """Register a feature under the name of its function."""
    FEATURES[function.__name__.replace("_", "-")] = function
    return function


@final
@dataclass(frozen=True, kw_only=True)
class World:
    """The group, the ledger, and when to stop. Owned by one loop."""

    group: SoakGroup
    ledger: Ledger
    chance: random.Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing new is sent."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing more is received."""

    def client_settings(self, account: Credentials | None = None) -> ClientSettings:
        """Return the settings of a client with an account; by default that of the application."""
        return ClientSettings(credentials=account or self.group.application, route_poll_interval_ms=ROUTE_POLL_MS)

    def producer(self, group: str = "soak-senders", account: Credentials | None = None) -> Producer:
        """Return a producer that is not started."""
        settings = ProducerSettings(send_timeout_ms=10_000)
        return Producer(
            self.group.name_server, group, settings=settings, client_settings=self.client_settings(account)
        )  # fmt: skip

    def consumer(
        self, group: str, topics: Mapping[str, str | Sql], handle: Handler, *, is_ordered: bool = False,
        reconsume_max: int | None = None, broadcast_folder: Path | None = None,
    ) -> PushConsumer:  # fmt: skip
        """Return a push consumer that is not started; with a folder for its offsets it receives all messages."""
        settings = ConsumerSettings(
            start_from=StartFrom.FIRST, max_reconsume_times=reconsume_max, broadcast_offsets_folder=broadcast_folder,
            model=MessageModel.BROADCASTING if broadcast_folder else MessageModel.CLUSTERING,
        )  # fmt: skip
        return PushConsumer(
            self.group.name_server, group, topics=topics, handler=handle, settings=settings, is_ordered=is_ordered,
            client_settings=self.client_settings(),
        )  # fmt: skip

    def puller(self, group: str) -> PullConsumer:
        """Return a pull consumer that is not started."""
        return PullConsumer(self.group.name_server, group, client_settings=self.client_settings())

    def admin(self) -> Admin:
        """Return administration with the group's own account."""
        return Admin(self.group.name_server, client_settings=self.client_settings(self.group.administrator))

    async def ticks(self, per_second: float) -> AsyncIterator[int]:
        """Return 0, 1, 2, ... at a fixed rate, until the end of the sends. A late tick moves the next ones."""
        loop, number = asyncio.get_running_loop(), 0
        due_s = loop.time()
        while not self.stop.is_set():
            yield number
            number, due_s = number + 1, max(due_s + 1 / per_second, loop.time() - 1.0)
            await self.pause(due_s - loop.time())

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the end of the sends."""
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self.stop.wait()
        except TimeoutError:
            pass

    async def send(
        self, name: str, producer: Producer, stream: Stream, number: int, message: Message,
        queue: MessageQueue | Selector | None = None,
    ) -> SendReceipt | None:  # fmt: skip
        """Send a message of a stream; return its receipt if it was acknowledged."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            receipt = await producer.send(message, queue=queue)
        except ClientError as error:
            self.note_failure(name, error)
            return None
        if not receipt.is_acknowledged:
            self.ledger.failures[f"{name}: {receipt.status.name}"] += 1
            return None
        self.ledger.latencies.note("send", (loop.time() - began_s) * 1000)
        stream.acknowledge(number)
        self.ledger.done[name] += 1
        return receipt

    def note_failure(self, name: str, error: BaseException) -> None:
        """Count a failed operation by feature and error."""
        self.ledger.failures[f"{name}: {type(error).__name__}"] += 1

    async def repeat(self, name: str, every_s: float, step: Callable[[int], Awaitable[None]]) -> None:
        """Run a step at a fixed rate until the end of the sends; a step that fails is counted and repeated later."""
        async for number in self.ticks(1 / every_s):
            try:
                await step(number)
            except (ClientError, OSError, TimeoutError) as error:
                self.note_failure(name, error)
                await self.pause(RETRY_S)
            else:
                self.ledger.done[name] += 1


async def run_features(world: World, names: list[str]) -> None:
    """Run features until the world is drained. Raises the first error that is not one of a client."""
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(FEATURES[name](world), name=name)
