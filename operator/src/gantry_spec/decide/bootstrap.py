"""The first record of a shard without a Lease: a new group, a manual promotion, or a restore from existing volumes.

A member that already has the master role keeps it, if no member that has reported knows a newer epoch. It is recorded
without waiting for the others. Otherwise nothing is done before every member has reported, since a disk that was not
read may hold the newest epoch or all messages. If all stores are empty, the first member whose machine is not being
drained becomes the master. If there are logs, an election is held over the last term that the members have recorded.

An empty volume has no vote in it, since it may have replaced one that was lost. If the volumes that are not empty
cannot prove that they have everything that was acknowledged, a person has to decide (``gantry.dev/restore``). Only with
that request the shard starts without members that do not report."""

from __future__ import annotations

import msgspec

from gantry_spec.actions import Action, RecordMaster, TakeEpoch, Wait
from gantry_spec.ballot import ballot_of, has_complete_log, missing_votes
from gantry_spec.decide import manual_promotion
from gantry_spec.decide.view import ShardView
from gantry_spec.lease import Goal, LeaseRecord, Term, next_epoch
from gantry_spec.manifest.annotations import RESTORE
from gantry_spec.observed import Member, Report, Role


def create_record(view: ShardView) -> list[Action]:
    """Return the action that creates the first record of a shard, or a wait."""
    if view.manual_request is not None:
        return [manual_promotion.reconstruct_record(view, view.manual_request)]
    shard = view.shard.number
    reported = {
        member.number: (member, report) for member, report in view.reports() if view.fresh_report(member.number)
    }
    away = sorted(set(view.spec.members) - reported.keys())
    masters = [pair for pair in reported.values() if pair[1].role is Role.MASTER]
    if masters:
        member, report = max(masters, key=lambda pair: pair[1].epoch)
        if report.epoch == max(max(one.epochs) for _, one in reported.values()):
            return [_adopt_master(view, member, report)]
    reports = {number: report for number, (_, report) in reported.items()}
    is_empty = all(_is_empty(report) for report in reports.values())
    if away and (is_empty or not view.shard.restore):
        return [Wait(shard=shard, why=f"members {away} have not reported yet")]
    return [_bootstrap_empty(view, reports)] if is_empty else [_restore(view, reports, away)]


def _is_empty(report: Report) -> bool:
    """Return whether a volume never held any data."""
    return report.wrote == 0 and report.epoch == 0


def _bootstrap_empty(view: ShardView, reports: dict[int, Report]) -> RecordMaster:
    """Return the first record of a new shard, whose stores are all empty."""
    number = next((one for one in view.spec.members if not view.members[one].is_leaving), 1)
    epoch = next_epoch(view.known_epochs)
    term = Term(
        epoch=epoch,
        master=number,
        identity=reports[number].identity,
        electable=manual_promotion.voters(reports, [one for one in view.spec.members if one != number]),
        acks_needed=view.members[number].acks_needed,
    )
    goal = Goal(why="the shard is created")
    record = LeaseRecord(epoch=epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return RecordMaster(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _adopt_master(view: ShardView, member: Member, report: Report) -> RecordMaster:
    """Return a record of the term of a member that is the master already."""
    reports = {one.number: its_report for one, its_report in view.reports()}
    term = Term(
        epoch=report.epoch,
        master=member.number,
        identity=report.identity,
        electable=manual_promotion.voters(reports, report.electable),
        acks_needed=member.acks_needed if report.acks_needed is None else report.acks_needed,
    )
    goal = Goal(why=f"member {member.number} is the master already")
    record = LeaseRecord(epoch=report.epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return RecordMaster(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _restore(view: ShardView, reports: dict[int, Report], away: list[int]) -> Action:
    """Start an election over existing logs: the newest term that a member has recorded must be outvoted."""
    term = _last_term(view, reports)
    with_data = {number: report for number, report in reports.items() if not _is_empty(report)}
    ballots = [ballot_of(view.members[number], report) for number, report in with_data.items()]
    reason = missing_votes(term, ballots)
    if not reason and not term.acks_needed and not any(has_complete_log(term, one) for one in ballots):
        reason = (
            f"acknowledgements of epoch {term.epoch} did not wait for slaves, and its master {term.master} is absent or"
            " may lack data"
        )
    restore_id = view.shard.restore
    if reason and not restore_id:
        how = f'; {RESTORE}: "{view.shard.number}" starts with the longest log that is present'
        return Wait(
            shard=view.shard.number,
            why=f"the shard is restored from its volumes, and data may be missing: {reason}{how}",
        )
    goal = Goal(why="the shard is restored from its volumes", may_move=True)
    if reason or away:
        goal = msgspec.structs.replace(goal, promotion_request=restore_id, loss_accepted=None)
    epoch = next_epoch(view.known_epochs)
    record = LeaseRecord(epoch=epoch, terms=(term,), goal=goal, duration_ms=view.lease_duration_ms)
    return TakeEpoch(shard=view.shard.number, expected=None, record=record, why=goal.why)


def _last_term(view: ShardView, reports: dict[int, Report]) -> Term:
    """Return the newest term that a member has recorded."""
    newest = max(reports.values(), key=lambda one: (one.epoch, one.role is Role.MASTER))
    furthest = max(reports, key=lambda number: (reports[number].log_position, -number))
    master = furthest if newest.master_id is None else newest.master_id
    electable = newest.electable or tuple(number for number in reports if number != master)
    configured = view.members[furthest].acks_needed
    with_data = {number: report for number, report in reports.items() if not _is_empty(report)}
    return Term(
        epoch=max(newest.epoch, newest.last_epoch),
        master=master,
        identity=with_data[master].identity if master in with_data else "",
        electable=manual_promotion.voters(with_data, [number for number in electable if number != master]),
        acks_needed=configured if newest.acks_needed is None else newest.acks_needed,
    )
