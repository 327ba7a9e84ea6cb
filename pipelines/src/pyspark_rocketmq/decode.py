"""Turn pieces of a log into Arrow batches: only the requested columns, a column at a time.

Rows come in the order of the piece, and are exactly its records, except those with another tag than requested: a queue
unit has only the hash of a tag, so the tag itself is compared here. A compressed body is decompressed. If that fails,
its CRC is verified. If it matches, the body is as it was sent, but of an unknown codec, or too large; then `body` is
null: with an error no query could ever read beyond the message. If it differs, another replica may have a better one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gantry_wire.compress import inflate_body
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.message import (
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSED,
    offset_message_id,
)
from gantry_wire.properties import KEYS, TAGS, UNIQUE_KEY
from pyspark_rocketmq.errors import DamagedRecord
from pyspark_rocketmq.model import Task
from pyspark_rocketmq.property_columns import PropertyColumns, cut_out, indices
from pyspark_rocketmq.records import Damage, Records
from pyspark_rocketmq.replica_view import Numbers, Piece
from pyspark_rocketmq.schema import arrow_schema

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of decompressed bodies in one batch, at most; the body that exceeds it is the batch's last."""
STORED_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of bodies, as they are stored, in one batch, at most: Arrow's binary columns end at 2 GiB."""
TIME_MS_MIN: Final = -62_135_596_800_000
"""The beginning of the year 1, the first time that Spark can show."""
TIME_MS_END: Final = 253_402_300_800_000
"""Years 1 to 9999, which Spark can show. A sender may have written any number as a time."""

_CODECS: Final[dict[int, Literal["lz4", "zstd"]]] = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}
"""The codecs that RocketMQ 5 added, by Arrow's names."""


def decode(piece: Piece, task: Task, *, batch_rows: int, is_body_verified: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece. Raises DamagedRecord before the first row if any record is not the expected one.

    `is_body_verified`: verify the CRC of every body, and not only of those whose compression has no checksum.
    """
    queues = [one.queue for one in task.ranges]
    try:
        records = Records(piece.data, piece.starts)
        records.check(piece.expected, queues, is_body_verified=is_body_verified)
        batches = _batches(records, piece, task, batch_rows)
        yield from batches if is_body_verified or "body" not in task.columns else _check_compressed(records, batches)
    except Damage as damage:
        raise _damaged_record(damage, piece, task) from damage


def _batches(records: Records, piece: Piece, task: Task, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, records.count, batch_rows):
        yield from _Slice(records, piece.expected.queue, first, min(first + batch_rows, records.count), task).batches()


def _check_compressed(records: Records, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a piece after each compressed body was decompressed, or its CRC verified.

    A body that zlib can decompress needs no check of its CRC: zlib's format has a checksum, unlike RocketMQ's LZ4 and
    Zstandard. So batches are kept until the last is decoded; if they
    would take too much memory, the CRCs are verified instead.
    """
    packed = np.flatnonzero((records.sys_flag & FLAG_COMPRESSED) != 0)
    kept: list[pa.RecordBatch] = []
    kept_bytes = 0
    for batch in batches if len(packed) else ():
        kept.append(batch)
        kept_bytes += batch.nbytes
        if kept_bytes > UNPACKED_BYTES_MAX:
            records.check_bodies(packed)
            break
    yield from kept
    yield from batches


def _damaged_record(damage: Damage, piece: Piece, task: Task) -> DamagedRecord:
    row, expected = damage.row, piece.expected
    queue = task.ranges[int(expected.queue[row])].queue
    place = "" if expected.physical is None else f", physical offset {int(expected.physical[row])}"
    return DamagedRecord(
        f"{piece.where}: the record of {queue} at offset {int(expected.offset[row])}{place} is damaged: {damage.reason}"
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """The rows `[first, end)` of a piece."""

    records: Records
    queue: Numbers
    """The queue of each record, as an index into the ranges of the task."""

    first: int
    end: int
    task: Task

    def batches(self) -> Iterator[pa.RecordBatch]:
        columns = self.task.columns
        rows: Numbers = np.arange(self.first, self.end)
        properties: PropertyColumns | None = None
        if self.task.tags is not None or _NEEDS_PROPERTIES.intersection(columns):
            records = self.records
            properties = PropertyColumns(records.data, records.properties_starts[rows], records.ends[rows])
        if self.task.tags is not None and properties is not None:
            wanted = pa.array(sorted(self.task.tags), pa.string())
            kept = np.flatnonzero(pc.is_in(properties.values(TAGS), value_set=wanted).to_numpy(zero_copy_only=False))
            if len(kept) < len(rows):
                rows, records = rows[kept], self.records
                properties = PropertyColumns(records.data, records.properties_starts[rows], records.ends[rows])
        builder = _ColumnBuilder(self, rows, properties)
        schema = arrow_schema(columns)
        plain = {name: _COLUMN_BUILDERS[name](builder) for name in columns if name != "body"}
        for start, end, body in builder.bodies() if "body" in columns else [(0, len(rows), None)]:
            if start == end:
                continue
            arrays: list[Any] = [body if name == "body" else plain[name].slice(start, end - start) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@final
class _ColumnBuilder:
    """Builds the columns of some rows one by one."""

    def __init__(self, part: _Slice, rows: Numbers, properties: PropertyColumns | None) -> None:
        self.records = part.records
        self.task = part.task
        self.rows = rows
        self.queue = part.queue
        self._properties = properties

    @property
    def properties(self) -> PropertyColumns:
        assert self._properties is not None, "properties are parsed whenever a column needs them"
        return self._properties

    def number(self, values: npt.NDArray[Any], kind: Any) -> Any:
        return pa.array(values[self.rows], kind)

    def time(self, values: Numbers) -> Any:
        chosen = values[self.rows]
        is_no_time = (chosen < TIME_MS_MIN) | (chosen >= TIME_MS_END)
        chosen = np.where(is_no_time, 0, chosen) * 1000
        return pa.array(chosen, mask=is_no_time if is_no_time.any() else None).cast(pa.timestamp("us", tz="UTC"))

    def topic(self) -> Any:
        names = [one.queue.topic for one in self.task.ranges]
        if len(set(names)) == 1:
            return pa.repeat(pa.scalar(names[0], pa.string()), len(self.rows))
        return pa.array(names, pa.string()).take(indices(self.queue[self.rows]))

    def host(self, *, is_born: bool) -> Any:
        records, rows = self.records, self.rows
        short = (records.born_host if is_born else records.store_host)[rows]
        is_long = (records.born_host_v6 if is_born else records.store_host_v6)[rows]
        if is_long.any():
            return pa.array([host_text(records.host_bytes(row, is_born=is_born)) for row in rows.tolist()], pa.string())
        distinct, codes = np.unique(short, return_inverse=True)
        texts = pa.array([host_text(one.to_bytes(8, "big")) for one in distinct.tolist()], pa.string())
        return texts.take(indices(codes.reshape(-1)))

    def message_id(self) -> Any:
        ids = self.properties.values(UNIQUE_KEY)
        missing = np.flatnonzero(
            pc.fill_null(pc.equal(ids, pa.scalar("", pa.string())), True).to_numpy(zero_copy_only=False)
        )
        if not len(missing):
            return ids
        found: list[str | None] = ids.to_pylist()
        for place in missing.tolist():
            row = int(self.rows[place])
            host = self.records.host_bytes(row, is_born=False)
            found[place] = offset_message_id(host, int(self.records.physical[row]))
        return pa.array(found, pa.string())

    def bodies(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (first row, end, their bodies), in slices that fit in one batch."""
        records, rows = self.records, self.rows
        starts, ends = records.body_starts[rows], records.body_ends[rows]
        is_packed = (records.sys_flag[rows] & FLAG_COMPRESSED) != 0
        first = 0
        while first < len(rows):
            stored = np.cumsum(ends[first:] - starts[first:])
            end = first + max(1, int(np.searchsorted(stored, STORED_BYTES_MAX, "right")))
            unpacked: list[bytes | None] = []
            total = 0
            for place in np.flatnonzero(is_packed[first:end]).tolist():
                row = first + place
                body = _decompress(records.data[starts[row] : ends[row]].tobytes(), int(records.sys_flag[rows[row]]))
                if body is None or int(records.sys_flag[rows[row]]) & COMPRESSION_MASK in _CODECS:
                    records.check_bodies(rows[row : row + 1])
                unpacked.append(body)
                total += len(body or b"")
                if total > UNPACKED_BYTES_MAX:
                    end = row + 1
                    break
            column = cut_out(records.data, starts[first:end], ends[first:end]).cast(pa.binary())
            if unpacked:
                mask = pa.array(is_packed[first:end])
                column = pc.replace_with_mask(column, mask, pa.array(unpacked, pa.binary()))
            yield first, end, column
            first = end


def host_text(raw: bytes) -> str:
    """Format a host as records hold it; a port outside 0 to 65535 is shown as it is stored."""
    address, port = ipaddress.ip_address(raw[:-4]), int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _decompress(body: bytes, sys_flag: int) -> bytes | None:
    """Return the decompressed body; None for an unknown codec, a damaged body, or one that is too large."""
    codec = _CODECS.get(sys_flag & COMPRESSION_MASK)
    try:
        if codec is None:
            return inflate_body(body, sys_flag)
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            found: bytes = stream.read(BODY_INFLATED_BYTES_MAX + 1)
    except (RemoteProtocolError, OSError, pa.ArrowException):
        return None
    return found if len(found) <= BODY_INFLATED_BYTES_MAX else None


_NEEDS_PROPERTIES: Final = frozenset({"tags", "keys", "messageId", "properties"})
"""The columns whose values are in the properties of a message."""

_COLUMN_BUILDERS: Final[dict[str, Callable[[_ColumnBuilder], Any]]] = {
    "topic": _ColumnBuilder.topic,
    "broker": lambda one: pa.repeat(pa.scalar(one.task.broker, pa.string()), len(one.rows)),
    "queue": lambda one: one.number(one.records.queue, pa.int32()),
    "offset": lambda one: one.number(one.records.offset, pa.int64()),
    "tags": lambda one: one.properties.values(TAGS),
    "keys": lambda one: one.properties.values(KEYS),
    "messageId": _ColumnBuilder.message_id,
    "bornTime": lambda one: one.time(one.records.born_ms),
    "storeTime": lambda one: one.time(one.records.stored_ms),
    "bornHost": lambda one: one.host(is_born=True),
    "storeHost": lambda one: one.host(is_born=False),
    "flag": lambda one: one.number(one.records.flag, pa.int32()),
    "sysFlag": lambda one: one.number(one.records.sys_flag, pa.int32()),
    "reconsumeTimes": lambda one: one.number(one.records.reconsumed, pa.int32()),
    "physicalOffset": lambda one: one.number(one.records.physical, pa.int64()),
    "size": lambda one: one.number(one.records.size.astype(np.int32), pa.int32()),
    "bodySize": lambda one: one.number((one.records.body_ends - one.records.body_starts).astype(np.int32), pa.int32()),
    "properties": lambda one: one.properties.maps(),
}
"""The function that builds a column, by the column's name."""
