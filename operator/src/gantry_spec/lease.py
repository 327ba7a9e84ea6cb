"""The record in a shard's Lease: the newest epoch, and the terms with their masters and electable slaves.

    epoch 3000, settled      terms: [2000 by 1, electable 2 3] [3000 by 2, electable 1 3]
    epoch 4000, in election  the same terms: epoch 4000 has no master yet

The record is replaced only by compare-and-swap, so all deciding processes agree on it, however many they are and
however old their observations are. A new epoch is taken here before any member is asked to promise it, and its master
is recorded here before the master is promoted. So an epoch never has two masters.

A *term* is an epoch with a master. Every recorded term must be outvoted before a master is elected, not only the
newest, because it may be unknown whether a recorded master was promoted and reached its slaves. A term is dropped when
the master of a newer one has everything that it acknowledged, except for a permitted loss (``Term.loss``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, final

import msgspec

EPOCH_STRIDE: Final = 1_000
"""New epochs in a Lease are multiples of this. Epochs of manual promotions end in the number of their master instead; a
Lease that is created later adopts the present one."""
TERMS_MAX: Final = 16
"""How many terms a record may hold. A full record is reduced (``ballot.necessary_terms``), or no election begins."""
DURATION_MS: Final = 15_000
"""The default duration of a shard's Lease."""
UNKNOWN_MASTER: Final = -1
"""The master of a term whose master no member has recorded. It occurs only without a Lease, never in one."""

FORMER_NAMES: Final = {"reigns": "terms", "wish": "promotion_request"}
"""Fields of the record and of its goal: the name in earlier versions, which is still read, and the present one."""
FORMER_NAMES_DEPTH: Final = 2
"""How deep in a record these fields are looked for: in the record itself and in its goal."""

Terms = Annotated[tuple["Term", ...], msgspec.Meta(max_length=TERMS_MAX)]


@final
class Voter(msgspec.Struct, frozen=True):
    """A slave that may be elected as the master after a term."""

    number: int
    """The member's own number, counted from 1."""

    identity: str = ""
    """The uuid of its store; empty until first observed. A replaced disk has no vote, since it has lost its
    promises."""

    coming: str = ""
    """The uuid of the store that replaced it, which gets the vote when it has received everything up to ``bar``."""

    bar: int = 0
    """The end of the master's log when that store first followed. Everything the old store acknowledged is before
    it."""


@final
class Term(msgspec.Struct, frozen=True, kw_only=True):
    """A term: an epoch with its master and the slaves that may be elected after it."""

    epoch: int
    master: int
    """The number of the member that is the master."""

    identity: str
    """The uuid of the master's store."""

    electable: tuple[Voter, ...] = ()
    """S: the slaves whose acknowledgements count, and so those that may be promoted after this term."""

    acks_needed: int = 0
    """k: how many slaves of S must have a message before it is acknowledged."""

    last_epoch: int = 0
    """The last epoch in the master's log when it was elected."""

    end: int = 0
    """The end of the master's log when it was elected."""

    continues: int = 0
    """The epoch of which it must still be the master when it is promoted without an election; 0 if it was elected."""

    loss: int = 0
    """How many bytes could be lost at most when it was elected; -1 if a person accepted an unknown loss."""

    is_loss_unknown: bool = False
    """Whether acknowledged messages may be lost beyond ``loss``, how many is unknown. When it was elected too few
    members were known to have everything that they acknowledged, as after a power cut of all machines, and all had
    promised, so that no other member could have more. False in records of earlier versions."""

    @property
    def election_loss(self) -> str:
        """The statement that its election has an unknown loss, for people; empty if the loss was limited."""
        text = f"the election of epoch {self.epoch} may have lost acknowledged messages; how many is unknown"
        return text if self.is_loss_unknown or self.loss < 0 else ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """S as the member numbers that an order contains."""
        return tuple(voter.number for voter in self.electable)

    @property
    def members(self) -> frozenset[int]:
        """The members that can have data that was acknowledged in this term."""
        return frozenset({self.master, *self.numbers}) - {UNKNOWN_MASTER}


@final
class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The purpose for which an epoch was taken."""

    why: str
    promotion_request: str = ""
    """The id of the promotion that a person requested; empty if there is none."""

    to: int = 0
    """The preferred master if its log is as long as any other; 0 if there is no preference."""

    loss_accepted: int | None = 0
    """How many bytes the requester accepts to lose; None accepts any loss."""

    may_move: bool = False
    """Whether another member may become master although ``failover.mode`` is not ``Automatic``."""


@final
class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record that is stored in a shard's Lease."""

    version: str = ""
    """The version of the record that was read. Replacing the record changes it, a renewal does not. It is not
    written."""

    epoch: int
    """The newest epoch that was taken."""

    terms: Terms = ()
    """The terms that are not yet dropped, the oldest first."""

    goal: Goal | None = None
    """The purpose for which `epoch` was taken."""

    duration_ms: int = DURATION_MS
    """How long a master that needs no acks may acknowledge sends after a renewal."""

    @property
    def newest(self) -> Term | None:
        """The newest term; None if there is none."""
        return self.terms[-1] if self.terms else None

    @property
    def is_settled(self) -> bool:
        """Whether the newest epoch has a recorded master."""
        return bool(self.terms) and self.terms[-1].epoch == self.epoch

    @property
    def members(self) -> frozenset[int]:
        """The members that can have data that was acknowledged in any of the terms."""
        return frozenset(number for term in self.terms for number in term.members)


def encode_record(record: LeaseRecord, *, with_version: bool) -> bytes:
    """Return a record as JSON. Sizes and durations of a manifest are written as numbers of bytes and milliseconds."""
    names = [name for name in record.__struct_fields__ if with_version or name != "version"]
    return msgspec.json.encode({name: getattr(record, name) for name in names}, enc_hook=int)


def next_epoch(known: Iterable[int], *, suffix: int = 0) -> int:
    """Return an epoch that is greater than all known epochs and whose last three digits are ``suffix``.

    Without a Lease the suffix is the number of the epoch's master, so two independent promotions never begin the same
    epoch with two masters.
    """
    return (max(known, default=0) // EPOCH_STRIDE + 1) * EPOCH_STRIDE + suffix % EPOCH_STRIDE
