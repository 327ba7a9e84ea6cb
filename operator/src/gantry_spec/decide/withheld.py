"""A shard that clients shall not send to: scaled away, fenced by a person, or about to sleep.

    scaled away   clients send nothing more; it heals like any other, delivers what is due, and is read to its end
    fenced        it takes no sends, and its slaves follow; nobody is promoted, moved or restarted
    asleep        see ``sleeping``

Withdrawn is what a master is that refuses sends unstored, with a code that has clients go elsewhere, and that name
servers tell nobody to send to. It is a state of its process, so it is asked for again whenever it is not seen.
"""

from __future__ import annotations

from typing import Final

from gantry_spec.actions import Action, Withdraw
from gantry_spec.decide.view import View
from gantry_spec.observed import Process, Report, Role

WITHDRAW_TIMEOUT_MS: Final = 5_000


def withdrawn(view: View, why: str, *, goes_on: bool = False) -> list[Action]:
    """Have whoever says that it is the master refuse sends, if it does not yet; ``goes_on``: only those of clients."""
    return [
        Withdraw(
            shard=view.shard.number,
            member=number,
            timeout_ms=WITHDRAW_TIMEOUT_MS,
            goes_on=goes_on,
            is_ordered=True,
            why=why,
        )
        for number, report in _masters(view)
        if not (report.is_draining or (goes_on and report.is_withdrawn))
    ]


def _masters(view: View) -> list[tuple[int, Report]]:
    """The one by the Lease, if it is there; else whoever believes to be one."""
    if view.lease.record is not None and view.steady_master is not None:
        return [(view.term.master, view.steady_master)]
    return [
        (member.number, report)
        for member, report in view.reports()
        if report.role is Role.MASTER and view.fresh(member.number) is not None
    ]


def is_open(view: View) -> bool:
    """Whether somebody of it may take sends, as far as anybody knows."""
    return any(
        report.role is Role.MASTER and not report.is_draining
        for member, report in view.reports()
        if member.process not in (Process.STOPPED, Process.ABSENT)
    )
