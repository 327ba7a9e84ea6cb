"""The data types of an audit: spans, chunks, findings and coverage.

[ begin of A ...... begin of B ............. end of B ....... end of A )
   only on A         on both: compared       only on A so far
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, final

UNKNOWN: Final = -1
"""Value of an unknown queue, queue offset or physical offset."""


BY_HEAD: Final = "; identified by its own header"
"""Suffix of the detail of a damaged record that only its own header identifies; a unit that points to it is better
evidence."""


class Check(StrEnum):
    """A comparison of an audit."""

    COPIES = "copies"
    """The logs of all copies of a broker with each other."""
    INDEX = "index"
    """The consume queues of each copy with the log."""
    ARCHIVE = "archive"
    """An archive with the log."""


class FindingKind(StrEnum):
    """The kind of fault of a record, a unit or a file of an archive."""

    MISSING = "missing"
    """This copy has zeros or no file in place of a record. Other copies may have it, or zeros as well."""
    DIFFERS = "differs"
    """An undamaged record, but another one than on the other copies."""
    CORRUPT = "corrupt-crc"
    """A damaged record: its checksum or its lengths are wrong."""
    SWAPPED = "swapped"
    """Bytes that belong to another offset of the log."""
    FILLER = "filler"
    """The unused end of a log file differs; no message is damaged."""
    UNIT_MISSING = "unit-missing"
    """A record of the log without a unit in its queue: consumers do not receive it."""
    UNIT_WRONG = "unit-wrong"
    """A unit with another physical offset, size or tags code than its record."""
    UNIT_STRAY = "unit-stray"
    """A unit that points to no record of its queue."""
    GAP = "gap"
    """Offsets of a queue that no record of the log has."""
    TWICE = "number-twice"
    """A second record with an offset that its queue has already used."""
    ARCHIVE_MISSING = "archive-missing"
    """Messages that are archived according to the manifest, but missing in the files."""
    ARCHIVE_DIFFERS = "archive-differs"
    """An archived message that differs from the log's, or a finding of `verify` that is not about something missing."""
    ARCHIVE_EXTRA = "archive-extra"
    """Archived messages that the log should have, but does not have; or rows of a file that are outside of its range,
    or more than once in it."""


class Span(NamedTuple):
    """A range `[begin, end)` of a log, by physical offset."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """The length of the span in bytes."""
        return max(self.end - self.begin, 0)

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether the spans have a byte in common."""
        return self.begin < end and begin < self.end


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """The unit of work: a range of one broker's log, and the copies that have it."""

    broker: str
    span: Span
    copies: tuple[int, ...]
    """Numbers of the replicas, in the order in which they are trusted."""
    log_begin: int
    """Begin of the oldest of these copies; nothing before it is read."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, located as exactly as possible."""

    broker: str
    replica: int
    """The number of the replica that has the fault; -1 for an archive."""
    check: Check
    kind: FindingKind
    topic: str = ""
    queue: int = UNKNOWN
    offset: int = UNKNOWN
    """Queue offset of the message; the first of `count`."""
    physical: int = UNKNOWN
    """Its offset in the log, in bytes."""
    size: int = 0
    """The number of bytes of the log; 0 if no bytes are at fault."""
    count: int = 1
    """The number of messages with consecutive offsets."""
    detail: str = ""
    """A description of the fault, for people."""


@final
@dataclass(frozen=True, slots=True)
class QueueRun:
    """A run of records of one queue in one chunk, with the consecutive queue offsets `[begin, end)`."""

    broker: str
    topic: str
    queue: int
    begin: int
    end: int
    physical: int
    """Physical offset of the first record; runs of a queue are in the order of the log."""


@final
@dataclass(frozen=True, slots=True)
class Coverage:
    """The amount of data that a task has checked, and a note if it could not check all."""

    broker: str
    span: Span
    records: int
    """The number of records that were found."""

    units: int
    """The number of queue units that were compared with records."""

    bytes_compared: int
    """The bytes that were compared between copies, summed over copies."""

    bytes_decoded: int
    """The bytes that were read and walked record by record."""

    note: str = ""
    """Why a part was not checked; this is no finding."""


Row = Finding | QueueRun | Coverage
"""A result of a task, which becomes one row of a table."""
