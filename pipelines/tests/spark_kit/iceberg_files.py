"""Files of an archive for tests of its Iceberg tables, and what readers should get from them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any, Final

from pyiceberg.table import StaticTable, Table
from spark_kit.toy_log import HOUR_US, ToyLog

from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ALL_COLUMNS, ArchiveFormat
from gantry_pipelines.archive.layout import DATA, quote_name
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.settings import CatalogParameters
from gantry_pipelines.archive.tables.iceberg import IcebergTable, open_iceberg
from gantry_pipelines.archive.tables.model import TableChange, TableFile, TableRoot, TableShape
from pyspark_rocketmq.model import QueueId, QueueRange

FOLDER: Final = CatalogParameters()


class Archive:
    """The files of one topic: three days, of which the second has two files."""

    def __init__(self, destination: str, topic: str = "orders", columns: tuple[str, ...] = ALL_COLUMNS) -> None:
        self.topic = topic
        self.columns = columns
        queue = QueueId(topic, "broker-a", 0)
        self.log = ToyLog({queue: 60}, step_us=HOUR_US)
        self._storage = storage_of(destination)
        address, _, query = destination.partition("?")
        options = dict(one.split("=", 1) for one in query.split("&") if one)
        self.root = TableRoot(topic, f"{address}/{DATA}/topic={quote_name(topic)}", options)
        self.files = self.write(QueueRange(queue, 0, 24), QueueRange(queue, 24, 48))
        self.late_files = self.write(QueueRange(queue, 48, 60))

    def write(self, *ranges: QueueRange) -> list[TableFile]:
        """Write the files of these ranges as a worker does."""
        archive_format = ArchiveFormat(100, columns=self.columns)
        found = []
        for file in write_files(self.log.batches(ranges), ranges, self._storage, archive_format, Packing()):
            self._storage.publish(file.staged, file.place.path)
            found.append(TableFile(file.place, file.rows, file.size_bytes, file.first_time_us, file.last_time_us))
        return found

    def rows(self, *ranges: tuple[int, int]) -> list[dict[str, Any]]:
        """Return the rows of these ranges of offsets, as readers should see them."""
        [queue] = self.log.ends
        return [self._row(queue, offset) for begin, end in ranges for offset in range(begin, end)]

    def _row(self, queue: QueueId, offset: int) -> dict[str, Any]:
        row = {name: value for name, value in self.log.row(queue, offset).items() if name in self.columns}
        for name in ("bornTime", "storeTime"):
            row[name] = datetime.datetime.fromtimestamp(row[name] // 1000 / 1000, datetime.UTC)
        return {**row, "day": row["storeTime"].date()}

    def open(self, catalog: CatalogParameters = FOLDER) -> IcebergTable:
        """Open the Iceberg table of the topic."""
        return open_iceberg(self.root, TableShape(self.columns), catalog)

    def reader(self) -> Table:
        """Open the table as a reader without a catalog does."""
        return StaticTable.from_metadata(f"{self.root.address}/_iceberg")

    def metadata(self, folder: str = "_iceberg") -> set[str]:
        """Return the names of the files of the table's metadata."""
        return set(os.listdir(f"{self.root.address}/{folder}/metadata"))


def change(
    add: Sequence[TableFile] = (), remove: Sequence[TableFile] = (), properties: dict[str, str] | None = None
) -> TableChange:
    return TableChange(tuple(add), frozenset(file.path for file in remove), properties or {})


def paths_of(files: Sequence[TableFile]) -> frozenset[str]:
    return frozenset(file.path for file in files)


def rows_of(table: Table, row_filter: str = "true") -> list[dict[str, Any]]:
    """Return the rows that pyiceberg reads, by offset."""
    return sorted(table.scan(row_filter).to_arrow().to_pylist(), key=lambda row: int(row["offset"]))


def files_for(table: Table, row_filter: str) -> frozenset[str]:
    """Return the paths of the files that a reader opens for a filter."""
    return frozenset("/".join(task.file.file_path.split("/")[-2:]) for task in table.scan(row_filter).plan_files())
