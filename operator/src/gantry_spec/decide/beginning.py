"""A shard without a Lease: a new group, one that is run by hand, or one that comes back from its volumes.

Nothing is done before every member has been heard: a disk that is not looked at may hold the newest epoch, or all the
messages. Where nobody has anything, the first member is the master. Where somebody is the master, it stays so. Where
there are logs and no master, there is an election over what members have written down about their last term.

A volume that is empty has no vote in that, since it may stand for one that was lost. If those that are not empty
cannot prove that they have whatever was acknowledged, a person is asked (``gantry.dev/restore``), and only then is
anybody begun without who does not come at all.
"""

from __future__ import annotations

import msgspec

from gantry_spec.actions import Action, Crown, TakeLease, Wait
from gantry_spec.ballot import ballot_of, is_own_witness, missing
from gantry_spec.decide import by_hand
from gantry_spec.decide.view import View
from gantry_spec.lease import Goal, LeaseRecord, Term, next_epoch
from gantry_spec.manifest.annotations import RESTORE
from gantry_spec.observed import Member, Report, Role


def start(view: View) -> list[Action]:
    """The first record of a shard."""
    if view.by_hand is not None:
        return [by_hand.remember(view, view.by_hand)]
    shard = view.shard.number
    heard = {member.number: (member, report) for member, report in view.reports() if view.fresh(member.number)}
    away = sorted(set(view.spec.members) - heard.keys())
    masters = [pair for pair in heard.values() if pair[1].role is Role.MASTER]
    if masters:
        member, report = max(masters, key=lambda pair: pair[1].epoch)
        if report.epoch == max(max(one.epochs) for _, one in heard.values()):
            return [_adopt(view, member, report)]
    reports = {number: report for number, (_, report) in heard.items()}
    is_empty = all(_is_empty(report) for report in reports.values())
    if away and (is_empty or not view.shard.restore):
        return [Wait(shard=shard, why=f"members {away} have not been heard yet")]
    return [_found(view, reports)] if is_empty else [_restore(view, reports, away)]


def _is_empty(report: Report) -> bool:
    """Whether nothing was ever on its volume."""
    return report.wrote == 0 and report.epoch == 0


def _found(view: View, reports: dict[int, Report]) -> Crown:
    """Everybody is empty."""
    number = next((one for one in view.spec.members if not view.members[one].is_leaving), 1)
    epoch = next_epoch(view.known_epochs)
    term = Term(
        epoch=epoch,
        master=number,
        identity=reports[number].identity,
        electable=by_hand.voters(reports, [one for one in view.spec.members if one != number]),
        acks_needed=view.members[number].acks_needed,
    )
    goal = Goal(why="the group begins")
    record = LeaseRecord(epoch=epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return Crown(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _adopt(view: View, member: Member, report: Report) -> Crown:
    """It is the master already."""
    reports = {one.number: said for one, said in view.reports()}
    term = Term(
        epoch=report.epoch,
        master=member.number,
        identity=report.identity,
        electable=by_hand.voters(reports, report.electable),
        acks_needed=member.acks_needed if report.acks_needed is None else report.acks_needed,
    )
    goal = Goal(why=f"member {member.number} is the master already")
    record = LeaseRecord(epoch=report.epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return Crown(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _restore(view: View, reports: dict[int, Report], away: list[int]) -> Action:
    """There are logs: the term that is to be outvoted is the newest that anybody has written down."""
    term = _last_reign(view, reports)
    told = {number: report for number, report in reports.items() if not _is_empty(report)}
    ballots = [ballot_of(view.members[number], report) for number, report in told.items()]
    reason = missing(term, ballots)
    if not reason and not term.acks_needed and not any(is_own_witness(term, one) for one in ballots):
        reason = f"no acknowledgement of epoch {term.epoch} waited for slaves, and its master {term.master} lacks"
    order = view.shard.restore
    if reason and not order:
        how = f'; {RESTORE}: "{view.shard.number}" begins with the furthest that is here'
        return Wait(
            shard=view.shard.number, why=f"it comes back from its volumes, and something may lack: {reason}{how}"
        )
    goal = Goal(why="the group comes back from its volumes", may_move=True)
    if reason or away:
        goal = msgspec.structs.replace(goal, request=order, loss_accepted=None)
    epoch = next_epoch(view.known_epochs)
    record = LeaseRecord(epoch=epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return TakeLease(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _last_reign(view: View, reports: dict[int, Report]) -> Term:
    newest = max(reports.values(), key=lambda one: (one.epoch, one.role is Role.MASTER))
    furthest = max(reports, key=lambda number: (reports[number].place, -number))
    master = furthest if newest.master_id is None else newest.master_id
    electable = newest.electable or tuple(number for number in reports if number != master)
    known = [one for one in (newest.acks_needed, view.members[furthest].acks_needed) if one]
    told = {number: report for number, report in reports.items() if not _is_empty(report)}
    return Term(
        epoch=max(newest.epoch, newest.last_epoch),
        master=master,
        identity=told[master].identity if master in told else "",
        electable=by_hand.voters(told, [number for number in electable if number != master]),
        acks_needed=min(known, default=0),
    )
