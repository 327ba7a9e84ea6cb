"""What a table of an archive is: a list of the archive's own Parquet files, which changes in atomic steps.

A topic has one table in each format. All its data files are below one folder, its root, in folders `day=DATE` or
`day=DATE/hour=HH`; the table's metadata is beside them. Nothing is copied: a publication only changes the list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

import pyarrow as pa

from gantry_pipelines.archive.format import ALL_COLUMNS
from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn, arrow_fields
from gantry_spec.pipelines.parts import PartitionUnit
from pyspark_rocketmq.schema import arrow_schema

DAY_COLUMN: Final = "day"
"""The column by which tables are partitioned: the date of the store time, in the archive's time zone. It is not in the
files, since each file has only one."""

HOUR_COLUMN: Final = "hour"
"""The second column of partitions in an archive that is partitioned by hour: the hour of the store time, 0 to 23."""


ARCHIVE_PROPERTY: Final = "gantry.archive"
"""The property of a snapshot that has the identity of the archive."""

REBUILD: Final = "gantry pipeline tables --set rebuild=true"
"""The command that drops the tables of an archive, and publishes them again."""


MESSAGE_CHARS_MAX: Final = 400
"""The length to which messages of libraries are cut, which may have pages of a server's answer, or a stack."""

_TERMINAL_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_STACK_LINE: Final = re.compile(r"\s*(\d+: |at (/|\./))")


class TableError(Exception):
    """The root of all errors of tables."""


@final
class ForeignFiles(TableError):
    """The table has files that this archive did not write: remove them from the table, or publish to another one."""


@final
class OtherTable(TableError):
    """The table has other columns or partitions than the archive: drop it, and publish it again."""


@final
class EscapedAddress(TableError):
    """The address of a table has a character that a library reads as a part of an address: exclude the topic, publish
    it in the other format only, or move the archive."""


@final
class TableUnavailable(TableError):
    """The catalog or storage of a table does not answer, or refuses the change: the next publication tries again."""


def one_line(text: str) -> str:
    """Return a message of a library as one line of limited length, without styles and the stack of its threads."""
    lines = _TERMINAL_STYLE.sub("", text).splitlines()
    short = " ".join(" ".join(line for line in lines if not _STACK_LINE.match(line)).split())
    short = short.replace(" \u21b3 ", ": ")  # an arrow at the beginning of each cause
    return short if len(short) <= MESSAGE_CHARS_MAX else f"{short[:MESSAGE_CHARS_MAX]}..."


@final
@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of a topic's tables: those of the archive, the partitions, and then the declared ones.

    Declared columns come last, in the order in which they were added. So a table that is made again has the columns in
    the same order as one to which they were added.
    """

    columns: tuple[str, ...] = ALL_COLUMNS
    """The columns of the archive."""
    declared: tuple[DeclaredColumn, ...] = ()
    """The typed columns of the topic."""
    partition_by: PartitionUnit = PartitionUnit.DAY

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns by which the tables are partitioned."""
        return (DAY_COLUMN,) if self.partition_by is PartitionUnit.DAY else (DAY_COLUMN, HOUR_COLUMN)

    @property
    def base_fields(self) -> tuple[pa.Field[Any], ...]:
        """The columns of the archive and the partitions, with their types."""
        partitions = [pa.field(DAY_COLUMN, pa.date32()), pa.field(HOUR_COLUMN, pa.int32())]
        return (*arrow_schema(self.columns), *partitions[: len(self.partitions)])

    @property
    def fields(self) -> tuple[pa.Field[Any], ...]:
        """All columns in the order of a table, with their types."""
        return (*self.base_fields, *arrow_fields(self.declared))


@final
@dataclass(frozen=True, slots=True)
class TableRoot:
    """The folder of a topic's data files, as readers address it."""

    topic: str
    address: str
    """An absolute path, or `s3://bucket/prefix`; without a slash at the end."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of an object store: the query of the archive's destination, such as `endpoint_override`, `scheme`, `region`."""
    archive: str = ""
    """The identity of the archive that publishes; empty in tests that need none."""


def path_in_table(place: Place) -> str:
    """Return the path of a data file relative to the root of its topic's tables."""
    return f"{place.partition.folder}/{place.name}"


@final
@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a table."""

    place: Place
    rows: int
    size_bytes: int
    first_time_us: int
    last_time_us: int
    """The smallest (`first_time_us`) and largest store time, in microseconds since 1970."""

    @property
    def path(self) -> str:
        """The path relative to the table's root."""
        return path_in_table(self.place)


@final
@dataclass(frozen=True, slots=True)
class TableChange:
    """The difference between two states of a table, which becomes one snapshot (Iceberg) or version (Delta)."""

    add: tuple[TableFile, ...]
    remove: frozenset[str]
    """Paths relative to the root."""
    properties: Mapping[str, str]
    """What the snapshot says about itself: `gantry.archive`, `gantry.ranges`, `gantry.ends`."""


@final
@dataclass(frozen=True, slots=True)
class TableState:
    """The newest state of a table, as its readers find it."""

    sizes: Mapping[str, int]
    """The size in bytes of each file, by its path relative to the root."""
    properties: Mapping[str, str]
    """The properties of the newest snapshot that has some of ours; none before the first."""


class TopicTable(Protocol):
    """A table of one topic in one format. One process changes it at a time: the writer of the archive."""

    def read(self) -> TableState | None:
        """Return the newest state, without creating or changing the table; None if it does not exist."""

    def paths(self) -> frozenset[str]:
        """Return the paths of the newest state's files, relative to the root. Raises ForeignFiles."""

    def properties(self) -> Mapping[str, str]:
        """Return the properties of the newest state's snapshot that begin with `gantry.`; none before the first."""

    def commit(self, change: TableChange) -> None:
        """Add and remove files in one atomic step: readers see the table before it or after it."""

    def expire(self, before_ms: int) -> None:
        """Forget snapshots that were replaced before this time, and delete their metadata."""

    def drop(self) -> None:
        """Delete the table's metadata, and no data file."""
