"""The committed offsets of groups that pop, on a slave, as far as its own log supports them.

A group's offset is the end of what it has popped: the messages before it belong to checkpoints, which are in the log. A
slave that applied an offset before its log has the checkpoint, and became the master, would deliver these messages to
no member of the group. So a master's offsets of such groups wait until the log has the end that they are stamped with;
until then the smaller one of the own offset and the master's counts. Reading too much costs only a second delivery.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.core.stamped_documents import StampedDocuments


@final
class PopProgress:
    """The offsets of groups that pop, on a slave. Owned by the event loop."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets: Final = offsets
        self._waiting: Final = StampedDocuments[dict[str, dict[int, int]]]()
        """The master's offsets of groups that pop, by topic@group and queue."""

    def receive(self, document: OffsetDocument, end: int) -> None:
        """Replace the offsets of groups that pop in a master's document, stamped with ``end``, by safe ones."""
        waiting: dict[str, dict[int, int]] = {}
        for key in self._offsets.popped.union(document.popped or ()):
            offsets = waiting[key] = document.offset_table.pop(key, {})
            own = self._offsets.offsets_of(key)
            safe = {queue: min(offset, own[queue]) for queue, offset in offsets.items() if queue in own}
            if safe:
                document.offset_table[key] = safe
        document.popped = sorted(waiting) or None
        self._waiting.receive(waiting, end)

    def apply_up_to(self, position: int) -> None:
        """Apply the offsets for a log that equals the master's up to ``position``."""
        newest = self._waiting.take_reached(position)
        if newest is not None:
            for key, offsets in newest[1].items():
                self._offsets.replace(key, offsets)
                self._offsets.unproven.discard(key)

    def become_master(self, position: int) -> None:
        """Apply the offsets up to the end of the log, and forget later ones: this broker is the master."""
        self.apply_up_to(position)
        self._waiting.clear()

    def begin_copying(self) -> None:
        """Forget what waits for the log: a stream begins, perhaps from another master, and sends all offsets.

        The log may have lost checkpoints, so the own offsets are not proven until those of the master are applied.
        """
        self._waiting.clear()
        self._offsets.unproven.update(self._offsets.popped)
