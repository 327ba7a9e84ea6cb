"""Spans of a log or a queue, split at the boundaries of its segments.

    segments  [0 ........)[100 ......)             [300 ......)
    span            [50 ............................... 350)
    pieces          [50 .)[100 ......)[200 ... 300)[300 350)       the third one is in no file: a hole

This module decides which file has which bytes. The meaning of a hole is up to the caller: the sidecar refuses the
request, the audit reports a finding, and ``QueueReader.read`` returns None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from gantry_store_files.disk import StoreDisk
from gantry_store_files.segments import Segment


class LogPiece(NamedTuple):
    """The part ``[start, end)`` of a span that is in one file, or in none."""

    start: int
    end: int
    segment: Segment | None
    """The file that has the part; None for a hole."""


class SpanBytes(NamedTuple):
    """The bytes of a span, with zeros in place of bytes that could not be read."""

    data: bytes
    holes: tuple[tuple[int, int], ...]
    """Half-open ranges that no file has, in ascending order and merged where they are adjacent."""


def split_span(segments: Sequence[Segment], start: int, end: int) -> Iterator[LogPiece]:
    """Yield the pieces of the span ``[start, end)`` in order and without gaps."""
    offset = start
    for segment in segments:
        if segment.end_offset <= offset:
            continue
        if segment.base_offset >= end:
            break
        if segment.base_offset > offset:
            yield LogPiece(offset, segment.base_offset, None)
            offset = segment.base_offset
        stop = min(segment.end_offset, end)
        if offset < stop:
            yield LogPiece(offset, stop, segment)
            offset = stop
    if offset < end:
        yield LogPiece(offset, end, None)


def read_span(disk: StoreDisk, segments: Sequence[Segment], start: int, end: int) -> SpanBytes:
    """Return the bytes ``[start, end)``.

    A file that has vanished or become shorter since it was listed leaves a hole.
    """
    parts: list[bytes] = []
    holes: list[tuple[int, int]] = []
    for piece in split_span(segments, start, end):
        data = _read_piece(disk, piece)
        parts.append(data)
        begin = piece.start + len(data)
        if begin < piece.end:
            parts.append(bytes(piece.end - begin))
            if holes and holes[-1][1] == begin:
                begin = holes.pop()[0]
            holes.append((begin, piece.end))
    return SpanBytes(parts[0] if len(parts) == 1 else b"".join(parts), tuple(holes))


def _read_piece(disk: StoreDisk, piece: LogPiece) -> bytes:
    if piece.segment is None:
        return b""
    try:
        file = disk.open(piece.segment.path)
    except FileNotFoundError:
        return b""
    with closing(file):
        return file.pread(piece.end - piece.start, piece.start - piece.segment.base_offset)
