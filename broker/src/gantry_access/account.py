"""One account: its secret, and what it may do.

An account has either the permissions of a file, by name with defaults, or stored policies. Administrators have every
permission.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from gantry_access.addresses import AddressPatterns
from gantry_access.permissions import ANY, Kind, Need, Permission, publish_need
from gantry_access.policies import Decision, Policies
from gantry_wire import names
from gantry_wire.signatures import KeyedV1

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

    policies: Policies | None = None
    """The stored policies, which replace the other permissions; None for an account of a file."""

    keyed: KeyedV1 = field(init=False, repr=False)
    """The secret, prepared for making signatures."""

    _publishes: dict[str, bool] = field(init=False, repr=False, default_factory=dict)
    """The answers that ``may_publish`` has given, by topic."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keyed", KeyedV1(self.secret))

    def may_publish(self, name: str) -> bool:
        """Return whether the account may publish to an existing topic, from any address.

        Cached, since it is called for every message.
        """
        known = self._publishes.get(name)
        if known is None:
            known = self._publishes[name] = self.is_admin or self._publishes_from_anywhere(name)
        return known

    def _publishes_from_anywhere(self, name: str) -> bool:
        is_address_bound = self.policies is not None and self.policies.is_address_bound
        return not is_address_bound and self.has_permission(publish_need(name))

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

    def has_permission(self, need: Need, peer: str = "") -> bool:
        """Return whether the account satisfies a need of a request from the address ``peer``.

        Needs of messages must be resolved to topics first.
        """
        if self.policies is not None:
            return self.is_admin or self.policies.decide(need, peer) is Decision.ALLOW
        if need.kind is Kind.TOPIC:
            return bool(self.topic_permission(need.name) & need.permission)
        if need.kind is Kind.GROUP:
            return bool(self.group_permission(need.name) & need.permission)
        return self.is_admin
