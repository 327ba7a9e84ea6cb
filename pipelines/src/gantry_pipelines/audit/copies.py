"""The interface of a copy of a log, whether it is read from a directory or from a sidecar.

A copy may lack data that it claims to have; finding that is the purpose of an audit. So unreadable bytes are no error:
they are returned as zeros, and listed as holes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, final

from gantry_pipelines.audit.model import Span

Algorithm = Literal["crc32", "sha256"]
"""The algorithm of checksums: CRC-32 or SHA-256."""

OFFSET_MAX: Final = 1 << 62
"""An offset beyond any log, which stands for no limit."""

CHECKSUM_BYTES: Final = 32 << 20
"""Bytes of one checksum request; less than the limit of a sidecar (`--log-range-max`, 64 MiB by default)."""


@final
@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes of a range of a log; `holes` could not be read, and are zeros in `data`."""

    begin: int
    data: bytes
    holes: tuple[Span, ...] = ()

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.begin + len(self.data)


@final
@dataclass(frozen=True, slots=True)
class CopyState:
    """The data that a copy reports to have."""

    span: Span
    """The readable and final part of the log: no fault that the mode covers removes data before its end."""
    is_live: bool
    """Whether a broker may be running: a missing unit may still be written."""
    sealed_spans: tuple[Span, ...] | None = None
    """Where every record must have a seal; None: unknown."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Deleted topics, with the end of the log at their deletion: their records before it have no units."""
    notes: tuple[str, ...] = ()
    """What the audit must mention about the copy, for people."""
    units_end: int = OFFSET_MAX
    """Records from here on may have no units: the copy was stopped before it learned that they are confirmed."""


class LogCopy(Protocol):
    """One replica's log and queues. Used by one thread; `close` when done."""

    def state(self) -> CopyState:
        """Return the state of the copy now."""
        ...

    def checksum(self, begin: int, end: int, algorithm: Algorithm) -> str | None:
        """Return the checksum of the bytes `[begin, end)`; None if they cannot all be read."""
        ...

    def read(self, begin: int, end: int) -> Bytes:
        """Read the bytes `[begin, end)`, with zeros in place of unreadable bytes."""
        ...

    def queues(self) -> list[tuple[str, int]]:
        """Return topic and number of the queues that have files, as far as the copy can list them."""
        ...

    def knows_topic(self, topic: str) -> bool | None:
        """Return whether this topic exists; None if the copy does not know."""
        ...

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the range of queue offsets `[first, end)` that may have units; (0, 0) if there is no such queue."""
        ...

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """Read `count` units from offset `first` on, 20 bytes each; zeros in place of missing units."""
        ...

    def close(self) -> None:
        """Close all open files and connections."""
        ...


def checksum_steps(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a range into the ranges of single checksums; all copies must split alike to get comparable texts."""
    for low in range(begin, end, CHECKSUM_BYTES):
        yield low, min(low + CHECKSUM_BYTES, end)


def checksum_text(data: bytes, algorithm: Algorithm) -> str:
    """Return a checksum in the format of the sidecar."""
    return f"{zlib.crc32(data):08x}" if algorithm == "crc32" else hashlib.sha256(data).hexdigest()


def merge_spans(spans: list[Span]) -> tuple[Span, ...]:
    """Return the spans sorted, with adjacent and overlapping ones merged, and without empty ones."""
    result: list[Span] = []
    for span in sorted(one for one in spans if one.length):
        if result and span.begin <= result[-1].end:
            result[-1] = Span(result[-1].begin, max(span.end, result[-1].end))
        else:
            result.append(span)
    return tuple(result)
