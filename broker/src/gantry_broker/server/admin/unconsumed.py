"""Finds the oldest unconsumed message, which forced deletion must not pass.

    commit log   [ consumed by all | oldest unconsumed ...... )
    per queue    the smallest committed offset of its groups -> the queue's unit -> a physical offset; the least of all

The consumers of a topic are all groups with a committed offset in it, and all connected groups that subscribe to it. A
group without an offset in a queue has consumed nothing of it. Broadcasting consumers keep their offsets themselves, and
tools and system groups do not act for a user, so neither counts. A topic without consumers is unconsumed from its
start; dead letter topics usually are. A message that is popped and not acked is unconsumed, too. Retry topics wait for
their own group, delayed messages for their delivery. Other system topics prevent no deletion, and neither does the
topic of the self-check of `gantry up`, which never has consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantry_wire import names

QUEUES_PER_TURN: Final = 256
"""How many queues are examined before the event loop serves requests again."""

DELAY_SERVICE: Final = "(delayed delivery)"
"""Named instead of a group if a message waits for its delay."""
UNREAD_POPS: Final = "(pop consumption, whose records are not read yet)"
"""Named instead of a group while it is unknown which messages are popped and not acked."""
NO_GROUP: Final = "(no consumer group)"
"""Named instead of a group if the topic has no consumers."""


class Unconsumed(NamedTuple):
    """A message, and the group that has not consumed it."""

    physical_offset: int
    topic: str
    queue_id: int
    group: str


async def find_oldest_unconsumed(core: BrokerCore, delivered: Mapping[int, int]) -> Unconsumed | None:
    """Return the oldest unconsumed message of all topics, or None.

    While it is unknown which messages are popped and not acked, it may be any message, so the start of the log counts.
    ``delivered`` holds the durably delivered offset of each delay level.
    """
    oldest: Unconsumed | None = None
    popped = await core.oldest_unacked()
    if popped is None:
        return Unconsumed(core.store.log.min_physical, names.revive_topic(core.settings.cluster_name), 0, UNREAD_POPS)
    committed = core.offsets.groups_by_topic()
    count = 0
    for topic, queue_ids in core.store.queues.topics().items():
        groups = list_consumers(core, topic, committed.get(topic, ()))
        if groups is None:
            continue
        for queue_id in queue_ids:
            count += 1
            if count % QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
            queue = core.store.queues.get(topic, queue_id)
            found = None if queue is None else find_first_in_queue(core, queue, groups, delivered, popped)
            if found is not None and (oldest is None or found.physical_offset < oldest.physical_offset):
                oldest = found
    return oldest


def list_consumers(core: BrokerCore, topic: str, committed: Iterable[str]) -> list[str] | None:
    """Return the groups that must consume a topic's messages before deletion; None if deletion need not wait."""
    if topic == names.SCHEDULE_TOPIC:
        return [DELAY_SERVICE]
    if topic.startswith(names.RETRY_PREFIX):
        owner = topic.removeprefix(names.RETRY_PREFIX)
        popping = sorted(group for group in committed if names.pop_retry_origin(topic, group) is not None)
        return [owner] if owner in core.groups.all or not popping else popping
    if core.topics.is_system(topic) or topic == names.SELF_CHECK_TOPIC:
        return None
    groups = {*committed, *core.clients.groups_subscribed_to(topic)}
    return sorted(group for group in groups if _is_counted(core, group)) or [NO_GROUP]


def _is_counted(core: BrokerCore, group: str) -> bool:
    if names.is_system_group(group):
        return False
    state = core.clients.consumers.get(group)
    return state is None or state.message_model != "BROADCASTING"


def find_first_in_queue(
    core: BrokerCore,
    queue: ConsumeQueue,
    groups: Iterable[str],
    delivered: Mapping[int, int],
    popped: Mapping[tuple[str, str, int], int],
) -> Unconsumed | None:
    """Return the first message of a queue that one of the groups has not consumed; None if all are consumed.

    ``delivered`` has the delivered offset of each delay level, ``popped`` the oldest messages that are not acked.
    """
    slowest, offset = NO_GROUP, queue.readable_end
    for group in groups:
        if group == DELAY_SERVICE:
            consumed: int | None = delivered.get(queue.queue_id + 1)
        else:
            consumed = None if group == NO_GROUP else core.offsets.find(group, queue.topic, queue.queue_id)
        consumed = min(consumed or 0, popped.get((queue.topic, group, queue.queue_id), queue.readable_end))
        if consumed < offset:
            slowest, offset = group, consumed
    for physical, size, _ in queue.units(max(offset, queue.min_offset), queue.readable_end):
        if size != FILLER_SIZE:
            return Unconsumed(physical, queue.topic, queue.queue_id, slowest)
    return None
