"""A copy of a log, however it is reached: what an audit asks of it.

A copy may lack what it claims to have; that is what an audit is for. So bytes that cannot be read are no error here:
they come as zeros, and are named as holes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, final

from gantry_pipelines.audit.model import Span

Algorithm = Literal["crc32", "sha256"]

OFFSET_MAX: Final = 1 << 62
CHECKSUM_BYTES: Final = 32 << 20
"""Of one answer: a sidecar gives no more than its `--log-range-max`, 64 MiB by default."""


@final
@dataclass(frozen=True, slots=True)
class Bytes:
    """A range of a log as it was read; `holes` could not be, and are zeros in `data`."""

    begin: int
    data: bytes
    holes: tuple[Span, ...] = ()

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return self.begin + len(self.data)


@final
@dataclass(frozen=True, slots=True)
class CopyState:
    """What a copy says it has."""

    span: Span
    """Readable, and final: no covered fault takes it back."""
    is_live: bool
    """Whether a broker may be writing: a unit that is missing may be on its way."""
    ours: tuple[Span, ...] | None = None
    """Where every record must have a seal; None: not known."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Topics that were deleted, and the end of the log then: older records of theirs have no units."""
    notes: tuple[str, ...] = ()
    units_end: int = OFFSET_MAX
    """Records from here on may have no units yet: their copy was stopped before it was told that they are confirmed."""


class LogCopy(Protocol):
    """One replica's log and queues. Used by one thread; `close` when done."""

    def state(self) -> CopyState:
        """What it has now."""
        ...

    def checksum(self, begin: int, end: int, algorithm: Algorithm) -> str | None:
        """Of the bytes `[begin, end)`; None where they cannot all be read."""
        ...

    def read(self, begin: int, end: int) -> Bytes:
        """The bytes `[begin, end)`, with zeros where there are none."""
        ...

    def queues(self) -> list[tuple[str, int]]:
        """Topics and numbers of the queues that have files here, as far as the copy can say."""
        ...

    def knows_topic(self, topic: str) -> bool | None:
        """Whether this topic exists; None where the copy cannot say."""
        ...

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """The numbers `[first, end)` that there may be units for; (0, 0) without such a queue."""
        ...

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """`count` units from number `first` on, 20 bytes each; zeros where there is none."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def steps(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """How every copy cuts a range whose checksum it says: their texts must be alike where their bytes are."""
    for low in range(begin, end, CHECKSUM_BYTES):
        yield low, min(low + CHECKSUM_BYTES, end)


def summed(data: bytes, algorithm: Algorithm) -> str:
    """A checksum in the words of the sidecar."""
    return f"{zlib.crc32(data):08x}" if algorithm == "crc32" else hashlib.sha256(data).hexdigest()


def joined(spans: list[Span]) -> tuple[Span, ...]:
    """Return spans in order, those that meet or overlap as one, without empty ones."""
    result: list[Span] = []
    for span in sorted(one for one in spans if one.length):
        if result and span.begin <= result[-1].end:
            result[-1] = Span(result[-1].begin, max(span.end, result[-1].end))
        else:
            result.append(span)
    return tuple(result)
