"""Files of an archive for tests of its Delta tables, and what readers should get from them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from spark_kit.toy_log import HOUR_US, ToyLog

from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ALL_COLUMNS, ArchiveFormat
from gantry_pipelines.archive.layout import quote_name
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.tables.delta import storage_options
from gantry_pipelines.archive.tables.model import TableChange, TableFile, TableRoot
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.schema import arrow_schema

QUEUE = QueueId("orders", "broker-a", 0)
LOG = ToyLog({QUEUE: 250}, step_us=HOUR_US // 20)
"""240 messages are stored on the first day, and 10 on the second."""

PROPERTIES = {"gantry.archive": "a1", "gantry.ends": '{"broker-a": {"0": 250}}'}


@dataclass(frozen=True)
class Files:
    """The files of a topic, and the root of its table."""

    root: TableRoot
    files: list[TableFile]
    storage: Storage

    @property
    def folder(self) -> Path:
        return Path(self.root.address)

    def write(self, ranges: list[QueueRange], columns: tuple[str, ...] = ALL_COLUMNS) -> list[TableFile]:
        """Write a file for each range and day."""
        return write_ranges(self.storage, self.root.topic, ranges, columns)


def write_ranges(
    storage: Storage, topic: str, ranges: list[QueueRange], columns: tuple[str, ...] = ALL_COLUMNS
) -> list[TableFile]:
    """Write real files of the log, as the archive does, and return them."""
    archive_format = ArchiveFormat(100, columns=columns)
    log = ToyLog({one.queue: one.end for one in ranges}, step_us=LOG.step_us)
    written = []
    for file in write_files(log.batches(ranges), ranges, storage, archive_format, Packing()):
        if file.staged:
            storage.publish(file.staged, file.place.path)
        written.append(TableFile(file.place, file.rows, file.size_bytes, file.first_time_us, file.last_time_us))
    return written


def files_at(destination: str, queue: QueueId = QUEUE, columns: tuple[str, ...] = ALL_COLUMNS) -> Files:
    """Write three files of the first day and one of the second."""
    storage = storage_of(destination)
    ranges = [QueueRange(queue, begin, min(begin + 100, 250)) for begin in (0, 100, 200)]
    address, _, query = destination.partition("?")
    options = dict(one.split("=", 1) for one in query.split("&")) if query else {}
    root = TableRoot(queue.topic, f"{address}/data/topic={quote_name(queue.topic)}", options)
    return Files(root, write_ranges(storage, queue.topic, ranges, columns), storage)


def change(
    add: list[TableFile], remove: list[TableFile] | None = None, properties: dict[str, str] | None = None
) -> TableChange:
    return TableChange(tuple(add), frozenset(one.path for one in remove or []), properties or PROPERTIES)


def rows_of(begin: int, end: int, queue: QueueId = QUEUE) -> list[dict[str, Any]]:
    """Return the expected rows with their days."""
    rows = []
    for offset in range(begin, end):
        row = LOG.row(queue, offset)
        day = datetime.fromtimestamp(row["storeTime"] // 1_000_000, UTC).date()
        del row["topic"]
        rows.append({**row, "day": day})
    schema = pa.schema([*arrow_schema(ALL_COLUMNS), pa.field("day", pa.date32())])
    result: list[dict[str, Any]] = pa.Table.from_pylist(rows, schema=schema).to_pylist()
    return result


def read_rows(root: TableRoot, version: int | None = None) -> list[dict[str, Any]]:
    """Read all rows with the library's scan by pyarrow, by queue and offset."""
    table = DeltaTable(root.address, version=version, storage_options=storage_options(root)).to_pyarrow_table()
    rows: list[dict[str, Any]] = table.sort_by([("queue", "ascending"), ("offset", "ascending")]).to_pylist()
    return rows
