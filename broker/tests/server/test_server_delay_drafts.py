"""Drafts of delayed messages: body and properties of a record are copied byte for byte, unless it is damaged."""

import pytest
from msgspec.structs import replace

from gantry_broker.server.delay.drafts import due_drafts, remove_seal
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, decode_record, encode_record
from gantry_wire.properties import format_properties

STORED_MS = 1_000_000
DELAY_MS = 5_000
V6 = bytes(range(16)) + b"\0\0\x2a\x9f"
PAIRS = {"UNIQ_KEY": "U" * 32, "KEYS": "k1 k2", "TAGS": "A", "DELAY": "2", "REAL_TOPIC": "Orders", "REAL_QID": "3"}


class FakeQueues:
    """A fake of the store's queues: each queue is its own name."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def find(self, topic: str, queue_id: int) -> ConsumeQueue:
        self.asked.append((topic, queue_id))
        return f"{topic}/{queue_id}"  # type: ignore[return-value]


def message(offset: int = 0, **more: str) -> StoredMessage:
    return StoredMessage(
        topic="SCHEDULE_TOPIC_XXXX", queue_id=1, body=b"body %d" % offset, queue_offset=offset, flag=7, sys_flag=0x2,
        born_timestamp_ms=99, store_timestamp_ms=STORED_MS + offset, reconsume_times=4,
        properties_bytes=format_properties({**PAIRS, **more}).encode(),
    )  # fmt: skip


def due_records(data: bytes, at_ms: int = STORED_MS + DELAY_MS + 1000) -> tuple[list[bytes], int | None, int | None]:
    """Return (bodies, end, due time of the next)."""
    found = due_drafts(data, delay_ms=DELAY_MS, now_ms=at_ms, find_queue=FakeQueues().find)
    return [bytes(draft.body) for draft in found.drafts], found.end, found.next_ms


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "plain"])
@pytest.mark.parametrize("born", [b"\x0a\0\0\1\0\0\0\5", V6], ids=["born v4", "born v6"])
@pytest.mark.parametrize("host", [b"\x0a\0\0\2\0\0\0\6", V6], ids=["store v4", "store v6"])
def test_copy_has_everything_of_the_original(is_sealed: bool, born: bytes, host: bytes) -> None:
    """Body, flags, born host and properties are the sender's; the queue is the real one; there is no delay any more."""
    original = replace(message(5), born_host=born, store_host=host)
    record = encode_record(original, is_sealed=is_sealed)

    [draft] = due_drafts(record, delay_ms=DELAY_MS, now_ms=10**9, find_queue=FakeQueues().find).drafts

    stored = decode_record(record)
    assert str(draft.queue) == "Orders/3"
    assert draft.body == original.body
    assert draft.properties == original.properties_bytes
    assert draft.sys_flag == stored.sys_flag & ~0x20
    assert (draft.flag, draft.born_timestamp_ms, draft.born_host) == (7, 99, born)
    assert (draft.reconsume_times, draft.prepared_offset, draft.delay_ms) == (4, 0, 0)
    assert draft.tags_code == tags_code("A")
    assert draft.keys == ("U" * 32, "k1", "k2")


def test_no_message_is_delivered_early() -> None:
    """One millisecond before its due time a message waits, and its due time is returned; earlier ones are due."""
    records = b"".join(encode_record(message(offset), is_sealed=True) for offset in range(5))

    at_ms = STORED_MS + DELAY_MS
    assert due_records(records, at_ms - 1) == ([], None, at_ms)
    assert due_records(records, at_ms + 1) == ([b"body 0", b"body 1"], 2, at_ms + 2)
    assert due_records(records, at_ms + 4) == ([b"body %d" % offset for offset in range(5)], 5, None)


def test_damaged_message_is_never_copied() -> None:
    """It ends a slice, and is skipped if it is the first; its copy would have a valid seal."""
    good, damaged = (encode_record(message(offset), is_sealed=True) for offset in (7, 8))
    damaged = damaged.replace(b"body 8", b"BODY 8")

    assert due_records(good + damaged) == ([b"body 7"], 8, None)
    assert due_records(damaged + good) == ([], 9, None)


@pytest.mark.parametrize(
    "more",
    [
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "../etc"},
        {"REAL_QID": ""},
        {"REAL_QID": "-1"},
        {"REAL_QID": "x"},
        {"REAL_QID": "2147483648"},
        {"REAL_QID": "1" * 5000},
    ],
    ids=lambda more: str(more)[:40],
)
def test_message_without_a_destination_is_skipped(more: dict[str, str]) -> None:
    """A message without a valid real topic and queue is skipped; the following ones are delivered."""
    records = encode_record(message(0, **more)) + encode_record(message(1))

    assert due_records(records) == ([b"body 1"], 2, None)


def test_each_destination_is_looked_up_once() -> None:
    """Fifty messages for one queue look it up once."""
    queues = FakeQueues()
    records = b"".join(encode_record(message(offset)) for offset in range(50))

    found = due_drafts(records, delay_ms=DELAY_MS, now_ms=10**9, find_queue=queues.find)

    assert len(found.drafts) == 50
    assert queues.asked == [("Orders", 3)]


PROPERTIES = {
    "as written": (b"A\x01b\x02", b"A\x01b\x02"),
    "none": (b"", b""),
    "open end": (b"A\x01b", b"A\x01b"),
    "stale seal first": (b"__CRC32#\x010123456789\x02A\x01b\x02", b"A\x01b\x02"),
    "stale seal inside": (b"A\x01b\x02__CRC32#\x010123456789\x02C\x01d\x02", b"A\x01b\x02C\x01d\x02"),
    "good seal": (b"A\x01b\x02__CRC32#\x010123456789\x02", b"A\x01b\x02"),
}


@pytest.mark.parametrize(("raw", "wanted"), PROPERTIES.values(), ids=PROPERTIES.keys())
def test_seal_is_not_copied(raw: bytes, wanted: bytes) -> None:
    """The copy gets a seal of its own, since the old one belongs to the old record."""
    data = b"x" * 100 + raw

    assert remove_seal(data, 100, len(data)) == wanted


def test_last_of_two_equal_properties_counts() -> None:
    """As in Java's map, and a name that ends like another is not that one."""
    text = "NOT_REAL_TOPIC\x01No\x02REAL_TOPIC\x01First\x02REAL_QID\x011\x02REAL_TOPIC\x01Second\x02"
    record = encode_record(replace(message(), properties_bytes=text.encode()))
    queues = FakeQueues()

    due_drafts(record, delay_ms=0, now_ms=10**9, find_queue=queues.find)

    assert queues.asked == [("Second", 1)]
