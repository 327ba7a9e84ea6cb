"""How much was appended to which topic, counted once for each batch.

Statistics are asked for now and then, and messages come all the time: so the append loop does nothing for them. When a
batch is in the log, its bytes and the ends of its queues are known anyway. A batch of one topic, which is nearly every
one, costs one look at each queue that it touched; only a batch of several topics is gone through again.

A topic's queues share one tally, from the first of them until the topic is deleted. What a slave copies is not counted:
its master was asked to store it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from gantry_broker.store.consume_queue import ConsumeQueue
    from gantry_broker.store.draft import Draft

PREPARED: Final = 0x4
"""A record with this flag is in no queue."""


@final
class Tally:
    """What was appended to one topic. Owned by the loop's thread."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        """Messages."""

        self.size = 0
        """Bytes of their records."""

    def __repr__(self) -> str:
        return f"<Tally count={self.count} size={self.size}>"


def tally_batch(touched: Mapping[ConsumeQueue, int], record_bytes: int) -> bool:
    """A batch was appended: its queues with their ends before, and how many bytes its records have together.

    False for a batch of several topics, of which nothing is counted: it is one for ``tally_each``.
    """
    first, count = None, 0
    for queue, before in touched.items():
        if first is None:
            first = queue.tally
        elif queue.tally is not first:
            return False
        count += queue.end - before
    if first is not None:
        first.count += count
        first.size += record_bytes
    return True


def tally_each(drafts: Sequence[Draft], sizes: Iterable[int]) -> None:
    """A batch of several topics was appended, with records of these sizes."""
    for draft, size in zip(drafts, sizes, strict=True):
        if not draft[3] & PREPARED:
            tally = draft[0].tally
            tally.count += 1
            tally.size += size
