"""The number of pending timer messages of each topic, across restarts and promotions (request 61, `brokerStatus`).

The counts are part of the document of the progress, which a file keeps and slaves get, with the state of delivery at
the moment of the count. The file has an older, settled state beside it, from which a start continues: it reads some
messages again, and delivers some again. Neither is counted again, since the state of the count shows what was counted.

The counts are figures for people: nothing depends on them. A message that was damaged when it was due stays counted,
and so does one that was late when the broker crashed; when nothing is pending any more, the counts begin again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

from gantry_broker.server.timers.entries import Entry
from gantry_broker.server.timers.marks import START, TimerState

TOPICS_MAX: Final = 10_000
"""The limit of topics whose pending messages are counted: their document has 300 KB."""


class ReadMessage(NamedTuple):
    """A message of the timer topic that was read."""

    queue_offset: int
    topic: str
    previous: int | None
    """The queue offset of the copy of which this one is a copy; None if it is the first."""


@final
class PendingCounts:
    """Counts the messages that are read and not delivered. Owned by the event loop."""

    def __init__(self) -> None:
        self.read = 0
        """Messages of the queue before this are counted."""
        self._counts: Final[Counter[str]] = Counter()
        self._start = 0
        """The count began with this message of the queue."""
        self._counted = TimerState()
        """Messages before its ``read`` that it has passed were subtracted before the last start."""

    def __repr__(self) -> str:
        return f"<PendingCounts {self.total()} read={self.read}>"

    def total(self) -> int:
        """Return the number of pending messages of all counted topics."""
        return self._counts.total()

    def by_topic(self) -> dict[str, int]:
        """Return the number of pending messages of each topic that has one."""
        return dict(self._counts)

    def counted_state(self, present: TimerState) -> TimerState:
        """Return the state in which the counts are right, at the ``present`` state of delivery."""
        last = max(self._counted, present, key=lambda state: state.last[1:])
        return last._replace(read=self.read)

    def load(self, counts: Mapping[str, int], counted: TimerState) -> None:
        """Replace the counts by those of a document."""
        self._counts.clear()
        self._counts.update(counts)
        self._counted, self.read, self._start = counted, counted.read, 0

    def restart(self) -> None:
        """Begin again with the start of the queue."""
        self.load({}, TimerState(0, (START,)))

    def clear(self) -> None:
        """Forget the counts, because nothing is pending."""
        self._counts.clear()

    def skip_to(self, start: int) -> None:
        """Record that messages before this are not in the log any more."""
        if self.read < start:
            self.read = self._start = start

    def note_read(self, start: int, end: int, messages: Iterable[ReadMessage]) -> None:
        """Count the messages that were read in ``[start, end)`` of the queue.

        Nothing is counted if some before them are not, as on a slave, whose master sends the counts.
        """
        if start > self.read:
            return
        for queue_offset, topic, previous in messages:
            is_counted = queue_offset < self.read or (previous is not None and previous >= self._start)
            if not is_counted and (topic in self._counts or len(self._counts) < TOPICS_MAX):
                self._counts[topic] += 1
        self.read = max(self.read, end)

    def note_done(self, entry: Entry, topic: str, *, is_late: bool) -> None:
        """Subtract a message that is not pending any more, if it was not subtracted before the last start."""
        is_from_before = not is_late and entry.queue_offset < self._counted.read
        if is_from_before and self._counted.is_passed(entry.due_ms, entry.queue_offset):
            return
        if self._counts[topic] > 1:
            self._counts[topic] -= 1
        else:
            del self._counts[topic]
