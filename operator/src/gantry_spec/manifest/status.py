"""What the operator writes back into a group: enough for a person to know, in bands, since live bytes only churn."""

from __future__ import annotations

from typing import final

import msgspec


class StatusPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Root of all parts of the status. Never written itself."""


@final
class Condition(StatusPart, frozen=True):
    """One thing that is so or not."""

    type: str
    """Which."""

    status: str
    """`True`, `False` or `Unknown`."""

    reason: str
    """Why, in one word that never changes."""

    message: str = ""
    """Why, in a sentence."""

    observed_generation: int = 0
    """Of the spec that was looked at."""

    last_transition_time: str = ""
    """When `status` changed."""


@final
class DurabilityStatus(StatusPart, frozen=True):
    """What is at risk now."""

    at_risk: str = "unknown"
    """The band of bytes that the loss of a master's machine would take."""

    bound: str = ""
    """What the bytes at risk wait for: `buffer`, `disk` or `slave`."""

    is_met: bool = False
    """Whether `spec.durability` is kept."""

    observed_at: str = ""
    """When it was so."""


@final
class DecisionStatus(StatusPart, frozen=True):
    """What is being done, and what would happen if a master died now."""

    action: str = ""
    """What is being done."""

    blocked_by: list[str] = []
    """What it waits for."""

    if_master_dies: list[str] = []
    """Who would be the master, and what would be lost."""


@final
class ShardStatus(StatusPart, frozen=True):
    """One shard."""

    number: int
    """Which, from 0."""

    master: str = ""
    """Who is its master."""

    epoch: int = 0
    """In which epoch."""

    in_sync: int = 0
    """How many slaves have what the master has."""

    lag: str = "unknown"
    """The band of bytes that the slave farthest behind lacks."""

    durability: DurabilityStatus = DurabilityStatus()
    """What is at risk now."""

    decision: DecisionStatus = DecisionStatus()
    """What is being done."""


@final
class Status(StatusPart, frozen=True):
    """What was seen last."""

    observed_generation: int = 0
    """Of the spec that was looked at."""

    phase: str = ""
    """In one word, for people."""

    ready: str = ""
    """Ready shards of all, for a column."""

    shards: int = 0
    """How many there are, for `kubectl scale`."""

    selector: str = ""
    """Of the group's pods, for `kubectl scale`."""

    master: str = ""
    """The masters, for a column."""

    epoch: int = 0
    """The newest epoch, for a column."""

    lag: str = ""
    """The largest lag, for a column."""

    at_risk: str = ""
    """The largest risk, for a column."""

    each_shard: list[ShardStatus] = []
    """Each shard."""

    conditions: list[Condition] = []
    """What is so or not."""
