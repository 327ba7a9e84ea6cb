"""Priority topics, as in RocketMQ 5.4: the priority of a message is the number of its queue, and pops read by priority.

    send    priority 7, eight queues      -> stored in queue 7; a greater priority in the last queue
    pop     message.type=PRIORITY         -> 7, 6, 5 ... 0; each queue until the pop is full or the queue is empty

The property of the message alone decides about its queue, in a topic of any type, as in RocketMQ. It does not
count for half messages, delayed messages and messages with a message group, and is removed from them: their queue has
another meaning. Members that pull read the queues as those of any other topic.

A group may read a priority topic by priority in a part of its pops only (`priority.factor`), so that messages of low
priority are not held back for ever.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.server.core.topic_attributes import MESSAGE_TYPE, PRIORITY_FACTOR, PRIORITY_TYPE
from gantry_wire import properties as keys
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig

PRIORITY_MAX: Final = (1 << 31) - 1
"""The greatest number that RocketMQ reads; a greater one is no priority."""

FACTOR_DEFAULT: Final = 100
"""How many of 100 pops of a group read by priority, unless the group has another `priority.factor`."""

_OTHER_KINDS: Final = (
    keys.DELAY_LEVEL, keys.TIMER_DELIVER_MS, keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.SHARDING_KEY,
)  # fmt: skip
"""A message with one of these is delayed, or has a message group."""


def place_by_priority(properties: dict[str, str], queue_id: int, queues: int) -> int:
    """Return the queue of a message with these properties, whose producer has chosen ``queue_id``.

    A priority that does not count is removed from the properties.
    """
    priority = parse_priority(properties.get(keys.PRIORITY))
    if priority is None:
        return queue_id
    is_half = properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true"
    if is_half or not properties.keys().isdisjoint(_OTHER_KINDS):
        del properties[keys.PRIORITY]
        return queue_id
    return min(priority, max(queues - 1, 0))


def parse_priority(text: str | None) -> int | None:
    """Return the priority, or None for a text that RocketMQ does not take for one."""
    if text is None or not text.removeprefix("+").isdecimal() or not text.isascii():
        return None
    value = int(text[:12])
    return value if len(text) <= 12 and value <= PRIORITY_MAX else None


def is_priority_topic(config: TopicConfig | None) -> bool:
    """Whether pops read the queues of this topic by priority."""
    return config is not None and config.attributes.get(MESSAGE_TYPE) == PRIORITY_TYPE


def priority_factor(config: SubscriptionGroupConfig | None) -> int:
    """Return how many of 100 pops of a group read by priority."""
    text = None if config is None else config.attributes.get(PRIORITY_FACTOR)
    return int(text) if text is not None and text.isdecimal() else FACTOR_DEFAULT
