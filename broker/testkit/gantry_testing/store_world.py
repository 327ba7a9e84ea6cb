"""A test environment with one store: a disk, a clock, tiny files, and operations for tests.

    world.open(); world.send("topic", 3); world.kill(); world.open(); world.messages("topic")

Files are so small (a log file holds about a hundred messages) that a test rolls, grows and wraps them with a few
hundred messages.
The world records what it sent, so that a checker knows which messages must be stored and which must not.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_broker.errors import QueueRebuilding
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.settings import StoreSettings
from gantry_store_files import FILLER_SIZE, UNIT, UNIT_BYTES, segment_name
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.killable_disk import KillableDisk
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, decode_records, encode_host
from gantry_wire.properties import KEYS, TAGS, UNIQUE_KEY, format_properties

BORN_HOST: Final = encode_host("127.0.0.1", 40_000)
STORE_HOST: Final = encode_host("127.0.0.1", 10_911)
TINY: Final = StoreSettings(
    mapped_file_size_commit_log=16 * 1024,
    mapped_file_size_consume_queue=50 * 20,
    consume_queue_reserve_bytes=10 * 20,
    max_hash_slot_num=31,
    max_index_num=200,
    index_reserve_bytes=400,
    is_preallocating=False,
)
"""Settings with files so small that a few hundred messages fill several of each kind."""


class SentMessage(NamedTuple):
    """One message that a test has sent."""

    end: int
    """The end of its record in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes


@final
class StoreWorld:
    """One store and its environment; see the module's docstring."""

    def __init__(
        self,
        disk: FaultyDisk | KillableDisk,
        root: str,
        settings: StoreSettings = TINY,
        volume: FaultyVolume | None = None,
    ) -> None:
        self.disk: Final = disk
        self.volume: Final = volume if volume is not None else FaultyVolume()
        """The volume for write buffers, if the settings have any."""
        self.root: Final = root
        self.settings = settings
        self.memory_scope = ""
        """The scope in which memory survives a kill, like the uid of a pod; a test changes it between two processes."""
        self.clock: Final = FakeClock()
        self.fatal: Final[list[Exception]] = []
        """Errors after which a broker would end, as the store has reported them."""
        self.sent: Final[list[SentMessage]] = []
        """All messages but half messages, in the order of the log."""
        self.records: Final[dict[int, bytes]] = {}
        """Every record as it was written, by its physical offset."""
        self._store: MessageStore | None = None
        self._serial = 0

    @property
    def store(self) -> MessageStore:
        assert self._store is not None, "open() comes first"
        return self._store

    @property
    def faulty_disk(self) -> FaultyDisk:
        assert isinstance(self.disk, FaultyDisk), "only the disk in memory has faults"
        return self.disk

    def make_store(self, on_fatal: Callable[[Exception], None] | None = None) -> MessageStore:
        """Return a store on this world's directory that is not open yet."""
        return MessageStore(
            self.root,
            self.settings,
            disk=self.disk,
            clock=self.clock,
            store_host=STORE_HOST,
            on_fatal=on_fatal if on_fatal is not None else self.fatal.append,
            open_volume=lambda _: self.volume,
            memory_scope=self.memory_scope,
        )

    def open(self) -> RecoveryReport:
        """Open the store, without a flush thread."""
        store = self.make_store()
        report = store.open(is_flushing=False)
        self.adopt(store)
        return report

    def adopt(self, store: MessageStore) -> None:
        """Use a store that the test has opened itself."""
        self._store = store

    def close(self) -> None:
        """Stop the store cleanly, with all data synced."""
        self.store.close()
        self._store = None

    def kill(self) -> None:
        """End the process at once; the page cache stays."""
        self.disk.kill()
        self.volume.kill()
        self._store = None

    def lose_power(self, seed: int | None = None) -> None:
        """Lose power: unsynced bytes are gone, or with a seed a random part of them."""
        self.clock.reboot(0)
        if seed is None:
            self.faulty_disk.lose_unsynced()
        else:
            self.faulty_disk.tear(seed)
        self.volume.lose_power()
        self._store = None

    # -- sending -------------------------------------------------------------------------------------------------------

    def draft(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        *,
        body: bytes | None = None,
        tag: str | None = None,
        keys: str = "",
        sys_flag: int = 0,
        delay_ms: int = 0,
    ) -> Draft:
        """Return one message with a serial number in its body and a unique key."""
        self._serial += 1
        properties = {UNIQUE_KEY: f"7F0000010A3C18B4AAC2{self._serial // 7:08X}{self._serial:04X}"}
        if keys:
            properties[KEYS] = keys
        if tag is not None:
            properties[TAGS] = tag
        return Draft(
            self.store.queues.get_or_create(topic, queue_id),
            body if body is not None else b"message %d" % self._serial,
            format_properties(properties).encode(),
            sys_flag,
            self._serial,
            self.clock.wall_ms(),
            BORN_HOST,
            0,
            0,
            tags_code(tag),
            delay_ms,
            (properties[UNIQUE_KEY], *keys.split()),
        )

    def append(self, drafts: Sequence[Draft], *, contiguous: bool = False) -> tuple[Sequence[int], Sequence[int]]:
        """Append drafts and record them."""
        store = self.store
        physical, offsets = store.append_contiguous(drafts) if contiguous else store.append(drafts)
        for draft, start, offset in zip(drafts, physical, offsets, strict=True):
            self.records[start] = store.guard.message_at(start) or b""
            if not draft.sys_flag & 0x4:
                end = start + draft.record_bytes(len(STORE_HOST))
                queue = draft.queue
                self.sent.append(SentMessage(end, queue.topic, queue.queue_id, offset, bytes(draft.body)))
        return physical, offsets

    def send(self, topic: str = "orders", count: int = 1, *, queue_id: int = 0) -> None:
        """Append ``count`` messages, one by one, a millisecond apart."""
        for _ in range(count):
            self.append([self.draft(topic, queue_id)])
            self.clock.advance(1)

    # -- reading -------------------------------------------------------------------------------------------------------

    def messages(self, topic: str = "orders", queue_id: int = 0) -> list[StoredMessage]:
        """Return every message of a queue, read as a consumer reads."""
        found: list[StoredMessage] = []
        queue = self.store.queues.get(topic, queue_id)
        offset = queue.min_offset if queue is not None else 0
        while True:
            try:
                result = self.store.read(topic, queue_id, offset, count_max=32, bytes_max=64 * 1024)
            except QueueRebuilding:
                self.repair()
                continue
            if result.next_offset == offset:
                return found
            found += decode_records(result.body)
            offset = result.next_offset

    def repair(self) -> None:
        """Let the repair of damaged files run to its end."""
        while self.store.repair.step():
            pass

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]

    def sent_bodies(self, topic: str = "orders", queue_id: int = 0, *, before: int | None = None) -> list[bytes]:
        """Return the bodies that were sent to a queue and end at or before a physical offset."""
        return [
            body
            for end, sent_topic, sent_queue, _, body in self.sent
            if (sent_topic, sent_queue) == (topic, queue_id) and (before is None or end <= before)
        ]

    def forget_after(self, end: int) -> None:
        """Remove records that end after ``end``, which a recovery has lost; they must not reappear."""
        self.sent[:] = [message for message in self.sent if message.end <= end]
        for start in [start for start in self.records if start >= end]:
            del self.records[start]

    def find_altered(self) -> int | None:
        """Return the offset of the first surviving record that was altered, or None."""
        for start, record in self.records.items():
            if self.store.guard.message_at(start) not in (record, None):
                return start
        return None

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def files(self, directory: str) -> dict[str, bytes]:
        """Return all files below a directory of the store, with their bytes."""
        found: dict[str, bytes] = {}
        for name in self.disk.list(self.path(directory)):
            path = posixpath.join(directory, name)
            if self.disk.is_directory(self.path(path)):
                found |= self.files(path)
            else:
                found[path] = self.disk.read_file(self.path(path))
        return found

    def fill_units(self, begin: int, end: int, *, topic: str = "orders", queue_id: int = 0, place: int = -1) -> None:
        """Turn the units ``[begin, end)`` of a stopped store into fillers, as recovery writes them for lost messages.

        Their physical offset is ``place``, by default that of the message with the number ``end``.
        """

        def find_unit(offset: int) -> tuple[str, int]:
            position = offset * UNIT_BYTES % self.settings.mapped_file_size_consume_queue
            return f"consumequeue/{topic}/{queue_id}/{segment_name(offset * UNIT_BYTES - position)}", position

        if place < 0:
            name, position = find_unit(end)
            place = UNIT.unpack_from(self.disk.read_file(self.path(name)), position)[0]
        for offset in range(begin, end):
            self.overwrite(*find_unit(offset), UNIT.pack(place, FILLER_SIZE, 0))

    def overwrite(self, name: str, position: int, data: bytes) -> None:
        """Change bytes of a file durably, bypassing the store."""
        file = self.disk.open(self.path(name))
        file.reserve(position + len(data))
        file.pwrite(data, position)
        file.sync()
        file.close()


def make_world(kind: str, directory: Path, settings: StoreSettings = TINY) -> StoreWorld:
    """Return a world on the ``real`` disk or on the ``faulty`` one in memory."""
    if kind == "real":
        return StoreWorld(KillableDisk(), str(directory / "store"), settings)
    return StoreWorld(FaultyDisk(), "/data/store", settings)
