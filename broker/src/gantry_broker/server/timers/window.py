"""The part of the pending timer messages that is in memory: those that are due next.

    due order   [ delivered ... | in memory ...... covered | only in the due files ...... )

Every pending entry before `covered` is in memory, so the service delivers from memory alone. The window is loaded from
the due files in runs of a bounded size, however many are due in one hour or in one millisecond, and new entries before
`covered` are added as they are read. When too many are added, `covered` moves back: the files have them.

Recalls are in memory for the messages that are in memory, and from their request until they are read from the log. Any
number of them may have one key, since a producer chooses it. Of those with one time the one with the last origin
cancels all that the others cancel; they count only if the log has lost its record. So adding a recall takes the same
time, however many there are, and a message is compared with at most one recall for each millisecond of a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, final

from gantry_broker.server.timers.entries import (
    JAVA_PRECISION_MAX_MS,
    MESSAGE,
    NO_KEY,
    RECALL,
    Entry,
    cancels,
    decode_entry,
    first_key,
    kind_of,
)

RUN_MAX: Final = 64 * 1024
"""How many entries are kept when there are too many: 7 MB, and 13 seconds at 5,000 due messages a second."""
FRESH_MAX: Final = RUN_MAX
"""The limit of entries that were added since a load. With more, the window ends earlier."""
RECALLS_MIN: Final = 4096
"""With so many recalls, those of messages that are delivered are looked for."""


@final
class DueWindow:
    """The pending entries that are due next, in order. Owned by the event loop."""

    def __init__(self) -> None:
        self.covered = b""
        """Entries that sort before this are in memory."""
        self._run: list[bytes] = []
        self._position = 0
        self._fresh: list[bytes] = []
        self._recalls: dict[int, dict[int, Entry]] = {}
        """Key hash -> due time -> the recall with the last origin."""
        self._other_recalls: dict[tuple[int, int], set[Entry]] = {}
        """Key hash and due time -> the other recalls."""
        self._recall_count = 0
        self._replaced: dict[int, set[Entry]] = {}
        """Queue offset of a message -> the entries of records that claim to be its copy; no more than one can be."""
        self._forget_at = RECALLS_MIN

    def __repr__(self) -> str:
        return f"<DueWindow entries={len(self)} recalls={self._recall_count}>"

    def __len__(self) -> int:
        return len(self._run) - self._position + len(self._fresh)

    def restart(self, due_ms: int, *, keeps_recalls: bool) -> None:
        """Forget the messages, and begin again with entries that are due at ``due_ms`` or later.

        Recalls reach a second further than their own time, so those of the second before are loaded, too. Recalls are
        forgotten only if they are read again, too.
        """
        self._run, self._position, self._fresh = [], 0, []
        if not keeps_recalls:
            self._recalls.clear()
            self._other_recalls.clear()
            self._recall_count = 0
            self._replaced.clear()
        self.covered = first_key(due_ms - JAVA_PRECISION_MAX_MS)

    def add(self, data: bytes) -> None:
        """Add a new entry, which the due files also get; a message beyond the window is ignored.

        A recall beyond the window is forgotten if it was known: the files have it when its message is loaded.
        """
        entry = decode_entry(data)
        if data >= self.covered:
            if entry.kind != MESSAGE:
                self.uncancel(entry)
            return
        if entry.kind == MESSAGE:
            heapq.heappush(self._fresh, data)
            if len(self._fresh) > FRESH_MAX:
                self._shrink()
        else:
            self.cancel(entry)

    def cancel(self, entry: Entry) -> None:
        """Add a recall, or a message that was stored again, also for messages that are not in memory yet."""
        if entry.kind != RECALL:
            self._replaced.setdefault(entry.queue_offset, set()).add(entry)
            return
        by_time = self._recalls.setdefault(entry.key_hash, {})
        last = by_time.setdefault(entry.due_ms, entry)
        if last is entry:
            self._recall_count += 1
        elif last != entry:
            self._add_other_recall(by_time, last, entry)

    def _add_other_recall(self, by_time: dict[int, Entry], last: Entry, entry: Entry) -> None:
        """Add a recall with the same key and time as ``last``, which is the last one so far."""
        others = self._other_recalls.setdefault((entry.key_hash, entry.due_ms), set())
        if entry in others:
            return
        if _rank_of(entry) > _rank_of(last):
            by_time[entry.due_ms], entry = entry, last
        others.add(entry)
        self._recall_count += 1

    def uncancel(self, entry: Entry) -> None:
        """Remove a cancellation, so that its messages are delivered if nothing else cancels them."""
        if entry.kind != RECALL:
            claims = self._replaced.get(entry.queue_offset, set())
            claims.discard(entry)
            if not claims:
                self._replaced.pop(entry.queue_offset, None)
            return
        by_time, place = self._recalls.get(entry.key_hash, {}), (entry.key_hash, entry.due_ms)
        others = self._other_recalls.get(place, set())
        if by_time.get(entry.due_ms) == entry:
            del by_time[entry.due_ms]
            if others:
                by_time[entry.due_ms] = max(others, key=_rank_of)
                others.remove(by_time[entry.due_ms])
        elif entry in others:
            others.remove(entry)
        else:
            return
        self._recall_count -= 1
        if not others:
            self._other_recalls.pop(place, None)
        if not by_time:
            del self._recalls[entry.key_hash]

    def add_run(self, entries: Iterable[bytes], covered: bytes) -> None:
        """Add loaded entries in due order, which are all from the present ``covered`` up to the new one."""
        messages = self._run[self._position :]
        for data in entries:
            if kind_of(data) == MESSAGE:
                messages.append(data)
            else:
                self.cancel(decode_entry(data))
        self._run, self._position, self.covered = messages, 0, covered

    def peek(self) -> bytes | None:
        """Return the entry that is due next; None if none is in memory."""
        run = self._run[self._position] if self._position < len(self._run) else None
        if self._fresh and (run is None or self._fresh[0] < run):
            return self._fresh[0]
        return run

    def pop(self) -> bytes:
        """Remove and return the entry that is due next."""
        data = self.peek()
        assert data is not None, "callers peek first"
        if self._fresh and self._fresh[0] == data:
            return heapq.heappop(self._fresh)
        self._position += 1
        return data

    def push_back(self, entries: Iterable[bytes]) -> None:
        """Add entries again that were popped and not delivered."""
        for data in entries:
            heapq.heappush(self._fresh, data)

    def find_cancellations(self, entry: Entry) -> Iterator[Entry]:
        """Yield the entries that may cancel a message, copies first: their records decide, if the log has them."""
        yield from self._replaced.get(entry.queue_offset, ())
        by_time = self._recalls.get(entry.key_hash) if entry.key_hash != NO_KEY else None
        if by_time is None:
            return
        times = range(entry.due_ms - JAVA_PRECISION_MAX_MS + 1, entry.due_ms + 1)
        for due_ms in times if len(by_time) > len(times) else list(by_time):
            last = by_time.get(due_ms)
            if last is not None and cancels(last, entry):
                yield last
                others = self._other_recalls.get((entry.key_hash, due_ms), ())
                yield from (one for one in others if cancels(one, entry))

    def _shrink(self) -> None:
        """Keep the entries that are due first, and let the due files have the others."""
        merged = sorted([*self._run[self._position :], *self._fresh])
        if len(merged) > RUN_MAX:
            self.covered = merged[RUN_MAX]
        self._run, self._position, self._fresh = merged[:RUN_MAX], 0, []

    def forget_recalls_if_many(self, due_ms: int) -> None:
        """Call ``forget_recalls`` if recalls have doubled since the last call."""
        if self._recall_count + len(self._replaced) >= self._forget_at:
            self.forget_recalls(due_ms)
            self._forget_at = max(RECALLS_MIN, 2 * (self._recall_count + len(self._replaced)))

    def forget_recalls(self, due_ms: int) -> None:
        """Forget recalls of messages that are all due before ``due_ms``, so that all are delivered or passed."""
        limit = due_ms - JAVA_PRECISION_MAX_MS
        kept = {
            key: {due: one for due, one in by_time.items() if due >= limit} for key, by_time in self._recalls.items()
        }
        self._recalls = {key: by_time for key, by_time in kept.items() if by_time}
        self._other_recalls = {place: others for place, others in self._other_recalls.items() if place[1] >= limit}
        self._recall_count = sum(map(len, self._recalls.values())) + sum(map(len, self._other_recalls.values()))
        claims = {offset: {one for one in some if one.due_ms >= limit} for offset, some in self._replaced.items()}
        self._replaced = {offset: some for offset, some in claims.items() if some}


def _rank_of(recall: Entry) -> tuple[int, int]:
    """Return what orders the recalls of one key and time: the last origin cancels most, the last copy lives longest."""
    return recall.origin, recall.queue_offset
