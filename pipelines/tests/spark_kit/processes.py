"""A group of real processes to read from: a name server, a master, slaves, and a sidecar beside each broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from admin_scene import BrokerChild, Child, SidecarChild, wait_for

from gantry_client import ClientError
from gantry_testing.local import Dialogue, properties_text
from gantry_testing.ports import free_ports
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.model import TransportKind
from pyspark_rocketmq.settings import ReadSettings

BROKER: Final = "broker-a"
TOPIC: Final = "orders"
VISIBLE_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as it was sent, and the offset that the broker assigned."""

    queue: int
    offset: int
    body: bytes
    tags: str
    key: str


@final
@dataclass
class Group:
    """The processes of a group; the master is first."""

    name_server: str
    brokers: list[BrokerChild]
    sidecars: list[SidecarChild]
    stores: list[Path]
    sent: list[Sent] = field(default_factory=list)

    @property
    def sidecar_urls(self) -> tuple[str, ...]:
        return tuple(one.url for one in self.sidecars)

    def settings(self, transport: TransportKind = TransportKind.AUTO, **more: Any) -> ReadSettings:
        """Return settings for a reader of this group, with long timeouts for a busy machine."""
        given: dict[str, Any] = {"name_servers": self.name_server, "transport": transport, "patience_ms": 60_000}
        if transport in (TransportKind.HTTP, TransportKind.AUTO):
            given["sidecars"] = self.sidecar_urls[:1]
        return ReadSettings(**given | more)

    def send(
        self, count: int, *, topic: str = TOPIC, queues: int = 4, bytes_each: int = 200, tags: Sequence[str] = ("red",)
    ) -> list[Sent]:
        """Send messages to the queues in turn, all acknowledged by the master."""
        found = send_all(self.brokers[0].address, count, topic, queues, bytes_each, tags, first=len(self.sent))
        self.sent += found
        self._wait_until_readable(found, topic)
        return found

    def _wait_until_readable(self, found: Sequence[Sent], topic: str) -> None:
        """Wait until the messages can be read from slaves, which learn a moment later what is confirmed.

        If no replica answers, because the test has stopped them, this ends after a timeout.
        """
        ends: dict[int, int] = {}
        for one in found:
            ends[one.queue] = max(ends.get(one.queue, 0), one.offset + 1)
        transports = [TransportKind.PULL, *([TransportKind.HTTP] if self.sidecars else [])]
        deadline = time.monotonic() + VISIBLE_TIMEOUT_S
        while transports and time.monotonic() < deadline:
            try:
                with Catalog(self.settings(transport=transports[0], patience_ms=1000)) as catalog:
                    visible = {queue.number: at.end for queue, at in catalog.bounds(catalog.queues([topic])).items()}
            except (RocketMQSourceError, ClientError):
                visible = {}
            if all(visible.get(queue, 0) >= end for queue, end in ends.items()):
                del transports[0]
            else:
                time.sleep(0.05)


def send_all(
    address: str, count: int, topic: str, queues: int, bytes_each: int, tags: Sequence[str], *, first: int = 0
) -> list[Sent]:
    """Send messages to any broker, all acknowledged."""

    async def send_all_messages() -> list[Sent]:
        dialogue = await Dialogue.open(address)
        found: list[Sent] = []
        try:
            for number in range(first, first + count):
                body = f"{number:08d} ".encode().ljust(bytes_each, b"x")
                queue, tag, key = number % queues, tags[number % len(tags)], f"key-{number}"
                text = properties_text(UNIQ_KEY=f"{number:032X}", KEYS=key, TAGS=tag, WAIT="true", n=str(number))
                reply = await dialogue.send_ok(body, topic=topic, queueId=str(queue), properties=text)
                found.append(Sent(queue, int(reply["queueOffset"]), body, tag, key))
        finally:
            await dialogue.close()
        return found

    return asyncio.run(send_all_messages())


@contextmanager
def group(folder: Path, *, slaves: int = 1, with_sidecars: bool = True, **conf: str) -> Iterator[Group]:
    """Run a name server, a master, which waits for a slave if there is one, its slaves and, by default, sidecars."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        (port,) = free_ports(1)
        name_server = Child(
            "gantry_nameserver", ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "nameserver")], "listening on"
        )
        stack.callback(name_server.end)
        address = f"127.0.0.1:{port}"
        common = {
            "brokerName": BROKER,
            "namesrvAddr": address,
            "maxMessageSize": str(256 << 10),
            "mappedFileSizeCommitLog": str(1 << 20),
            **conf,
        }
        stores = [folder / "master", *(folder / f"slave-{number}" for number in range(1, slaves + 1))]
        master = BrokerChild(stores[0], brokerRole="SYNC_MASTER" if slaves else "ASYNC_MASTER", **common)
        stack.callback(master.child.end)
        brokers = [master]
        for number in range(1, slaves + 1):
            slave = BrokerChild(
                stores[number],
                brokerRole="SLAVE",
                brokerId=str(number),
                haMasterAddress=master.replication_address,
                **common,
            )
            stack.callback(slave.child.end)
            brokers.append(slave)
        sidecars = list(_sidecars(stores, stack)) if with_sidecars else []
        for sidecar in sidecars:
            sidecar.wait_ready()
        if sidecars and slaves:
            wait_for(lambda: len(sidecars[0].get("/v1/status").json()["slaves"]) == slaves, "slaves follow", 120)
        yield Group(address, brokers, sidecars, stores)


def _sidecars(stores: list[Path], stack: ExitStack) -> Iterator[SidecarChild]:
    ports = free_ports(len(stores))
    sidecar_urls = [f"http://127.0.0.1:{port}" for port in ports]
    for store, port, url in zip(stores, ports, sidecar_urls, strict=True):
        peers = [part for peer in sidecar_urls if peer != url for part in ("--peer", peer)]
        sidecar = SidecarChild(
            store, "--open-reads", "--log-listen", "127.0.0.1:0", "--log-rate", "0", *peers, listen=f"127.0.0.1:{port}"
        )
        stack.callback(sidecar.child.end)
        yield sidecar
