"""Settings of pop consumption. The docstring of each field begins with its key in a `broker.conf`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PopSettings:
    """Settings of pop consumption: its limits, and in which order a pop reads queues."""

    is_retry_topic_v2: bool = False
    """enableRetryTopicV2: whether messages that were popped and not acked go to `%RETRY%group+topic`.

    With false, RocketMQ's default, they go to `%RETRY%group_topic`, a name that other groups and topics may share.
    Pops read both.
    """

    inflight_max: int = 10_000
    """popInflightMessageThreshold: messages of one queue that a group may have popped and not acked.

    Further pops from the queue wait. RocketMQ has this limit only with enablePopMessageThreshold=true.
    """

    inflight_total_max: int = 200_000
    """maxPopInflightMessages: the same limit for all groups and queues together, which bounds the memory of pops."""

    retry_first_percent: int = 20
    """popFromRetryProbability: how many of 100 pops read the retry topic before the topic.

    The others read it after the topic, if they have room for more messages. With 20, RocketMQ's default, neither topic
    can hold back the other for long.
    """

    priority_retry_first_percent: int = 0
    """popFromRetryProbabilityForPriority: the same for pops that read a topic by priority.

    With 0, RocketMQ's default, a message that is delivered again waits for all new ones, of any priority.
    """

    is_high_number_first: bool = True
    """priorityOrderAsc: whether a higher number of a priority means that a message is read earlier.

    The number is that of the queue, so that pops by priority begin with the last queue. RocketMQ's default is true.
    """
