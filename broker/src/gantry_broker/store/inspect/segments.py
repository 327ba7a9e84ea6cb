"""Files named by their offsets, as they lie in a directory: of a log, or of a queue.

    00000000000000000000   00000000001073741824   00000000002147483648

Opening a store refuses what does not fit together. Looking at one must not: whatever is there is shown, and what does
not fit is said. So there is no arithmetic here that takes a missing file for granted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.mapped_file import parse_file_name
from gantry_broker.store.queue_table import QUEUE_ID_MAX
from gantry_wire.names import topic_fault


class Segment(NamedTuple):
    """One such file."""

    base_offset: int
    size: int
    path: str

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size


class SegmentFault(NamedTuple):
    """What does not fit, and which range of the log or queue it takes away."""

    start: int
    end: int
    path: str
    text: str
    is_hole: bool = False
    """Whether whole files are missing, and nothing else is wrong."""


class QueuePlace(NamedTuple):
    """A directory that is a queue's by its name."""

    topic: str
    queue_id: int
    directory: str


def segments_of(disk: ReadingDisk, directory: str) -> tuple[Segment, ...]:
    """The files of a log or queue, by offset. One that vanishes meanwhile was never there."""
    found: list[Segment] = []
    for name in disk.list(directory):
        base = parse_file_name(name)
        facts = disk.facts(f"{directory}/{name}") if base is not None else None
        if base is not None and facts is not None and not facts.is_directory:
            found.append(Segment(base, facts.size, f"{directory}/{name}"))
    return tuple(found)


def usual_size(segments: Sequence[Segment]) -> int:
    """The size that most files have; 0 when there is none with any."""
    sizes = Counter(segment.size for segment in segments if segment.size)
    return sizes.most_common(1)[0][0] if sizes else 0


def whole_segments(segments: Sequence[Segment], size: int) -> tuple[Segment, ...]:
    """The files before the first one that is missing, out of place, or not of ``size`` bytes."""
    whole: list[Segment] = []
    for segment in segments:
        is_next = not whole or segment.base_offset == whole[-1].end_offset
        if segment.size != size or segment.base_offset % size or not is_next:
            break
        whole.append(segment)
    return tuple(whole)


def segment_faults(segments: Sequence[Segment], size: int) -> Iterator[SegmentFault]:
    """Files that are missing, not of ``size`` bytes, or out of place. An empty last one was just being made."""
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
                segment.base_offset, segment.end_offset, segment.path, f"its name is no multiple of {size}"
            )
        if segment.size != size and not (segment.size == 0 and number == len(segments) - 1):
            text = f"it has {segment.size} bytes, the others have {size}"
            yield SegmentFault(min(segment.end_offset, segment.base_offset + size), segment.base_offset + size,
                               segment.path, text)  # fmt: skip
        previous = segment


def segment_at(segments: Sequence[Segment], offset: int) -> Segment | None:
    """The file that holds ``offset``, or None."""
    index = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    if index < 0 or offset >= segments[index].end_offset:
        return None
    return segments[index]


def queue_places(disk: ReadingDisk, root: str) -> Iterator[QueuePlace]:
    """Every directory below ``consumequeue/`` that can be a queue's, by topic and queue id."""
    for topic in disk.list(f"{root}/consumequeue"):
        directory = f"{root}/consumequeue/{topic}"
        if topic_fault(topic) is not None:
            continue
        names = [name for name in disk.list(directory) if name.isascii() and name.isdigit() and str(int(name)) == name]
        for queue_id in sorted(map(int, names)):
            if queue_id <= QUEUE_ID_MAX:
                yield QueuePlace(topic, queue_id, f"{directory}/{queue_id}")
