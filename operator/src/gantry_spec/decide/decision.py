"""What comes of looking at a group: actions, words for a person, and conditions."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.actions import Action, Wait
from gantry_spec.ledger import Ledger


@final
class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is so, is not, or is not known."""

    type: str
    is_so: bool | None
    reason: str
    """One word that never changes."""

    message: str = ""


@final
class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is to be done now. The same look gives the same decision."""

    actions: tuple[Action, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What is waited for."""
        return tuple(action for action in self.actions if isinstance(action, Wait))

    @property
    def explanation(self) -> tuple[str, ...]:
        """Each action as a line."""
        return tuple(line_of(action) for action in self.actions)

    def condition(self, kind: str) -> Condition:
        """The one of this type."""
        return next(one for one in self.conditions if one.type == kind)


def line_of(action: Action) -> str:
    """As a person reads it."""
    if isinstance(action, Wait):
        return f"shard {action.shard}: waits: {action.why}"
    member = getattr(action, "member", None)
    epoch = getattr(action, "epoch", None)
    words = [type(action).__name__]
    words += [] if member is None else [f"member {member}"]
    words += [] if epoch is None else [f"epoch {epoch}"]
    return f"shard {action.shard}: {' '.join(words)}" + (f": {action.why}" if action.why else "")
