"""For tests: Gantry's store at one end of RocketMQ's replication stream, in this process, and Java at the other.

Only Gantry's store and stream run here; so a test observes these, without the rest of a broker.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.classic.follower import ClassicFollower, ClassicMaster
from gantry_broker.ha.frames import Table
from gantry_broker.ha.master_session import MasterFacts
from gantry_broker.ha.server import ReplicationServer
from gantry_broker.ha.store_log import MasterStore, SlaveStore
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.registration import BrokerIdentity, Registration
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import StoreSettings
from gantry_interop import java, peers
from gantry_interop.processes import Child, Nursery
from gantry_interop.store_tool import SMALL
from gantry_testing.local import wait_until
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.message import encode_host
from gantry_wire.properties import format_properties

FILE_BYTES = SMALL.commit_log_file_bytes
SETTINGS = StoreSettings(
    mapped_file_size_commit_log=FILE_BYTES,
    mapped_file_size_consume_queue=SMALL.consume_queue_file_bytes,
    max_hash_slot_num=SMALL.hash_slots,
    max_index_num=SMALL.index_entries,
)
JAVA_SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(SMALL.consume_queue_file_bytes),
    "maxHashSlotNum": str(SMALL.hash_slots),
    "maxIndexNum": str(SMALL.index_entries),
    "maxMessageSize": str(1 << 16),
}
HOST = encode_host("127.0.0.1", 10_911)


@asynccontextmanager
async def open_store(root: Path) -> AsyncIterator[MessageStore]:
    """Open a store with its threads."""
    loop = asyncio.get_running_loop()
    store = MessageStore(
        str(root),
        SETTINGS,
        disk=RealDisk(),
        clock=SystemClock(),
        store_host=HOST,
        on_fatal=lambda error: None,
        on_progress=lambda: _call_soon(loop, store.advance),
    )
    await asyncio.to_thread(store.open)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


@dataclass
class GantryMaster:
    """A store that a test appends to, and its replication port, open to slaves of RocketMQ."""

    store: MessageStore
    slaves: AckSet = field(default_factory=lambda: AckSet(acks_needed=1, is_flushed_wanted=False))
    sent: int = 0

    def __post_init__(self) -> None:
        facts = MasterFacts("c", "b", FILE_BYTES, self.store.identity.epoch)
        self.server = ReplicationServer(
            lambda: facts, MasterStore(self.store), self.slaves, on_acks=lambda: None, allows_classic=True
        )

    async def send(self, count: int, body_bytes: int = 1_000) -> None:
        """Append messages, and yield to the loop in between."""
        for _ in range(count):
            self.sent += 1
            keys = f"key-{self.sent}"
            properties = format_properties({"KEYS": keys}).encode()
            body = b"%8d" % self.sent + bytes(body_bytes)
            queue = self.store.queues.get_or_create("interop_ha", self.sent % 2)
            self.store.append([Draft(queue, body, properties, 0, 0, 0, HOST, 0, 0, 0, 0, (keys,))])
            self.server.feed_streams()
            if self.sent % 20 == 0:
                await asyncio.sleep(0)

    @property
    def has_all(self) -> bool:
        """Return whether the slave has acknowledged everything."""
        return self.slaves.acked_offset() == self.store.log.wrote


@asynccontextmanager
async def run_gantry_master(root: Path) -> AsyncIterator[GantryMaster]:
    async with open_store(root) as store:
        master = GantryMaster(store)
        await master.server.start("127.0.0.1", 0)
        try:
            yield master
        finally:
            await master.server.close()


@dataclass
class GantrySlave:
    """A store that follows a Java master, and the tables that it received."""

    store: MessageStore
    follower: ClassicFollower
    tables: dict[str, bytes]


@asynccontextmanager
async def follow_as_gantry_slave(root: Path, layout: peers.Layout) -> AsyncIterator[GantrySlave]:
    """Follow the broker of ``layout`` until the context ends."""
    tables: dict[str, bytes] = {}
    async with open_store(root) as store:
        slave_store = SlaveStore(store)

        def take(table: Table) -> None:
            tables[table.name] = table.document

        def show() -> None:
            slave_store.dispatch(follower.confirmed)

        master = ClassicMaster(("127.0.0.1", layout.broker_port + 1), f"127.0.0.1:{layout.broker_port}")
        follower = ClassicFollower(slave_store, master, file_bytes=FILE_BYTES, on_table=take, on_copied=show)
        task = asyncio.ensure_future(follower.run())
        try:
            yield GantrySlave(store, follower, tables)
        finally:
            task.cancel()
            await asyncio.wait([task])
            while not slave_store.dispatch(store.log.wrote):
                pass


@asynccontextmanager
async def register_master(nursery: Nursery, layout: peers.Layout, ha_port: int) -> AsyncIterator[None]:
    """Run a name server with a registered master, where Java's slave finds its master."""
    data = layout.directory / "name-server-data"
    command = [sys.executable, "-m", "gantry_nameserver", "--listen", layout.name_server, "--data", str(data)]
    name_server = nursery.start("name-server", command, os.environ)
    unused_address = f"127.0.0.1:{layout.first_port + 1}"
    identity = BrokerIdentity("InteropCluster", "broker-a", unused_address, f"127.0.0.1:{ha_port}")
    registration = Registration(identity, [layout.name_server], TopicConfigTable, period_ms=10_000)
    registration.start()
    try:
        await wait_until(lambda: bool(registration.registered))
        yield
    finally:
        await registration.close()
        name_server.stop()


def start_java_slave(nursery: Nursery, layout: peers.Layout) -> Child:
    """Start Apache's broker as a slave of the master that its name server has registered."""
    settings = {**JAVA_SETTINGS, **layout.settings, "brokerRole": "SLAVE", "brokerId": "1"}
    settings["registerNameServerPeriod"] = "10000"
    layout = dataclasses.replace(layout, settings=settings)
    layout.directory.mkdir(parents=True, exist_ok=True)
    conf = layout.directory / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in peers.broker_settings("apache", layout).items()))
    home = layout.directory / "broker-home"
    return nursery.start("java-slave", peers.BROKER.command(home, ["-c", str(conf)]), java.environment(home))


def log_bytes(root: Path, begin: int, end: int) -> bytes:
    """Return the log in a store directory, starting at the beginning of one of its files."""
    parts: list[bytes] = []
    for base in range(begin, end, FILE_BYTES):
        parts.append((root / "commitlog" / f"{base:020d}").read_bytes()[: end - base])
    return b"".join(parts)
