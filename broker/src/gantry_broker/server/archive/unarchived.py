"""Finds the oldest message that is to be archived and is not yet: retention deletes nothing from it on.

commit log   [ archived, or not to be archived | oldest unarchived ...... )
per queue    the end of its archived range -> the queue's unit -> a physical offset; the least of all
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from gantry_broker.server.archive.link import ArchiveLink
from gantry_broker.store.message_store import MessageStore

QUEUES_PER_TURN: Final = 100
"""How many queues are examined before the event loop serves requests again."""


class Unarchived(NamedTuple):
    """A message that is to be archived and is not yet."""

    physical_offset: int
    topic: str
    queue_id: int
    offset: int


async def find_oldest_unarchived(store: MessageStore, link: ArchiveLink) -> Unarchived | None:
    """Return the oldest message that is not archived; None if there is none.

    While it is not known what the archive has, that is the beginning of the log.
    """
    if not link.is_known:
        return Unarchived(0, "", -1, 0)
    oldest: Unarchived | None = None
    for count, queue in enumerate(store.queues, 1):
        if count % QUEUES_PER_TURN == 0:
            await asyncio.sleep(0)
        if not link.is_to_be_archived(queue.topic, queue.queue_id):
            continue
        begin = max(queue.min_offset, link.archived_end(queue))
        if begin < queue.end:
            # Messages that consumers do not see yet are after the last one that they do.
            known = min(begin, queue.readable_end - 1)
            physical = queue.stored_unit(known)[0] if known >= queue.min_offset else 0
            if oldest is None or physical < oldest.physical_offset:
                oldest = Unarchived(physical, queue.topic, queue.queue_id, begin)
    return oldest
