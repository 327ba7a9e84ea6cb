"""Checks the requests of pop consumption, in RocketMQ's order and with its codes and texts.

Receipts are not signed, so nothing in one is trusted: the topic, the queue and the offset of an ack are those of the
request, and the checkpoint must exist here. A receipt that names no open checkpoint has no effect.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.topic_attributes import BATCH_QUEUES, QUEUE_TYPE
from gantry_broker.server.pull.pull_plans import check_filter_type
from gantry_wire import ResponseCode, names
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.nameserver import PERMISSION_READ
from gantry_wire.commands.pop import PopMessage
from gantry_wire.filters import MessageFilter, parse_filter
from gantry_wire.limits import RETRY_TOPIC_BYTES_MAX
from gantry_wire.pop_receipts import Receipt, ReceiptError, parse_receipt

MESSAGES_MAX: Final = 32
"""RocketMQ's limit of the messages of one pop; a checkpoint has one bit for each."""

INVISIBLE_MS_MAX: Final = 3 * 24 * 3600 * 1000
"""The limit of an invisible time: RocketMQ keeps checkpoints as timer messages, whose limit is three days."""

NAME_CHARACTERS_MAX: Final = 300
"""How much of a name a text repeats."""


def check_queue_of_group(core: BrokerCore, group: str, topic: str, queue_id: int, what: str = "peeking") -> None:
    """Raise Refused unless the group may consume this queue, or all of the topic for a negative number, by pop."""
    config = _find_topic(core, topic)
    if not config.perm & PERMISSION_READ or topic in names.HIDDEN_TOPICS:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] {what} message is forbidden")
    if queue_id >= config.read_queue_nums:
        raise Refused(ResponseCode.INVALID_PARAMETER, _queue_text(topic, queue_id, config))
    found = core.groups.find_or_create(group)
    if found is None:
        text = f"subscription group [{group[:NAME_CHARACTERS_MAX]}] does not exist"
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    if not found.consume_enable:
        raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    if core.groups.is_forbidden(group, topic):
        text = f"the consumer group[{group}] is forbidden for topic[{topic}]"
        raise Refused(ResponseCode.NO_PERMISSION, text)
    if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES:
        text = f"the topic[{topic}] stores batches as one record ({QUEUE_TYPE}={BATCH_QUEUES}), which cannot be popped;"
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{text} consume it by pulling")
    retry_topic = names.pop_retry_topic(topic, group)
    if len(retry_topic) > RETRY_TOPIC_BYTES_MAX:
        text = f"the retry topic {retry_topic[:NAME_CHARACTERS_MAX]} would have {len(retry_topic)} characters,"
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{text} but at most {RETRY_TOPIC_BYTES_MAX}; shorten the names")


def is_queue_of_group(core: BrokerCore, group: str, topic: str, queue_id: int) -> bool:
    """Whether a topic has this queue, and the group exists and may consume it. Nothing is created."""
    config = core.topics.find(topic)
    found = core.groups.all.get(group)
    return (
        config is not None
        and found is not None
        and 0 <= queue_id < config.read_queue_nums
        and bool(config.perm & PERMISSION_READ)
        and topic not in names.HIDDEN_TOPICS
        and found.consume_enable
        and not core.groups.is_forbidden(group, topic)
    )


def check_pop(core: BrokerCore, request: PopMessage) -> None:
    """Raise Refused if a pop is invalid, apart from its filter."""
    if not 1 <= request.max_msg_nums <= MESSAGES_MAX:
        over = (
            "greater than 32"
            if request.max_msg_nums > MESSAGES_MAX
            else f"{request.max_msg_nums}, at least 1 is needed"
        )
        text = f"the broker[{core.settings.broker_ip}] pop message's num is {over}"
        raise Refused(ResponseCode.INVALID_PARAMETER, text)
    check_invisible_time(request.invisible_time, least_ms=1)
    check_queue_of_group(core, request.consumer_group, request.topic, request.queue_id)
    if request.exp:
        check_filter_type(core, request.consumer_group, request.topic, request.exp_type)


def parse_pop_filter(request: PopMessage) -> MessageFilter:
    """Return the filter of a pop. Raises Refused if it is malformed."""
    try:
        return parse_filter(request.exp_type if request.exp else None, request.exp)
    except ValueError as error:
        text = f"parse the consumer's subscription failed: {error}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text) from error


def check_invisible_time(invisible_ms: int, *, least_ms: int) -> None:
    """Raise Refused for an invisible time out of ``[least_ms, INVISIBLE_MS_MAX]``."""
    if not least_ms <= invisible_ms <= INVISIBLE_MS_MAX:
        text = (
            f"invisibleTime {invisible_ms} is illegal: expected {least_ms} to {INVISIBLE_MS_MAX} milliseconds (3 days)"
        )
        raise Refused(ResponseCode.INVALID_PARAMETER, text)


def check_popped_message(core: BrokerCore, topic: str, queue_id: int, offset: int, *, is_end_valid: bool) -> None:
    """Raise Refused unless the queue of an ack exists and has the offset; ``is_end_valid``: or ends there."""
    config = _find_topic(core, topic)
    if not 0 <= queue_id < config.read_queue_nums:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _queue_text(topic, queue_id, config))
    first, end = core.readable_range(topic, queue_id)
    if not first <= offset < end + is_end_valid:
        text = f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{first}~{end}"
        raise Refused(ResponseCode.NO_MESSAGE, text)


def read_receipt(text: str) -> Receipt:
    """Return the receipt of a request. Raises Refused if it is malformed."""
    try:
        return parse_receipt(text)
    except ReceiptError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _find_topic(core: BrokerCore, topic: str) -> TopicConfig:
    config = core.topics.find(topic)
    if config is None:
        text = f"topic[{topic[:NAME_CHARACTERS_MAX]}] not exist, apply first please!"
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, text)
    return config


def _queue_text(topic: str, queue_id: int, config: TopicConfig) -> str:
    return f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]"
