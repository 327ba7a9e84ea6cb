"""Which messages of the timer queue are delivered, as a value: the marks of `progress`."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mark(NamedTuple):
    """Messages from queue offset ``start`` on are delivered up to this due time and queue offset, inclusive."""

    start: int
    due_ms: int
    queue_offset: int


START: Final = Mark(0, 0, -1)
"""The mark before any message."""


class TimerState(NamedTuple):
    """The messages of the timer queue that are delivered, at one moment."""

    read: int = 0
    """Messages of the queue from here on are not known: they are read again after a start."""

    marks: tuple[Mark, ...] = (START,)
    """The marks by their starts; each is before the previous one in due order."""

    kept: int = 0
    """Messages before this are delivered, recalled or stored again, so their records may be deleted."""

    def is_passed(self, due_ms: int, queue_offset: int) -> bool:
        """Whether a message before ``read`` is delivered."""
        mark = self.marks[-1]
        if queue_offset < mark.start:
            mark = next(one for one in reversed(self.marks) if one.start <= queue_offset)
        return (due_ms, queue_offset) <= mark[1:]

    @property
    def last(self) -> Mark:
        """The mark for new messages, which is the lowest."""
        return self.marks[-1]

    def advance(self, due_ms: int, queue_offset: int, read: int) -> TimerState:
        """Return the state in which everything up to this due time and queue offset is delivered."""
        done = (due_ms, queue_offset)
        marks: list[Mark] = []
        for mark in self.marks:
            passed = Mark(mark.start, *max(mark[1:], done))
            if not marks or marks[-1][1:] != passed[1:]:
                marks.append(passed)
        return TimerState(read, tuple(marks), self.kept)

    def set_back(self, start: int, due_ms: int) -> TimerState:
        """Return the state with a new mark at this time for messages from ``start`` on."""
        kept = tuple(mark for mark in self.marks if mark.start < start)
        return self._replace(marks=(*kept, Mark(start, due_ms, -1)))

    def clamp(self, end: int) -> TimerState:
        """Return the state for a queue that ends at ``end``: messages from there on are new."""
        marks = tuple(mark for mark in self.marks if mark.start <= end)
        return TimerState(min(self.read, end), marks, min(self.kept, end))
