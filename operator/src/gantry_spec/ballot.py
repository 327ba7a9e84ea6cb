"""The count of an election: whether every past term is outvoted, which member wins, and how much would be lost. Pure.

Each term in the Lease has to be ended by one of these proofs, where S is the number of the term's electable slaves, and
k the number of their acks that a send waited for:

    a quorum        S - k + 1 of its slaves have promised, so any k slaves that have acknowledged include one of them
    one promise     of a slave or of the master, only where acknowledgements did not wait for slaves (k is 0)
    its own master  the master has promised, and its log has everything that it ever acknowledged: if the term was
                    recorded and never began, this is nothing, and its master can no longer begin it
    all members     every member of the term has promised, so no other member can have more

Then, where k is not 0, the longest log among the members that have promised contains everything that was acknowledged;
after the proof by all members, everything of it that any store still has. If too few of them are known to be complete,
as after a power cut of all machines, more may be lost. No election waits for that, since no other member can have it,
but the loss is recorded as unknown.

A voter is a store, not a member number: an emptied disk is another store, and a store that may have lost its tail, or
whose completeness is unknown, has no vote until it has caught up. A new store is complete.

Without a Lease, in a manual promotion, a newer term may be known only to members that do not answer. Then only promises
of slaves (a quorum, or one where k is 0) or of all members count as a proof: the other proofs assume that the term is
the newest.

Where k is 0, promises of slaves prove nothing about the past; they only end the master's grants. Unless the master has
itself promised with a complete log, the loss is estimated: what the master had written by its last report, plus what it
may have acknowledged since. The second part is more than zero unless the master is known to have been silent since that
report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gantry_spec.lease import TERMS_MAX, LeaseRecord, Term
from gantry_spec.observed import LastReport, Member, PromotionRequest, Report
from gantry_status.quorum import intersecting_quorum


class Ballot(NamedTuple):
    """The state of a member that has promised an epoch, or, in a forecast, of a member that could."""

    number: int
    """The member's own number, counted from 1."""

    identity: str
    """The uuid of the member's store, which identifies the voter."""

    epoch: int
    """The epoch in which the member last had a role; 0 before its first role."""

    last_epoch: int
    """The epoch of the last record in its log."""

    end: int
    """The end of its log; -1 if it is unknown."""

    is_complete: bool | None
    """Whether its log has everything that it ever acknowledged; None if this is unknown."""

    grant_expires_ms: int
    """When the last grant that the member gave to a master expires, on the observer's clock."""

    missing_bytes: int = 0
    """How many bytes of its log were on its disk and are missing."""

    damaged_bytes: int = 0
    """How many bytes of its log hold no valid record. They are repaired from other members under any master."""

    @property
    def log_position(self) -> tuple[int, int]:
        """The end of the log, comparable across epochs."""
        return self.last_epoch, self.end


class Loss(NamedTuple):
    """How many acknowledged bytes a promotion loses."""

    at_least: int
    at_most: int | None
    """The upper bound; None if it is unknown."""

    is_unproven: bool = False
    """Whether more may be lost than any store can show: those that could have more may have lost data themselves. That
    blocks no election, since no other member can have more."""


NO_LOSS = Loss(0, 0)
UNPROVEN_LOSS = Loss(0, 0, is_unproven=True)
UNOBSERVED_BYTES_PER_S: Final = 1 << 20
"""The assumed rate at which a master acknowledged while it was not observed, unless its reported peak is higher."""


class ElectionResult(NamedTuple):
    """The result of counting ballots."""

    winner: Ballot | None
    """The ballot of the winner; None if no member can be elected."""

    reason: str
    """Why this member wins, or why no member does, for people."""


GRANT_MS_ASSUMED = 3_000
"""The duration that is assumed for the grants of a slave that does not report it."""


def ballot_of(member: Member, report: Report) -> Ballot:
    """Return the ballot of a member from its report."""
    granted_ms = GRANT_MS_ASSUMED if report.granted_ms is None else report.granted_ms
    return Ballot(
        number=member.number,
        identity=report.identity,
        epoch=report.epoch,
        last_epoch=report.last_epoch,
        end=-1 if report.wrote is None else report.wrote,
        is_complete=report.is_complete,
        grant_expires_ms=report.answered_ms + granted_ms,
        missing_bytes=report.missing_bytes,
        damaged_bytes=report.damaged_bytes,
    )


def promises_needed(electable: int, acks_needed: int) -> int:
    """Return how many electable slaves must promise before one of them may be promoted.

    With ``k`` acks needed of ``S`` slaves it is ``S - k + 1``: any ``k`` slaves that have acknowledged a message
    include one that has promised, and the old master can never again find ``k`` slaves that follow it. Where ``k`` is
    0, no number of promises proves where all acknowledged messages are, and one promise ends the old master's grants.
    """
    return intersecting_quorum(electable, acks_needed) if acks_needed > 0 else min(1, electable)


def votes_needed(term: Term) -> int:
    """Return how many slaves of a term must vote before another term may begin, which is at least one."""
    return max(1, promises_needed(len(term.electable), term.acks_needed))


def count_ballots(
    record: LeaseRecord,
    ballots: Sequence[Ballot],
    *,
    preferred: int | None = None,
    is_forced: bool = False,
    manual_request: PromotionRequest | None = None,
) -> ElectionResult:
    """Return the winner of an election if every term is outvoted, and the reason.

    The longest log wins. Among equal logs the member ``preferred`` wins, then a member without damaged records, then
    the last master. Damaged records cost neither the vote nor the precedence of a longer log.

    With ``is_forced`` a person gives up the data that only absent members have: the terms need not be outvoted.

    Forced or not, a member whose log lacks data that was on its disk does not win; it follows the winner. If it is the
    only member it wins, and takes no sends until the loss is accepted. A forced ``manual_request`` may also promote
    such a member: the one that it names, or the best one if no other has promised.

    ``manual_request`` is the request of a person where no Lease records the terms. Then members that the person names
    can win as well, and the requested member wins if it has everything that was acknowledged, or in any case if forced.
    """
    members = record.members if manual_request is None else record.members | frozenset(manual_request.electable)
    counted = [ballot for ballot in ballots if ballot.number in members and ballot.end >= 0]
    for term in record.terms:
        reason = missing_votes(term, counted, are_all_terms_known=manual_request is None)
        if reason and not is_forced:
            return ElectionResult(None, reason)
    if not counted:
        return ElectionResult(None, "no member has promised the epoch")
    if manual_request is not None and manual_request.to is not None:
        named = next((one for one in counted if one.number == manual_request.to), None)
        if named is not None and (is_forced or _holds_acknowledged(record, counted, named)):
            return ElectionResult(
                named, f"it was requested by number; its log ends at epoch {named.last_epoch}, offset {named.end}"
            )
    if len(members) > 1:
        incomplete = [one for one in counted if one.missing_bytes]
        complete = [one for one in counted if not one.missing_bytes]
        if not complete and not (manual_request is not None and is_forced):
            numbers = [one.number for one in incomplete]
            return ElectionResult(None, f"log data is missing on all members that have promised: {numbers}")
        counted = complete or incomplete
    newest = record.newest
    last = 0 if newest is None else newest.master

    def rank(one: Ballot) -> tuple[tuple[int, int], bool, bool, bool, int]:
        return one.log_position, one.number == preferred, not one.damaged_bytes, one.number == last, -one.number

    winner = max(counted, key=rank)
    return ElectionResult(winner, f"it has the longest log: epoch {winner.last_epoch}, offset {winner.end}")


def _holds_acknowledged(record: LeaseRecord, ballots: Sequence[Ballot], one: Ballot) -> bool:
    """Return whether a log without missing data has everything acknowledged, although another log may be longer.

    It has if every term waited for acks, enough voters of every term have promised, and the log is as long as the
    longest log among these voters: what only other members have was never acknowledged.
    """
    if one.missing_bytes:
        return False
    for term in record.terms:
        voters = voters_of(term, ballots)
        if not term.acks_needed or len(voters) < votes_needed(term):
            return False
        if one.log_position < max(voter.log_position for voter in voters):
            return False
    return True


def missing_votes(term: Term, ballots: Sequence[Ballot], *, are_all_terms_known: bool = True) -> str:
    """Return which votes are still needed to outvote a term; empty if none are.

    ``are_all_terms_known``: whether every term that may have begun is known. If not, as in a manual promotion without a
    Lease, the report of this term's master proves nothing, since the master may not know a newer term.
    """
    master = next((one for one in ballots if one.number == term.master and are_all_terms_known), None)
    if master is not None and has_complete_log(term, master):
        return ""
    if term.members <= {one.number for one in ballots}:
        return ""
    voters = {one.number for one in voters_of(term, ballots)}
    needed = votes_needed(term)
    if len(voters) >= needed or (term.acks_needed == 0 and master is not None):
        return ""
    away = sorted(set(term.numbers) - voters)
    return f"{needed} of the slaves {list(term.numbers)} of epoch {term.epoch} must vote, and {away} cannot"


def necessary_terms(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Return the terms that a record must keep. From a full record, terms that an older one covers are left out.

    A term covers a later one with the same master, voters and number of acks, if these are not 0: ballots that outvote
    the older term outvote the later one, too, and an election reports no loss of either. The members are the same as
    well. So elections have the same results without the later one. Terms pile up while masters change and none of them
    gets enough acks; since the masters are the same few members, a record does not remain full.
    """
    if len(terms) < TERMS_MAX:
        return tuple(terms)
    kept: dict[object, Term] = {}
    for term in terms:
        stores = frozenset((voter.number, voter.identity) for voter in term.electable)
        kept.setdefault((term.master, term.identity, stores, term.acks_needed) if term.acks_needed else term, term)
    return tuple(kept.values())


def voters_of(term: Term, ballots: Iterable[Ballot]) -> list[Ballot]:
    """Return the ballots of the stores that could acknowledge in a term and are known to have lost nothing since."""
    stores = {(voter.number, voter.identity) for voter in term.electable if voter.identity}
    return [one for one in ballots if (one.number, one.identity) in stores and one.is_complete is True]


def never_began(term: Term, master: Ballot) -> bool:
    """Return whether a term's master was never promoted in it and can no longer be."""
    return has_complete_log(term, master) and master.epoch < term.epoch and master.last_epoch < term.epoch


def has_complete_log(term: Term, master: Ballot) -> bool:
    """Return whether a term's master has everything that it ever acknowledged."""
    return master.identity == term.identity and master.is_complete is True


def loss_of(
    term: Term, winner: Ballot, ballots: Sequence[Ballot], last_report: LastReport | None, silent_by_ms: int
) -> Loss:
    """Return how much of a term the winner lacks. The term's master had stopped acknowledging by ``silent_by_ms``."""
    if term.acks_needed > 0:
        return NO_LOSS if _is_kept(term, ballots) else UNPROVEN_LOSS
    master = next((one for one in ballots if one.number == term.master), None)
    if master is not None and never_began(term, master):
        return NO_LOSS
    if master is not None and has_complete_log(term, master):
        return _log_difference(winner, master.last_epoch, master.end, None)
    if last_report is None or last_report.epoch != term.epoch or last_report.wrote is None:
        return Loss(0, None)
    known = _log_difference(winner, term.epoch, last_report.wrote, last_report.epoch_start)
    unobserved_ms = silent_by_ms - last_report.asked_ms
    if unobserved_ms <= 0:
        return known
    if known.at_most is None or last_report.peak_bytes_per_s is None or winner.last_epoch < term.epoch:
        return Loss(known.at_least, None)
    unobserved = -(-unobserved_ms // 1000) * max(last_report.peak_bytes_per_s, UNOBSERVED_BYTES_PER_S)
    # That the winner has more than the last report proves nothing about what came later, and the peak may be too low: a
    # higher load may have begun after that report.
    return Loss(known.at_least, max(0, last_report.wrote - winner.end) + unobserved)


def _is_kept(term: Term, ballots: Sequence[Ballot]) -> bool:
    """Return whether the longest log among these ballots has all that was acknowledged with acks in a term."""
    is_master_complete = any(one.number == term.master and has_complete_log(term, one) for one in ballots)
    return is_master_complete or len(voters_of(term, ballots)) >= votes_needed(term)


def _log_difference(winner: Ballot, epoch: int, end: int, epoch_start: int | None) -> Loss:
    """Return how many bytes the winner lacks of a log that ends at ``end`` of ``epoch``."""
    if winner.last_epoch >= epoch:
        return Loss(max(0, end - winner.end), max(0, end - winner.end)) if winner.last_epoch == epoch else NO_LOSS
    start = winner.end if epoch_start is None else min(winner.end, epoch_start)
    return Loss(max(0, end - start) if epoch_start is not None else 0, None)
