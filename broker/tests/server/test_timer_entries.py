"""Entries of the due files sort by due time, follow from their records alone, and show damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.server.timers.entries import (
    ENTRY_BYTES,
    MESSAGE,
    RECALL,
    REPLACED,
    Entry,
    cancels,
    decode_entry,
    due_of,
    entries_of,
    first_key,
    hash_key,
    is_intact,
    replaces,
)
from gantry_wire.message import StoredMessage, encode_record
from gantry_wire.properties import encode_properties

TOPIC = "Orders"
NOW_MS = 1_700_000_000_000
UNIQUE = "A" * 32

ENTRIES = st.builds(
    Entry,
    due_ms=st.integers(0, (1 << 62) - 1),
    kind=st.sampled_from((RECALL, REPLACED, MESSAGE)),
    queue_offset=st.integers(0, (1 << 62) - 1),
    origin=st.integers(0, (1 << 62) - 1),
    key_hash=st.integers(0, (1 << 64) - 1),
)


def record(queue_offset: int = 5, **pairs: str) -> bytes:
    """Return a record of the timer topic."""
    properties = {"REAL_TOPIC": TOPIC, "REAL_QID": "3", "UNIQ_KEY": UNIQUE, **pairs}
    return encode_record(
        StoredMessage(
            topic="rmq_sys_wheel_timer",
            queue_id=0,
            body=b"body",
            queue_offset=queue_offset,
            physical_offset=1000,
            store_timestamp_ms=NOW_MS,
            properties_bytes=encode_properties(properties),
        )
    )


def entries(queue_offset: int = 5, /, **pairs: str) -> list[Entry]:
    data = record(queue_offset, **pairs)
    return [decode_entry(one) for one in entries_of(data, 0, len(data))]


@given(ENTRIES)
def test_entry_survives_encoding(entry: Entry) -> None:
    """Decoding returns what was encoded, and the bytes have a valid checksum."""
    data = entry.encode()

    assert (len(data), is_intact(data), due_of(data)) == (ENTRY_BYTES, True, entry.due_ms)
    assert decode_entry(data) == entry


@given(st.lists(ENTRIES, max_size=20))
def test_bytes_sort_as_entries_do(found: list[Entry]) -> None:
    """The files are sorted by comparing bytes, which is the order of due time, kind and queue offset."""
    assert [decode_entry(one) for one in sorted(entry.encode() for entry in found)] == sorted(found)


@given(ENTRIES, st.integers(0, ENTRY_BYTES - 1), st.integers(1, 255))
def test_changed_byte_is_found(entry: Entry, position: int, mask: int) -> None:
    """Every changed byte makes the entry invalid; an entry of zeros, as after a torn write, is invalid too."""
    data = bytearray(entry.encode())
    data[position] ^= mask

    assert not is_intact(bytes(data))
    assert not is_intact(bytes(ENTRY_BYTES))


@given(ENTRIES)
def test_first_key_separates_due_times(entry: Entry) -> None:
    """The key of a time sorts before the entries that are due then, and after earlier ones."""
    assert first_key(entry.due_ms) <= entry.encode() < first_key(entry.due_ms + 1)


def test_own_record_is_due_one_millisecond_after_its_property() -> None:
    """Gantry's TIMER_OUT_MS is exact, and other properties of the message do not count."""
    [entry] = entries(TIMER_OUT_MS=str(NOW_MS + 41), TIMER_DELAY_SEC="99")

    key_hash = hash_key(TOPIC.encode(), UNIQUE.encode())
    assert entry == Entry(NOW_MS + 42, MESSAGE, queue_offset=5, origin=5, key_hash=key_hash)


@pytest.mark.parametrize(
    ("pairs", "due_ms"),
    [
        ({"TIMER_DELIVER_MS": str(NOW_MS + 2_345)}, NOW_MS + 2_345),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 9_345)}, NOW_MS + 3_000),
        ({"TIMER_DELIVER_MS": str(NOW_MS)}, NOW_MS + 2_001),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "1"}, NOW_MS + 2_001),
        ({"TIMER_DELAY_MS": "2500"}, NOW_MS + 2_500),
        ({"TIMER_DELAY_MS": "2500", "TIMER_ROLL_TIMES": "1"}, NOW_MS + 3_000),
        ({}, NOW_MS + 3_000),
    ],
    ids=str,
)
def test_record_of_rocketmq_is_never_due_early(pairs: dict[str, str], due_ms: int) -> None:
    """RocketMQ rounds down, so the exact time follows from the other properties, within its precision of a second."""
    found = entries(TIMER_OUT_MS=str(NOW_MS + 2_000), **pairs)

    assert found[0].due_ms == due_ms


@pytest.mark.parametrize("text", ["", "x", "-5", "1" * 19])
def test_record_without_a_valid_time_has_no_entry(text: str) -> None:
    """Such a record cannot be delivered at any time."""
    assert entries(TIMER_OUT_MS=text) == []


@pytest.mark.parametrize("key", [f"{TOPIC}+{UNIQUE}", UNIQUE])
def test_recall_cancels_earlier_messages_with_its_key(key: str) -> None:
    """A recall record cancels messages with its topic and unique id that were stored before it, and are due with it."""
    [recall] = entries(9, TIMER_OUT_MS=str(NOW_MS + 41), TIMER_DEL_UNIQKEY=key)
    [message] = entries(TIMER_OUT_MS=str(NOW_MS + 41))

    assert (recall.kind, recall.key_hash) == (RECALL, message.key_hash)
    assert cancels(recall, message)
    assert not cancels(recall, message._replace(queue_offset=10, origin=10))
    assert not cancels(recall, message._replace(due_ms=message.due_ms + 1_000))


def test_copy_names_its_first_copy_and_replaces_the_last() -> None:
    """A message that was stored again has the origin of its first copy, and the copy before it is not delivered."""
    message, replaced = entries(9, TIMER_OUT_MS=str(NOW_MS + 41), TIMER_COPY_OF="2,7")

    assert (message.queue_offset, message.origin) == (9, 2)
    assert (replaced.kind, replaced.queue_offset, replaced.origin) == (REPLACED, 7, 9)


@pytest.mark.parametrize(
    ("pairs", "is_same"),
    [
        ({}, True),
        ({"UNIQ_KEY": "C" * 32}, False),
        ({"REAL_TOPIC": "Payments"}, False),
        ({"TIMER_OUT_MS": str(NOW_MS + 40)}, False),
        ({"TIMER_OUT_MS": str(NOW_MS + 1_041)}, False),
        ({"TIMER_COPY_OF": "4,5"}, False),
        ({"TIMER_DEL_UNIQKEY": UNIQUE}, False),
    ],
    ids=str,
)
def test_copy_replaces_only_its_own_message(pairs: dict[str, str], is_same: bool) -> None:
    """A copy has the topic, the key, the time and the first copy of the message before it."""
    [message] = entries(5, TIMER_OUT_MS=str(NOW_MS + 41))
    copy = entries(9, **{"TIMER_OUT_MS": str(NOW_MS + 41), "TIMER_COPY_OF": "5,5", **pairs})[0]

    assert replaces(copy, message) == is_same


@pytest.mark.parametrize("text", ["", "2", "2,", "7,2", "2,9", "x,y", "-1,2"])
def test_invalid_reference_of_a_copy_is_ignored(text: str) -> None:
    """A copy whose reference is not valid counts as a message of its own: it is delivered, and nothing is replaced."""
    [message] = entries(9, TIMER_OUT_MS=str(NOW_MS + 41), TIMER_COPY_OF=text)

    assert message.origin == 9


def test_copy_of_rocketmq_cancels_the_copies_before_it() -> None:
    """RocketMQ stores a message again without a reference, so all earlier copies with its key are cancelled."""
    message, recall = entries(9, TIMER_OUT_MS=str(NOW_MS + 2_000), TIMER_ROLL_TIMES="1")
    [earlier] = entries(4, TIMER_OUT_MS=str(NOW_MS + 2_000))

    assert cancels(recall, earlier)
    assert not cancels(recall, message)
