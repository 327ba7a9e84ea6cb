"""Finds the oldest message that is to be archived and is not yet: retention deletes nothing from it on.

commit log   [ archived, or not to be archived | oldest unarchived ...... )
per queue    the end of its archived range -> the queue's unit -> a physical offset; the least of all
"""

from __future__ import annotations

import asyncio
from typing import Final

from gantry_broker.server.archive.link import ArchiveLink
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.retention import NOTHING_UNCONSUMED

QUEUES_PER_TURN: Final = 256
"""How many queues are examined before the event loop serves requests again."""


async def find_oldest_unarchived(store: MessageStore, link: ArchiveLink) -> int:
    """Return the physical offset of the oldest message that is not archived; ``NOTHING_UNCONSUMED`` for none.

    It is 0 while it is not known what the archive has.
    """
    if not link.is_known:
        return 0
    oldest = NOTHING_UNCONSUMED
    wanted: dict[str, bool] = {}
    for count, queue in enumerate(store.queues, 1):
        if count % QUEUES_PER_TURN == 0:
            await asyncio.sleep(0)
        topic = queue.topic
        if topic not in wanted:
            wanted[topic] = link.is_to_be_archived(topic)
        if not wanted[topic]:
            continue
        begin = max(queue.min_offset, link.archived_end(queue))
        if begin < queue.end:
            # Messages that consumers do not see yet are after the last one that they do.
            known = min(begin, queue.readable_end - 1)
            oldest = min(oldest, queue.stored_unit(known)[0] if known >= queue.min_offset else 0)
    return oldest
