"""Rows of an archive as records of a log, which clients decode as those of a broker.

A record has the fields of the one that was archived, also its physical offset, so that the message id is the same. It
differs in three: a body is stored as it was sent, decompressed; the properties have no seal; and the offset of a half
message, which consumers do not use, is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import pyarrow as pa

from gantry_remoting.addresses import split_address
from gantry_wire.errors import LocalProtocolError
from gantry_wire.filters import MessageFilter, TagFilter
from gantry_wire.hashing import tags_code
from gantry_wire.message import COMPRESSION_MASK, FLAG_COMPRESSED, StoredMessage, encode_host, encode_record
from gantry_wire.properties import TAGS, format_properties

COLUMNS: Final = (
    "queue", "offset", "physicalOffset", "flag", "sysFlag", "bornTime", "bornHost", "storeTime", "storeHost",
    "reconsumeTimes", "properties", "body",
)  # fmt: skip
"""The columns that a record is made of."""

NEEDED_COLUMNS: Final = ("properties", "body")
"""Those that an archive may lack."""

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
        """Return the messages from ``offset`` on that a filter accepts, within the limits, but at least one."""
        records: list[bytes] = []
        total, index = 0, offset - self.begin
        codes = message_filter.codes if isinstance(message_filter, TagFilter) else None
        for index in range(index, len(self.records)):  # noqa: B020 - begins at the index
            record = self.records[index]
            if codes is None:
                assert not isinstance(message_filter, TagFilter), "a filter is by tags or by properties"
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
            record = b"" if body is None else encode_record(
                StoredMessage(
                    topic=topic,
                    queue_id=number,
                    body=body,
                    queue_offset=offset,
                    physical_offset=physical,
                    flag=flag,
                    sys_flag=sys_flag & _DECOMPRESSED,
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
        records.append(record)
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
