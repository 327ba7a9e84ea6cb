"""What is done to a healthy shard on purpose: the role moves without loss, slaves and masters are restarted.

    the role     Drain the master -> a slave has all of it -> a new epoch (electing) -> the slave is named
    a slave      enough others are in sync: Restart.  Otherwise Withdraw first: sends are refused unstored
    the master   its role moves first; without slaves, Drain and Restart

Reasons come in one order: what a person wants, a machine that is emptied, a scaled-down number, a roll, switching
back. There is at most one at a time, and when there is none any more, a master that is still drained takes sends again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gantry_spec.actions import Action, Drain, Restart, Resume, Wait, Withdraw
from gantry_spec.decide import by_hand
from gantry_spec.decide.electing import take
from gantry_spec.decide.view import View
from gantry_spec.lease import Goal
from gantry_spec.observed import Member, Process, Report, Role

DRAIN_GAP_BYTES: Final = 16 << 20
"""A slave that is farther behind would keep clients waiting while it catches up: it is waited for before."""
DRAIN_TIMEOUT_MS: Final = 10_000


class Intent(NamedTuple):
    """The role shall go to somebody else."""

    why: str
    to: int | None = None
    """The member that is to get it; None for the best one."""

    request: str = ""


def voluntary(view: View, master: Report) -> list[Action]:
    """The one thing that is wanted of a healthy shard now."""
    actions: list[Action] = []
    for intent in _intents(view):
        refusal = by_hand.refusal(view, intent.to)
        if refusal is not None:
            return [*actions, refusal]
        if targets(view, intent.to):
            return _move(view, master, intent)
        who = "no slave is" if intent.to is None else f"member {intent.to} is"
        actions.append(Wait(shard=view.shard.number, why=f"{intent.why}, and {who} near enough to take the role"))
    restarts = _slave_restarts(view, master) or _master_restart(view, master)
    if (master.is_draining or master.is_withdrawn) and not restarts:
        actions.append(_resumed(view))
    return actions + restarts


def _resumed(view: View) -> Action:
    """It takes sends again, once there is somebody who acknowledges them: till then they would be stored unpromised."""
    term, shard = view.term, view.shard.number
    lack = term.acks_needed - len(view.ledger.in_sync)
    if lack > 0 and view.by_hand is None:
        return Wait(shard=shard, why=f"sends are refused until {lack} more slaves are in sync")
    return Resume(shard=shard, member=term.master, epoch=term.epoch, electable=term.numbers)


def _intents(view: View) -> Iterator[Intent]:
    number, request = view.term.master, view.shard.request
    goal = view.record.goal
    is_new = request is not None and request.to != number and (goal is None or goal.request != request.id)
    is_possible = request is not None and (request.to is None or request.to in view.members_wanted)
    if request is not None and is_new and is_movable(view) and is_possible:
        yield Intent("it was ordered", request.to, request.id)
    if number not in view.members_wanted:
        yield Intent(f"member {number} is scaled away")
    if not is_movable(view):
        return
    member = view.members[number]
    if member.is_leaving and targets(view, None):
        yield Intent(f"the machine of member {number} is emptied")
    if is_outdated(view, member) and not any(True for _ in _outdated_slaves(view)):
        yield Intent(f"member {number} is to be restarted")
    if view.spec.failover.switchback and number != 1 and targets(view, 1):
        yield Intent("the role goes back to the broker that had it first", 1)


def is_movable(view: View) -> bool:
    """Whether the role may go to anybody else at all."""
    return view.spec.failover.mode != "Disabled" and view.spec.slaves > 0


# -- the role ----------------------------------------------------------------------------------------------------------


def targets(view: View, to: int | None) -> list[int]:
    """Who could take the role without loss, the best first."""
    master = view.steady_master
    if master is None or master.wrote is None:
        return []
    found = []
    electable = view.term.numbers if view.by_hand is None else view.electable_members
    for ack in master.slaves:
        report, member = view.fresh(ack.number), view.members.get(ack.number)
        if report is None or member is None or ack.received is None or ack.number not in electable:
            continue
        is_following = (report.role, report.epoch) == (Role.SLAVE, view.term.epoch)
        is_wanted = not member.is_leaving and not is_outdated(view, member) if to is None else ack.number == to
        is_near = master.wrote - ack.received <= DRAIN_GAP_BYTES
        if is_following and is_wanted and is_near and ack.number in view.members_wanted:
            found.append((-ack.received, ack.number))
    return [number for _, number in sorted(found)]


def _move(view: View, master: Report, intent: Intent) -> list[Action]:
    shard, number = view.shard.number, view.term.master
    found = targets(view, intent.to)
    refusal = by_hand.lacks_acks(view, found[0])
    if refusal is not None:
        return [refusal]
    if not master.is_draining:
        timeout_ms = DRAIN_TIMEOUT_MS if view.by_hand is None else view.by_hand.drain_timeout_ms
        return [Drain(shard=shard, member=number, timeout_ms=timeout_ms, why=intent.why)]
    received = {ack.number: ack.received for ack in master.slaves}
    whole = [one for one in found if received[one] == master.wrote]
    if not whole:
        rest = f"member {found[0]} gets the rest: it has received up to {received[found[0]]} of {master.wrote}"
        return [Wait(shard=shard, why=f"{intent.why}: {rest}")]
    if view.by_hand is not None:
        return [by_hand.take_over(view, view.by_hand, whole)]
    return [take(view, Goal(why=intent.why, request=intent.request, to=whole[0], may_move=True))]


# -- restarts ----------------------------------------------------------------------------------------------------------


def is_outdated(view: View, member: Member) -> bool:
    """Whether it runs with something else than the spec says now."""
    return bool(view.template) and member.template != view.template


def _outdated_slaves(view: View) -> Iterator[Member]:
    return (
        member
        for member in view.shard.members
        if member.number != view.term.master and member.number in view.spec.members and is_outdated(view, member)
    )


def _slave_restarts(view: View, master: Report) -> list[Action]:
    """Of those that do not run as they should, then of the one that is farthest behind."""
    received = {ack.number: ack.received for ack in master.slaves}
    outdated = sorted(_outdated_slaves(view), key=lambda one: (received.get(one.number) or 0, one.number))
    if not outdated:
        return []
    broken = [one for one in outdated if one.number not in view.ledger.in_sync and _is_stuck(view, one)]
    if broken:
        return [_restart(view, member) for member in broken]
    member = outdated[0]
    away = [number for number in view.spec.members if number not in {view.term.master, *view.ledger.in_sync}]
    if away and member.number not in away:
        return [
            Wait(shard=view.shard.number, why=f"members {away} are not in sync; member {member.number} comes after")
        ]
    others = [number for number in view.ledger.in_sync if number != member.number]
    if len(others) >= view.term.acks_needed or member.number not in view.ledger.in_sync:
        return [_restart(view, member)]
    if not master.is_draining:
        why = f"member {member.number} is to be restarted, and acknowledgements need {view.term.acks_needed} slaves"
        number = view.term.master
        return [Withdraw(shard=view.shard.number, member=number, timeout_ms=DRAIN_TIMEOUT_MS, why=why)]
    if received.get(member.number) != master.wrote:
        why = (
            f"member {member.number} gets the rest before it is restarted, or what waits for it would never be answered"
        )
        return [Wait(shard=view.shard.number, why=why)]
    return [_restart(view, member)]


def _is_stuck(view: View, member: Member) -> bool:
    """Whether nothing is lost by restarting it: it says nothing."""
    return view.fresh(member.number) is None and member.process is not Process.UNKNOWN


def _master_restart(view: View, master: Report) -> list[Action]:
    """In place: nobody else may have the role."""
    member = view.members[view.term.master]
    if not is_outdated(view, member) or is_movable(view):
        return []
    if not master.is_draining:
        return [Drain(shard=view.shard.number, member=member.number, timeout_ms=DRAIN_TIMEOUT_MS, why="it restarts")]
    return [_restart(view, member)]


def _restart(view: View, member: Member) -> Restart:
    why = f"member {member.number} runs with something else than the spec says"
    return Restart(shard=view.shard.number, member=member.number, boot_id=member.boot_id, why=why)
