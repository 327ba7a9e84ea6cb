"""Messages of producers: from protocol buffers to the body and the properties that a broker stores.

The kind of a message follows from its properties, as in RocketMQ: a half message of a transaction, a message with a
delivery time, with a message group, with a priority, or a normal one. It must be the kind of its topic.
"""

from collections.abc import Sequence
from typing import Final, final

import msgspec

from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation import property_names as own
from gantry_proxy.translation.checks import check_key, check_message_group, check_tag, check_user_property, topic_name
from gantry_proxy.translation.times import duration_ms, timestamp_ms
from gantry_wire import properties as wire
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.errors import LocalProtocolError
from gantry_wire.properties import encode_properties

COMPRESSED: Final = 0x1
"""The flag of a body that its producer has compressed."""
PREPARED: Final = 0x4
"""The flag of a half message."""
BATCH_MESSAGES_MAX: Final = 1024
"""How many messages one request may send."""
PRIORITY_MAX: Final = 9
"""The highest priority; the lowest is 0."""


@final
class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages of one request, ready for a broker."""

    topic: str
    kind: pb.MessageType
    message_ids: tuple[str, ...]
    body: bytes
    """The body of the message, or the messages of a batch."""

    properties: str
    sys_flag: int
    born_timestamp_ms: int
    message_group: str = ""
    """Messages of a group go to one queue; empty for a message without one."""

    @property
    def is_batch(self) -> bool:
        return len(self.message_ids) > 1


def read_messages(messages: Sequence[pb.Message], born_host: str, now_ms: int, limits: ProxyLimits) -> OutgoingMessage:
    """Return the messages of a request. Raises ProxyError for messages that must not be sent."""
    if not messages:
        raise ProxyError(pb.MESSAGE_CORRUPTED, "the request has no message")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise ProxyError(
            pb.PAYLOAD_TOO_LARGE, f"the request has {len(messages)} messages, at most {BATCH_MESSAGES_MAX}"
        )
    first = messages[0]
    topic = topic_name(first.topic)
    pairs = [_properties(one, topic, born_host, now_ms, limits) for one in messages]
    kinds = {kind_of(one) for one in pairs}
    for one in messages:
        if one is not first and one.topic != first.topic:
            raise ProxyError(pb.MESSAGE_CORRUPTED, "the messages of one request have different topics")
        _check_body(one.body, limits)
    if len(messages) > 1 and kinds != {pb.NORMAL}:
        raise ProxyError(pb.MESSAGE_CORRUPTED, "only normal messages can be sent together")
    try:
        if len(messages) > 1:
            entries = [
                BatchEntry(0, one.body, encode_properties(own_pairs))
                for one, own_pairs in zip(messages, pairs, strict=True)
            ]
            body, text = encode_batch(entries), ""
        else:
            body, text = first.body, encode_properties(pairs[0]).decode()
    except LocalProtocolError as error:
        raise ProxyError(pb.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from error
    system = first.system_properties
    return OutgoingMessage(
        topic=topic,
        kind=kinds.pop(),
        message_ids=tuple(one.system_properties.message_id for one in messages),
        body=body,
        properties=text,
        sys_flag=_sys_flag(messages),
        born_timestamp_ms=timestamp_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms,
        message_group=system.message_group if len(messages) == 1 else "",
    )


def kind_of(properties: dict[str, str]) -> pb.MessageType:
    """Return the kind of a message with these properties."""
    if properties.get(wire.TRANSACTION_PREPARED) == "true":
        return pb.TRANSACTION
    if not properties.keys().isdisjoint(_DELAYS):
        return pb.DELAY
    if own.SHARDING_KEY in properties:
        return pb.FIFO
    return pb.PRIORITY if own.PRIORITY in properties else pb.NORMAL


_DELAYS: Final = frozenset({wire.DELAY_LEVEL, wire.TIMER_DELIVER_MS, wire.TIMER_DELAY_SECONDS, wire.TIMER_DELAY_MS})


def check_kind(topic_kind: str, kind: pb.MessageType, topic: str) -> None:
    """Raise ProxyError if messages of this kind do not belong into a topic with the `message.type` ``topic_kind``."""
    name = pb.MessageType.Name(kind)
    if topic_kind not in (name, "MIXED"):
        raise ProxyError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is of type {name}, but topic {topic!r} accepts {topic_kind}: create the topic with "
            f"+message.type={name}",
        )


def _properties(message: pb.Message, topic: str, born_host: str, now_ms: int, limits: ProxyLimits) -> dict[str, str]:
    system = message.system_properties
    pairs = _user_properties(message, limits)
    if system.tag:
        pairs[wire.TAGS] = system.tag
    if system.keys:
        pairs[wire.KEYS] = wire.KEY_SEPARATOR.join(system.keys)
    if not system.message_id.strip():
        raise ProxyError(pb.ILLEGAL_MESSAGE_ID, "the message has no id")
    pairs[wire.UNIQUE_KEY] = system.message_id
    pairs[wire.WAIT_STORE] = "true"
    pairs[wire.PRODUCER_GROUP] = topic  # the group that a broker asks about an open transaction
    if system.message_type == pb.TRANSACTION:
        pairs |= _transaction_properties(system, limits)
    if system.HasField("delivery_timestamp"):
        pairs[wire.TIMER_DELIVER_MS] = str(_deliver_ms(system, now_ms, limits))
    if system.message_group:
        check_message_group(system.message_group, limits)
        pairs[own.SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        if not 0 <= system.priority <= PRIORITY_MAX:
            raise ProxyError(pb.BAD_REQUEST, f"the priority is {system.priority}, expected 0 to {PRIORITY_MAX}")
        pairs[own.PRIORITY] = str(system.priority)
    if system.HasField("lite_topic") or system.message_type == pb.LITE:
        raise ProxyError(pb.UNSUPPORTED, "lite topics are not supported: send to an ordinary topic")
    if system.trace_context:
        pairs[own.TRACE_CONTEXT] = system.trace_context
    pairs[wire.BORN_HOST] = system.born_host.strip() or born_host
    if system.HasField("born_timestamp"):
        pairs[own.BORN_TIMESTAMP] = str(timestamp_ms(system.born_timestamp))
    return pairs


def _user_properties(message: pb.Message, limits: ProxyLimits) -> dict[str, str]:
    """Return the properties of the application; its tag and keys count towards their limit."""
    pairs, system = dict(message.user_properties), message.system_properties
    if len(pairs) > limits.user_properties_max:
        raise ProxyError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(pairs)} properties, but at most {limits.user_properties_max} are allowed",
        )
    for name, value in pairs.items():
        check_user_property(name, value, own.RESERVED)
    check_tag(system.tag)
    for key in system.keys:
        check_key(key)
    size = len("".join((*pairs, *pairs.values(), system.tag, *system.keys)).encode())
    if size > limits.user_properties_bytes_max:
        raise ProxyError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes, at most {limits.user_properties_bytes_max} are allowed",
        )
    return pairs


def _transaction_properties(system: pb.SystemProperties, limits: ProxyLimits) -> dict[str, str]:
    pairs = {wire.TRANSACTION_PREPARED: "true"}
    if system.HasField("orphaned_transaction_recovery_duration"):
        seconds = duration_ms(system.orphaned_transaction_recovery_duration) // 1000
        if not 0 <= seconds <= limits.transaction_recovery_s_max:
            raise ProxyError(
                pb.BAD_REQUEST,
                f"the recovery duration of the transaction is {seconds} s, expected 0 to "
                f"{limits.transaction_recovery_s_max} s",
            )
        pairs[wire.CHECK_IMMUNITY_SECONDS] = str(seconds)
    return pairs


def _deliver_ms(system: pb.SystemProperties, now_ms: int, limits: ProxyLimits) -> int:
    deliver_ms = timestamp_ms(system.delivery_timestamp)
    if deliver_ms - now_ms > limits.delay_ms_max or deliver_ms < 0:
        raise ProxyError(
            pb.ILLEGAL_DELIVERY_TIME,
            f"the message would be delivered in {(deliver_ms - now_ms) // 1000} s, at most "
            f"{limits.delay_ms_max // 1000} s are allowed",
        )
    return deliver_ms


def _check_body(body: bytes, limits: ProxyLimits) -> None:
    if not body:
        raise ProxyError(pb.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > limits.message_bytes_max:
        raise ProxyError(
            pb.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes, at most {limits.message_bytes_max} are allowed"
        )


def _sys_flag(messages: Sequence[pb.Message]) -> int:
    flags = set()
    for message in messages:
        system = message.system_properties
        flag = COMPRESSED if system.body_encoding == pb.GZIP else 0
        flags.add(flag | (PREPARED if system.message_type == pb.TRANSACTION else 0))
    if len(flags) > 1:
        raise ProxyError(pb.MESSAGE_CORRUPTED, "the messages of one request have different body encodings")
    return flags.pop()
