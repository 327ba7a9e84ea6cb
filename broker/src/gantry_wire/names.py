"""Names of topics and groups, and the only conversion from a name to a path.

RocketMQ takes topic names from the network and makes directories of them; a name such as `../../etc` has been a
published vulnerability there. Here a name is either valid (`topic_fault`, `group_fault`) or refused, and every module
that makes a path of a name calls `path_component`.
"""

import re
from enum import Enum
from typing import Final

from gantry_wire.limits import GROUP_BYTES_MAX, RETRY_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}TRANS"
"""The group under which the broker stores its consumer offsets in the topics of open transactions."""
REVIVE_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""The group under which the broker stores its consumer offsets in the topic of pop checkpoints."""
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
    REVIVE_GROUP,
)
"""The consumer groups that every broker has for itself."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic of delayed messages, with one queue for each level."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""The topic of timer messages of any delay and of recall records, with one queue."""
AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose settings new topics get."""
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
SELF_CHECK_TOPIC: Final = "GANTRY_SELF_CHECK"
"""The topic of the message that `gantry up` sends to itself and reads without a group; no user's message is in it."""
VOID_TOPIC: Final = "GANTRY_VOID"
"""The topic that records in the place of lost ones name; they are in none of its queues."""
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The topic of half messages, whose transactions are open."""
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""The topic of op messages, each of which ends half messages."""
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""The topic of abandoned transactions."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""The topic to which clients send traces of messages."""

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics that an administrator may neither create nor delete."""

NOT_SENDABLE_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
"""Topics that only the broker itself writes."""

HIDDEN_TOPICS: Final = frozenset({HALF_TOPIC, OP_HALF_TOPIC})
"""Topics that only the broker itself reads: a client that reads them would get messages that were never committed."""

INTERNAL_PREFIX: Final = "rmq_sys_"
"""The prefix of RocketMQ 5's own topics."""
REVIVE_PREFIX: Final = f"{INTERNAL_PREFIX}REVIVE_LOG_"
"""The prefix of topics of pop checkpoints, which only the broker itself reads and writes."""
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"

POP_RETRY_SEPARATOR_V1: Final = "_"
POP_RETRY_SEPARATOR_V2: Final = "+"
"""Separates group and topic in the name of a pop retry topic. No other name may contain it."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_POP_RETRY_V2 = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+\+[%|a-zA-Z0-9_-]+", re.ASCII)


def is_sendable(topic: str) -> bool:
    """Return whether clients may send to a topic of this name; the broker itself writes the others."""
    return topic not in NOT_SENDABLE_TOPICS and not topic.startswith(REVIVE_PREFIX)


class NameFault(Enum):
    """The reason why a name is refused, as a text for its sender."""

    EMPTY = "the name is blank"
    CHARACTERS = "the name may hold only the characters %|a-zA-Z0-9_-"
    LENGTH = "the name is too long"


def _find_fault(name: str, bytes_max: int) -> NameFault | None:
    if not name or not name.strip():
        return NameFault.EMPTY
    if len(name) > bytes_max:
        return NameFault.LENGTH
    if _NAME.fullmatch(name) is None and _POP_RETRY_V2.fullmatch(name) is None:
        return NameFault.CHARACTERS
    return None


def topic_fault(topic: str) -> NameFault | None:
    """Return why `topic` is no valid topic name, or None if it is one."""
    derived = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    return _find_fault(topic, RETRY_TOPIC_BYTES_MAX if derived else TOPIC_BYTES_MAX)


def group_fault(group: str) -> NameFault | None:
    """Return why `group` is no valid producer or consumer group name, or None if it is one."""
    if POP_RETRY_SEPARATOR_V2 in group:
        return NameFault.CHARACTERS
    return _find_fault(group, GROUP_BYTES_MAX)


def path_component(name: str) -> str:
    """Return `name` as one safe file name. Raises ValueError unless it is a valid topic or group name.

    The allowed characters include no dot, separator or NUL, so the result is never `.`, `..`, absolute, or more than
    one component. The limit of 255 bytes is that of file systems.
    """
    fault = _find_fault(name, RETRY_TOPIC_BYTES_MAX)
    if fault is not None:
        raise ValueError(f"{name[:64]!r} cannot name a file: {fault.value}")
    return name


def retry_topic(group: str) -> str:
    """Return the topic for messages that a consumer of `group` failed to consume."""
    return RETRY_PREFIX + group


def pop_retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """Return the topic for messages of `topic` that `group` has popped and not acked in time."""
    return f"{RETRY_PREFIX}{group}{POP_RETRY_SEPARATOR_V2 if is_v2 else POP_RETRY_SEPARATOR_V1}{topic}"


def pop_retry_origin(topic: str, group: str) -> str | None:
    """Return the topic whose messages for `group` are redelivered through `topic`; None if it is no such topic."""
    for separator in (POP_RETRY_SEPARATOR_V2, POP_RETRY_SEPARATOR_V1):
        origin = topic.removeprefix(f"{RETRY_PREFIX}{group}{separator}")
        if origin and origin != topic:
            return origin
    return None


def revive_topic(cluster: str) -> str:
    """Return the topic of a cluster's pop checkpoints and acks."""
    return REVIVE_PREFIX + cluster


def dead_letter_topic(group: str) -> str:
    """Return the topic for messages that `group` failed to consume too often."""
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic to which a cluster's replies are sent; brokers push them on, and keep a copy."""
    return cluster + _REPLY_SUFFIX


def is_retry_or_dead_letter(topic: str) -> bool:
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def is_internal_topic(topic: str) -> bool:
    """Return whether a topic's name alone shows that it is RocketMQ's own: a system, retry or dead letter topic.

    Topics that are named for brokers and clusters are not recognized; only name servers know them.
    """
    return topic in SYSTEM_TOPICS or is_retry_or_dead_letter(topic) or topic.startswith(INTERNAL_PREFIX)


def is_probably_internal(topic: str) -> bool:
    """Return whether a topic of a store is probably one of RocketMQ's own, where no name server can be asked.

    An application's topic may match, too: read such topics by name.
    """
    return is_internal_topic(topic) or topic.startswith(INTERNAL_PREFIX.upper()) or topic.endswith(_REPLY_SUFFIX)


def is_system_group(group: str) -> bool:
    """Return whether `group` is one of RocketMQ's own consumer groups and not an application's."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
