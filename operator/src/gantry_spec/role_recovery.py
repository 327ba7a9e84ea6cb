"""Recovery of a broker's role after its process was restarted, without the operator: may it have the same role? Pure.

    the process ends --- a new one starts without a role --- its sidecar reads the Lease or asks its peers --- same role

An election needs the Lease, so there is no election while the API server is unavailable. A running master keeps its
role during that time, and a master whose process was restarted within a second should, too. The invariant: **a master
regains its own epoch only if it would still be the master had its process never ended.** Why this is safe, where S are
the electable slaves of its epoch e, and k is the number of slaves whose acks it waits for:

1  The broker's own record allows it. It was the master of epoch e, its log has everything that it ever acknowledged, it
   has promised no epoch above e, its role in e was not taken, and it waits for as many slaves as before
   (``may_regain``, determined by the broker). So no offset of e gets other bytes, and an election based on S and k of e
   remains correct.
2  No newer epoch has begun, as far as can be known. Either the Lease, read now, names it as the newest term. Or, where
   the Lease cannot be read, so many slaves of S report epoch e without a higher promise that the others are no quorum:
   to outvote e takes S - k + 1 of them, so k must answer, and where k is 0 a single promise would suffice, so all must
   answer. (The broker's own promise would suffice, too: it has given none.) No peer that answers knows a newer epoch or
   has more of e.
3  If that is wrong because a slave promises a moment later, the broker is in the position of a master that could not be
   reached. It acknowledges nothing without k acks in e, which slaves that have promised more do not give. Without acks
   it acknowledges only with the Lease or a grant of every slave of S, and a new process has neither. The Lease is not
   given to it at once: the operator may rely on a report of kubelet, a few seconds old, that the process does not run.
4  Nothing is assumed. A volume that may have lost data, a machine that was rebooted, or a store that was fenced has to
   wait. So does a master without slaves while the Lease cannot be read, since no member could object.

A slave needs less: it follows the master of its own epoch, if that reports that it is the master.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import Report, Role


class RecoveryInput(NamedTuple):
    """What the sidecar of a broker without a role knows."""

    report: Report
    peers: Mapping[int, Report]
    """The reports of the shard's other members that have answered just now, by member number."""

    is_lease_read: bool
    """Whether the Lease was read just now."""

    record: LeaseRecord | None = None
    """The record in the Lease; None if there is none."""


class Regain(NamedTuple):
    """The broker may be the master of this epoch again."""

    epoch: int


class Rejoin(NamedTuple):
    """The broker may follow the master of this epoch again."""

    epoch: int
    master: str
    """The address of the master's replication port."""


class StayUnassigned(NamedTuple):
    """The broker must wait for a decision of the operator."""

    why: str


def decide_recovery(known: RecoveryInput) -> Regain | Rejoin | StayUnassigned:
    """Return what to order the broker."""
    report = known.report
    if report.role is not Role.UNASSIGNED:
        return StayUnassigned(f"the broker has the role {report.role}")
    if report.broker_id is None or not report.may_regain:
        return StayUnassigned("the broker may not recover its role by itself")
    newer = [number for number, peer in known.peers.items() if max(peer.epochs) > report.epoch]
    if newer:
        return StayUnassigned(f"members {sorted(newer)} know a newer epoch than {report.epoch}")
    is_master = report.master_id == report.broker_id
    why = lease_conflict(known) if known.is_lease_read else ""
    if why:
        return StayUnassigned(why)
    if not is_master:
        return _rejoin(known)
    why = log_conflict(known) or ("" if known.is_lease_read else quorum_gap(known))
    return StayUnassigned(why) if why else Regain(report.epoch)


def lease_conflict(known: RecoveryInput) -> str:
    """Return why the Lease does not confirm that the broker's epoch is the newest and unchanged; empty if it does."""
    record, report = known.record, known.report
    term = None if record is None else record.newest
    if record is None or term is None or not record.is_settled:
        return "the Lease names no master"
    if (term.epoch, term.master) != (report.epoch, report.master_id):
        return f"the Lease names member {term.master} in epoch {term.epoch}"
    if term.master != known.report.broker_id:
        return ""
    if term.identity != report.identity or report.log_position < (term.last_epoch, term.end):
        return f"the store elected for epoch {term.epoch} was another one or had a longer log"
    if (sorted(term.numbers), term.acks_needed) != (sorted(report.electable), report.acks_needed):
        return f"the Lease records other slaves for epoch {term.epoch}"
    return ""


def log_conflict(known: RecoveryInput) -> str:
    """Return which peers have a longer log or are masters of the same epoch; empty if none is."""
    masters = sorted(number for number, peer in known.peers.items() if _is_leading(peer, known.report.epoch))
    longer = sorted(number for number, peer in known.peers.items() if peer.log_position > known.report.log_position)
    if masters:
        return f"members {masters} are masters of epoch {known.report.epoch}"
    return f"members {longer} have longer logs" if longer else ""


def quorum_gap(known: RecoveryInput) -> str:
    """Return why the peers that answer do not prove that no newer epoch has begun; empty if they do."""
    report = known.report
    if not report.electable:
        return "the Lease cannot be read, and the broker has no slaves that could object"
    needed = report.acks_needed or len(report.electable)
    answering = sorted(number for number in report.electable if _is_in_same_term(known, number))
    if len(answering) >= needed:
        return ""
    slaves = sorted(report.electable)
    return f"the Lease cannot be read; {needed} of the slaves {slaves} must answer, but only {answering} do"


def _is_in_same_term(known: RecoveryInput, number: int) -> bool:
    """Return whether a peer is in the same epoch under this master, and so has a store that remembers its promises."""
    peer = known.peers.get(number)
    return peer is not None and (peer.epoch, peer.master_id) == (known.report.epoch, known.report.broker_id)


def _is_leading(peer: Report, epoch: int) -> bool:
    """Return whether a peer is the master of this epoch or a newer one, or is being promoted in it."""
    return peer.role in (Role.MASTER, Role.COMPARING) and peer.epoch >= epoch


def _rejoin(known: RecoveryInput) -> Rejoin | StayUnassigned:
    """Return the order to follow the master of the same epoch again, if that is the master."""
    report = known.report
    master = None if report.master_id is None else known.peers.get(report.master_id)
    if master is None or (master.role, master.epoch) != (Role.MASTER, report.epoch) or not master.ha_address:
        return StayUnassigned(f"the master of epoch {report.epoch} has not confirmed its role")
    return Rejoin(report.epoch, master.ha_address)


def reports_by_number(reports: Sequence[Report]) -> dict[int, Report]:
    """Return reports by member number. A number that two reports have is ignored."""
    numbers = [report.broker_id for report in reports]
    return {
        report.broker_id: report
        for report in reports
        if report.broker_id is not None and numbers.count(report.broker_id) == 1
    }
