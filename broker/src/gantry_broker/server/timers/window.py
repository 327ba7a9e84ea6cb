"""The part of the pending timer messages that is in memory: those that are due next.

    due order   [ delivered ... | in memory ...... covered | only in the due files ...... )

Every pending entry before `covered` is in memory, so the service delivers from memory alone. The window is loaded from
the due files in runs of a bounded size, however many are due in one hour or in one millisecond, and new entries before
`covered` are added as they are read. When too many are added, `covered` moves back: the files have them.

Recalls are in memory for the messages that are in memory, and from their request until they are read from the log.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
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
        self._recalls: dict[int, list[Entry]] = {}
        """Key hash -> recalls."""
        self._replaced: dict[int, list[Entry]] = {}
        """Queue offset of a message -> the entries of records that claim to be its copy; no more than one can be."""
        self._forget_at = RECALLS_MIN

    def __repr__(self) -> str:
        return f"<DueWindow entries={len(self)} recalls={len(self._recalls)}>"

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
        table, key = self._place_of(entry)
        entries = table.setdefault(key, [])
        if entry not in entries:
            entries.append(entry)

    def uncancel(self, entry: Entry) -> None:
        """Remove a cancellation, so that its messages are delivered if nothing else cancels them."""
        table, key = self._place_of(entry)
        entries = table.get(key, [])
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del table[key]

    def _place_of(self, entry: Entry) -> tuple[dict[int, list[Entry]], int]:
        """Return the table that a cancellation is in, and its key there."""
        return (self._recalls, entry.key_hash) if entry.kind == RECALL else (self._replaced, entry.queue_offset)

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

    def find_cancellations(self, entry: Entry) -> list[Entry]:
        """Return the entries that may cancel a message, copies first: their records decide, if the log has them."""
        found = list(self._replaced.get(entry.queue_offset, ()))
        if entry.key_hash != NO_KEY and entry.key_hash in self._recalls:
            found += [one for one in self._recalls[entry.key_hash] if cancels(one, entry)]
        return found

    def _shrink(self) -> None:
        """Keep the entries that are due first, and let the due files have the others."""
        merged = sorted([*self._run[self._position :], *self._fresh])
        if len(merged) > RUN_MAX:
            self.covered = merged[RUN_MAX]
        self._run, self._position, self._fresh = merged[:RUN_MAX], 0, []

    def forget_recalls_if_many(self, due_ms: int) -> None:
        """Call ``forget_recalls`` if recalls have doubled since the last call."""
        if len(self._recalls) + len(self._replaced) >= self._forget_at:
            self.forget_recalls(due_ms)
            self._forget_at = max(RECALLS_MIN, 2 * (len(self._recalls) + len(self._replaced)))

    def forget_recalls(self, due_ms: int) -> None:
        """Forget recalls of messages that are all due before ``due_ms``, so that all are delivered or passed."""
        limit = due_ms - JAVA_PRECISION_MAX_MS
        self._recalls = _without_old(self._recalls, limit)
        self._replaced = _without_old(self._replaced, limit)


def _without_old(table: dict[int, list[Entry]], limit_ms: int) -> dict[int, list[Entry]]:
    """Return the entries of the table that are due at ``limit_ms`` or later."""
    kept = {key: [one for one in entries if one.due_ms >= limit_ms] for key, entries in table.items()}
    return {key: entries for key, entries in kept.items() if entries}
