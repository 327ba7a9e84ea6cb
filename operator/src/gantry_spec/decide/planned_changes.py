"""Planned changes of a healthy shard: switchovers without loss, and restarts of slaves and masters.

    switchover          Drain the master -> a slave has the whole log -> a new epoch (election) -> the slave is recorded
    slave restart       enough others can acknowledge: Restart. Otherwise Withdraw first: sends are refused, not stored
    master restart      its role moves first; where it may not move (no slaves, ``failover.mode: Disabled``), Drain and
                        Restart

Reasons have a fixed order: a person's request, a removed member, a drained machine, a rolling update, switchback. At
most one is handled at a time, except that all outdated slaves that do not answer are restarted together. When none is
left, or none can be handled now, a master that is still drained takes sends again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gantry_spec.actions import Action, Drain, Restart, Resume, Wait, Withdraw
from gantry_spec.decide import manual_promotion
from gantry_spec.decide.election import take_epoch
from gantry_spec.decide.view import ShardView
from gantry_spec.lease import Goal
from gantry_spec.observed import Member, Process, Report, Role
from gantry_status.text import bytes_text

DRAIN_GAP_BYTES: Final = 16 << 20
"""The greatest gap with which a switchover starts. A larger one would block clients while the slave catches up."""
DRAIN_TIMEOUT_MS: Final = 10_000


class RoleMove(NamedTuple):
    """A reason to move the master role to another member."""

    why: str
    to: int | None = None
    """The member to promote; None for the best candidate."""

    request: str = ""
    """The id of the person's request that is the reason; empty for any other reason."""


def plan_change(view: ShardView, master: Report) -> list[Action]:
    """Return the actions for the most important planned change of a healthy shard."""
    actions: list[Action] = []
    for move in _role_moves(view):
        refusal = manual_promotion.check_target(view, move.to)
        if refusal is not None:
            return [*actions, refusal]
        if switchover_candidates(view, move.to):
            return _move(view, master, move)
        who = "no slave is" if move.to is None else f"member {move.to} is not"
        rule = f"it must follow the master, be electable and lag at most {bytes_text(DRAIN_GAP_BYTES)}"
        rule += "" if move.to is not None else "; it must also have the present configuration and stay on its machine"
        why = f"{move.why}, but {who} eligible for a switchover: {rule}"
        actions.append(Wait(shard=view.shard.number, why=why))
    restarts = _slave_restarts(view, master) or _master_restart(view, master)
    if (master.is_draining or master.is_withdrawn) and not restarts:
        actions.append(_resume(view, master))
    return actions + restarts


def _resume(view: ShardView, master: Report) -> Action:
    """Let the master take sends again once enough slaves can acknowledge them, or wait until then.

    A slave of the spec that has the whole log counts although it is not electable. It becomes so once the master takes
    sends, and not before: waiting for it would never end if the electable slaves do not return.
    """
    term, shard = view.term, view.shard.number
    whole = {one.number for one in master.slaves if one.received is not None and one.received == master.wrote}
    shortage = term.acks_needed - len({*view.ledger.acknowledging, *(whole & set(view.spec.members))})
    if shortage > 0 and view.manual_request is None:
        return Wait(shard=shard, why=f"sends are refused until {shortage} more slaves can acknowledge")
    return Resume(shard=shard, member=term.master, epoch=term.epoch, electable=term.numbers)


def _role_moves(view: ShardView) -> Iterator[RoleMove]:
    """Yield the reasons to move the role now, the most important first."""
    number, request = view.term.master, view.shard.request
    goal = view.record.goal
    is_new = request is not None and request.to != number and (goal is None or goal.promotion_request != request.id)
    is_possible = request is not None and (request.to is None or request.to in view.expected_members)
    if request is not None and is_new and is_movable(view) and is_possible:
        yield RoleMove("a promotion was requested", request.to, request.id)
    if number not in view.expected_members:
        yield RoleMove(f"member {number} is scaled in")
    if not is_movable(view):
        return
    member = view.members[number]
    if member.is_leaving and switchover_candidates(view, None):
        yield RoleMove(f"the machine of member {number} is being drained")
    has_outdated_slaves = any(True for _ in _outdated_slaves(view))
    if is_outdated(view, member) and not has_outdated_slaves:
        yield RoleMove(f"member {number} must be restarted")
    # Without a named target the candidates can keep the role. From a member that is outdated or leaving it would move
    # away again, and return again, without end.
    can_return = number != 1 and not has_outdated_slaves and 1 in switchover_candidates(view, None)
    if view.spec.failover.switchback and can_return:
        yield RoleMove("switchback: the role returns to member 1", 1)


def is_movable(view: ShardView) -> bool:
    """Return whether the role may move to another member. A master whose member is scaled in moves it in any case."""
    return view.spec.failover.mode != "Disabled" and view.spec.slaves > 0


# -- the role ----------------------------------------------------------------------------------------------------------


def switchover_candidates(view: ShardView, to: int | None) -> list[int]:
    """Return the slaves that could take the role without loss, the best first.

    A named member is a candidate also if it is outdated or its machine is being drained: a person may want that.
    """
    master = view.healthy_master
    if master is None or master.wrote is None:
        return []
    found = []
    electable = view.term.numbers if view.manual_request is None else view.electable_members
    for ack in master.slaves:
        report, member = view.fresh_report(ack.number), view.members.get(ack.number)
        if report is None or member is None or ack.received is None or ack.number not in electable:
            continue
        is_following = (report.role, report.epoch) == (Role.SLAVE, view.term.epoch)
        is_wanted = not member.is_leaving and not is_outdated(view, member) if to is None else ack.number == to
        is_near = master.wrote - ack.received <= DRAIN_GAP_BYTES
        if is_following and is_wanted and is_near and ack.number in view.expected_members:
            found.append((-ack.received, ack.number))
    return [number for _, number in sorted(found)]


def _move(view: ShardView, master: Report, move: RoleMove) -> list[Action]:
    """Return the actions that move the role: a drain, then a new epoch, or the wait for either."""
    shard, number = view.shard.number, view.term.master
    found = switchover_candidates(view, move.to)
    refusal = manual_promotion.check_enough_acks(view, found[0])
    if refusal is not None:
        return [refusal]
    if not master.is_draining:
        timeout_ms = DRAIN_TIMEOUT_MS if view.manual_request is None else view.manual_request.drain_timeout_ms
        return [Drain(shard=shard, member=number, timeout_ms=timeout_ms, why=move.why)]
    received = {ack.number: ack.received for ack in master.slaves}
    caught_up = [one for one in found if received[one] == master.wrote]
    if not caught_up:
        rest = f"member {found[0]} is catching up: it has received {received[found[0]]} of {master.wrote}"
        return [Wait(shard=shard, why=f"{move.why}: {rest}")]
    if view.manual_request is not None:
        return [manual_promotion.take_over_epoch(view, view.manual_request, caught_up)]
    return [take_epoch(view, Goal(why=move.why, promotion_request=move.request, to=caught_up[0], may_move=True))]


# -- restarts ----------------------------------------------------------------------------------------------------------


def is_outdated(view: ShardView, member: Member) -> bool:
    """Return whether a member was started with a configuration other than that of the current spec."""
    return bool(view.template) and member.template != view.template


def _outdated_slaves(view: ShardView) -> Iterator[Member]:
    return (
        member
        for member in view.shard.members
        if member.number != view.term.master and member.number in view.spec.members and is_outdated(view, member)
    )


def _slave_restarts(view: ShardView, master: Report) -> list[Action]:
    """Return restarts of outdated slaves: first of those without fresh reports, then of the one farthest behind."""
    received = {ack.number: ack.received for ack in master.slaves}
    outdated = sorted(_outdated_slaves(view), key=lambda one: (received.get(one.number) or 0, one.number))
    if not outdated:
        return []
    broken = [one for one in outdated if one.number not in view.ledger.in_sync and _is_stuck(view, one)]
    if broken:
        return [_restart(view, member) for member in broken]
    member = outdated[0]
    not_in_sync = view.ledger.not_in_sync(view.spec)
    if not_in_sync and member.number not in not_in_sync:
        return [
            Wait(
                shard=view.shard.number,
                why=f"members {not_in_sync} are not in sync; member {member.number} is restarted after them",
            )
        ]
    able = view.ledger.acknowledging
    if len(able) > view.term.acks_needed or member.number not in able:
        return [_restart(view, member)]
    if not master.is_draining:
        why = f"member {member.number} must be restarted, and acknowledgements need {view.term.acks_needed} slaves"
        number = view.term.master
        return [Withdraw(shard=view.shard.number, member=number, timeout_ms=DRAIN_TIMEOUT_MS, why=why)]
    if received.get(member.number) != master.wrote:
        why = f"member {member.number} must catch up before it is restarted, so that pending sends are answered"
        return [Wait(shard=view.shard.number, why=why)]
    return [_restart(view, member)]


def _is_stuck(view: ShardView, member: Member) -> bool:
    """Return whether a member does not report although its process state is known, so a restart costs nothing."""
    return view.fresh_report(member.number) is None and member.process is not Process.UNKNOWN


def _master_restart(view: ShardView, master: Report) -> list[Action]:
    """Return the restart of an outdated master in place, where the role may not move."""
    member = view.members[view.term.master]
    if not is_outdated(view, member) or is_movable(view):
        return []
    if not master.is_draining:
        return [
            Drain(
                shard=view.shard.number,
                member=member.number,
                timeout_ms=DRAIN_TIMEOUT_MS,
                why="the master is restarted",
            )
        ]
    return [_restart(view, member)]


def _restart(view: ShardView, member: Member) -> Restart:
    why = f"member {member.number} runs with an outdated configuration"
    return Restart(shard=view.shard.number, member=member.number, boot_id=member.boot_id, why=why)
