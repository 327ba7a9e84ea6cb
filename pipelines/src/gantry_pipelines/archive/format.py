"""The format of an archive, which never changes: the `grid` at whose lines files end, the time zone, the partitions and
the columns.

The first run writes it, with a random identity. A later run with other settings is refused: another grid would cut
ranges differently, another time zone or unit of partitions would move messages to other folders, and other columns
would produce incompatible files. Checkpoints have the identity as well, so that a checkpoint of one archive is never
used with another."""

import json
import secrets
import zoneinfo
from dataclasses import asdict, dataclass, replace
from typing import Final, final

from gantry_pipelines.archive.errors import ArchiveError, NoArchive, OtherArchive
from gantry_pipelines.archive.grid import GRID_ROWS
from gantry_pipelines.archive.layout import FORMAT, is_data
from gantry_pipelines.archive.storage import Storage
from gantry_spec.pipelines.parts import PartitionUnit
from pyspark_rocketmq import schema

VERSIONS: Final = {PartitionUnit.DAY: 1, PartitionUnit.HOUR: 2}
"""The version of the format's document: earlier programs refuse an archive whose paths they cannot parse."""

REQUIRED_COLUMNS: Final = ("messageId", *(name for name in schema.HEADER_COLUMNS if name != "topic"))
"""Columns of every archive; the topic is part of the path."""

OPTIONAL_COLUMNS: Final = tuple(name for name in schema.COLUMNS if name != "topic" and name not in REQUIRED_COLUMNS)
"""The columns that an archive may leave out."""

ALL_COLUMNS: Final = tuple(name for name in schema.COLUMNS if name != "topic")


@final
@dataclass(frozen=True, slots=True)
class ArchiveFormat:
    """The settings of an archive that must not change."""

    grid_rows: int = GRID_ROWS
    """The distance between two lines of the grid, in messages."""

    time_zone: str = "UTC"
    """The time zone of the days."""

    columns: tuple[str, ...] = ALL_COLUMNS
    """The columns of all files, without the topic."""

    identity: str = ""
    """A random id of the archive; empty until the archive is created."""

    partition_by: PartitionUnit = PartitionUnit.DAY
    """Whether a folder has the files of a day or of an hour."""

    def __post_init__(self) -> None:
        if self.grid_rows < 1:
            raise ArchiveError(f"rowsPerFile is {self.grid_rows}, must be at least 1")
        try:
            zoneinfo.ZoneInfo(self.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ArchiveError(f"unknown time zone {self.time_zone!r}") from error
        unknown = [name for name in self.columns if name not in ALL_COLUMNS]
        if unknown:
            raise ArchiveError(f"unknown column {unknown[0]!r}; known columns are {', '.join(OPTIONAL_COLUMNS)}")


def columns_of(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """Return all columns of an archive for the chosen ones, in the order of the schema."""
    wanted = {*REQUIRED_COLUMNS, *chosen}
    known = tuple(name for name in ALL_COLUMNS if name in wanted)
    unknown = sorted(wanted - set(known))
    if unknown:
        raise ArchiveError(f"unknown column {unknown[0]!r}; known columns are {', '.join(OPTIONAL_COLUMNS)}")
    return known


def read_format(storage: Storage) -> ArchiveFormat:
    """Read the format of an existing archive. Raises NoArchive, OtherArchive."""
    try:
        document = json.loads(storage.read(FORMAT))
    except FileNotFoundError:
        raise NoArchive(f"no archive in {storage}: {FORMAT} is missing") from None
    except ValueError as error:
        raise NoArchive(f"{FORMAT} in {storage} is damaged: {error}") from error
    if document["version"] not in VERSIONS.values():
        known = " or ".join(map(str, VERSIONS.values()))
        raise OtherArchive(f"the archive in {storage} has version {document['version']}, expected {known}")
    unit = PartitionUnit(document.get("partition_by", PartitionUnit.DAY))
    columns = tuple(document["columns"])
    return ArchiveFormat(document["grid_rows"], document["time_zone"], columns, document["identity"], unit)


def ensure_format(storage: Storage, wanted: ArchiveFormat) -> ArchiveFormat:
    """Return the archive's format, or create the archive if the storage has no data files. Only the writer may call it.

    Raises OtherArchive if the format is not as wanted, and NoArchive for a damaged format, or data without a format.
    """
    try:
        found = read_format(storage)
    except NoArchive:
        if storage.size(FORMAT) is not None:
            raise
        if any(is_data(path) for path in storage.paths()):
            raise NoArchive(
                f"{storage} has data files but no manifest: restore _manifest, or choose another destination"
            ) from None
        found = replace(wanted, identity=secrets.token_hex(8))
        version = VERSIONS[found.partition_by]
        storage.write(FORMAT, json.dumps({"version": version, **asdict(found)}).encode() + b"\n")
        return found
    names = {
        "grid_rows": "layout.rowsPerFile",
        "time_zone": "layout.timeZone",
        "partition_by": "layout.partitionBy",
        "columns": "columns",
    }
    for name, field in names.items():
        has, wants = getattr(found, name), getattr(wanted, name)
        if has != wants:
            raise OtherArchive(
                f"the archive in {storage} has {field} {has}, but the configuration has {wants}:"
                " use the archive's value, or another destination"
            )
    return found
