"""The words of an audit: copies, spans, chunks, and what is found.

[ begin of A ...... begin of B ............. end of B ....... end of A )
   only A has it     both: compared          only A has it yet
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, final

UNKNOWN: Final = -1
"""A queue, a number or a place that cannot be said."""


BY_HEAD: Final = "; named by its own head"
"""Ends the detail of a damaged record that only says itself who it is: a unit that leads to it knows better."""


class Check(StrEnum):
    """What is held against what."""

    COPIES = "copies"
    """The logs of all copies of one broker."""
    INDEX = "index"
    """The consume queues of each copy, and the log."""
    ARCHIVE = "archive"
    """An archive, and the log."""


class Kind(StrEnum):
    """What is wrong with a record, a unit or a file of an archive."""

    MISSING = "missing"
    """The other copies have this record; here there are zeros, or no file."""
    DIFFERS = "differs"
    """A whole record, and another one than on the other copies."""
    CORRUPT = "corrupt-crc"
    """No whole record: its checksum or its lengths are wrong."""
    SWAPPED = "swapped"
    """Bytes that belong to another place of the log."""
    FILLER = "filler"
    """The unused end of a log file differs; no message is hurt."""
    UNIT_MISSING = "unit-missing"
    """A record of the log that its queue has no unit for: consumers do not see it."""
    UNIT_WRONG = "unit-wrong"
    """A unit that leads elsewhere, or has another size or other tags than its record."""
    UNIT_STRAY = "unit-stray"
    """A unit that leads to no record of its queue."""
    GAP = "gap"
    """Numbers of a queue that no record of the log has."""
    TWICE = "number-twice"
    """A second record with a number that its queue has given already."""
    ARCHIVE_MISSING = "archive-missing"
    """Messages that the manifest says are archived, and that its files do not have."""
    ARCHIVE_DIFFERS = "archive-differs"
    """An archived message that is another one than the log's."""
    ARCHIVE_EXTRA = "archive-extra"
    """A row of the archive that was never in the log."""


class Span(NamedTuple):
    """`[begin, end)` of a log, by physical offset."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """In bytes."""
        return max(self.end - self.begin, 0)

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether a byte is in both."""
        return self.begin < end and begin < self.end


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """One task: a range of one broker's log, and the copies that have it."""

    broker: str
    span: Span
    copies: tuple[int, ...]
    """Numbers of the replicas, in the order in which they are read where any will do."""
    log_begin: int
    """Where the oldest of these copies begins: nobody reads before it."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, as exactly as it can be said."""

    broker: str
    replica: int
    check: Check
    kind: Kind
    topic: str = ""
    queue: int = UNKNOWN
    offset: int = UNKNOWN
    """Of the message in its queue; the first of `count`."""
    physical: int = UNKNOWN
    size: int = 0
    count: int = 1
    detail: str = ""


@final
@dataclass(frozen=True, slots=True)
class QueueRun:
    """What one chunk holds of one queue: records with the numbers `[begin, end)`, all of them there."""

    broker: str
    topic: str
    queue: int
    begin: int
    end: int
    physical: int
    """Of the first record; runs of a queue are in the order of the log."""


@final
@dataclass(frozen=True, slots=True)
class Looked:
    """How far a chunk was looked at, and what could not be."""

    broker: str
    span: Span
    records: int
    units: int
    bytes_compared: int
    bytes_decoded: int
    note: str = ""
    """Why a part was not looked at; no finding."""


Row = Finding | QueueRun | Looked
