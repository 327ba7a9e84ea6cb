"""The segments of a log or a consume queue: files of one size, each named by the offset at which it begins.

    00000000000000000000   00000000001073741824   00000000002147483648

Opening a store refuses segments that do not fit together. Reading must not: existing files are listed, and inconsistent
ones are reported. No function here assumes that a file exists, and a directory with such a name is no segment.

The files of the key index are named by the time at which they were created; this module recognizes their names, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gantry_store_files.disk import StoreDisk

NAME_DIGITS: Final = 20
"""The digits of a file's name, which is its base offset."""
INDEX_NAME_DIGITS: Final = 17
"""The digits of a local time with milliseconds."""


class Segment(NamedTuple):
    """One file of a log or a consume queue."""

    base_offset: int
    """The offset at which the file begins, by its name."""

    size: int
    path: str

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size


class SegmentFault(NamedTuple):
    """An inconsistency of a file, and the range of the log or queue that is affected."""

    start: int
    end: int
    path: str
    text: str
    """What is wrong, for the user."""

    is_hole: bool = False
    """Whether whole files are missing and nothing else is wrong."""


def segment_name(base_offset: int) -> str:
    """Return the name of the file that begins at ``base_offset``."""
    return f"{base_offset:0{NAME_DIGITS}d}"


def parse_segment_name(name: str) -> int | None:
    """Return the offset at which the file with that name begins, or None for other names."""
    return int(name) if _is_number(name, NAME_DIGITS) else None


def index_names(disk: StoreDisk, directory: str) -> list[str]:
    """Return the names of a key index's files, oldest first; other names are left out."""
    return [name for name in disk.list(directory) if _is_number(name, INDEX_NAME_DIGITS)]


def _is_number(name: str, digits: int) -> bool:
    # isascii() excludes other numerals, some of which int() refuses.
    return len(name) == digits and name.isascii() and name.isdigit()


def segments_of(disk: StoreDisk, directory: str) -> tuple[Segment, ...]:
    """Return the files of a log or queue, by offset. A file that vanishes during the listing is left out."""
    found: list[Segment] = []
    for name in disk.list(directory):
        base, path = parse_segment_name(name), f"{directory}/{name}"
        if base is None:
            continue
        try:
            found.append(Segment(base, disk.file_size(path), path))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
    return tuple(found)


def most_common_size(segments: Sequence[Segment]) -> int:
    """Return the size that most files have, or 0 without a file that has a size."""
    sizes = Counter(segment.size for segment in segments if segment.size)
    return sizes.most_common(1)[0][0] if sizes else 0


def contiguous_segments(segments: Sequence[Segment], size: int) -> tuple[Segment, ...]:
    """Return the files before the first one that is missing, misplaced, or not of ``size`` bytes."""
    found: list[Segment] = []
    for segment in segments:
        is_next = not found or segment.base_offset == found[-1].end_offset
        if segment.size != size or segment.base_offset % size or not is_next:
            break
        found.append(segment)
    return tuple(found)


def segment_faults(segments: Sequence[Segment], size: int) -> Iterator[SegmentFault]:
    """Yield the faults: missing, misplaced or wrongly sized files.

    An empty last file is no fault: its creation is in progress, or was interrupted.
    """
    previous: Segment | None = None
    for number, segment in enumerate(segments):
        if previous is not None and segment.base_offset > previous.base_offset + size:
            start = previous.base_offset + size
            is_hole = bool(size) and segment.base_offset % size == 0 and previous.size == size
            yield SegmentFault(start, segment.base_offset, segment.path, "a file is missing before it", is_hole)
        elif previous is not None and segment.base_offset < previous.end_offset:
            yield SegmentFault(segment.base_offset, previous.end_offset, segment.path, "it overlaps its predecessor")
        elif size and segment.base_offset % size:
            yield SegmentFault(
                segment.base_offset, segment.end_offset, segment.path, f"its name is not a multiple of {size}"
            )
        if segment.size != size and not (segment.size == 0 and number == len(segments) - 1):
            text = f"it has {segment.size} bytes, the others have {size}"
            yield SegmentFault(min(segment.end_offset, segment.base_offset + size), segment.base_offset + size,
                               segment.path, text)  # fmt: skip
        previous = segment


def segment_at(segments: Sequence[Segment], offset: int) -> Segment | None:
    """Return the file that contains ``offset``, or None."""
    index = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    if index < 0 or offset >= segments[index].end_offset:
        return None
    return segments[index]
