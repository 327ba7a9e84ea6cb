"""The open checkpoints of one revive queue, in the order of their records, and what a summary has of them.

    revive queue   [ ck 1 ... ck 2 ... ack of 1 ... | ck 8 ... ck 9 ... }       summary: 1 and 2, read from 8 on
                                          the summary before

Checkpoints that were open at the summary before are in the next one, with their acks. So a start reads only the records
since then, however long messages stay invisible. Owned by the event loop.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, final

OLD_MAX: Final = 1000
"""The limit of the checkpoints of one revive queue in a summary. Those of all eight take about ten milliseconds, each
ten seconds, and 110 KB in the log. With more of them, a start reads from the first one that is left out."""

MESSAGES_MAX: Final = 63
"""The limit of the messages of such a checkpoint, whose acks are bits of a number in JSON. A pop has at most 32."""

COMPACTED_FROM: Final = 1024
"""From how many entries on an index is freed of checkpoints that are done: below, the saving is not worth a pass."""


class Recorded(Protocol):
    """A checkpoint with a record."""

    record_offset: int

    @property
    def offsets(self) -> Sequence[int]:
        """The queue offsets of its messages."""


C = TypeVar("C", bound=Recorded)


class Summary(NamedTuple, Generic[C]):
    """What a start needs to know of a revive queue."""

    oldest: int
    """The offset of the record of the oldest open checkpoint; without one, of the next record to read."""

    start: int
    """The offset of the first record to read, given ``old``."""

    old: list[C]
    """The open checkpoints with records before ``start``."""


@final
class OpenRecords(Generic[C]):
    """The open checkpoints of one revive queue. Owned by the event loop."""

    def __init__(self, is_open: Callable[[C], bool], end: int) -> None:
        """``end``: the offset up to which the summary has the records from which the state begins."""
        self._is_open: Final = is_open
        self._recent: deque[C] = deque()
        """Checkpoints that are not in ``_old``, in the order of their records, also some that are done."""

        self._old: list[C] = []
        """The checkpoints of the last summary, also those that are done since."""

        self._summary_end = end
        """Where the records ended at the last summary."""

    def __repr__(self) -> str:
        return f"<OpenRecords recent={len(self)} old={len(self._old)}>"

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, checkpoint: C, open_max: int) -> None:
        """Add a checkpoint; ``open_max`` is at least the number of those that are open."""
        recent = self._recent
        if recent and checkpoint.record_offset < recent[-1].record_offset:
            insort(recent, checkpoint, key=lambda one: one.record_offset)  # a record that was healed
        else:
            recent.append(checkpoint)
        if len(recent) > COMPACTED_FROM + 2 * open_max:
            self._recent = deque(filter(self._is_open, recent))

    def oldest(self, end: int) -> int:
        """Return the offset of the record of the oldest open checkpoint, or ``end`` without one."""
        return min((one.record_offset for one in self._old if self._is_open(one)), default=self._first_recent(end))

    def summarize(self, end: int) -> Summary[C]:
        """Return a summary of the records up to ``end``."""
        self._find_old()
        self._summary_end = end
        start = self._first_recent(end)
        # A start reads the other old ones, before which a record was healed.
        return Summary(self.oldest(end), start, [one for one in self._old if one.record_offset < start])

    def _find_old(self) -> None:
        """Move the checkpoints from before the last summary to the old ones."""
        self._old = [one for one in self._old if self._is_open(one)]
        while self._recent:
            first = self._recent[0]
            if self._is_open(first):
                is_old = first.record_offset < self._summary_end and len(first.offsets) <= MESSAGES_MAX
                if not is_old or len(self._old) >= OLD_MAX:
                    return
                self._old.append(first)
            self._recent.popleft()

    def _first_recent(self, end: int) -> int:
        while self._recent and not self._is_open(self._recent[0]):
            self._recent.popleft()
        return self._recent[0].record_offset if self._recent else end
