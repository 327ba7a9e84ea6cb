"""The fast path of reading a log finds the same records and fields as the general path, and leaves the same files.

The fast path reads *plain* records (``plain_records``): messages in a queue with IPv4 hosts and a short topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.store import recovery
from gantry_broker.store.draft import Draft
from gantry_broker.store.identity import LOG_END_MAX, OwnershipRange
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.record_dispatch import RecordFields, parse_plain_record_fields, parse_record_fields
from gantry_broker.store.recovery import INFINITE, ScanResult, scan_log
from gantry_broker.store.settings import StoreSettings
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, encode_record
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.plain_records import PlainRecord, keys_of, tag_of
from gantry_wire.properties import format_properties, message_keys, parse_properties

LEVELS_MS = StoreSettings().delay_levels_ms
V6_HOST = bytes(range(16)) + b"\0\0\x27\x10"

pieces = st.sampled_from(
    (
        "KEYS\x01",
        "TAGS\x01",
        "UNIQ_KEY\x01",
        "XKEYS\x01",
        "KEYS",
        "\x02",
        "\x01",
        " ",
        "a",
        "b c",
        "é",
        "DELAY\x013",
        "INNER_NUM\x013\x02",
    )
)
property_strings = st.lists(pieces, max_size=12).map("".join)


@settings(max_examples=500)
@given(property_strings, st.binary(max_size=3))
def test_keys_and_tags_are_those_of_the_parsed_properties(text: str, more: bytes) -> None:
    """Names inside other names and values, missing ends, duplicate names, broken UTF-8: all are read alike."""
    data = text.encode() + more
    properties = parse_properties(data.decode("utf-8", "replace"))

    assert keys_of(data) == message_keys(properties)
    assert tags_code(tag_of(data).decode("utf-8", "replace")) == tags_code(properties.get("TAGS"))


@st.composite
def record_logs(draw: st.DrawFn) -> tuple[bytes, bool]:
    """Draw a log of one file, and whether its records are sealed. Some bytes may be wrong."""
    data = bytearray()
    is_sealed = draw(st.booleans())
    for number in range(draw(st.integers(1, 12))):
        host = draw(st.sampled_from((bytes(8), bytes(8), bytes(8), V6_HOST)))
        data += encode_record(
            StoredMessage(
                topic=draw(st.sampled_from(("t", "t", "t", SCHEDULE_TOPIC, "topic" * 40))),
                queue_id=draw(st.integers(0, 2)), body=bytes(draw(st.integers(0, 80))), queue_offset=number,
                physical_offset=len(data), sys_flag=draw(st.sampled_from((0, 0, 0, 1, 4, 8, 12, 0xC0))), born_host=host,
                store_host=host, store_timestamp_ms=1_000 + number,
                properties_bytes=draw(property_strings).encode(),
            ),
            is_sealed=is_sealed if draw(st.integers(0, 9)) else not is_sealed,
        )  # fmt: skip
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data) + bytes(200), is_sealed


class OneFile:
    """A log that consists of one file."""

    base_offset = 0

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))
        self.end_offset = len(data)

    def advise(self, start: int, end: int) -> None:
        """Do nothing, since all bytes are in memory."""


def read(data: bytes, is_sealed: bool, mark: int, *, is_short: bool) -> tuple[ScanResult, list[Any], int]:
    """Scan a log: the result, (offset, size, fields) of each record, and how many took the fast path."""
    found: list[tuple[int, int, RecordFields]] = []
    short = 0

    def on_record(view: memoryview, position: int, physical: int, size: int) -> None:
        found.append((physical, size, parse_record_fields(view, position, size, LEVELS_MS)))

    def run(records: Iterable[PlainRecord], physical: int) -> int:
        nonlocal short
        for record in records:
            short += 1
            physical = record[0] + record[1]
            found.append((record[0], record[1], parse_plain_record_fields(record, LEVELS_MS)))
        return physical

    result = scan_log(
        [OneFile(data)], 0, mark, on_record,
        on_plain_records=run if is_short else None, seals=lambda _offset: OwnershipRange(is_sealed, LOG_END_MAX),
    )  # fmt: skip
    return result, found, short


@pytest.mark.verify
@settings(max_examples=500)
@given(record_logs(), st.sampled_from((0, 300, INFINITE)))
def test_fast_path_finds_the_same_as_general_path(log: tuple[bytes, bool], mark: int) -> None:
    """Records of every kind, sealed or not, damaged or not: the same records, damage and end."""
    plain, one_by_one = read(*log, mark, is_short=True), read(*log, mark, is_short=False)

    assert plain[:2] == one_by_one[:2]


def test_messages_of_a_queue_take_the_fast_path() -> None:
    """Otherwise the test above would compare the general path with itself."""
    data = b""
    for number in range(10):
        message = StoredMessage(topic="t", queue_id=0, body=b"x" * 100, queue_offset=number, physical_offset=len(data))
        data += encode_record(message, is_sealed=True)

    assert read(data, True, 0, is_short=True)[2] == 10


@pytest.mark.parametrize("is_deleted", [False, True])
def test_both_paths_leave_the_same_files(is_deleted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues and index are equal byte for byte, over rolls, a deleted topic and several messages a millisecond."""
    disk, clock = FaultyDisk(), FakeClock()
    store = open_store(disk, clock)
    for number in range(60):
        store.append([draft(store, topic, number) for topic in ("orders", "bills", SCHEDULE_TOPIC)])
        clock.advance(number % 2)
        if is_deleted and number == 30:
            store.delete_topic("bills")
    store.flush()
    disk.kill()
    for name in ("consumequeue", "index"):
        disk.remove_tree(f"/store/{name}")
    if not is_deleted:
        disk.remove("/store/recovery-point.json")
    other = disk.copy()

    assert open_store(disk, clock).dispatcher.dispatched > 10_000
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "PlainRun", lambda *_, **__: iter(()))
        open_store(other, clock)

    assert files_of(disk) == files_of(other)
    assert ("consumequeue/bills/0/00000000000000000000" in files_of(disk)) and "index 1" in files_of(disk)


def open_store(disk: FaultyDisk, clock: FakeClock) -> MessageStore:
    store = MessageStore("/store", TINY, disk=disk, clock=clock, store_host=bytes(8), on_fatal=lambda exc: None)
    store.open(is_flushing=False)
    return store


def draft(store: MessageStore, topic: str, number: int) -> Draft:
    """Build a message with a tag and a key of its user."""
    unique, key, tag = f"7F0000010A3C18B4AAC2{number // 7:08X}{number:04X}", f"key {number}", f"tag{number % 5}"
    properties = format_properties({"UNIQ_KEY": unique, "KEYS": key, "TAGS": tag}).encode()
    queue = store.queues.get_or_create(topic, number % 3)
    return Draft(queue, b"x" * 40, properties, 0, 0, 0, bytes(8), 0, 0, tags_code(tag), 0, (unique, *key.split()))


def files_of(disk: FaultyDisk) -> dict[str, bytes]:
    """Return all files of queues and index, without the time in an index file's name."""
    root = "/store"
    found = {}
    for number, name in enumerate(disk.list(f"{root}/index")):
        found[f"index {number}"] = disk.read_file(f"{root}/index/{name}")
    for topic in disk.list(f"{root}/consumequeue"):
        for queue in disk.list(f"{root}/consumequeue/{topic}"):
            for name in disk.list(f"{root}/consumequeue/{topic}/{queue}"):
                path = f"consumequeue/{topic}/{queue}/{name}"
                found[path] = disk.read_file(f"{root}/{path}")
    return found
