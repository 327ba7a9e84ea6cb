"""Groups that an administrator has moved, in queues where their readers do not know it yet.

A reader keeps its place in memory and tells the broker about it afterwards, so a new offset in the broker's table alone
would be overwritten by the next commit. A reset is therefore pending until a reader has heard of it:

    reset to r                           the offset in the table is r, and stays r: commits are passed over
    a pull of who was not told           is sent to r (21, OFFSET_RESET), even from r: what it has in hand is to go
    the next pull of who was told        the reset is done, and everything is as always

RocketMQ forgets the reset with the first answer. Here it is kept until that answer has been read: a connection that
breaks before, or a client that takes ten seconds to obey and commits its old place meanwhile, as 4.9's do, does not
undo it. No connection is told twice: a reader that was sent to r and asks for another place all the same has a will of
its own, and gets it, as RocketMQ's would. A pull that waited when the reset came was made by somebody who knew nothing.

It is kept with the offsets, in their file and on slaves, for a reset that was answered 0 survives as they do.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from gantry_remoting import Connection


@dataclass(slots=True)
class _Reset:
    offset: int
    told: "weakref.WeakSet[Connection]" = field(default_factory=weakref.WeakSet)
    """Who was sent there."""


@final
class OffsetResets:
    """What is pending, by topic@group and queue. Owned by the event loop."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, _Reset]] = {}

    def __repr__(self) -> str:
        return f"<OffsetResets pending={sum(map(len, self._table.values()))}>"

    @property
    def is_empty(self) -> bool:
        return not self._table

    def assign(self, key: str, queue_id: int, offset: int) -> None:
        """Whoever reads this queue for this group goes on at ``offset``."""
        self._table.setdefault(key, {})[queue_id] = _Reset(offset)

    def is_pending(self, key: str, queue_id: int) -> bool:
        queues = self._table.get(key)
        return queues is not None and queue_id in queues

    def place(self, key: str, queue_id: int, reader: Connection, *, was_waiting: bool) -> int | None:
        """Where ``reader`` has to go; None if it may read where it is. ``was_waiting``: since before it was told."""
        reset = self._table.get(key, {}).get(queue_id)
        if reset is None:
            return None
        if reader in reset.told and not was_waiting:
            self._forget(key, queue_id)
            return None
        reset.told.add(reader)
        return reset.offset

    def clamp(self, key: str, queue_id: int, end: int) -> None:
        """No reset leads beyond the end of its queue."""
        reset = self._table.get(key, {}).get(queue_id)
        if reset is not None:
            reset.offset = min(reset.offset, end)

    def forget(self, matches: Callable[[str], bool]) -> None:
        for key in [key for key in self._table if matches(key)]:
            del self._table[key]

    def pending(self) -> dict[str, dict[int, int]]:
        """As it is kept: topic@group -> queue -> offset."""
        return {key: {queue: reset.offset for queue, reset in queues.items()} for key, queues in self._table.items()}

    def load(self, pending: Mapping[str, Mapping[int, int]]) -> None:
        """Be what was kept. Whoever was told, and by whom, is not known any more."""
        self._table = {}
        for key, queues in pending.items():
            for queue_id, offset in queues.items():
                self.assign(key, queue_id, offset)

    def _forget(self, key: str, queue_id: int) -> None:
        queues = self._table[key]
        del queues[queue_id]
        if not queues:
            del self._table[key]
