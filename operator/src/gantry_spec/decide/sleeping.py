"""A group that hibernates: each shard is put to sleep when nothing can be lost by it, and wakes with the same master.

    named        the master of the newest epoch is promoted, if it was named and not told
    withdrawn    it refuses sends, and so has an end
    held         all of its log is on its disk, and on every slave that runs; whoever does not follow, follows
    taken        a new epoch without a master, for which the same one is wanted
    Sleep        all processes stop at once; volumes and the Lease stay

The epoch that is taken before has no master, so nobody can be one before they are awake again: whoever comes first does
not become it because others come later (``electing``).
"""

from __future__ import annotations

from gantry_spec.actions import Action, Sleep, Wait
from gantry_spec.decide.electing import promote, take
from gantry_spec.decide.settled import gather
from gantry_spec.decide.view import View
from gantry_spec.decide.withheld import withdrawn
from gantry_spec.lease import Goal
from gantry_spec.observed import Process, Report


def hibernate(view: View) -> list[Action]:
    """Put it to sleep. Nothing is decided any more about one that sleeps."""
    shard, why = view.shard.number, "the group is to hibernate"
    runs = [member.number for member in view.shard.members if member.process is Process.RUNNING]
    cut_off = unknown_masters(view)
    if view.shard.is_asleep and not cut_off:
        return [Wait(shard=shard, why=f"{why}, and members {runs} still run")] if runs else []
    if cut_off:
        return [Wait(shard=shard, why=f"{why}, and nobody knows whether members {cut_off} run, which were masters")]
    named = _named(view)
    if named is not None:
        return [promote(view, named)]
    loose = withdrawn(view, why)
    if loose:
        return loose
    master = None if view.lease.record is None else view.steady_master
    if master is None:
        return [Sleep(shard=shard, why=f"{why}, and it has no master that takes anything")]
    behind = lacking(view, master)
    if behind:
        return [*gather(view, master), Wait(shard=shard, why=f"{why}: {behind}")]
    return [take(view, Goal(why=f"{why}, and its master comes back with it", to=view.term.master))]


def _named(view: View) -> Report | None:
    """Who was named for the newest epoch, and only has to be told: that is finished first."""
    if view.lease.record is None or not view.record.is_settled:
        return None
    report, epoch = view.fresh(view.term.master), view.record.epoch
    return report if report is not None and max(report.epochs) <= epoch and report.epoch < epoch else None


def unknown_masters(view: View) -> list[int]:
    """Those that may still take something, as far as anybody knows; one whose process was never seen is none."""
    record = view.lease.record
    masters = set() if record is None else {term.master for term in record.terms}
    return sorted(
        member.number
        for member in view.shard.members
        if member.number in masters and member.process is Process.UNKNOWN and member.boot_id
    )


def lacking(view: View, master: Report) -> str:
    """What a master has that is not on its disk, or not on a slave that runs; empty if there is nothing."""
    if master.wrote is None or master.flushed is None or master.flushed < master.wrote:
        return f"member {view.term.master} has not everything on its disk yet"
    received = {ack.number: ack.received for ack in master.slaves}
    behind = sorted(
        member.number
        for member in view.shard.members
        if member.process is Process.RUNNING
        and member.number != view.term.master
        and received.get(member.number) != master.wrote
    )
    return f"members {behind} do not hold everything yet" if behind else ""
