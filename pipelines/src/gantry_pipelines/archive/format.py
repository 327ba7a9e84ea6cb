"""What binds every file of an archive for as long as it lives: grid, time zone, columns.

It is written once, by the first run, with an identity drawn at random. A later run with other settings is refused by
name: other grid lines would cut ranges anew, another time zone would put a message into another day, other columns
would make files that do not fit together. The identity is in the checkpoint as well, so that a checkpoint of one
archive is never used with another."""

import json
import secrets
import zoneinfo
from dataclasses import asdict, dataclass
from typing import Final, final

from gantry_pipelines.archive.errors import ArchiveError, NoArchive, OtherArchive
from gantry_pipelines.archive.grid import GRID_ROWS
from gantry_pipelines.archive.layout import FORMAT, is_data
from gantry_pipelines.archive.storage import Storage
from pyspark_rocketmq import schema

VERSION: Final = 1

ALWAYS: Final = ("messageId", *(name for name in schema.HEADER_COLUMNS if name != "topic"))
"""Columns that every archive has; the topic is in the path."""

CHOOSABLE: Final = tuple(name for name in schema.COLUMNS if name != "topic" and name not in ALWAYS)

ALL: Final = tuple(name for name in schema.COLUMNS if name != "topic")


@final
@dataclass(frozen=True, slots=True)
class ArchiveFormat:
    """What must not change."""

    grid_rows: int = GRID_ROWS
    time_zone: str = "UTC"
    columns: tuple[str, ...] = ALL
    identity: str = ""

    def __post_init__(self) -> None:
        if self.grid_rows < 1:
            raise ArchiveError(f"the grid is {self.grid_rows} rows wide: it must be at least 1")
        try:
            zoneinfo.ZoneInfo(self.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ArchiveError(f"there is no time zone {self.time_zone!r}") from error
        unknown = [name for name in self.columns if name not in ALL]
        if unknown:
            raise ArchiveError(f"there is no column {unknown[0]!r} to archive; there are {', '.join(CHOOSABLE)}")


def columns_of(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """All columns of an archive in which these were chosen, in their own order."""
    wanted = {*ALWAYS, *chosen}
    known = tuple(name for name in ALL if name in wanted)
    unknown = sorted(wanted - set(known))
    if unknown:
        raise ArchiveError(f"there is no column {unknown[0]!r} to archive; there are {', '.join(CHOOSABLE)}")
    return known


def read_format(storage: Storage) -> ArchiveFormat:
    """Of an archive that is there. Raises NoArchive."""
    try:
        document = json.loads(storage.read(FORMAT))
    except FileNotFoundError:
        raise NoArchive(f"there is no archive in {storage}: {FORMAT} is missing") from None
    except ValueError as error:
        raise NoArchive(f"{FORMAT} in {storage} is damaged: {error}") from error
    if document["version"] != VERSION:
        raise OtherArchive(f"the archive in {storage} has version {document['version']}, this program knows {VERSION}")
    return ArchiveFormat(document["grid_rows"], document["time_zone"], tuple(document["columns"]), document["identity"])


def settle_format(storage: Storage, wanted: ArchiveFormat) -> ArchiveFormat:
    """That of the archive, which is begun where nothing is. Raises OtherArchive, NoArchive. For the one writer."""
    try:
        found = read_format(storage)
    except NoArchive:
        if storage.size(FORMAT) is not None:
            raise
        if any(is_data(path) for path in storage.paths()):
            raise NoArchive(
                f"there are data files in {storage}, and no manifest: without it nobody knows which of them count"
            ) from None
        found = ArchiveFormat(wanted.grid_rows, wanted.time_zone, wanted.columns, secrets.token_hex(8))
        storage.write(FORMAT, json.dumps({"version": VERSION, **asdict(found)}).encode() + b"\n")
        return found
    for name in ("grid_rows", "time_zone", "columns"):
        has, wants = getattr(found, name), getattr(wanted, name)
        if has != wants:
            raise OtherArchive(
                f"the archive in {storage} has {name} {has}, and {wants} is asked for:"
                " keep it, or use another destination"
            )
    return found
