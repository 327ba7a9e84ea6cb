"""What a call may name: topics, groups, tags, keys, properties and times. Each refusal has RocketMQ's code.

Clients read and write topics and groups of applications only: system topics, and the topics in which brokers keep
messages of others, are refused here for every account.
"""

from functools import lru_cache
from typing import Final

from gantry_client.errors import InvalidMessage
from gantry_client.subscriptions import Sql, make_filter
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_wire import names
from gantry_wire.filters import MessageFilter, TagFilter

_CONTROL_CHARACTERS: Final = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
"""Java's ISO control characters, which no text of a message may have: they separate properties in a record."""
FILTER_CHARACTERS_MAX: Final = 32_768
"""The longest filter of either kind; the limit of SQL92 filters. With every character escaped it fits a header."""
MESSAGE_ID_CHARACTERS_MAX: Final = 255
"""The longest id of a message that a call names; those of SDKs have 34 characters."""
NAMESPACE_CHARACTERS_MAX: Final = 255
"""The longest namespace of a name; replies repeat it for each message and each queue."""
NAMES_KEPT: Final = 4_096
"""How many valid names are kept, so that a name is not checked in every call."""


def topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic of an application. Raises ProxyError for any other name."""
    return _checked_topic(resource.name)


@lru_cache(NAMES_KEPT)
def _checked_topic(name: str) -> str:
    fault = names.topic_fault(name)
    if fault is not None:
        raise ProxyError(pb.ILLEGAL_TOPIC, f"topic {name[:64]!r}: {fault.value}")
    if name in names.SYSTEM_TOPICS or name.startswith((names.INTERNAL_PREFIX, names.RETRY_PREFIX)):
        raise ProxyError(
            pb.ILLEGAL_TOPIC, f"topic {name!r} is a system topic, which clients of the proxy cannot access"
        )
    return name


def namespace_of(resource: pb.Resource) -> str:
    """Return the namespace of a name, which replies repeat. Raises ProxyError for one that is too long."""
    namespace: str = resource.resource_namespace
    if len(namespace) > NAMESPACE_CHARACTERS_MAX:
        raise ProxyError(
            pb.BAD_REQUEST,
            f"the namespace has {len(namespace)} characters, at most {NAMESPACE_CHARACTERS_MAX} are allowed",
        )
    return namespace


def group_name(resource: pb.Resource) -> str:
    """Return the name of a consumer group of an application. Raises ProxyError for any other name."""
    return _checked_group(resource.name)


@lru_cache(NAMES_KEPT)
def _checked_group(name: str) -> str:
    fault = names.group_fault(name)
    if fault is not None:
        raise ProxyError(pb.ILLEGAL_CONSUMER_GROUP, f"consumer group {name[:64]!r}: {fault.value}")
    if names.is_system_group(name):
        raise ProxyError(pb.ILLEGAL_CONSUMER_GROUP, f"consumer group {name!r} is a group of the broker")
    return name


def check_tag(tag: str) -> None:
    """Raise ProxyError for a tag that a filter could not name."""
    if not tag:
        return
    if not tag.strip():
        raise ProxyError(pb.ILLEGAL_MESSAGE_TAG, "the tag consists of white space only")
    if "|" in tag:
        raise ProxyError(pb.ILLEGAL_MESSAGE_TAG, "the tag contains '|', which separates the tags of a filter")
    _check_text(tag, pb.ILLEGAL_MESSAGE_TAG, "the tag")


def check_key(key: str) -> None:
    """Raise ProxyError for a message key that cannot be stored."""
    if key and not key.strip():
        raise ProxyError(pb.ILLEGAL_MESSAGE_KEY, "a message key consists of white space only")
    _check_text(key, pb.ILLEGAL_MESSAGE_KEY, "a message key")


def check_message_group(group: str, limits: ProxyLimits) -> None:
    """Raise ProxyError for a message group that cannot be stored."""
    if group and not group.strip():
        raise ProxyError(pb.ILLEGAL_MESSAGE_GROUP, "the message group consists of white space only")
    size = len(group.encode())
    if size >= limits.message_group_bytes_max:
        raise ProxyError(
            pb.ILLEGAL_MESSAGE_GROUP,
            f"the message group has {size} bytes, but it must have fewer than {limits.message_group_bytes_max}",
        )
    _check_text(group, pb.ILLEGAL_MESSAGE_GROUP, "the message group")


def check_message_id(message_id: str) -> str:
    """Return the id of a message that a call names, which goes to a broker. Raises ProxyError for one too long."""
    if len(message_id) > MESSAGE_ID_CHARACTERS_MAX:
        raise ProxyError(
            pb.ILLEGAL_MESSAGE_ID,
            f"the message id has {len(message_id)} characters, at most {MESSAGE_ID_CHARACTERS_MAX} are allowed",
        )
    return message_id


def check_user_property(name: str, value: str, reserved: frozenset[str]) -> None:
    """Raise ProxyError for a property that an application may not set."""
    if name in reserved:
        raise ProxyError(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} is used by the system")
    if not name:
        raise ProxyError(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property has an empty name")
    _check_text(name, pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "the name of a property")
    _check_text(value, pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the value of property {name[:64]!r}")


def check_invisible_ms(invisible_ms: int, limits: ProxyLimits, *, least_ms: int = 0) -> int:
    """Return an invisible time. Raises ProxyError if it is not allowed."""
    if invisible_ms < least_ms or invisible_ms > limits.invisible_ms_max:
        raise ProxyError(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"the invisible duration is {invisible_ms} ms, expected {least_ms} to {limits.invisible_ms_max} ms",
        )
    return invisible_ms


def read_filter(expression: pb.FilterExpression) -> MessageFilter:
    """Return the filter of a consumer; without an expression it accepts all. Raises ProxyError."""
    text = expression.expression
    if len(text) > FILTER_CHARACTERS_MAX:
        raise ProxyError(
            pb.ILLEGAL_FILTER_EXPRESSION,
            f"the filter has {len(text)} characters, at most {FILTER_CHARACTERS_MAX} are allowed",
        )
    try:
        return make_filter(Sql(text) if expression.type == pb.SQL else text or "*")
    except InvalidMessage as error:
        raise ProxyError(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def is_wanted(wanted: MessageFilter, tags: str | None) -> bool:
    """Return whether a filter accepts a message that a broker has returned: brokers compare only hashes of tags."""
    return not isinstance(wanted, TagFilter) or wanted.accepts_all or wanted.accepts_tags(tags)


def _check_text(text: str, code: pb.Code, what: str) -> None:
    if not _CONTROL_CHARACTERS.isdisjoint(text):
        raise ProxyError(code, f"{what} contains a control character")
