"""The permissions that an account may have and the needs of a request, as values.

A need names a topic, a group, a stored message or the cluster, and permissions of which one suffices.
`Account.has_permission` compares them. Administrators have every permission; requests for administrators are denied to
all other accounts.
"""

from enum import Enum, IntFlag
from functools import lru_cache
from typing import Final, NamedTuple

from gantry_wire import names


class Permission(IntFlag):
    """The permissions on a topic, a group or the cluster. A file of accounts can only give PUB and SUB."""

    DENY = 0
    PUB = 1
    """Send messages to the topic."""

    SUB = 2
    """Read messages of the topic, or consume as the group."""

    GET = 4
    """Read the state of the topic, the group or the cluster, such as ranges of queues and progress."""

    CREATE = 8
    UPDATE = 16
    DELETE = 32
    LIST = 64


ANY: Final = Permission.PUB | Permission.SUB
"""Both permissions that a file of accounts can give; as a need, one of the two suffices."""


class Kind(Enum):
    """The kind of resource that a need names."""

    TOPIC = "topic"
    GROUP = "group"
    MESSAGE = "message"
    """A stored message, by its offset in the log; the guard looks up its topic."""

    CLUSTER = "cluster"
    """The cluster, whose name the guard adds: requests about its accounts and brokers."""

    ADMIN = "admin"
    """No resource: the request is for administrators."""


class Need(NamedTuple):
    """One permission that a request needs; a message is named by its offset in the log."""

    kind: Kind
    name: str
    """The topic, the group, or the offset as text."""

    permission: Permission
    """The permissions of which one suffices."""


Needs = tuple[Need, ...]
"""All needs of a request. A request without needs requires an authenticated account only."""

ADMIN_ONLY: Final[Needs] = (Need(Kind.ADMIN, "", Permission.DENY),)
"""The need of requests for administrators."""


NEEDS_KEPT: Final = 4_096
"""How many needs are kept, since most requests have those of requests before; a name has at most 255 characters."""


@lru_cache(NEEDS_KEPT)
def publish_need(topic: str) -> Need:
    """Return the need for publishing to a topic. A retry topic belongs to its group: its consumers send back to it."""
    if topic.startswith(names.RETRY_PREFIX):
        return consume_need(topic[len(names.RETRY_PREFIX) :])
    return Need(Kind.TOPIC, topic, Permission.PUB)


@lru_cache(NEEDS_KEPT)
def read_need(topic: str) -> Need:
    """Return the need for reading messages of a topic, or its offsets."""
    if topic.startswith(names.RETRY_PREFIX):
        return consume_need(topic[len(names.RETRY_PREFIX) :])
    return Need(Kind.TOPIC, topic, Permission.SUB)


def metadata_need(topic: str) -> Need:
    """Return the need for reading the route and the configuration of a topic."""
    return read_need(topic)._replace(permission=ANY)


@lru_cache(NEEDS_KEPT)
def consume_need(group: str) -> Need:
    """Return the need for acting as a consumer of a group."""
    return Need(Kind.GROUP, group, Permission.SUB)
