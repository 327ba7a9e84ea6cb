"""The permissions of an account and the needs of a request, as values.

A need names a topic, a group or a stored message, and permissions of which one suffices. `Account.has_permission`
compares them. Administrators have every permission; requests for administrators are denied to all other accounts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from typing import Final, NamedTuple, final

from gantry_access.addresses import AddressPatterns
from gantry_wire import names
from gantry_wire.signatures import KeyedV1


class Permission(IntFlag):
    """The permissions on a topic or a group."""

    DENY = 0
    PUB = 1
    """Send messages to the topic."""

    SUB = 2
    """Read messages of the topic, or consume as the group."""


ANY: Final = Permission.PUB | Permission.SUB
"""Either of the two permissions suffices."""


class Kind(Enum):
    """The kind of resource that a need names."""

    TOPIC = "topic"
    GROUP = "group"
    MESSAGE = "message"
    """A stored message, by its offset in the log; the guard looks up its topic."""

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

PUBLIC_TOPICS: Final = frozenset({names.TRACE_TOPIC})
"""Topics to which every account may publish, unless they are denied by name: clients send message traces."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """One account with its permissions. Its repr contains no secret."""

    access_key: str
    secret: bytes = field(repr=False)
    is_admin: bool = False
    default_topic: Permission = Permission.DENY
    """The permissions on topics that ``topics`` does not name."""

    default_group: Permission = Permission.DENY
    """The permissions on groups that ``groups`` does not name."""

    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)
    addresses: AddressPatterns = field(default_factory=AddressPatterns)
    """Peers that need no signature for this account."""

    keyed: KeyedV1 = field(init=False, repr=False)
    """The secret, prepared for making signatures."""

    _publishes: dict[str, bool] = field(init=False, repr=False, default_factory=dict)
    """The answers that ``may_publish`` has given, by topic."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keyed", KeyedV1(self.secret))

    def may_publish(self, name: str) -> bool:
        """Return whether the account may publish to an existing topic. Cached, since it is called for every message."""
        known = self._publishes.get(name)
        if known is None:
            known = self._publishes[name] = self.is_admin or self.has_permission(publish_need(name))
        return known

    def topic_permission(self, name: str) -> Permission:
        """Return the permissions for a topic. Defaults do not apply to topics that only the broker writes."""
        found = self.topics.get(name)
        if found is not None:
            return found
        if self.is_admin:
            return ANY
        if not names.is_sendable(name):
            return Permission.DENY
        return self.default_topic | Permission.PUB if name in PUBLIC_TOPICS else self.default_topic

    def group_permission(self, name: str) -> Permission:
        """Return the permissions for a consumer group."""
        found = self.groups.get(name)
        if found is not None:
            return found
        return ANY if self.is_admin else self.default_group

    def has_permission(self, need: Need) -> bool:
        """Return whether the account satisfies a need. Needs of messages must be resolved to topics first."""
        if need.kind is Kind.TOPIC:
            return bool(self.topic_permission(need.name) & need.permission)
        if need.kind is Kind.GROUP:
            return bool(self.group_permission(need.name) & need.permission)
        return self.is_admin


def publish_need(topic: str) -> Need:
    """Return the need for publishing to a topic. A retry topic belongs to its group: its consumers send back to it."""
    if topic.startswith(names.RETRY_PREFIX):
        return consume_need(topic[len(names.RETRY_PREFIX) :])
    return Need(Kind.TOPIC, topic, Permission.PUB)


def read_need(topic: str) -> Need:
    """Return the need for reading messages of a topic, or its offsets."""
    if topic.startswith(names.RETRY_PREFIX):
        return consume_need(topic[len(names.RETRY_PREFIX) :])
    return Need(Kind.TOPIC, topic, Permission.SUB)


def metadata_need(topic: str) -> Need:
    """Return the need for reading the route and the configuration of a topic."""
    return read_need(topic)._replace(permission=ANY)


def consume_need(group: str) -> Need:
    """Return the need for acting as a consumer of a group."""
    return Need(Kind.GROUP, group, Permission.SUB)
