"""What is known of the progress of groups besides their committed offsets, in memory only.

EpochStartOffsets   where the present epoch began, for groups that have not pulled there yet
PulledOffsets       up to where readers have pulled, consumed or not
PoppedEnds          up to where a group has popped, as far as that is not committed yet
"""

from collections.abc import Callable
from typing import Final, final

SEPARATOR: Final = "@"
"""Separates topic and group in the keys of the offset table."""


@final
class EpochStartOffsets:
    """The queue offsets where the epoch started, for groups that have not pulled there yet. Owned by the event loop."""

    def __init__(self) -> None:
        self.by_key: dict[str, dict[int, int]] = {}

    def start_epoch(self, starts: dict[str, dict[int, int]]) -> None:
        """Start an epoch with this broker as the master; ``starts`` holds the ends of queues by topic@group."""
        self.by_key = starts

    def limit_commit(self, key: str, queue_id: int, offset: int) -> int:
        """Return ``offset``, limited to the start of the epoch if the group has not pulled there yet."""
        return min(offset, self.by_key[key].get(queue_id, offset)) if key in self.by_key else offset

    def forget(self, key: str, queue_id: int) -> None:
        """Lift the limit: the group was reset, and its offset is not in a lost part of the log."""
        self.by_key.get(key, {}).pop(queue_id, None)

    def redirect_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, committed: int | None
    ) -> int | None:
        """Return the offset to which a reader is redirected; None if it is not redirected.

        A reader is redirected if its offset may be in a lost part of the log. The returned offset is never beyond
        what its group has ``committed``: a RocketMQ client that is redirected drops its messages of the queue,
        including messages that failed and wait for their retry.
        """
        starts = self.by_key.get(f"{topic}{SEPARATOR}{group}")
        start = None if starts is None else starts.get(queue_id)
        if starts is None or start is None:
            return None
        if offset > start:
            return start if committed is None else min(start, committed)
        del starts[queue_id]
        return None


@final
class PulledOffsets:
    """The offsets up to which readers have pulled, consumed or not; since this start only, as in RocketMQ."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, int]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether a reader of this topic@group has pulled."""
        return key in self._table

    def record(self, key: str, queue_id: int, next_offset: int) -> None:
        """Record that a reader of this topic@group has received all messages before ``next_offset``."""
        try:
            self._table[key][queue_id] = next_offset
        except KeyError:
            self._table[key] = {queue_id: next_offset}

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which readers have pulled; 0 if none has."""
        return self._table.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id, 0)

    def forget(self, matches: Callable[[str], bool]) -> None:
        for key in [key for key in self._table if matches(key)]:
            del self._table[key]


@final
class PoppedEnds:
    """The ends of pops that wait for a flush to be committed: progress that is shown, and that a crash may take back.

    Owned by the event loop.
    """

    def __init__(self) -> None:
        self._table: dict[str, dict[int, int]] = {}

    def record(self, key: str, queue_id: int, end: int) -> None:
        """Record that the group has popped all messages before ``end`` of a queue of this topic@group."""
        self._table.setdefault(key, {})[queue_id] = end

    def find(self, key: str, queue_id: int) -> int:
        """Return the end of what the group has popped; 0 if nothing waits to be committed."""
        return self._table.get(key, {}).get(queue_id, 0)

    def discard(self, key: str, queue_id: int, end: int | None = None) -> None:
        """Forget the end of a queue: it is committed up to ``end``, or the group was reset."""
        queues = self._table.get(key)
        if queues is not None and (end is None or queues.get(queue_id, 0) <= end):
            queues.pop(queue_id, None)
            if not queues:
                del self._table[key]

    def forget(self, matches: Callable[[str], bool]) -> None:
        for key in [key for key in self._table if matches(key)]:
            del self._table[key]

    def clear(self) -> None:
        """Forget all ends, since the log may have lost their checkpoints."""
        self._table.clear()
