"""Withdrawal of a shard from clients: it is scaled in, fenced by a person, or about to hibernate.

    scaled in     clients send nothing more; it is repaired and elects masters like any other, delivers due messages,
                  and is consumed
    fenced        it takes no sends, and its slaves follow; no member is promoted or restarted for new settings; stopped
                  members are started, removed members deleted, and lost disks replaced, as always
    hibernating   see ``hibernation``

A withdrawn master refuses sends before storing them, with a code that makes clients use another broker, and name
servers do not route sends to it. This is a state of its process, so it is requested again whenever it is not observed.
"""

from __future__ import annotations

from typing import Final

from gantry_spec.actions import Action, Withdraw
from gantry_spec.decide.view import ShardView
from gantry_spec.observed import Process, Report, Role

WITHDRAW_TIMEOUT_MS: Final = 5_000


def withdraw_masters(view: ShardView, why: str, *, clients_only: bool = False) -> list[Action]:
    """Order each master to refuse sends if it does not yet. With ``clients_only`` only sends of clients are refused."""
    return [
        Withdraw(
            shard=view.shard.number,
            member=number,
            timeout_ms=WITHDRAW_TIMEOUT_MS,
            clients_only=clients_only,
            is_ordered=True,
            why=why,
        )
        for number, report in _masters(view)
        if not (report.is_draining or (clients_only and report.is_withdrawn))
    ]


def _masters(view: ShardView) -> list[tuple[int, Report]]:
    """Return the master by the Lease if it is healthy, otherwise all members that report the master role."""
    if view.lease.record is not None and view.healthy_master is not None:
        return [(view.term.master, view.healthy_master)]
    return [
        (member.number, report)
        for member, report in view.reports()
        if report.role is Role.MASTER and view.fresh_report(member.number) is not None
    ]


def can_take_sends(view: ShardView) -> bool:
    """Return whether a member of the shard may take sends, as far as is known."""
    return any(
        report.role is Role.MASTER and not report.is_draining
        for member, report in view.reports()
        if member.process not in (Process.STOPPED, Process.ABSENT)
    )
