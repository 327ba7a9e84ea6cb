"""A promotion that a person orders by hand, with `gantry ha promote`: no Lease remembers terms, no spec counts members.

    M  the members that may be the master, by their own numbers
    S  of these, the slaves of the newest term            = M without its master
    k  acks of S that code 0 needs

S and k are what the members have recorded with their epoch, and the person may name M instead. That is put together as
the record of the last term, and from there on everything is decided as with a Lease (``settled``, ``electing``), with
these differences:

    the last term    has only the word of members that answer: a quorum of S must vote (``ballot.missing``)
    a new epoch      ends in the number of its master, so that two promotions never begin the same one
    a dead master    is the person's word: neither silence nor slaves that hear it are waited for
    a new S          of the same master: only where that makes no second master possible

What cannot be done is refused before any member is ordered anything, since a promise stops a slave from following.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gantry_spec.actions import Action, Crown, Refuse, SetElectable, TakeLease
from gantry_spec.decide.electing import goal_of, take, term_of
from gantry_spec.decide.view import View
from gantry_spec.lease import UNKNOWN_MASTER, Goal, LeaseRecord, Term, Voter, next_epoch
from gantry_spec.observed import PromotionRequest, Report, Role

START_OR_FORCE: Final = "start one of them; --force gives up what only they may have"


def remember(view: View, request: PromotionRequest) -> Crown | Refuse:
    """The record of the last term, as the members that answer have recorded it.

    Where they disagree on S or k, that is taken which asks for more promises.
    """
    reports = {member.number: report for member, report in view.reports() if view.fresh(member.number) is not None}
    epoch = max((report.epoch for report in reports.values()), default=0)
    newest = {number: report for number, report in reports.items() if report.epoch == epoch}
    present = next((number for number, report in newest.items() if report.role is Role.MASTER), None)
    witnesses = newest if present is None else {present: newest[present]}
    masters = _masters(present, witnesses.values(), request)
    recorded = {number for report in witnesses.values() for number in report.electable} - masters
    named = set(request.electable) - masters
    if not recorded and not named and not request.is_forced:
        remedy = "name all slaves that there are, and the master: --electable NUMBER for each"
        why = "nobody has recorded who may be promoted"
        return Refuse(shard=view.shard.number, why=why, remedy=remedy, can_be_forced=True)
    # More slaves than there are, or fewer acks than are needed, ask for more promises, never for fewer.
    acks_needed = min((report.acks_needed for report in witnesses.values() if report.acks_needed), default=0)
    # A master that needs no acks and has no slaves acknowledges without asking any member: no promise ends that.
    is_alone = not acks_needed and not recorded and bool(masters)
    master = min(masters, default=UNKNOWN_MASTER)
    term = Term(
        epoch=epoch,
        master=master,
        identity=reports[master].identity if master in reports else "",
        electable=voters(reports, recorded or (set() if is_alone else named)),
        acks_needed=acks_needed,
    )
    goal = Goal(why=f"epoch {epoch} is the newest that a member has recorded")
    record = LeaseRecord(epoch=epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return Crown(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _masters(present: int | None, witnesses: Iterable[Report], request: PromotionRequest) -> set[int]:
    if present is not None:
        return {present}
    recorded = {report.master_id for report in witnesses if report.master_id is not None}
    return recorded or ({request.old_master} if request.old_master is not None else set())


def voters(reports: Mapping[int, Report], numbers: Iterable[int]) -> tuple[Voter, ...]:
    """The voters with these numbers, each with the store that it reports."""
    return tuple(Voter(number, reports[number].identity if number in reports else "") for number in sorted(numbers))


def begin(view: View, request: PromotionRequest, why: str) -> list[Action]:
    """Begin an election, if it can succeed with the members that answer now."""
    shard = view.shard.number
    refused = refusal(view, request.to)
    if refused is not None:
        return [refused]
    if not view.term.electable and not request.is_forced:
        reason = "nobody has recorded which slaves may be promoted"
        return [Refuse(shard=shard, why=reason, remedy=START_OR_FORCE, can_be_forced=True)]
    ballots = view.possible()
    outcome = view.count(ballots, wanted=request.to, is_forced=request.is_forced)
    if outcome.winner is None:
        force = not request.is_forced
        remedy = START_OR_FORCE if force else "name the members that may be the master with --electable"
        return [Refuse(shard=shard, why=outcome.reason, remedy=remedy, can_be_forced=force)]
    winner = outcome.winner
    if request.to is not None and winner.number != request.to:
        ends = {one.number: f"member {one.number} ends at {one.end} of epoch {one.last_epoch}" for one in ballots}
        reason = f"{ends[request.to]}, {ends[winner.number]}"
        remedy = f"promote --to {winner.number} first, then move on"
        return [Refuse(shard=shard, why=reason, remedy=remedy, can_be_forced=True)]
    refused = lacks_acks(view, winner.number)
    return [take(view, goal_of(request, why), likely=winner.number) if refused is None else refused]


def refusal(view: View, to: int | None) -> Refuse | None:
    """Why the member that shall be the master cannot be it; None if it can, or if there is a Lease."""
    if view.by_hand is None:
        return None
    shard = view.shard.number
    here = [member.number for member in view.shard.members if view.fresh(member.number) is not None]
    if to is None:
        is_master_here = view.steady_master is not None
        if is_master_here and not view.electable_members & set(here) - {view.term.master}:
            why = "no slave that may be promoted answers"
            return Refuse(shard=shard, why=why, remedy="start one; the master stays as it is")
        return None
    if to not in here:
        return Refuse(shard=shard, why=f"no member with number {to} answers", remedy=f"these do: {here}")
    if to not in view.electable_members:
        remedy = f"these may: {sorted(view.electable_members)}; name others with --electable"
        return Refuse(shard=shard, why=f"member {to} may not be the master", remedy=remedy)
    return None


def lacks_acks(view: View, winner: int) -> Refuse | None:
    """Whether too few members could acknowledge anything to ``winner``; None if enough can, or if there is a Lease."""
    after, needed = view.electable_after(winner), view.term.acks_needed
    if view.by_hand is None or view.by_hand.is_forced or len(after) >= needed:
        return None
    why = f"code 0 needs {needed} ack(s), and only {sorted(after)} could give them to member {winner}"
    remedy = "name all that may be the master, those that are away, too: --electable"
    return Refuse(shard=view.shard.number, why=why, remedy=remedy, can_be_forced=True)


def take_over(view: View, request: PromotionRequest, holders: list[int]) -> TakeLease:
    """Take an epoch once the master is drained, and ``holders`` have everything that it has.

    So everything that was acknowledged is on each of them and on the master, and the vote of one is enough, though
    others are away: the term counts like one in which all members acknowledge, and only these have a vote.
    """
    reports = {member.number: report for member, report in view.reports()}
    numbers = {*view.term.members, *request.electable}
    have_all = {view.term.master, *holders}
    electable = tuple(one if one.number in have_all else Voter(one.number) for one in voters(reports, numbers))
    term = msgspec.structs.replace(view.term, electable=electable, acks_needed=len(electable))
    goal = msgspec.structs.replace(goal_of(request, "it was ordered"), to=holders[0])
    return take(view, goal, likely=holders[0], terms=(term,))


def is_widened(view: View) -> bool:
    """Whether the person wants other slaves of the present master to be electable than those that are."""
    request = view.by_hand
    if request is None or not request.electable or request.to != view.term.master:
        return False
    return view.electable_after(view.term.master) != set(view.term.numbers)


def widen(view: View, request: PromotionRequest) -> SetElectable | Refuse | None:
    """Have more slaves that may be promoted, in a new epoch of the same master.

    Without acks it asks them for grants, too, so no second master is made possible. Where acks count, one would be.
    """
    if not is_widened(view):
        return None
    term, shard = view.term, view.shard.number
    recorded, wanted = set(term.numbers), view.electable_after(term.master)
    if term.acks_needed or not recorded < wanted:
        present = f"{sorted(recorded)} may be promoted after member {term.master}"
        why = f"{present}, and {sorted(wanted)} only after an election"
        remedy = "move the role to another member, with the same --electable"
        return Refuse(shard=shard, why=why, remedy=remedy)
    master = view.steady_master
    assert master is not None, "asked only of a healthy shard"
    epoch = next_epoch(view.known_epochs, suffix=term.master)
    new = term_of(view, term.master, term.identity, epoch, master.place)
    new = msgspec.structs.replace(new, acks_needed=term.acks_needed, continues=term.epoch)
    goal = goal_of(request, f"{sorted(wanted)} may be elected after member {term.master} from now on")
    record = msgspec.structs.replace(view.record, epoch=epoch, terms=(term, new), goal=goal, version="")
    return SetElectable(shard=shard, expected=view.record.version, record=record, why=goal.why)
