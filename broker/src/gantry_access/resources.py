"""The resources of a policy: what it names, and which names it matches.

    *  or Any:...      everything
    Topic:*            every topic            ANY
    Topic:orders       this topic             LITERAL
    Topic:ord*         topics by prefix       PREFIXED

The types are RocketMQ's. A policy may name a namespace, which no request of this broker needs.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, final


class ResourceType(StrEnum):
    """The kind of a resource, by RocketMQ's name."""

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(IntEnum):
    """How a resource's name is compared; a smaller value is more specific."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


_TYPES: Final = {one.value.lower(): one for one in ResourceType}


@final
class Resource(NamedTuple):
    """A resource as a policy names it."""

    type: ResourceType
    name: str
    """The name, or its prefix; empty if every name matches."""

    pattern: Pattern

    @property
    def key(self) -> str:
        """The resource as text, as the tools show it."""
        if self.type is ResourceType.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type.value}:{self.name}{star}"

    @property
    def precedence(self) -> tuple[bool, int, int]:
        """The order of matching resources: the most specific is first, and of two prefixes the longer one."""
        length = len(self.name) if self.pattern is Pattern.PREFIXED else 0
        return self.type is ResourceType.ANY, int(self.pattern), -length

    def matches(self, kind: ResourceType, name: str) -> bool:
        """Return whether a policy for this resource applies to the topic, group or cluster."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not kind:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == name
        return name.startswith(self.name)


def parse_resource(key: str | None) -> Resource | None:
    """Return the resource of a text such as ``Topic:orders``; None if it is empty, or of an unknown type."""
    if key is None or not key.strip():
        return None
    if key == "*":
        return Resource(ResourceType.ANY, "", Pattern.ANY)
    kind, _, name = key.partition(":")
    found = _TYPES.get(kind.lower())
    if found is None:
        return None
    if name == "*":
        return Resource(found, "", Pattern.ANY)
    if name.endswith("*"):
        return Resource(found, name.partition("*")[0], Pattern.PREFIXED)
    return Resource(found, name, Pattern.LITERAL)
