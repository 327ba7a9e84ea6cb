"""The manifest of an archive: records of archived ranges, each in a file of its own that is written atomically.

A record lists files and the older records that it replaces. A batch adds one record for each file, so that files do
not wait for each other; a compacted day is one record that replaces those of its files, and so are expired ranges. A
record is live if no other record replaces it. A manifest is an immutable value: the records at one moment.

The invariant: the live ranges of each queue are half-open, and each begins where the one before ends. So the end of a
queue is the end of its last range, and a run with a lost checkpoint continues there."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, final

from gantry_pipelines.archive.errors import ManifestBroken
from gantry_pipelines.archive.layout import RECORDS, Place, quote_name, stem_of
from pyspark_rocketmq.model import QueueId, QueueRange

VERSION: Final = 1
"""The version of the format of records."""


class RangeKind(StrEnum):
    """The state of a range."""

    DATA = "data"
    """The range is in a file."""
    LOST = "lost"
    """The messages were deleted before they could be read, and `onDataLoss: record` was set."""
    EXPIRED = "expired"
    """The range was archived, and deleted after its retention."""


@final
@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A range and its state. Only a range of kind DATA has rows, a day, and a file."""

    place: Place
    rows: int
    """The number of messages in the file."""
    size_bytes: int
    checksum: str
    """SHA-256 of the file's bytes in hexadecimal digits, as ``sha256sum`` prints it."""
    first_time_us: int = 0
    last_time_us: int = 0
    """Smallest (`first_time_us`) and largest store time of the messages; 0 for a range that was lost."""
    kind: RangeKind = RangeKind.DATA
    staged: str = ""
    """Path of the file until it is published under its name; empty if it was written there directly."""
    undecoded: int = 0
    """The number of messages whose body could not be decoded by the declared schema of the topic."""

    @property
    def range(self) -> QueueRange:
        """The range of queue offsets of the messages."""
        return self.place.range

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths at which to look for the file, in this order.

        A writer may publish a staged file after its final path was checked, so that path is checked again at the end.
        """
        return (self.place.path, self.staged, self.place.path) if self.staged else (self.place.path,)


@final
@dataclass(frozen=True, slots=True)
class Record:
    """One change of an archive. `name` is its path below `RECORDS`."""

    name: str
    files: tuple[ArchivedFile, ...]
    """The ranges that the record adds, with their files."""
    replaces: tuple[str, ...] = ()
    """Names of the records that this one replaces."""
    query_id: str = ""
    """The id of the query that wrote the batch; empty for other changes."""
    batch_id: int = -1
    """The number of the batch; -1 for other changes."""
    exchange: str = ""
    """Of a compaction, the staged folder that replaces the day's folder."""

    @property
    def path(self) -> str:
        """Path relative to the archive's root."""
        return f"{RECORDS}/{self.name}"


def record_of(query_id: str, batch_id: int, file: ArchivedFile) -> Record:
    """Return the record of one file of a batch; its name has query, batch and range."""
    topic = quote_name(file.range.queue.topic)
    name = f"{topic}/{stem_of(file.range)}~{batch_id:09d}~{query_id}.json"
    return Record(name, (file,), query_id=query_id, batch_id=batch_id)


def encode(record: Record) -> bytes:
    """Encode a record for its file."""
    document: dict[str, Any] = {
        "version": VERSION,
        "queryId": record.query_id,
        "batchId": record.batch_id,
        "replaces": list(record.replaces),
        "exchange": record.exchange,
        "files": [document_of(file) for file in record.files],
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def decode(name: str, data: bytes) -> Record:
    """Decode a record from its file. Raises ManifestBroken."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ManifestBroken(f"{RECORDS}/{name} has version {document['version']}, expected {VERSION}")
        return Record(
            name,
            tuple(file_of(one) for one in document["files"]),
            tuple(document["replaces"]),
            document["queryId"],
            document["batchId"],
            document["exchange"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestBroken(f"{RECORDS}/{name} is not a record: {error!r}") from error


def document_of(file: ArchivedFile) -> dict[str, Any]:
    """Convert a file to plain values, for a record and for a row of Spark."""
    queue = file.range.queue
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.number,
        "begin": file.range.begin,
        "end": file.range.end,
        "day": file.place.day,
        "hour": file.place.hour,
        "rows": file.rows,
        "bytes": file.size_bytes,
        "checksum": file.checksum,
        "firstTimeUs": file.first_time_us,
        "lastTimeUs": file.last_time_us,
        "kind": file.kind.value,
        "staged": file.staged,
        "undecoded": file.undecoded,
    }


def file_of(document: Mapping[str, Any]) -> ArchivedFile:
    """Convert the values of `document_of` back to a file."""
    queue = QueueId(document["topic"], document["broker"], document["queue"])
    return ArchivedFile(
        Place(QueueRange(queue, document["begin"], document["end"]), document["day"], document.get("hour", "")),
        document["rows"],
        document["bytes"],
        document["checksum"],
        document["firstTimeUs"],
        document["lastTimeUs"],
        RangeKind(document["kind"]),
        document["staged"],
        document.get("undecoded", 0),  # earlier versions have written none
    )


@final
@dataclass(frozen=True)
class Manifest:
    """All records of an archive at one moment."""

    records: Mapping[str, Record] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Manifest":
        """Return a manifest of these records."""
        return cls({record.name: record for record in records})

    def with_record(self, record: Record) -> "Manifest":
        """Return a manifest with one more record."""
        return Manifest({**self.records, record.name: record})

    @property
    def replaced(self) -> frozenset[str]:
        """Names of the records that others replace."""
        return frozenset(name for record in self.records.values() for name in record.replaces)

    def live(self) -> list[Record]:
        """Return the records that no other replaces, by name."""
        replaced = self.replaced
        return [record for name, record in sorted(self.records.items()) if name not in replaced]

    def files(self) -> list[ArchivedFile]:
        """Return the live ranges, by queue and offset."""
        found = [file for record in self.live() for file in record.files]
        return sorted(found, key=lambda file: (file.range, file.kind))

    def data(self) -> list[ArchivedFile]:
        """Return the live ranges that have files."""
        return [file for file in self.files() if file.kind is RangeKind.DATA]

    def expired_files(self) -> list[ArchivedFile]:
        """Return the files of expired ranges that are not deleted yet: their records still exist, replaced."""
        names = {
            name
            for record in self.live()
            if any(file.kind is RangeKind.EXPIRED for file in record.files)
            for name in record.replaces
        }
        records = [self.records[name] for name in sorted(names & self.records.keys())]
        return [file for record in records for file in record.files if file.kind is RangeKind.DATA]

    def ends(self) -> dict[QueueId, int]:
        """Return the end of the archived offsets of each queue."""
        ends: dict[QueueId, int] = {}
        for file in self.files():
            ends[file.range.queue] = max(file.range.end, ends.get(file.range.queue, 0))
        return ends

    def faults(self) -> list[str]:
        """Describe where live ranges of a queue overlap or have a gap between them."""
        return tiling_faults(file.range for file in self.files())


def tiling_faults(ranges: Iterable[QueueRange]) -> list[str]:
    """Describe where ranges have a gap, overlap, or are empty. They may start at any offset."""
    faults: list[str] = []
    ends: dict[QueueId, int] = {}
    for one in sorted(ranges):
        end = ends.get(one.queue, one.begin)
        if one.begin >= one.end:
            faults.append(f"{one} is empty")
        if one.begin > end:
            faults.append(f"{one.queue}: [{end}, {one.begin}) is missing")
        elif one.begin < end:
            faults.append(f"{one.queue}: [{one.begin}, {min(end, one.end)}) is archived twice")
        ends[one.queue] = max(end, one.end)
    return faults


def merge_ranges(files: Iterable[ArchivedFile], kind: RangeKind) -> list[ArchivedFile]:
    """Merge adjacent ranges into ranges of one kind that have no file."""
    ranges: list[ArchivedFile] = []
    for file in sorted(files, key=lambda file: file.range):
        last = ranges[-1] if ranges else None
        if last is not None and last.range.queue == file.range.queue and last.range.end == file.range.begin:
            both = QueueRange(file.range.queue, last.range.begin, file.range.end)
            first_us = min(last.first_time_us, file.first_time_us)
            last_us = max(last.last_time_us, file.last_time_us)
            ranges[-1] = dataclasses.replace(last, place=Place(both, ""), first_time_us=first_us, last_time_us=last_us)
        else:
            place = Place(file.range, "")
            ranges.append(ArchivedFile(place, 0, 0, "", file.first_time_us, file.last_time_us, kind))
    return ranges
