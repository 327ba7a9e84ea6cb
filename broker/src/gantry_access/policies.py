"""The stored policies of an account, and the decision about one need.

    entries of type Custom that match resource, action and address -> the most specific one decides
    none                                                           -> the same for entries of type Default
    none                                                           -> denied

An entry matches if it names one of the permissions that suffice. So an entry that denies publishing to a topic also
denies what publishing or another permission would allow, such as the topic's route. The order of resources is in
`resources`. Between equally specific entries a denial wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from gantry_access.addresses import Address, Network, parse_address
from gantry_access.permissions import Kind, Need, Permission
from gantry_access.resources import Pattern, Resource, ResourceType
from gantry_wire import names


class PolicyType(StrEnum):
    """The two groups of entries: those of type Default apply where no Custom entry matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(StrEnum):
    """The effect of an entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class Action(StrEnum):
    """The actions that an entry may name, by RocketMQ's names."""

    UNKNOWN = "Unknown"
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


ALL_PERMISSIONS: Final = ~Permission.DENY
"""Every permission, which the action All gives."""
_PERMISSIONS: Final = {
    Action.ALL: ALL_PERMISSIONS,
    Action.PUB: Permission.PUB,
    Action.SUB: Permission.SUB,
    Action.CREATE: Permission.CREATE,
    Action.UPDATE: Permission.UPDATE,
    Action.DELETE: Permission.DELETE,
    Action.GET: Permission.GET,
    Action.LIST: Permission.LIST,
}
_KINDS: Final = {
    Kind.TOPIC: ResourceType.TOPIC,
    Kind.GROUP: ResourceType.GROUP,
    Kind.CLUSTER: ResourceType.CLUSTER,
}
"""The resource type of each need; a need for administrators has none."""


@final
@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One rule: an account may, or may not, do these actions with this resource from these addresses."""

    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    sources: tuple[str, ...] = ()
    """Addresses and networks of the peers to which the entry applies, as text; empty for all peers."""

    networks: tuple[Network, ...] = ()
    """The parsed ``sources``."""

    mask: Permission = field(init=False, compare=False)
    """The permissions that the actions stand for."""

    def __post_init__(self) -> None:
        mask = Permission.DENY
        for action in self.actions:
            mask |= _PERMISSIONS.get(action, Permission.DENY)
        object.__setattr__(self, "mask", mask)

    def applies_to(self, address: Address | None) -> bool:
        """Return whether the entry applies to requests of a peer."""
        if not self.networks:
            return True
        return address is not None and any(
            address.version == network.version and address in network for network in self.networks
        )

    @property
    def precedence(self) -> tuple[tuple[bool, int, int], bool]:
        """The order of entries that match a need; the first one decides."""
        return self.resource.precedence, self.decision is Decision.ALLOW


@final
class Policies:
    """The entries of one account, in the order in which they decide."""

    def __init__(self, custom: Iterable[PolicyEntry] = (), default: Iterable[PolicyEntry] = ()) -> None:
        self._tiers: Final = tuple(
            tuple(sorted(entries, key=lambda entry: entry.precedence)) for entries in (custom, default)
        )
        self.is_address_bound: Final = any(entry.networks for entries in self._tiers for entry in entries)
        """Whether a decision may depend on the address of the peer."""

    def __repr__(self) -> str:
        return f"<Policies {sum(map(len, self._tiers))}>"

    def decide(self, need: Need, peer: str) -> Decision | None:
        """Return the decision about a need; None if no entry matches. Needs of messages must be resolved first."""
        kind = _KINDS.get(need.kind)
        if kind is None:
            return None
        address = parse_address(peer) if self.is_address_bound else None
        for entries in self._tiers:
            for entry in entries:
                if (
                    entry.mask & need.permission
                    and entry.resource.matches(kind, need.name)
                    and entry.applies_to(address)
                    and is_reachable(entry.resource, need)
                ):
                    return entry.decision
        return None


def is_reachable(resource: Resource, need: Need) -> bool:
    """Return whether an entry for ``resource`` can apply to the need's topic.

    Topics that only the broker writes need an entry for exactly this topic: they hold messages of other topics.
    """
    if need.kind is not Kind.TOPIC or need.name not in names.NOT_SENDABLE_TOPICS:
        return True
    return resource.type is ResourceType.TOPIC and resource.pattern is Pattern.LITERAL
