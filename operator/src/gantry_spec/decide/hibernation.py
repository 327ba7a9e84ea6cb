"""Hibernation of a group: each shard is stopped, if possible with equal logs, and prefers the same master later.

    Promote      the recorded master of the newest epoch is promoted, if it is not yet
    Withdraw     the master refuses sends, so its log stops growing
    Follow       all running slaves follow; the log is on the master's disk and on every running slave
    TakeEpoch    a new epoch without a master is taken, with the same master preferred
    Hibernate    all processes stop at once; the volumes and the Lease are kept

The epoch that is taken at last has no master, so no member can serve before an election after the start. The first
member to start does not win merely because the others start later (``election``).

A shard whose master does not answer is stopped as it is, unless it is unknown whether that process runs. Its volumes
are kept, and the election after the start decides as after any other stop."""

from __future__ import annotations

from typing import Final

from gantry_spec.actions import Action, Hibernate, Wait
from gantry_spec.decide.election import promote_master, take_epoch
from gantry_spec.decide.term_maintenance import attach_slaves
from gantry_spec.decide.view import ShardView
from gantry_spec.decide.withdrawal import withdraw_masters
from gantry_spec.lease import Goal
from gantry_spec.observed import Process, Report

STOPPED_IN_ORDER: Final = "the group hibernates; the same master is preferred when it starts again"
"""Why the last epoch before a hibernation is taken: by then the master's whole log is on its disk."""


def was_stopped_in_order(view: ShardView) -> bool:
    """Return whether a hibernated shard had a master whose whole log was on its disk when it was stopped."""
    record = view.lease.record
    return record is not None and record.goal is not None and record.goal.why == STOPPED_IN_ORDER


def hibernate(view: ShardView) -> list[Action]:
    """Return the actions that stop a shard; none for a shard that is scaled to zero and stopped."""
    shard, why = view.shard.number, "the group hibernates"
    runs = [member.number for member in view.shard.members if member.process is Process.RUNNING]
    unknown = masters_in_unknown_state(view)
    if view.shard.is_scaled_to_zero and not unknown:
        return [Wait(shard=shard, why=f"{why}, and members {runs} are still running")] if runs else []
    if unknown:
        return [Wait(shard=shard, why=f"{why}, but it is unknown whether the past masters {unknown} are running")]
    named = _unpromoted_master(view)
    if named is not None:
        return [promote_master(view, named)]
    withdrawals = withdraw_masters(view, why)
    if withdrawals:
        return withdrawals
    master = None if view.lease.record is None else view.healthy_master
    if master is None:
        return [Hibernate(shard=shard, why=f"{why}, and no master takes sends")]
    behind = unreplicated_data(view, master)
    if behind:
        return [*attach_slaves(view, master), Wait(shard=shard, why=f"{why}: {behind}")]
    return [take_epoch(view, Goal(why=STOPPED_IN_ORDER, to=view.term.master))]


def _unpromoted_master(view: ShardView) -> Report | None:
    """Return the report of the newest epoch's master if it is recorded and not yet promoted."""
    if view.lease.record is None or not view.record.is_settled:
        return None
    report, epoch = view.fresh_report(view.term.master), view.record.epoch
    return report if report is not None and max(report.epochs) <= epoch and report.epoch < epoch else None


def masters_in_unknown_state(view: ShardView) -> list[int]:
    """Return masters of recorded terms whose process may still run. A process that was never observed is ignored."""
    record = view.lease.record
    masters = set() if record is None else {term.master for term in record.terms}
    return sorted(
        member.number
        for member in view.shard.members
        if member.number in masters and member.process is Process.UNKNOWN and member.boot_id
    )


def unreplicated_data(view: ShardView, master: Report) -> str:
    """Return what part of a master's log is not on its disk or not on a running slave; empty if none is."""
    if master.wrote is None or master.flushed is None or master.flushed < master.wrote:
        return f"member {view.term.master} has not flushed its log yet"
    received = {ack.number: ack.received for ack in master.slaves}
    behind = sorted(
        member.number
        for member in view.shard.members
        if member.process is Process.RUNNING
        and member.number != view.term.master
        and received.get(member.number) != master.wrote
    )
    return f"members {behind} have not received the whole log yet" if behind else ""
