"""What a supervisor lets others see of a group: one document, written after each of its looks."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.decide import Condition
from gantry_spec.explain import Outlook
from gantry_spec.ledger import Ledger


@final
class Event(msgspec.Struct, frozen=True):
    """Something that was done, or happened."""

    at_ms: int
    """On the wall clock."""
    text: str


@final
class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One member as it was seen last."""

    name: str
    shard: int
    number: int
    process: str
    pid: int | None
    starts: int
    address: str
    sidecar_url: str
    role: str = ""
    epoch: int = 0
    seen_ago_ms: int | None = None
    """How old this is; None if it never was seen."""
    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    acked: int | None = None
    confirmed: int | None = None
    behind_bytes: int | None = None
    """What its master has more."""
    is_draining: bool = False
    trouble: str = ""
    missing_bytes: int = 0
    """Of its log, that were on its disk and are gone."""
    damaged_bytes: int = 0
    """Of its log, known to hold no good record now."""


@final
class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a group, and what was decided."""

    at_ms: int
    """On the wall clock."""
    group: str
    pid: int
    started_at_ms: int
    name_servers: list[str]
    members: list[MemberView]
    conditions: tuple[Condition, ...]
    ledgers: tuple[Ledger, ...]
    decision: tuple[str, ...]
    """What is being done, and waited for."""
    outlook: tuple[Outlook, ...]
    """What would happen if a master died now."""
    events: list[Event]
    """What was done and has happened lately."""
