"""Which slave becomes the master, and whether one may: pure, for an operator, a supervisor and a person alike.

``S`` slaves are electable, and code 0 needs ``k`` acks of theirs. With ``k`` of at least one, a promotion first gets
durable promises from ``S - k + 1`` of them. Then any ``k`` slaves that have acknowledged a message include one that has
promised, and the old master can never again find ``k`` slaves that follow it. So of those who have promised, the one
with the newest epoch, and in it the longest log, has every acknowledged message.

With ``k`` of zero no number of promises says where all acknowledged messages are. One promise ends the old master's
grants (see ``gantry_broker.ha.acknowledgement``), its Lease must be taken as well, and what the best log lacks is lost
and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A slave that has promised ``promised``, and what its log is since."""

    identity: str
    epoch: int
    """Of its last record."""

    end: int
    promised: int


class Election(NamedTuple):
    """What comes of it."""

    winner: Candidate | None
    epoch: int
    """Of the new master."""

    reason: str
    """Why it is so."""


def promises_needed(electable: int, acks_needed: int) -> int:
    """From how many electable slaves a promise is needed before one of them may be promoted."""
    return electable - acks_needed + 1 if acks_needed > 0 else min(1, electable)


def elect(
    electable: Sequence[str], acks_needed: int, epoch: int, promised: Sequence[Candidate], *, is_leased: bool = True
) -> Election:
    """Choose among those who have promised ``epoch``. ``is_leased`` says whether the shard's Lease is ours."""
    here = [one for one in promised if one.identity in set(electable) and one.promised == epoch]
    newer = [one for one in promised if one.promised > epoch or one.epoch >= epoch]
    if newer:
        return Election(None, epoch, f"{newer[0].identity} knows epoch {max(newer[0].promised, newer[0].epoch)}")
    needed = promises_needed(len(electable), acks_needed)
    voices = len({one.identity for one in here})
    if voices < max(needed, 1):
        return Election(None, epoch, f"{voices} of {len(electable)} slaves have promised, and {max(needed, 1)} must")
    if acks_needed == 0 and not is_leased:
        return Election(None, epoch, "the old master may hold the shard's Lease")
    winner = max(here, key=lambda one: (one.epoch, one.end, one.identity))
    return Election(winner, epoch, f"its log is the furthest: epoch {winner.epoch}, offset {winner.end}")
