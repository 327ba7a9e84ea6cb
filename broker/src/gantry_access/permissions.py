"""What an account may do, and what a request needs: the two sides of every decision, as values.

A need names a topic, a group or a stored message, and the permissions of which one is enough. `Account.may` compares.
An administrator may everything; nobody else may what is for administrators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from typing import Final, NamedTuple, final

from gantry_access.addresses import AddressPatterns
from gantry_wire import names
from gantry_wire.signatures import KeyedV1


class Permission(IntFlag):
    """What may be done with a topic or a group."""

    DENY = 0
    PUB = 1
    SUB = 2


ANY: Final = Permission.PUB | Permission.SUB
"""Either of them is enough."""


class Kind(Enum):
    """What a need is about."""

    TOPIC = "topic"
    GROUP = "group"
    MESSAGE = "message"
    ADMIN = "admin"


class Need(NamedTuple):
    """One thing that a request needs; a message is named by its offset in the log."""

    kind: Kind
    name: str
    permission: Permission


Needs = tuple[Need, ...]
"""All of them. Without any it is enough to be somebody."""

ADMIN_ONLY: Final[Needs] = (Need(Kind.ADMIN, "", Permission.DENY),)

PUBLIC_TOPICS: Final = frozenset({names.TRACE_TOPIC})
"""Where every account may publish, unless it is denied by name: clients report what they did there."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Somebody. Its repr holds no secret."""

    access_key: str
    secret: bytes = field(repr=False)
    is_admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)
    addresses: AddressPatterns = field(default_factory=AddressPatterns)
    """Peers from which its name is enough, without a signature."""

    keyed: KeyedV1 = field(init=False, repr=False)
    """Its secret, ready to make signatures with."""

    _publishes: dict[str, bool] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keyed", KeyedV1(self.secret))

    def may_publish(self, name: str) -> bool:
        """Whether it may store messages in a topic that exists; remembered, for this is asked for every message."""
        known = self._publishes.get(name)
        if known is None:
            known = self._publishes[name] = self.is_admin or self.may(publishing(name))
        return known

    def topic(self, name: str) -> Permission:
        """What it may do with a topic. Defaults do not reach topics that only the broker writes."""
        found = self.topics.get(name)
        if found is not None:
            return found
        if self.is_admin:
            return ANY
        if name in names.NOT_SENDABLE_TOPICS:
            return Permission.DENY
        return self.default_topic | Permission.PUB if name in PUBLIC_TOPICS else self.default_topic

    def group(self, name: str) -> Permission:
        """What it may do as a consumer group."""
        found = self.groups.get(name)
        if found is not None:
            return found
        return ANY if self.is_admin else self.default_group

    def may(self, need: Need) -> bool:
        """Whether the account has what a request needs. Messages are not looked up here: name their topics."""
        if need.kind is Kind.TOPIC:
            return bool(self.topic(need.name) & need.permission)
        if need.kind is Kind.GROUP:
            return bool(self.group(need.name) & need.permission)
        return self.is_admin


def publishing(topic: str) -> Need:
    """To store a message in a topic. A retry topic belongs to its group, whose members put messages back there."""
    if topic.startswith(names.RETRY_PREFIX):
        return consuming(topic[len(names.RETRY_PREFIX) :])
    return Need(Kind.TOPIC, topic, Permission.PUB)


def reading(topic: str) -> Need:
    """To see messages of a topic, or where they begin and end."""
    if topic.startswith(names.RETRY_PREFIX):
        return consuming(topic[len(names.RETRY_PREFIX) :])
    return Need(Kind.TOPIC, topic, Permission.SUB)


def knowing(topic: str) -> Need:
    """To learn of a topic where it is and how many queues it has."""
    return reading(topic)._replace(permission=ANY)


def consuming(group: str) -> Need:
    """To act as a member of a consumer group."""
    return Need(Kind.GROUP, group, Permission.SUB)
