"""A broker that has lost its role with its process, and nobody who decides: may it have the same role again? Pure.

    its process ends --- another begins, without a role --- its sidecar asks the Lease, or its peers --- the role again

Whoever decides needs the Lease, so without the API server nobody is elected. A master that lives goes on all the same;
one whose process ends for a second should, too. The rule it guards: **an own epoch is regained only where a master
that had never died would be the master still.** Why that is safe:

1  Its record says so. It was the master of epoch e, it has all that it ever acknowledged, it has promised nothing
   above e, nobody took its role in e, and it waits for as many slaves as then (``may_regain``, judged by the broker).
   So no offset of e gets other bytes, and an election that counts on S and k of e counts on what is so.
2  No newer epoch has begun, as far as that can be known. Read now, the Lease names it as the newest term. Or, where
   the Lease cannot be read, so many of S say now that they are in e and have promised nothing above that no quorum of
   the others is left: to outvote e takes S - k + 1 of them, so k are asked, and where k is 0 a single one would do, so
   all are. (Its own promise would do as well: it has given none.) Nobody who answers knows more, or has more of e.
3  Even if that is wrong, since somebody promises a moment later, it is where a master is that could not be reached:
   nothing is acknowledged without k acks in e, which slaves that have promised more do not give; and without acks only
   with a key, a grant of every slave of S or the Lease, of which a new process has none. The Lease is not given to it
   at once: one who decides may rest on a word of kubelet that its process does not run, which is a few seconds old.
4  What cannot be known is not assumed. A volume that may lack something, a machine that was started anew, a store that
   somebody has fenced: they wait. So does a master without slaves while the Lease cannot be read: nobody could object.

A slave needs less: it follows the master of its own epoch, which says that it is one, as it would have gone on to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import Report, Role


class Alone(NamedTuple):
    """What the one beside a broker without a role knows."""

    report: Report
    peers: Mapping[int, Report]
    """Of its shard, by their numbers: those that have answered just now."""

    is_lease_read: bool
    """Whether the Lease was read just now."""

    record: LeaseRecord | None = None
    """What stood there; None if nothing did."""


class Regain(NamedTuple):
    """Be the master of this epoch again."""

    epoch: int


class Rejoin(NamedTuple):
    """Follow the master of this epoch again."""

    epoch: int
    master: str


class Stay(NamedTuple):
    """Wait for somebody who decides."""

    why: str


def regained(alone: Alone) -> Regain | Rejoin | Stay:
    """What to order it."""
    report = alone.report
    if report.role is not Role.UNASSIGNED:
        return Stay(f"it is {report.role}")
    if report.broker_id is None or not report.may_regain:
        return Stay("it may not have its role again by itself")
    newer = [number for number, peer in alone.peers.items() if max(peer.epochs) > report.epoch]
    if newer:
        return Stay(f"members {sorted(newer)} know a newer epoch than {report.epoch}")
    is_master = report.master_id == report.broker_id
    why = why_lease_differs(alone) if alone.is_lease_read else ""
    if why:
        return Stay(why)
    if not is_master:
        return _followed(alone)
    why = why_log_differs(alone) or ("" if alone.is_lease_read else why_too_few(alone))
    return Stay(why) if why else Regain(report.epoch)


def why_lease_differs(alone: Alone) -> str:
    """Why the Lease does not say that its epoch is the newest, and as it remembers it; empty if it does."""
    record, report = alone.record, alone.report
    term = None if record is None else record.newest
    if record is None or term is None or not record.is_settled:
        return "nobody is named in the Lease"
    if (term.epoch, term.master) != (report.epoch, report.master_id):
        return f"the Lease names member {term.master} in epoch {term.epoch}"
    if term.master != alone.report.broker_id:
        return ""
    if term.identity != report.identity or report.place < (term.last_epoch, term.end):
        return f"the store that was named for epoch {term.epoch} had more, or was another one"
    if (sorted(term.numbers), term.acks_needed) != (sorted(report.electable), report.acks_needed):
        return f"epoch {term.epoch} has other slaves by the Lease"
    return ""


def why_log_differs(alone: Alone) -> str:
    """Whether somebody has more of the same epoch, or believes to be its master."""
    masters = sorted(number for number, peer in alone.peers.items() if _leads(peer, alone.report.epoch))
    longer = sorted(number for number, peer in alone.peers.items() if peer.place > alone.report.place)
    if masters:
        return f"members {masters} are masters of epoch {alone.report.epoch}"
    return f"members {longer} have more than this log" if longer else ""


def why_too_few(alone: Alone) -> str:
    """Why those who answer do not prove that no newer epoch has begun; empty if they do."""
    report = alone.report
    if not report.electable:
        return "the Lease cannot be read, and it has no slaves that could object"
    needed = report.acks_needed or len(report.electable)
    here = sorted(number for number in report.electable if _is_of(alone, number))
    if len(here) >= needed:
        return ""
    return f"the Lease cannot be read; of the slaves {sorted(report.electable)} {needed} must answer, and {here} do"


def _is_of(alone: Alone, number: int) -> bool:
    """Whether a peer is in the very epoch with this master, and so not a disk that has forgotten what it promised."""
    peer = alone.peers.get(number)
    return peer is not None and (peer.epoch, peer.master_id) == (alone.report.epoch, alone.report.broker_id)


def _leads(peer: Report, epoch: int) -> bool:
    return peer.role in (Role.MASTER, Role.COMPARING) and peer.epoch >= epoch


def _followed(alone: Alone) -> Rejoin | Stay:
    """Its master is there, in its own epoch."""
    report = alone.report
    master = None if report.master_id is None else alone.peers.get(report.master_id)
    if master is None or (master.role, master.epoch) != (Role.MASTER, report.epoch) or not master.ha_address:
        return Stay(f"its master of epoch {report.epoch} has not said that it is one")
    return Rejoin(report.epoch, master.ha_address)


def numbered(reports: Sequence[Report]) -> dict[int, Report]:
    """By number. Of two that report the same number neither is believed."""
    numbers = [report.broker_id for report in reports]
    return {
        report.broker_id: report
        for report in reports
        if report.broker_id is not None and numbers.count(report.broker_id) == 1
    }
