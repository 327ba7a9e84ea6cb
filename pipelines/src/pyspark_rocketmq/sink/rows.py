"""Parse the rows of Arrow batches into the parts of messages. Pure.

A row that cannot become a message is refused here with its number, before it is sent: a broker would refuse a whole
request, and could not name the row. Rows before it may have been sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, final

import pyarrow as pa

from gantry_wire import properties as names
from gantry_wire.limits import MESSAGE_BYTES_MAX
from pyspark_rocketmq.errors import InvalidRow
from pyspark_rocketmq.schema import SYSTEM_PROPERTIES
from pyspark_rocketmq.sink.columns import Columns
from pyspark_rocketmq.sink.options import Reserved

SPARK_ID: Final = "SPARK_ID"
"""The property that identifies the row of a message: `query:batch:partition:row`."""

SHARDING_KEY: Final = "__SHARDINGKEY"
"""The property with the sharding key of a message."""

INT_MAX: Final = 2**31 - 1

RESERVED: Final = SYSTEM_PROPERTIES | {SHARDING_KEY, SPARK_ID}
"""Properties that the column properties must not have."""


class Row(NamedTuple):
    """The parts of one message."""

    number: int
    """The row's number in its task, from 0."""
    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Sequence[tuple[str, str]]
    sharding_key: str | None
    delay_level: int
    """RocketMQ's delay level, from 1; 0 for no delay."""
    broker: str | None
    """The broker of the queue; None for the only one that has it."""
    queue: int | None
    """The queue on that broker; None for any."""
    flag: int
    """RocketMQ's flag of a message, which only applications use."""


@final
class RowReader:
    """Reads the batches of one task in their order, and counts the rows."""

    def __init__(self, columns: Columns, topic: str | None, reserved: Reserved = Reserved.FAIL) -> None:
        self._columns: Final = columns
        self._topic: Final = topic
        self._drops_reserved: Final = reserved is Reserved.DROP
        self.count = 0

    def read(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows of a batch. Raises InvalidRow."""
        count, first = batch.num_rows, self.count
        self.count += count
        values = {name: batch.column(index).to_pylist() for index, name in enumerate(self._columns.names)}
        nothing: list[Any] = [None] * count
        topics = [self._topic] * count if self._topic is not None else values.get("topic", nothing)
        get = values.get
        for number, (topic, body, tags, keys, properties, sharding_key, delay_level, broker, queue, flag) in enumerate(
            zip(
                topics, values["body"], get("tags", nothing), get("keys", nothing), get("properties", nothing),
                get("shardingKey", nothing), get("delayLevel", nothing), get("broker", nothing),
                get("queue", nothing), get("flag", nothing), strict=True,
            ),
            first,
        ):  # fmt: skip
            if not topic:
                raise InvalidRow(f"row {number}: column topic is null or empty, and there is no option topic")
            if not body:
                raise InvalidRow(f"row {number}: column body is null or empty; a message has at least one byte")
            content = body if isinstance(body, bytes) else _encode(body, "body", number)
            if len(content) > MESSAGE_BYTES_MAX:
                raise InvalidRow(
                    f"row {number}: column body has {len(content)} bytes, the limit is {MESSAGE_BYTES_MAX}"
                )
            yield Row(
                number, topic, content, _check_text(tags, "tags", number), _parse_keys(keys, number) if keys else (),
                self._parse_properties(properties, number) if properties else (),
                _check_text(sharding_key, "shardingKey", number), _check_number(delay_level, "delayLevel", number),
                broker, None if queue is None else _check_number(queue, "queue", number),
                0 if flag is None else _check_flag(flag, number),
            )  # fmt: skip

    def _parse_properties(self, pairs: Sequence[tuple[str, str | None]], number: int) -> Sequence[tuple[str, str]]:
        kept: list[tuple[str, str]] = []
        for name, value in pairs:
            if name in RESERVED:
                if self._drops_reserved:
                    continue
                raise InvalidRow(
                    f"row {number}: property {name} is reserved; leave it out, or set reservedProperties=drop"
                )
            if value is None:
                raise InvalidRow(f"row {number}: property {name[:64]!r} is null")
            if not name or _has_control(name) or _has_control(value):
                raise InvalidRow(f"row {number}: property {name[:64]!r} has an empty name, or contains a byte 1 or 2")
            kept.append((name, value))
        return kept


def _parse_keys(keys: str | Sequence[str | None], number: int) -> tuple[str, ...]:
    if isinstance(keys, str):
        found = tuple(keys.split())
    else:
        for key in keys:
            if not key or key.split() != [key]:
                raise InvalidRow(f"row {number}: column keys has {key!r}; a key is a text without spaces")
        found = tuple(key for key in keys if key)
    if any(_has_control(key) for key in found):
        raise InvalidRow(f"row {number}: column keys contains a byte 1 or 2")
    return found


def _check_text(text: str | None, column: str, number: int) -> str | None:
    if text is not None and _has_control(text):
        raise InvalidRow(f"row {number}: column {column} contains a byte 1 or 2")
    return text


def _check_number(value: int | None, column: str, number: int) -> int:
    if value is None:
        return 0
    if not 0 <= value <= INT_MAX:
        raise InvalidRow(f"row {number}: column {column} is {value}; it must be from 0 to {INT_MAX}")
    return value


def _check_flag(value: int, number: int) -> int:
    if not -INT_MAX - 1 <= value <= INT_MAX:
        raise InvalidRow(f"row {number}: column flag is {value}; it must fit in 32 bits")
    return value


def _encode(text: str, column: str, number: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRow(f"row {number}: column {column} is not Unicode text: {error}") from error


def _has_control(text: str) -> bool:
    return names.KEY_END in text or names.VALUE_END in text
