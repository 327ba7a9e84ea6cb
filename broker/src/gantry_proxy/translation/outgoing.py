"""Messages of producers: from protocol buffers to the body and the properties that a broker stores.

The kind of a message follows from its properties, as in RocketMQ: a half message of a transaction, a message with a
delivery time, with a message group, with a priority, or a normal one. It must be the kind of its topic.
"""

from collections.abc import Mapping, Sequence
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
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.properties import encode_properties, format_limited_properties

COMPRESSED: Final = 0x1
"""The flag of a body that its producer has compressed."""
PREPARED: Final = 0x4
"""The flag of a half message."""
BATCH_MESSAGES_MAX: Final = 1024
"""How many messages one request may send."""
BATCH_PROPERTIES_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 1_024
"""The most properties of a message in a request with several. RocketMQ's broker adds its own to those of each message,
and does not check that the sum fits a record."""
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
    count = len(messages)
    if count == 0:
        raise ProxyError(pb.MESSAGE_CORRUPTED, "the request has no message")
    if count > BATCH_MESSAGES_MAX:
        raise ProxyError(pb.PAYLOAD_TOO_LARGE, f"the request has {count} messages, at most {BATCH_MESSAGES_MAX}")
    first = messages[0]
    topic = topic_name(first.topic)
    try:
        if count == 1:
            return _read_one(first, topic, born_host, now_ms, limits)
        return _read_batch(messages, topic, born_host, now_ms, limits)
    except LocalProtocolError as error:
        raise ProxyError(pb.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from error


def _read_one(message: pb.Message, topic: str, born_host: str, now_ms: int, limits: ProxyLimits) -> OutgoingMessage:
    """Return the only message of a request, as most requests have."""
    pairs, body = _properties(message, topic, born_host, now_ms, limits), message.body
    _check_body(body, limits)
    born_ms = pairs.get(own.BORN_TIMESTAMP)
    return OutgoingMessage(
        topic=topic,
        kind=kind_of(pairs),
        message_ids=(pairs[wire.UNIQUE_KEY],),
        body=body,
        properties=format_limited_properties(pairs),
        sys_flag=_sys_flag(message.system_properties),
        born_timestamp_ms=now_ms if born_ms is None else int(born_ms),
        message_group=pairs.get(own.SHARDING_KEY, ""),
    )


def _read_batch(
    messages: Sequence[pb.Message], topic: str, born_host: str, now_ms: int, limits: ProxyLimits
) -> OutgoingMessage:
    """Return the messages of a request that has several. What they have in common is that of the first."""
    first = _read_one(messages[0], topic, born_host, now_ms, limits)
    entries: list[BatchEntry] = []
    for one in messages:
        pairs = _properties(one, topic, born_host, now_ms, limits)
        if one.topic != messages[0].topic:
            raise ProxyError(pb.MESSAGE_CORRUPTED, "the messages of one request have different topics")
        _check_body(one.body, limits)
        if kind_of(pairs) != pb.NORMAL:
            raise ProxyError(pb.MESSAGE_CORRUPTED, "only normal messages can be sent together")
        if _sys_flag(one.system_properties) != first.sys_flag:
            raise ProxyError(pb.MESSAGE_CORRUPTED, "the messages of one request have different body encodings")
        properties = encode_properties(pairs)
        if len(properties) > BATCH_PROPERTIES_BYTES_MAX:
            raise ProxyError(
                pb.MESSAGE_PROPERTIES_TOO_LARGE,
                f"the properties of a message of several take {len(properties)} bytes, at most "
                f"{BATCH_PROPERTIES_BYTES_MAX} are allowed",
            )
        entries.append(BatchEntry(0, one.body, properties))
    ids = tuple(one.system_properties.message_id for one in messages)
    return msgspec.structs.replace(first, message_ids=ids, body=encode_batch(entries), properties="")


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
    tag, keys, message_id = system.tag, system.keys, system.message_id
    pairs = _user_properties(message.user_properties, tag, keys, limits)
    if tag:
        pairs[wire.TAGS] = tag
    if keys:
        pairs[wire.KEYS] = wire.KEY_SEPARATOR.join(keys)
    if not message_id.strip():
        raise ProxyError(pb.ILLEGAL_MESSAGE_ID, "the message has no id")
    pairs[wire.UNIQUE_KEY] = message_id
    pairs[wire.WAIT_STORE] = "true"
    pairs[wire.PRODUCER_GROUP] = topic  # the group that a broker asks about an open transaction
    message_type = system.message_type
    if message_type == pb.TRANSACTION:
        pairs |= _transaction_properties(system, limits)
    if system.HasField("delivery_timestamp"):
        pairs[wire.TIMER_DELIVER_MS] = str(_deliver_ms(system, now_ms, limits))
    if group := system.message_group:
        check_message_group(group, limits)
        pairs[own.SHARDING_KEY] = group
    if system.HasField("priority"):
        if not 0 <= system.priority <= PRIORITY_MAX:
            raise ProxyError(pb.BAD_REQUEST, f"the priority is {system.priority}, expected 0 to {PRIORITY_MAX}")
        pairs[own.PRIORITY] = str(system.priority)
    if message_type == pb.LITE or system.HasField("lite_topic"):
        raise ProxyError(pb.UNSUPPORTED, "lite topics are not supported: send to an ordinary topic")
    if trace := system.trace_context:
        pairs[own.TRACE_CONTEXT] = trace
    pairs[wire.BORN_HOST] = system.born_host.strip() or born_host
    if system.HasField("born_timestamp"):
        pairs[own.BORN_TIMESTAMP] = str(timestamp_ms(system.born_timestamp))
    return pairs


def _user_properties(
    properties: Mapping[str, str], tag: str, keys: Sequence[str], limits: ProxyLimits
) -> dict[str, str]:
    """Return the properties of the application; its tag and keys count towards their limit."""
    if not properties and not tag and not keys:
        return {}
    pairs = dict(properties)
    if len(pairs) > limits.user_properties_max:
        raise ProxyError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(pairs)} properties, but at most {limits.user_properties_max} are allowed",
        )
    for name, value in pairs.items():
        check_user_property(name, value, wire.RESERVED)
    check_tag(tag)
    for key in keys:
        check_key(key)
    size = len("".join((*pairs, *pairs.values(), tag, *keys)).encode())
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


def _sys_flag(system: pb.SystemProperties) -> int:
    flag = COMPRESSED if system.body_encoding == pb.GZIP else 0
    return flag | PREPARED if system.message_type == pb.TRANSACTION else flag
