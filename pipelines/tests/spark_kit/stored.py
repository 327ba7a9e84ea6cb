"""Records for tests of decoding: a log in memory, and each record as the wire's decoder and the client decode it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from gantry_client.messages import to_received_message
from gantry_wire.message import (
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSED,
    StoredMessage,
    decode_record,
    encode_record,
)
from gantry_wire.properties import KEYS, RECORD_CRC, TAGS, UNIQUE_KEY
from pyspark_rocketmq.model import QueueId, QueueRange, Task, TransportKind
from pyspark_rocketmq.replica_view import Expected, Piece
from pyspark_rocketmq.schema import COLUMNS

BROKER = "broker-a"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stored(NamedTuple):
    """A log in memory with its messages."""

    data: bytes
    starts: list[int]
    messages: list[StoredMessage]
    """The messages as the wire's own decoder reads them."""


def stored(messages: Sequence[StoredMessage], *, gaps: Sequence[int] = (0,), is_sealed: bool = False) -> Stored:
    """Return a log of these records, with so many foreign bytes before each."""
    data = bytearray()
    starts: list[int] = []
    for number, message in enumerate(messages):
        data += b"\xda" * gaps[number % len(gaps)]
        starts.append(len(data))
        data += encode_record(replace(message, physical_offset=len(data)), is_sealed=is_sealed)
    return Stored(bytes(data), starts, [decode_record(bytes(data), start) for start in starts])


def queues_of(log: Stored) -> list[QueueId]:
    return sorted({QueueId(one.topic, BROKER, one.queue_id) for one in log.messages})


def task_for(log: Stored, columns: Sequence[str] = COLUMNS, tags: frozenset[str] | None = None) -> Task:
    """Return a task that reads the whole log."""
    ranges = tuple(QueueRange(queue, 0, 1 << 40) for queue in queues_of(log))
    return Task(BROKER, (), TransportKind.FILE, ranges, tuple(columns), tags)


def piece_of(log: Stored, task: Task) -> Piece:
    """Return the whole log as one piece that expects exactly its records."""
    order = {one.queue: number for number, one in enumerate(task.ranges)}
    expected = Expected(
        np.array([order[QueueId(one.topic, BROKER, one.queue_id)] for one in log.messages], np.int64),
        np.array([one.queue_offset for one in log.messages], np.int64),
        np.array(log.starts, np.int64),
        np.array([one.size for one in log.messages], np.int64),
    )
    return Piece(np.frombuffer(log.data, np.uint8), np.array(log.starts, np.int64), expected, task, "a test")


def row_of(message: StoredMessage) -> dict[str, Any]:
    """Return the expected row, computed from one record without numpy."""
    got = to_received_message(message, BROKER)
    properties = {name: value for name, value in got.properties.items() if name != RECORD_CRC}
    return {
        "topic": message.topic,
        "broker": BROKER,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tags": got.properties.get(TAGS),
        "keys": got.properties.get(KEYS),
        "messageId": got.properties.get(UNIQUE_KEY) or got.offset_message_id,
        "bornTime": _time(message.born_timestamp_ms),
        "storeTime": _time(message.store_timestamp_ms),
        "bornHost": got.born_host,
        "storeHost": got.store_host,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "physicalOffset": message.physical_offset,
        "size": message.size,
        "bodySize": len(message.body),
        "properties": list(properties.items()),
        "body": _body(message),
    }


def _time(milliseconds: int) -> datetime | None:
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _body(message: StoredMessage) -> bytes | None:
    kind = message.sys_flag & COMPRESSION_MASK
    if message.sys_flag & FLAG_COMPRESSED and kind in (COMPRESSION_LZ4, COMPRESSION_ZSTD):
        try:
            codec = "lz4" if kind == COMPRESSION_LZ4 else "zstd"
            return bytes(pa.CompressedInputStream(pa.BufferReader(message.body), codec).read())  # type: ignore[arg-type]
        except (OSError, pa.ArrowException):
            return None
    got = to_received_message(message, BROKER)
    return None if got.body_fault else got.stored_body
