"""What promises prove: whether every past term is outvoted, who is furthest, and what would be lost. Pure.

Each term that the Lease still names has to be ended by one of these:

    a quorum        S - k + 1 of its slaves have promised, so any k that have acknowledged include one of them
    its own master  has promised, and has everything that it ever acknowledged
    everybody       of it has promised: nobody is left who could know more
    nothing         it was named, and never began: its master says so, and never will

Then the furthest of all who have promised has whatever was acknowledged. A voter is a store, not a number: an emptied
disk is another store, and one that may have lost its tail has no vote until it has caught up.

Without a Lease, when a person runs the group by hand, a newer term may be known only to members that do not answer.
Then only a quorum counts, or everybody: any other proof rests on the term being the newest.

Where no acknowledgement waited for slaves, promises prove nothing about the past, and only end the master's keys. What
is lost then is counted: what the master had written when it was heard last, and what it may have taken since, which is
more than nothing wherever it was not heard to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gantry_spec.lease import LeaseRecord, Term
from gantry_spec.observed import LastWord, Member, PromotionRequest, Report
from gantry_status.quorum import intersecting


class Ballot(NamedTuple):
    """One who has promised, or, when it is only asked what would be, one who could."""

    number: int
    identity: str
    epoch: int
    last_epoch: int
    end: int
    is_whole: bool | None
    grant_over_ms: int
    """When no grant that it gave counts any more, on the clock of whoever looks."""

    missing_bytes: int = 0
    """Of its log, that were on its disk and are gone."""

    damaged_bytes: int = 0
    """Of its log, known to hold no good record: healed from others, whoever leads."""

    @property
    def place(self) -> tuple[int, int]:
        """How far its log is."""
        return self.last_epoch, self.end


class Loss(NamedTuple):
    """How many acknowledged bytes a promotion loses."""

    at_least: int
    at_most: int | None
    """None if nobody knows."""


NOTHING = Loss(0, 0)
UNSEEN_BYTES_PER_S: Final = 1 << 20
"""What a master is taken to have acknowledged while nobody heard it, if it was never seen to do more."""


class Count(NamedTuple):
    """What the ballots say."""

    winner: Ballot | None
    reason: str


GRANT_MS_ASSUMED = 3_000
"""Of a slave that does not say for how long its grants count."""


def ballot_of(member: Member, report: Report) -> Ballot:
    """The ballot of a member as it reports."""
    granted_ms = GRANT_MS_ASSUMED if report.granted_ms is None else report.granted_ms
    return Ballot(
        number=member.number,
        identity=report.identity,
        epoch=report.epoch,
        last_epoch=report.last_epoch,
        end=-1 if report.wrote is None else report.wrote,
        is_whole=report.is_whole,
        grant_over_ms=report.answered_ms + granted_ms,
        missing_bytes=report.missing_bytes,
        damaged_bytes=report.damaged_bytes,
    )


def promises_needed(electable: int, acks_needed: int) -> int:
    """From how many electable slaves a promise is needed before one of them may be promoted.

    With ``k`` acks needed of ``S`` slaves it is ``S - k + 1``: any ``k`` that have acknowledged a message include one
    that has promised, and the old master never again finds ``k`` slaves that follow it. Where ``k`` is 0 no number of
    promises says where all acknowledged messages are, and one ends the old master's grants.
    """
    return intersecting(electable, acks_needed) if acks_needed > 0 else min(1, electable)


def votes_needed(term: Term) -> int:
    """Return how many slaves of a term must vote before another term may begin: at least one."""
    return max(1, promises_needed(len(term.electable), term.acks_needed))


def count(
    record: LeaseRecord,
    ballots: Sequence[Ballot],
    *,
    wanted: int | None = None,
    is_forced: bool = False,
    by_hand: PromotionRequest | None = None,
) -> Count:
    """Who wins, if every term is outvoted. ``wanted`` wins among equals, then a member without damaged
    records, then the last master. Damage costs no vote, and no place.

    ``is_forced`` gives up what only those have who are away, as a person has said. Who lacks log data that was on its
    disk does not win: it follows whoever does. Alone, it is named, and takes no sends before the loss is accepted.

    ``by_hand`` is what a person has ordered where no Lease remembers terms. A member that the person names may win as
    well, and the one that shall be the master wins with everything that was acknowledged, or in any case if forced.
    """
    members = record.members if by_hand is None else record.members | frozenset(by_hand.electable)
    heard = [ballot for ballot in ballots if ballot.number in members and ballot.end >= 0]
    for term in record.terms:
        reason = missing(term, heard, is_remembered=by_hand is None)
        if reason and not is_forced:
            return Count(None, reason)
    if not heard:
        return Count(None, "nobody has promised anything")
    if by_hand is not None and by_hand.to is not None:
        named = next((one for one in heard if one.number == by_hand.to), None)
        if named is not None and (is_forced or _holds_acknowledged(record, heard, named)):
            return Count(named, f"it was named: epoch {named.last_epoch}, offset {named.end}")
    if len(members) > 1:
        incomplete = [one for one in heard if one.missing_bytes]
        complete = [one for one in heard if not one.missing_bytes]
        if not complete and not (by_hand is not None and is_forced):
            numbers = [one.number for one in incomplete]
            return Count(None, f"log data is missing on all who have promised, members {numbers}")
        heard = complete or incomplete
    newest = record.newest
    last = 0 if newest is None else newest.master

    def rank(one: Ballot) -> tuple[tuple[int, int], bool, bool, bool, int]:
        return one.place, one.number == wanted, not one.damaged_bytes, one.number == last, -one.number

    winner = max(heard, key=rank)
    return Count(winner, f"its log is the furthest: epoch {winner.last_epoch}, offset {winner.end}")


def _holds_acknowledged(record: LeaseRecord, ballots: Sequence[Ballot], one: Ballot) -> bool:
    """Whether a log without missing data has whatever was acknowledged, though another one may be longer.

    It has if it is as far as the furthest voter of each term that waited for acks: what only others have was never
    acknowledged.
    """
    if one.missing_bytes:
        return False
    for term in record.terms:
        voters = voters_of(term, ballots)
        if not term.acks_needed or len(voters) < promises_needed(len(term.electable), term.acks_needed):
            return False
        if one.place < max(voter.place for voter in voters):
            return False
    return True


def missing(term: Term, ballots: Sequence[Ballot], *, is_remembered: bool = True) -> str:
    """What is still needed to outvote a term; empty if nothing is.

    ``is_remembered``: whether a Lease names every term that may have begun. If not, the word of this term's master
    proves nothing, since it may not know of a newer one.
    """
    master = next((one for one in ballots if one.number == term.master and is_remembered), None)
    if master is not None and (never_began(term, master) or is_own_witness(term, master)):
        return ""
    if term.members <= {one.number for one in ballots}:
        return ""
    voters = {one.number for one in voters_of(term, ballots)}
    needed = votes_needed(term)
    if len(voters) >= needed or (term.acks_needed == 0 and master is not None):
        return ""
    away = sorted(set(term.numbers) - voters)
    return f"{needed} of the slaves {list(term.numbers)} of epoch {term.epoch} must vote, and {away} cannot"


def voters_of(term: Term, ballots: Iterable[Ballot]) -> list[Ballot]:
    """Who counts after a term: the very stores that have acknowledged in it, if they have lost nothing since."""
    stores = {(voter.number, voter.identity) for voter in term.electable if voter.identity}
    return [one for one in ballots if (one.number, one.identity) in stores and one.is_whole is not False]


def never_began(term: Term, master: Ballot) -> bool:
    """Whether its master never was promoted in it, nor can be any more."""
    is_same = master.identity == term.identity and master.is_whole is not False
    return is_same and master.epoch < term.epoch and master.last_epoch < term.epoch


def is_own_witness(term: Term, master: Ballot) -> bool:
    """Whether its master has all that it ever acknowledged."""
    return master.identity == term.identity and master.is_whole is True


def loss_of(
    term: Term, winner: Ballot, ballots: Sequence[Ballot], last_word: LastWord | None, silent_by_ms: int
) -> Loss:
    """What of a term the winner lacks. ``silent_by_ms``: when its master acknowledged nothing more, at the latest."""
    if term.acks_needed > 0:
        return NOTHING
    master = next((one for one in ballots if one.number == term.master), None)
    if master is not None and never_began(term, master):
        return NOTHING
    if master is not None and is_own_witness(term, master):
        return _between(winner, master.last_epoch, master.end, None)
    if last_word is None or last_word.epoch != term.epoch or last_word.wrote is None:
        return Loss(0, None)
    known = _between(winner, term.epoch, last_word.wrote, last_word.epoch_start)
    unseen_ms = silent_by_ms - last_word.asked_ms
    if unseen_ms <= 0:
        return known
    if known.at_most is None or last_word.peak_bytes_per_s is None or winner.last_epoch < term.epoch:
        return Loss(known.at_least, None)
    unseen = -(-unseen_ms // 1000) * max(last_word.peak_bytes_per_s, UNSEEN_BYTES_PER_S)
    # That the winner has more than was heard of proves nothing of what came after, and the peak may be a young one: a
    # load may have begun when nobody looked.
    return Loss(known.at_least, max(0, last_word.wrote - winner.end) + unseen)


def _between(winner: Ballot, epoch: int, end: int, epoch_start: int | None) -> Loss:
    """What a log that ends at ``end`` of ``epoch`` has more than the winner's."""
    if winner.last_epoch >= epoch:
        return Loss(max(0, end - winner.end), max(0, end - winner.end)) if winner.last_epoch == epoch else NOTHING
    start = winner.end if epoch_start is None else min(winner.end, epoch_start)
    return Loss(max(0, end - start) if epoch_start is not None else 0, None)
