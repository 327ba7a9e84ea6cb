"""The record in a shard's Lease: which epochs were begun, by whom, and who may be elected after them.

    epoch 3000, settled      terms: [2000 by 1, electable 2 3] [3000 by 2, electable 1 3]
    epoch 4000, electing     the same terms: nobody has been crowned in 4000 yet

The record is replaced by compare-and-swap only, so it is the one thing that all who decide agree on, however many
they are and however old what they see. A new epoch is taken here before anybody is asked for a promise in it, and its
master is named here before he is promoted. So an epoch has one master, for ever.

A *term* is an epoch with a master. Each must be outvoted before another begins, and not only the newest: whether a
master that was named has ever been promoted, and got as far as his slaves, may not be known. A term is forgotten when
a newer one holds all that it has acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, final

import msgspec

EPOCH_STRIDE: Final = 1_000
"""Epochs here end in 000. Those that a person begins by hand end in the number of their master, so never in that."""
TERMS_MAX: Final = 16
DURATION_MS: Final = 15_000
"""Of a shard's Lease, where nothing else is said."""
UNKNOWN_MASTER: Final = -1
"""The master of a term of which no member has recorded it. Never in a Lease: only where there is none."""

Terms = Annotated[tuple["Term", ...], msgspec.Meta(max_length=TERMS_MAX)]


@final
class Voter(msgspec.Struct, frozen=True):
    """A slave that may be elected after a term."""

    number: int
    identity: str = ""
    """The uuid of its store; empty until it was first seen. A replaced disk has no vote: it has forgotten."""

    coming: str = ""
    """The store that is here instead, and gets the vote with ``bar``."""

    bar: int = 0
    """The end of the master's log when it had that store as its slave: all that the other one acknowledged is below."""


@final
class Term(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch with a master."""

    epoch: int
    master: int
    identity: str
    """Of the master's store."""

    electable: tuple[Voter, ...] = ()
    """S: who acknowledges, and so who may be promoted after it."""

    acks_needed: int = 0
    """k: how many of them an acknowledgement needs."""

    last_epoch: int = 0
    """Of the master's log when it was named."""

    end: int = 0
    """Of the master's log when it was named."""

    continues: int = 0
    """The epoch of which it must still be the master when it is promoted, since nobody elected it; 0 if it was."""

    loss: int = 0
    """How many bytes were said to be lost at most when it was named; -1 if a person accepted what nobody knew."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """S, as an order says it."""
        return tuple(voter.number for voter in self.electable)

    @property
    def members(self) -> frozenset[int]:
        """Who can have something that was acknowledged in it."""
        return frozenset({self.master, *self.numbers}) - {UNKNOWN_MASTER}


@final
class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Why an epoch was taken."""

    why: str
    request: str = msgspec.field(default="", name="wish")
    """The id of the promotion that a person ordered, if it was one."""

    to: int = 0
    """Who is wanted, if he has all that anybody has; 0 for nobody in particular."""

    loss_accepted: int | None = 0
    """What may be lost, as whoever ordered it has said; None for whatever it is."""

    may_move: bool = False
    """Whether the role may go to somebody else though it is not moved automatically."""


@final
class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the Lease."""

    version: str = ""
    """As whoever keeps it counts changes of it, where a renewal is none; an expectation, never written."""

    epoch: int
    """The newest that was taken."""

    terms: Terms = msgspec.field(default=(), name="reigns")
    """The oldest first."""

    goal: Goal | None = None
    """Why `epoch` was taken."""

    duration_ms: int = DURATION_MS
    """How long a master may acknowledge after it was renewed, if it needs nobody's ack."""

    @property
    def newest(self) -> Term | None:
        """The last term."""
        return self.terms[-1] if self.terms else None

    @property
    def is_settled(self) -> bool:
        """Whether the newest epoch has a master."""
        return bool(self.terms) and self.terms[-1].epoch == self.epoch

    @property
    def members(self) -> frozenset[int]:
        """Everybody who can have something that was acknowledged."""
        return frozenset(number for term in self.terms for number in term.members)


def next_epoch(known: Iterable[int], *, suffix: int = 0) -> int:
    """Greater than all of these. Its last digits are ``suffix``.

    Without a Lease that is the number of the epoch's master. So two promotions that know nothing of each other never
    begin the same epoch with two masters.
    """
    return (max(known, default=0) // EPOCH_STRIDE + 1) * EPOCH_STRIDE + suffix % EPOCH_STRIDE
