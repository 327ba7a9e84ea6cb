"""The result of a decision about a group: actions, their explanation, durability ledgers, conditions."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.actions import Action, Wait
from gantry_spec.ledger import Ledger


@final
class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of the group: true, false, or unknown (None)."""

    type: str
    """The type in CamelCase, such as ``Ready`` or ``DurabilityMet``."""

    is_true: bool | None
    reason: str
    """The reason as one stable word in CamelCase."""

    message: str = ""
    """The reason for people; it may be empty."""


@final
class Fences(msgspec.Struct, frozen=True, kw_only=True):
    """The shards that people have ordered to be fenced, by number."""

    closed: tuple[int, ...] = ()
    """No member can take sends."""

    still_open: tuple[int, ...] = ()
    """A member may still take sends."""


@final
class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """All actions to execute now. The same observation gives the same decision."""

    actions: tuple[Action, ...] = ()
    """The actions, including those that only give a reason (``Wait``, ``Refuse``)."""

    ledgers: tuple[Ledger, ...] = ()
    """The durability ledger of each shard whose Lease could be read."""

    conditions: tuple[Condition, ...] = ()
    fences: Fences = Fences()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The conditions for which the group waits."""
        return tuple(action for action in self.actions if isinstance(action, Wait))

    @property
    def explanation(self) -> tuple[str, ...]:
        """The actions as lines of text, for people."""
        return tuple(line_of(action) for action in self.actions)

    def condition(self, kind: str) -> Condition:
        """Return the condition of a type."""
        return next(one for one in self.conditions if one.type == kind)


def line_of(action: Action) -> str:
    """Return an action as a line of text, for people."""
    if isinstance(action, Wait):
        return f"shard {action.shard}: waiting: {action.why}"
    member = getattr(action, "member", None)
    epoch = getattr(action, "epoch", None)
    words = [type(action).__name__]
    words += [] if member is None else [f"member {member}"]
    words += [] if epoch is None else [f"epoch {epoch}"]
    return f"shard {action.shard}: {' '.join(words)}" + (f": {action.why}" if action.why else "")
