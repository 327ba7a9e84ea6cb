"""Spans of a log or a queue, cut at the borders of its segments.

    segments  [0 ........)[100 ......)             [300 ......)
    span            [50 ............................... 350)
    pieces          [50 .)[100 ......)[200 ... 300)[300 350)       the third one lies in no file: a hole

Which file holds which bytes is decided here. What a hole means is not: for the sidecar it is a refusal, for the audit a
finding, for a search in a queue it has expired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from gantry_store_files.disk import StoreDisk
from gantry_store_files.segments import Segment


class LogPiece(NamedTuple):
    """The part ``[start, end)`` of a span that lies in one file, or in none."""

    start: int
    end: int
    segment: Segment | None


class SpanBytes(NamedTuple):
    """The bytes of a span, with zeros where they could not be read."""

    data: bytes
    holes: tuple[tuple[int, int], ...]
    """Half-open ranges that no file has, in order, with neighbours as one."""


def pieces_of(segments: Sequence[Segment], start: int, end: int) -> Iterator[LogPiece]:
    """The span ``[start, end)`` in order and without gaps."""
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
    """The bytes ``[start, end)``. A file that vanished since it was listed, or is shorter now, leaves a hole."""
    parts: list[bytes] = []
    holes: list[tuple[int, int]] = []
    for piece in pieces_of(segments, start, end):
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
