"""What an archive has: records, each one file that appears whole, of ranges that tile.

A record says which files are there and which older records it stands for. A batch makes one record for each file, so
one never waits for another; a compacted day is one record that replaces those of its files, and so is what has
expired. What counts is the records that no other replaces. All of it is plain: the manifest of a moment is a value.

The rule: of each queue the ranges that count are half-open, and every one begins where the one before ends. So the
end of a queue is the end of its last range, and that is where a run goes on whose checkpoint is lost."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, final

from gantry_pipelines.archive.errors import ManifestBroken
from gantry_pipelines.archive.layout import RECORDS, Place, quoted, stem_of
from pyspark_rocketmq.model import QueueId, QueueRange

VERSION: Final = 1


class Kind(StrEnum):
    """What became of a range."""

    DATA = "data"
    """It is in a file."""
    LOST = "lost"
    """It was gone before it could be read, and the archive was told to go on."""
    EXPIRED = "expired"
    """It was archived, and deleted when its time was over."""


@final
@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A range and what it became. Only data has rows, a day, and a file."""

    place: Place
    rows: int
    size_bytes: int
    checksum: str
    """SHA-256 of the file's bytes, in hexadecimal digits: what ``sha256sum`` prints."""
    first_time_us: int = 0
    last_time_us: int = 0
    """Smallest and largest store time in it."""
    kind: Kind = Kind.DATA
    staged: str = ""
    """Where the file lies until it is seen under its name; empty where it was written there."""

    @property
    def range(self) -> QueueRange:
        """Its messages."""
        return self.place.range


@final
@dataclass(frozen=True, slots=True)
class Record:
    """One change of an archive. `name` is its path under `RECORDS`."""

    name: str
    files: tuple[ArchivedFile, ...]
    replaces: tuple[str, ...] = ()
    """Names of the records that do not count any more."""
    query_id: str = ""
    batch_id: int = -1
    exchange: str = ""
    """The folder that takes the place of the day's, for a compaction."""

    @property
    def path(self) -> str:
        """From the archive's root."""
        return f"{RECORDS}/{self.name}"


def record_of(query_id: str, batch_id: int, file: ArchivedFile) -> Record:
    """The record of one file of a batch; its name has all three."""
    topic = quoted(file.range.queue.topic)
    name = f"{topic}/{stem_of(file.range)}~{batch_id:09d}~{query_id}.json"
    return Record(name, (file,), query_id=query_id, batch_id=batch_id)


def encode(record: Record) -> bytes:
    """As its file has it."""
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
    """Out of its file. Raises ManifestBroken."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ManifestBroken(
                f"{RECORDS}/{name} has version {document['version']}, and this program knows {VERSION}"
            )
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
    """Return a file in plain values: what a record holds of it, and a row of Spark's."""
    queue = file.range.queue
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.number,
        "begin": file.range.begin,
        "end": file.range.end,
        "day": file.place.day,
        "rows": file.rows,
        "bytes": file.size_bytes,
        "checksum": file.checksum,
        "firstTimeUs": file.first_time_us,
        "lastTimeUs": file.last_time_us,
        "kind": file.kind.value,
        "staged": file.staged,
    }


def file_of(document: Mapping[str, Any]) -> ArchivedFile:
    """Return the file that `document_of` made these values of."""
    queue = QueueId(document["topic"], document["broker"], document["queue"])
    return ArchivedFile(
        Place(QueueRange(queue, document["begin"], document["end"]), document["day"]),
        document["rows"],
        document["bytes"],
        document["checksum"],
        document["firstTimeUs"],
        document["lastTimeUs"],
        Kind(document["kind"]),
        document["staged"],
    )


@final
@dataclass(frozen=True)
class Manifest:
    """All records of a moment."""

    records: Mapping[str, Record] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Manifest":
        """Of these."""
        return cls({record.name: record for record in records})

    def with_record(self, record: Record) -> "Manifest":
        """The same and one more."""
        return Manifest({**self.records, record.name: record})

    @property
    def replaced(self) -> frozenset[str]:
        """Records that do not count any more."""
        return frozenset(name for record in self.records.values() for name in record.replaces)

    def live(self) -> list[Record]:
        """Records that count."""
        replaced = self.replaced
        return [record for name, record in sorted(self.records.items()) if name not in replaced]

    def files(self) -> list[ArchivedFile]:
        """Ranges that count, by queue and offset."""
        found = [file for record in self.live() for file in record.files]
        return sorted(found, key=lambda file: (file.range, file.kind))

    def data(self) -> list[ArchivedFile]:
        """Those of them that are files."""
        return [file for file in self.files() if file.kind is Kind.DATA]

    def ends(self) -> dict[QueueId, int]:
        """Where each queue's archive ends."""
        ends: dict[QueueId, int] = {}
        for file in self.files():
            ends[file.range.queue] = max(file.range.end, ends.get(file.range.queue, 0))
        return ends

    def faults(self) -> list[str]:
        """Where ranges do not tile, in words."""
        return tiling_faults(file.range for file in self.files())


def tiling_faults(ranges: Iterable[QueueRange]) -> list[str]:
    """Where ranges leave a gap, overlap, or are empty. They may start anywhere."""
    faults: list[str] = []
    ends: dict[QueueId, int] = {}
    for one in sorted(ranges):
        end = ends.get(one.queue, one.begin)
        if one.begin >= one.end:
            faults.append(f"{one} is empty")
        if one.begin > end:
            faults.append(f"{one.queue}: nothing has [{end}, {one.begin})")
        elif one.begin < end:
            faults.append(f"{one.queue}: [{one.begin}, {min(end, one.end)}) is there twice")
        ends[one.queue] = max(end, one.end)
    return faults


def joined(files: Iterable[ArchivedFile], kind: Kind) -> list[ArchivedFile]:
    """Ranges that meet, as one each, of something that is no file (any more)."""
    ranges: list[ArchivedFile] = []
    for file in sorted(files, key=lambda file: file.range):
        last = ranges[-1] if ranges else None
        if last is not None and last.range.queue == file.range.queue and last.range.end == file.range.begin:
            both = QueueRange(file.range.queue, last.range.begin, file.range.end)
            ranges[-1] = dataclasses.replace(last, place=Place(both, ""))
        else:
            ranges.append(ArchivedFile(Place(file.range, ""), 0, 0, "", kind=kind))
    return ranges
