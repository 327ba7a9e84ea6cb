"""A whole group for the console's tests and screenshots: name server, brokers, a sidecar each, and clients.

All are processes on loopback, except the clients, which are a thread of the test. Brokers start without a role and get
one by `gantry ha promote`, so that the master can be killed and a slave promoted in a later epoch.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, final

from admin_scene import ENVIRONMENT, TOKEN, BrokerChild, Child, SidecarChild, wait_for

from gantry_client import (
    Admin,
    ClientError,
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from gantry_testing.ports import free_ports

CLUSTER: Final = "shop"
COMMAND_S: Final = 240.0
"""The limit for one command."""

BUFFERS: Final = {"transientStorePoolEnable": "true", "transientStorePoolSize": "4"}
"""Settings of brokers with write buffers."""

SHARED_MEMORY: Final = Path("/dev/shm")


@final
class Group:
    """One shard of brokers, each with its sidecar."""

    def __init__(self, folder: Path, stack: ExitStack, members: int, conf: Mapping[str, str]) -> None:
        ports = free_ports(members + 1)
        self.folder = folder
        self.name_server = f"127.0.0.1:{ports[0]}"
        listen = ["--listen", self.name_server, "--data", str(folder / "ns")]
        stack.callback(Child("gantry_nameserver", listen, "name server listening").end)
        tokens = folder / "tokens"
        tokens.write_text(f"console:{TOKEN}\n")
        urls = [f"http://127.0.0.1:{port}" for port in ports[1:]]
        self.brokers: list[BrokerChild] = []
        self.sidecars: list[SidecarChild] = []
        for number in range(1, members + 1):
            own = {
                "brokerId": str(number), "brokerClusterName": CLUSTER, "brokerName": "orders-0",
                "roleAtStart": "UNASSIGNED", "namesrvAddr": self.name_server, "brokerRole": "SYNC_MASTER",
                "mappedFileSizeCommitLog": str(16 << 20),
            }  # fmt: skip
            broker = BrokerChild(folder / f"broker-{number}", **{**own, **conf, **self._pool(conf, stack)})
            stack.callback(broker.child.end)
            self.brokers.append(broker)
            peers = [part for url in urls if url != urls[number - 1] for part in ("--peer", url)]
            sidecar = SidecarChild(
                broker.store, "--open-reads", "--openapi", "--token-file", str(tokens), *peers,
                listen=urls[number - 1].removeprefix("http://"),
            )  # fmt: skip
            stack.callback(sidecar.child.end)
            self.sidecars.append(sidecar)
        electable = [part for number in range(1, members + 1) for part in ("--electable", str(number))]
        self.promote(1, *electable)

    @staticmethod
    def _pool(conf: Mapping[str, str], stack: ExitStack) -> dict[str, str]:
        """Return the setting for a broker's own folder of write buffers in memory, which outlive its process."""
        if "transientStorePoolEnable" not in conf or not SHARED_MEMORY.is_dir():
            return {}
        pool = tempfile.mkdtemp(prefix="gantry-console-", dir=SHARED_MEMORY)
        stack.callback(shutil.rmtree, pool, ignore_errors=True)
        return {"transientStorePoolPath": pool}

    @property
    def console(self) -> str:
        """The address of the first sidecar's console, with the token."""
        return f"{self.sidecars[0].url}/console/#token={TOKEN}"

    def promote(self, to: int, *options: str) -> str:
        """Make a member the master, as `gantry ha` does it."""
        sockets = [part for broker in self.brokers for part in ("--socket", str(broker.control_socket))]
        done = subprocess.run(
            [sys.executable, "-m", "gantry_cli", "ha", "promote", *sockets, "--to", str(to), *options],
            capture_output=True, text=True, timeout=COMMAND_S, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.stdout

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these sidecars report that their brokers are ready; all of them by default."""
        for number in numbers or range(1, len(self.sidecars) + 1):
            self.sidecars[number - 1].wait_ready()

    def status(self, number: int = 1) -> dict[str, object]:
        """Return the status of a member's sidecar."""
        found: dict[str, object] = self.sidecars[number - 1].get("/v1/status", token=TOKEN).json()
        return found


@contextmanager
def console_group(folder: Path, *, members: int = 2, conf: Mapping[str, str] = BUFFERS) -> Iterator[Group]:
    """Run a group with a master during the context."""
    with ExitStack() as stack:
        group = Group(folder, stack, members, conf)
        group.wait_ready()
        yield group


def body_of(number: int) -> bytes:
    """Return the body of a message as an application would send it."""
    items = [{"sku": f"SKU-{(number * 7 + one) % 4096:04d}", "count": 1 + one} for one in range(3)]
    order = {
        "order": 481_000 + number, "customer": f"c-{number % 977:04d}", "total": round(19.9 + number % 83, 2),
        "currency": "EUR", "items": items,
    }  # fmt: skip
    return json.dumps(order).encode()


@final
class Load:
    """A producer, a consumer, and a slow consumer, in one thread, during the context."""

    def __init__(self, name_server: str, *, per_second: int = 200, body_bytes: int = 0) -> None:
        self._name_server = name_server
        self._pause_s = 0.05
        self._batch = max(per_second // 20, 1)
        self._padding = b" " * body_bytes
        self._over = threading.Event()
        self.sent = 0
        """The number of acknowledged messages."""

        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        wait_for(lambda: self.sent > 0, "the first message is sent")
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)

    async def _run(self) -> None:
        settings = ProducerSettings(send_timeout_ms=5_000)
        consumer = ConsumerSettings(start_from=StartFrom.FIRST)
        async with Producer(self._name_server, "shop-frontend", settings=settings) as producer:
            await self._send(producer, "orders", 0)
            async with (
                PushConsumer(self._name_server, "billing", topics="orders", handler=consume_at_once, settings=consumer),
                PushConsumer(
                    self._name_server, "warehouse", topics="orders", handler=consume_slowly, settings=consumer
                ),
            ):
                number = 0
                while not self._over.is_set():
                    wave = 1.0 + 0.6 * random.Random(number // 40).random()
                    numbers = range(number, number + int(self._batch * wave))
                    await asyncio.gather(*(self._send(producer, topic_of(one), one) for one in numbers))
                    number += self._batch
                    await asyncio.sleep(self._pause_s)

    async def _send(self, producer: Producer, topic: str, number: int) -> None:
        message = Message(topic, body_of(number) + self._padding, tags="created", keys=[f"order-{481_000 + number}"])
        try:
            await producer.send(message)
        except ClientError:
            return  # there is no master now
        self.sent += 1


def topic_of(number: int) -> str:
    return ("orders", "payments", "orders", "shipments")[number % 4]


async def consume_at_once(message: ReceivedMessage) -> None:
    return


async def consume_slowly(message: ReceivedMessage) -> None:
    await asyncio.sleep(0.25)


def store_dead_letters(name_server: str, group: str, bodies: list[bytes], **properties: str) -> None:
    """Store messages as dead letters of a group: send them, and let a consumer of the group refuse each for good."""
    topic = f"{group}-input"

    async def give_up(message: ReceivedMessage) -> None:
        raise RetryLater(-1)

    async def send_and_refuse() -> None:
        settings = ConsumerSettings(start_from=StartFrom.FIRST)
        producer_settings = ProducerSettings(send_timeout_ms=60_000)
        async with Producer(name_server, "seeder", settings=producer_settings) as producer, Admin(name_server) as admin:
            for body in bodies:
                await producer.send(Message(topic, body, keys=["dead"], properties=properties))
            async with PushConsumer(name_server, group, topics=topic, handler=give_up, settings=settings):
                while await count_dead_letters(admin, group) < len(bodies):  # noqa: ASYNC110 - it comes from another process
                    await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(send_and_refuse(), 240))


async def count_dead_letters(admin: Admin, group: str) -> int:
    """Return the number of dead letters of a group."""
    try:
        stats = await admin.topics.stats(f"%DLQ%{group}")
    except ClientError:
        return 0
    return sum(row.max_offset - row.min_offset for row in stats.values())


def sum_of_queue_ends(group: Group, topic: str) -> int:
    """Return the sum of the ends of a topic's queues, as the sidecar reports them."""
    topics = group.sidecars[0].get("/v1/topics", token=TOKEN).json().get("topics", [])
    return sum(int(queue["end"]) for one in topics if one["name"] == topic for queue in one["queues"])


def fullest_queue(group: Group) -> int:
    """Return the queue of `billing-input` with the most messages."""
    topics = group.sidecars[0].get("/v1/topics", token=TOKEN).json()["topics"]
    [topic] = [one for one in topics if one["name"] == "billing-input"]
    return max((queue["end"], int(queue["queue_id"])) for queue in topic["queues"])[1]
