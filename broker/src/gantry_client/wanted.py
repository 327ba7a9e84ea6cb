"""What to change so that a broker has a wanted topic or consumer group: the one rule of supervisors and sidecars.

    missing            created
    other numbers      those that are wanted are changed, and nothing else; queues that shall go can still be read, or
                       what is in them would be lost to their consumers
    as wanted          left alone, since every change is announced to all clients

Each broker is compared with its own table: what an administrator set on one of them is neither reset nor copied.
"""

from __future__ import annotations

import msgspec

from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig


def topic_change(
    name: str, queues: int, there: TopicConfig | None, *, like: TopicConfig | None = None
) -> TopicConfig | None:
    """What to make of a topic; None if it is as wanted. A missing one is made ``like`` that of another broker."""
    if there is None:
        made = like or TopicConfig(topic_name=name)
        return msgspec.structs.replace(made, read_queue_nums=queues, write_queue_nums=queues)
    if there.write_queue_nums == queues <= there.read_queue_nums:
        return None
    return msgspec.structs.replace(there, write_queue_nums=queues, read_queue_nums=max(queues, there.read_queue_nums))


def group_change(name: str, retry_max: int, there: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig | None:
    """What to make of a consumer group; None if it is as wanted."""
    if there is None:
        return SubscriptionGroupConfig(group_name=name, retry_max_times=retry_max)
    if there.retry_max_times == retry_max:
        return None
    return msgspec.structs.replace(there, retry_max_times=retry_max)
