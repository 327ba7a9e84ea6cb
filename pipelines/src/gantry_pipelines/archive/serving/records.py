"""Rows of an archive as records of a log, which clients decode as those of a broker.

A record has the fields of the one that was archived, also its physical offset, so that the message id is the same. It
differs in three: a body is stored as it was sent, decompressed; the properties have no seal; and the offset of a half
message, which consumers do not use, is 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import pyarrow as pa

from gantry_remoting.addresses import split_address
from gantry_wire.compress import deflate
from gantry_wire.errors import LocalProtocolError
from gantry_wire.filters import MessageFilter, TagFilter
from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    FLAG_COMPRESSED,
    StoredMessage,
    encode_host,
    encode_record,
)
from gantry_wire.properties import TAGS, format_properties

COLUMNS: Final = (
    "queue", "offset", "physicalOffset", "flag", "sysFlag", "bornTime", "bornHost", "storeTime", "storeHost",
    "reconsumeTimes", "properties", "body",
)  # fmt: skip
"""The columns that a record is made of."""

NEEDED_COLUMNS: Final = ("properties", "body")
"""Those that an archive may lack."""

FILTER_S: Final = 0.1
"""How long a filter in SQL92 is evaluated for one request, in a worker thread."""

FILTERED_AT_ONCE: Final = 32
"""How many messages are examined between two looks at the clock."""

BODY_BYTES_MAX: Final = 4 << 20
"""A larger body is compressed again: a reply with it might not fit into a frame."""

RECORD_BYTES_MAX: Final = 15 << 20
"""A record that is larger nevertheless is not served: no frame has room for it."""

_DECOMPRESSED: Final = ~(FLAG_COMPRESSED | COMPRESSION_MASK)
_NO_HOST: Final = b"\0" * 8


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive messages of a queue as records. Immutable."""

    begin: int
    """The offset of the first message."""

    records: tuple[bytes, ...]
    """The records by offset; an empty one for a message that cannot be served."""

    codes: tuple[int, ...]
    """The hash of each message's tag."""

    properties: tuple[str, ...]
    """The properties of each message, for filters in SQL92."""

    size_bytes: int
    """About how much memory the chunk takes."""

    @property
    def end(self) -> int:
        return self.begin + len(self.records)

    def select(self, offset: int, message_filter: MessageFilter, count_max: int, bytes_max: int) -> Selection:
        """Return the messages from ``offset`` on that a filter accepts, within the limits, but at least one.

        A filter in SQL92 is evaluated for a limited time: then the rest is left to the next request.
        """
        assert self.begin <= offset < self.end, "the chunk has the offset"
        codes = message_filter.codes if isinstance(message_filter, TagFilter) else None
        deadline = time.monotonic() + FILTER_S
        records: list[bytes] = []
        total = 0
        for index in range(offset - self.begin, len(self.records)):
            record = self.records[index]
            if codes is None:
                assert not isinstance(message_filter, TagFilter), "a filter is by tags or by properties"
                if index % FILTERED_AT_ONCE == 0 and time.monotonic() > deadline and self.begin + index > offset:
                    return Selection(self.begin + index, tuple(records), is_late=True)
                is_wanted = message_filter.accepts_encoded(self.properties[index])
            else:
                is_wanted = not codes or self.codes[index] in codes
            if not record or not is_wanted:
                continue
            if records and (total + len(record) > bytes_max or len(records) == count_max):
                return Selection(self.begin + index, tuple(records))
            records.append(record)
            total += len(record)
        return Selection(self.end, tuple(records))


@final
@dataclass(frozen=True, slots=True)
class Selection:
    """The records that a filter has accepted."""

    next_offset: int
    """The offset up to which messages were examined."""

    records: tuple[bytes, ...]
    is_late: bool = False
    """Whether the time for the filter was over."""


def encode_chunk(topic: str, rows: pa.RecordBatch) -> Chunk:
    """Encode consecutive rows of one queue. A message is empty if its body could not be decompressed when archived."""
    columns = [_values(rows.column(name)) for name in COLUMNS]
    records: list[bytes] = []
    codes: list[int] = []
    texts: list[str] = []
    for number, offset, physical, flag, sys_flag, born, born_host, stored, store_host, times, pairs, body in zip(
        *columns, strict=True
    ):
        properties = dict(pairs or ())
        codes.append(tags_code(properties.get(TAGS)))
        try:
            text = format_properties(properties)
            kept_flag = sys_flag & _DECOMPRESSED
            if body is not None and len(body) > BODY_BYTES_MAX:
                body, kept_flag = deflate(body), kept_flag | FLAG_COMPRESSED | COMPRESSION_ZLIB
            record = b"" if body is None else encode_record(
                StoredMessage(
                    topic=topic,
                    queue_id=number,
                    body=body,
                    queue_offset=offset,
                    physical_offset=physical,
                    flag=flag,
                    sys_flag=kept_flag,
                    born_timestamp_ms=born,
                    born_host=_parse_host(born_host),
                    store_timestamp_ms=stored,
                    store_host=_parse_host(store_host),
                    reconsume_times=times,
                    properties_bytes=text.encode(),
                )
            )  # fmt: skip
        except LocalProtocolError:  # properties that no broker stores: they have a control separator in them
            text, record = "", b""
        texts.append(text)
        records.append(record if len(record) <= RECORD_BYTES_MAX else b"")
    size = sum(map(len, records)) + sum(map(len, texts)) + 200 * len(records)
    return Chunk(rows.column("offset")[0].as_py(), tuple(records), tuple(codes), tuple(texts), size)


def _values(column: Any) -> Sequence[Any]:
    """Return a column as Python values; times as milliseconds, of which an invalid one is 0."""
    if pa.types.is_timestamp(column.type):
        values: Sequence[int | None] = column.cast(pa.int64()).to_pylist()
        return [0 if value is None else value // 1000 for value in values]
    found: Sequence[Any] = column.to_pylist()
    return found


@lru_cache(maxsize=4096)
def _parse_host(text: str | None) -> bytes:
    """Return a host as records hold it. A port that does not fit, as clients may have written, becomes 0."""
    if not text:
        return _NO_HOST
    try:
        return encode_host(*split_address(text))
    except ValueError:
        address = text.rpartition(":")[0].strip("[]")
        try:
            return encode_host(address, 0)
        except ValueError:
            return _NO_HOST
