"""The baseline: a straightforward data source, which decodes each record into one tuple of Python objects.

Like the connector's source, it maps the log files of a store, and returns the same columns.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from gantry_wire.message import decode_host, decode_record
from pyspark_rocketmq.schema import COLUMNS, ddl


@final
class LogFile(InputPartition):
    """One file of a commit log."""

    def __init__(self, path: str, end: int) -> None:
        super().__init__(path)
        self.path = path
        self.end = end


@final
class TupleReader(DataSourceReader):
    """Reads a store's log, file by file, one record at a time."""

    def __init__(self, options: dict[str, str]) -> None:
        self.store = options["store"]
        self.topic = options["topic"]
        self.broker = options["broker"]

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each file."""
        return [LogFile(str(path), path.stat().st_size) for path in sorted(Path(self.store, "commitlog").iterdir())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return the rows of one file."""
        assert isinstance(partition, LogFile)
        with open(partition.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            position = 0
            while position + 8 <= partition.end:
                size = int.from_bytes(log[position : position + 4], "big")
                magic = log[position + 4 : position + 8]
                if (
                    size == 0 or magic == b"\xcb\xd4\x31\x94"
                ):  # the end of the data, or the blank record at the end of a file
                    return
                message = decode_record(log[position : position + size], verify_crc=False)
                position += size
                if message.topic != self.topic:
                    continue
                properties = message.properties
                yield (
                    message.topic, self.broker, message.queue_id, message.queue_offset, properties.get("TAGS"),
                    properties.get("KEYS"), properties.get("UNIQ_KEY"), _moment(message.born_timestamp_ms),
                    _moment(message.store_timestamp_ms), _host(message.born_host), _host(message.store_host),
                    message.flag, message.sys_flag, message.reconsume_times, message.physical_offset, size,
                    len(message.body), properties, message.body,
                )  # fmt: skip


def _host(data: bytes) -> str:
    address, port = decode_host(data)
    return f"{address}:{port}"


def _moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


@final
class TupleSource(DataSource):
    """The source `format("rocketmq_tuples")` with the options `store` (a folder), `topic` and `broker` (its name)."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_tuples"

    def schema(self) -> str:
        return ddl(COLUMNS)

    def reader(self, schema: object) -> DataSourceReader:
        return TupleReader(dict(self.options))
