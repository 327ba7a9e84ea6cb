"""Which tables there are, and their columns. Times are UTC; windows are `[windowBegin, windowEnd)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
_WINDOW: Final[list[tuple[str, pa.DataType]]] = [("windowBegin", TIME), ("windowEnd", TIME), ("topic", pa.string())]


@final
@dataclass(frozen=True)
class Table:
    """One table."""

    name: str
    schema: pa.Schema
    order: tuple[str, ...]
    """By which rows lie in a file."""
    is_windowed: bool = True
    """Else it has samples, which are added."""

    @property
    def time(self) -> str:
        """The column that says to which day a row belongs."""
        return "windowBegin" if self.is_windowed else "sampledAt"


def _table(name: str, columns: list[tuple[str, pa.DataType]], order: tuple[str, ...]) -> Table:
    fields = dict([*_WINDOW, *columns])
    return Table(name, pa.schema(fields), ("windowBegin", "topic", *order))


_SAMPLE: Final[dict[str, pa.DataType]] = {
    "sampledAt": TIME, "group": pa.string(), "topic": pa.string(), "broker": pa.string(), "queue": pa.int32(),
    "committed": pa.int64(), "end": pa.int64(), "lagMessages": pa.int64(), "lagSeconds": pa.float64(),
}  # fmt: skip
_COUNTS: Final[list[tuple[str, pa.DataType]]] = [("messages", pa.int64()), ("bytes", pa.int64())]

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        _table(
            "throughput",
            [
                ("broker", pa.string()), *_COUNTS, ("bodyBytes", pa.int64()),
                ("messagesPerSecond", pa.float64()), ("bytesPerSecond", pa.float64()),
            ],
            ("broker",),
        ),
        _table(
            "latency",
            [
                ("messages", pa.int64()), ("p50Ms", pa.float64()), ("p95Ms", pa.float64()), ("p99Ms", pa.float64()),
                ("maxMs", pa.float64()), ("clockSkewed", pa.int64()),
            ],
            (),
        ),
        _table(
            "hot_queues",
            [
                ("broker", pa.string()), ("queue", pa.int32()), *_COUNTS, ("share", pa.float64()),
                ("timesEven", pa.float64()), ("rank", pa.int32()),
            ],
            ("rank",),
        ),
        _table("hot_keys", [("key", pa.string()), *_COUNTS, ("rank", pa.int32())], ("rank",)),
        Table(
            "consumer_lag",
            pa.schema(_SAMPLE),
            ("sampledAt", "group", "topic", "broker", "queue"),
            is_windowed=False,
        ),
    )
}  # fmt: skip
"""By name."""
