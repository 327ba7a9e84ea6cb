"""Batches: a record that is a batch is taken apart as RocketMQ's clients do it."""

from __future__ import annotations

import pytest

from gantry_wire.batch import BatchEntry, encode_batch, split_record
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import FLAG_INNER_BATCH, FLAG_MULTI_TAGS, FLAG_NEED_UNWRAP, StoredMessage

ENTRIES = [BatchEntry(5, b"first", b"TAGS\x01a\x02"), BatchEntry(6, b"second", b"")]


def batch_record(sys_flag: int, body: bytes = b"") -> StoredMessage:
    """Return a record with these flags whose body is a batch."""
    return StoredMessage(
        topic="orders", queue_id=3, body=body or encode_batch(ENTRIES), queue_offset=7, physical_offset=900,
        sys_flag=sys_flag, store_timestamp_ms=1_000, properties_bytes=b"TAGS\x01of all\x02",
    )  # fmt: skip


def test_batch_in_one_record_is_taken_apart() -> None:
    """Each message has its own offset, body, flag and properties; hosts, times and physical offset are the record's."""
    first, second = split_record(batch_record(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP | FLAG_MULTI_TAGS))

    assert (first.queue_offset, first.body, first.flag, first.properties) == (7, b"first", 5, {"TAGS": "a"})
    assert (second.queue_offset, second.body, second.flag, second.properties) == (8, b"second", 6, {})
    for one in (first, second):
        assert (one.queue_id, one.physical_offset, one.store_timestamp_ms) == (3, 900, 1_000)
        assert one.sys_flag == FLAG_MULTI_TAGS


@pytest.mark.parametrize("sys_flag", [0, FLAG_INNER_BATCH, FLAG_NEED_UNWRAP])
def test_other_records_stay_as_they_are(sys_flag: int) -> None:
    """RocketMQ's clients take a record apart only if both flags are set."""
    record = batch_record(sys_flag)

    assert split_record(record) == [record]


def test_malformed_batch_is_refused() -> None:
    """A record with the flags whose body is not a batch is an error."""
    with pytest.raises(RemoteProtocolError):
        split_record(batch_record(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP, b"no batch"))
