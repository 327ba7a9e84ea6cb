"""A manual promotion with `gantry ha promote`: no Lease records the terms, and no spec counts the members.

    M  the members that may be the master, by their own numbers
    S  of these, the slaves of the newest term            = M without its master
    k  acks of S that code 0 needs

The members have recorded S and k with their epoch, and the person may name M instead. The record of the last term is
reconstructed from these, and then everything is decided as with a Lease (``term_maintenance``, ``election``), with
these differences:

    the last term    is known only from members that answer, so a quorum of S must vote (``ballot.missing_votes``)
    a new epoch      ends in the number of its master, so that two promotions never begin the same one
    a failed master  is stated by the person: no timeout is awaited, and slaves in contact with it do not matter
    a new S          of the same master is allowed only if it makes no second master possible

A promotion that cannot succeed is refused before any order is given, since a promise stops a slave from following.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gantry_spec.actions import Action, RecordMaster, Refuse, SetElectable, TakeEpoch
from gantry_spec.decide.election import goal_for, new_term, take_epoch
from gantry_spec.decide.view import ShardView
from gantry_spec.lease import UNKNOWN_MASTER, Goal, LeaseRecord, Term, Voter, next_epoch
from gantry_spec.observed import PromotionRequest, Report, Role

START_OR_FORCE: Final = "start one of them; --force gives up what only they may have"


def reconstruct_record(view: ShardView, request: PromotionRequest) -> RecordMaster | Refuse:
    """Return the record of the last term, as the members that answer have recorded it.

    If they disagree on S or k, the value that requires more promises is used.
    """
    reports = {
        member.number: report for member, report in view.reports() if view.fresh_report(member.number) is not None
    }
    epoch = max((report.epoch for report in reports.values()), default=0)
    newest = {number: report for number, report in reports.items() if report.epoch == epoch}
    present = next((number for number, report in newest.items() if report.role is Role.MASTER), None)
    witnesses = newest if present is None else {present: newest[present]}
    masters = _masters(present, witnesses.values(), request)
    recorded = {number for report in witnesses.values() for number in report.electable} - masters
    named = set(request.electable) - masters
    if not recorded and not named and not request.is_forced:
        remedy = "name all slaves and the master: --electable NUMBER for each"
        why = "no member has recorded which slaves may be promoted"
        return Refuse(shard=view.shard.number, why=why, remedy=remedy, can_be_forced=True)
    # An S that is too large, or a k that is too small, requires more promises, never fewer.
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
    return RecordMaster(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _masters(present: int | None, witnesses: Iterable[Report], request: PromotionRequest) -> set[int]:
    if present is not None:
        return {present}
    recorded = {report.master_id for report in witnesses if report.master_id is not None}
    return recorded or ({request.old_master} if request.old_master is not None else set())


def voters(reports: Mapping[int, Report], numbers: Iterable[int]) -> tuple[Voter, ...]:
    """Return the voters with these numbers, each with the store that it reports."""
    return tuple(Voter(number, reports[number].identity if number in reports else "") for number in sorted(numbers))


def begin_election(view: ShardView, request: PromotionRequest, why: str) -> list[Action]:
    """Start an election if it can succeed with the members that answer now; otherwise refuse the request."""
    shard = view.shard.number
    refused = check_target(view, request.to)
    if refused is not None:
        return [refused]
    if not view.term.electable and not request.is_forced:
        reason = "no member has recorded which slaves may be promoted"
        return [Refuse(shard=shard, why=reason, remedy=START_OR_FORCE, can_be_forced=True)]
    ballots = view.possible_ballots()
    outcome = view.count_ballots(ballots, preferred=request.to, is_forced=request.is_forced)
    if outcome.winner is None:
        force = not request.is_forced
        remedy = START_OR_FORCE if force else "name the members that may be the master with --electable"
        return [Refuse(shard=shard, why=outcome.reason, remedy=remedy, can_be_forced=force)]
    winner = outcome.winner
    if request.to is not None and winner.number != request.to:
        ends = {one.number: f"member {one.number} ends at {one.end} of epoch {one.last_epoch}" for one in ballots}
        reason = f"{ends[request.to]}, {ends[winner.number]}"
        remedy = f"promote --to {winner.number} first, then --to {request.to}"
        return [Refuse(shard=shard, why=reason, remedy=remedy, can_be_forced=True)]
    refused = check_enough_acks(view, winner.number)
    if refused is not None:
        return [refused]
    return [take_epoch(view, goal_for(request, why), probable_master=winner.number)]


def check_target(view: ShardView, to: int | None) -> Refuse | None:
    """Return why the requested member cannot be the master; None if it can, or if there is a Lease."""
    if view.manual_request is None:
        return None
    shard = view.shard.number
    answering = [member.number for member in view.shard.members if view.fresh_report(member.number) is not None]
    if to is None:
        is_master_answering = view.healthy_master is not None
        if is_master_answering and not view.electable_members & set(answering) - {view.term.master}:
            why = "no slave that may be promoted answers"
            return Refuse(shard=shard, why=why, remedy="start one; the master stays as it is")
        return None
    if to not in answering:
        return Refuse(shard=shard, why=f"no member with number {to} answers", remedy=f"these do: {answering}")
    if to not in view.electable_members:
        remedy = f"these may: {sorted(view.electable_members)}; name others with --electable"
        return Refuse(shard=shard, why=f"member {to} may not be the master", remedy=remedy)
    return None


def check_enough_acks(view: ShardView, winner: int) -> Refuse | None:
    """Return the refusal if too few members could acknowledge to ``winner``; None if enough can, if forced, or with a
    Lease."""
    after, needed = view.electable_after(winner), view.term.acks_needed
    if view.manual_request is None or view.manual_request.is_forced or len(after) >= needed:
        return None
    why = f"code 0 needs {needed} ack(s), but only {sorted(after)} could give them to member {winner}"
    remedy = "name all members that may be the master, also the absent ones: --electable"
    return Refuse(shard=view.shard.number, why=why, remedy=remedy, can_be_forced=True)


def take_over_epoch(view: ShardView, request: PromotionRequest, holders: list[int]) -> TakeEpoch:
    """Take an epoch after the master is drained and ``holders`` have received its whole log.

    Then everything that was acknowledged is on each of them and on the master, so one vote is enough although other
    members are absent: the term counts like one in which all members acknowledge, and only these have a vote.
    """
    reports = {member.number: report for member, report in view.reports()}
    numbers = {*view.term.members, *request.electable}
    have_all = {view.term.master, *holders}
    electable = tuple(one if one.number in have_all else Voter(one.number) for one in voters(reports, numbers))
    term = msgspec.structs.replace(view.term, electable=electable, acks_needed=len(electable))
    goal = msgspec.structs.replace(goal_for(request, "a promotion was requested"), to=holders[0])
    return take_epoch(view, goal, probable_master=holders[0], terms=(term,))


def changes_electable(view: ShardView) -> bool:
    """Return whether the person requests another set of electable slaves for the present master."""
    request = view.manual_request
    if request is None or not request.electable or request.to != view.term.master:
        return False
    return view.electable_after(view.term.master) != set(view.term.numbers)


def extend_electable(view: ShardView, request: PromotionRequest) -> SetElectable | Refuse | None:
    """Add electable slaves in a new epoch of the same master.

    Without acks the master needs grants from the added slaves, too, so no second master becomes possible. With acks one
    would, so the change is refused.
    """
    if not changes_electable(view):
        return None
    term, shard = view.term, view.shard.number
    recorded, electable_numbers = set(term.numbers), view.electable_after(term.master)
    if term.acks_needed or not recorded < electable_numbers:
        present = f"{sorted(recorded)} may be promoted after member {term.master}"
        why = f"{present}, and {sorted(electable_numbers)} only after an election"
        remedy = "move the role to another member, with the same --electable"
        return Refuse(shard=shard, why=why, remedy=remedy)
    master = view.healthy_master
    assert master is not None, "asked only of a healthy shard"
    epoch = next_epoch(view.known_epochs, suffix=term.master)
    new = new_term(view, term.master, term.identity, epoch, master.log_position)
    new = msgspec.structs.replace(new, acks_needed=term.acks_needed, continues=term.epoch)
    goal = goal_for(request, f"{sorted(electable_numbers)} may be elected after member {term.master} from now on")
    record = msgspec.structs.replace(view.record, epoch=epoch, terms=(term, new), goal=goal, version="")
    return SetElectable(shard=shard, expected=view.record.version, record=record, why=goal.why)
