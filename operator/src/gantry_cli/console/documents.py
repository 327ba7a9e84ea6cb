"""The documents of the page that lists groups, `GET /v1/broker-groups`. Their texts are for people, and untrusted."""

from __future__ import annotations

from typing import final

import msgspec


@final
class ShardSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a group, as its status has it."""

    number: int
    master: str
    """The name of the master; empty for a shard without one."""
    epoch: int
    in_sync: int | None
    """How many slaves have all that was acknowledged; null if that is unknown."""
    at_risk: str
    """The bytes that a power loss of the master's machine would lose, as a size or a band; `unknown`."""
    is_durability_met: bool
    fence: str = ""
    """`Fenced` or `Hibernating` for a shard that takes no sends on purpose; otherwise empty."""


@final
class ConditionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that is not as in a healthy group."""

    type: str
    status: str
    reason: str
    message: str


@final
class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One group of the list, with its status."""

    id: str
    """Identifies the group in this list."""
    name: str
    place: str
    """The namespace, or the folder of a local group."""
    phase: str = ""
    """Empty before the first status."""
    ready: str = ""
    """How many shards are ready, such as `2/2`."""
    shards: list[ShardSummary] = []
    conditions: list[ConditionSummary] = []
    observed_ms: int | None = None
    """When the newest part of the status was observed, by the wall clock; null if that is unknown."""
    fault: str = ""
    """Why the status or the console of the group is not available; empty if it is not known to be unavailable."""
    can_open: bool = True
    """Whether the group has a console, as far as this list knows."""


@final
class GroupsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The list of groups, and when it was read."""

    title: str
    """Which cluster and namespace, or which machine."""
    at_ms: int
    """When the list was read, by the wall clock."""
    now_ms: int
    """The present time of the clock by which times are given: the clock of the browser may differ."""
    fault: str
    """Why the list could not be read again; empty if it is current."""
    groups: list[GroupSummary]
    left_out: int = 0
    """How many groups are not in the list, which has a limit."""
