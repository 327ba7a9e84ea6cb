"""The durability ledger: how many acknowledged bytes one more fault would take right now, and for how long already.

    [0 ......... flushed ......... committed ......... acknowledged ... wrote)       the master
    [0 ................... received)                                                 its furthest slave
                                    `---- at risk if the machine is lost ----|

What a fault takes is what was acknowledged beyond everything that survives it. A number that is not known makes the
risk unknown, and unknown is never zero: it stops whatever would add to it. Bands are for status and alerts, where
live bytes would only churn.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, final

import msgspec

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import FlushMode
from gantry_spec.observed import ObservedShard, Report, Role
from gantry_status.broker_state import SlaveState

BANDS: Final = ((0, "none"), (64 << 10, "64Ki"), (1 << 20, "1Mi"), (16 << 20, "16Mi"), (256 << 20, "256Mi"))


class Fault(StrEnum):
    """What may happen to a master."""

    PROCESS = "process"
    """Its process dies; its machine goes on."""

    MACHINE = "machine"
    """Its machine loses power, and comes back with its disk."""

    DISK = "disk"
    """Its disk is lost, or its machine for good."""

    SLAVE = "slave"
    """Its furthest slave is lost, and then its disk."""


@final
class Risk(msgspec.Struct, frozen=True, kw_only=True):
    """What one fault would take."""

    bytes: int | None = None
    age_ms: int | None = None
    """How old the oldest of them is at most; 0 if there are none."""

    @property
    def band(self) -> str:
        """For status and alerts."""
        return band_of(self.bytes)


UNKNOWN_RISK: Final = Risk()


@final
class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One shard at one moment."""

    shard: int
    observed_ms: int
    """When what it rests on was asked for."""

    is_fresh: bool = False
    """Whether that is no longer ago than a master may be silent."""

    master: int | None = None
    epoch: int = 0
    acknowledged: int | None = None
    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    replicated: int | None = None
    """What the furthest slave has; 0 if there is none."""

    acks_needed: int = 0
    in_sync: tuple[int, ...] = ()
    """Slaves within ``maxLag`` of the master, by number."""

    is_draining: bool = False
    risks: dict[Fault, Risk] = {}
    bound: str = ""
    """What the bytes at risk wait for: `buffer`, `disk`, `slave`, or nothing."""

    def risk(self, fault: Fault) -> Risk:
        """What one fault would take."""
        return self.risks.get(fault, UNKNOWN_RISK)


def band_of(size: int | None) -> str:
    """The smallest band that holds so many bytes."""
    if size is None:
        return "unknown"
    return next((name for limit, name in BANDS if size <= limit), "more")


def worst_band(bands: Iterable[str]) -> str:
    """The band with the most bytes; what is not known is worse than any number. Unknown of none."""
    order = (*(name for _, name in BANDS), "more", "unknown")
    return max(bands, key=order.index, default="unknown")


def ledger_of(spec: Spec, shard: ObservedShard, now_ms: int, previous: Ledger | None = None) -> Ledger:
    """The ledger of a shard now. ``previous`` tells since when something is at risk."""
    record = None if shard.lease is None else shard.lease.record
    term = None if record is None else record.newest
    master = next((one for one in shard.members if term is not None and one.number == term.master), None)
    report = None if master is None else master.report
    is_master = report is not None and term is not None and (report.role, report.epoch) == (Role.MASTER, term.epoch)
    if report is None or term is None or not is_master:
        return Ledger(shard=shard.number, observed_ms=now_ms)
    acks_needed = term.acks_needed
    acknowledged = _acknowledged(spec, report, acks_needed)
    replicated = _replicated(report.slaves, set(term.numbers))
    survives = {
        Fault.PROCESS: report.wrote if report.is_crash_safe else report.committed,
        Fault.MACHINE: report.flushed,
        Fault.DISK: 0,
        Fault.SLAVE: 0,
    }
    copies = dict.fromkeys(Fault, replicated) | {Fault.SLAVE: _second(report.slaves, set(term.numbers))}
    ages = {fault: _age(fault, report, survives[fault], copies[fault], acknowledged, previous) for fault in Fault}
    return Ledger(
        shard=shard.number,
        observed_ms=report.asked_ms,
        is_fresh=now_ms - report.asked_ms <= spec.failover.after,
        master=term.master,
        epoch=term.epoch,
        acknowledged=acknowledged,
        wrote=report.wrote,
        committed=report.committed,
        flushed=report.flushed,
        replicated=replicated,
        acks_needed=acks_needed,
        in_sync=in_sync(spec, report),
        is_draining=report.is_draining,
        risks={
            fault: Risk(bytes=beyond(acknowledged, survives[fault], copies[fault]), age_ms=ages[fault])
            for fault in Fault
        },
        bound=_bound(report, replicated),
    )


def behind(shard: ObservedShard) -> dict[int, int | None]:
    """Return how many bytes each member lacks of the log of the shard's master, by the member's number.

    It is None for a member that does not report as a slave, so for the master itself, and while the master has not
    reported. The master is the one that the Lease names. Where the Lease cannot be read or names none, it is the
    member that reports this role in the newest epoch.
    """
    record = None if shard.lease is None else shard.lease.record
    term = None if record is None else record.newest
    reports = {one.number: one.report for one in shard.members if one.report is not None}
    masters = [one for one in reports.values() if one.role is Role.MASTER]
    newest = max(masters, key=lambda one: one.epoch, default=None)
    master = newest if term is None else reports.get(term.master)
    if master is not None and term is not None and (master.role, master.epoch) != (Role.MASTER, term.epoch):
        master = None
    end = None if master is None else master.wrote
    found: dict[int, int | None] = {one.number: None for one in shard.members}
    for number, report in reports.items():
        if report.role is Role.SLAVE and report.wrote is not None and end is not None:
            found[number] = max(0, end - report.wrote)
    return found


def in_sync(spec: Spec, report: Report) -> tuple[int, ...]:
    """The slaves of a master that are within ``maxLag``, by number."""
    if report.wrote is None:
        return ()
    bar = report.wrote - spec.replication.max_lag
    return tuple(sorted(one.number for one in report.slaves if one.received is not None and one.received >= bar))


def _acknowledged(spec: Spec, report: Report, acks_needed: int) -> int | None:
    """Up to where clients may have been told that it is safe."""
    ends = [report.wrote]
    if acks_needed:
        ends.append(report.confirmed if report.acked is None else report.acked)
    if spec.flush.mode is FlushMode.SYNC:
        ends.append(report.flushed)
    known = [end for end in ends if end is not None]
    return min(known) if len(known) == len(ends) else None


def _replicated(slaves: tuple[SlaveState, ...], electable: set[int]) -> int | None:
    """How far the furthest slave is that may be promoted. Without any, nothing is elsewhere, which is a fact."""
    received = [one.received for one in slaves if one.number in electable]
    known = [one for one in received if one is not None]
    return max(known, default=None if received else 0)


def _second(slaves: tuple[SlaveState, ...], electable: set[int]) -> int | None:
    """The same without the furthest."""
    received = [one.received for one in slaves if one.number in electable]
    known = sorted((one for one in received if one is not None), reverse=True)
    if len(known) > 1:
        return known[1]
    return 0 if len(received) <= 1 else None


def beyond(end: int | None, local: int | None, copy: int | None) -> int | None:
    """How much lies beyond both. One that is known to be far enough makes the other matter no more."""
    if end is None:
        return None
    known = [one for one in (local, copy) if one is not None]
    if any(one >= end for one in known):
        return 0
    return end - max(known) if len(known) == 2 else None


def _age(
    fault: Fault, report: Report, local: int | None, copy: int | None, end: int | None, previous: Ledger | None
) -> int | None:
    """How old the oldest byte at risk is at most: as old as the last look at which it was not there yet."""
    size = beyond(end, local, copy)
    if size is None or end is None:
        return None
    if size == 0:
        return 0
    if previous is None or previous.wrote is None or previous.epoch != report.epoch:
        return None
    elapsed_ms = max(0, report.asked_ms - previous.observed_ms)
    if end - size >= previous.wrote:
        return elapsed_ms
    before_ms = previous.risk(fault).age_ms
    return None if before_ms is None else before_ms + elapsed_ms


def _bound(report: Report, replicated: int | None) -> str:
    wrote, committed, flushed = report.wrote, report.committed, report.flushed
    if wrote is None or committed is None or flushed is None:
        return ""
    if replicated is not None and replicated >= wrote:
        return "disk" if flushed < wrote else ""
    return "buffer" if committed < wrote else "disk" if flushed < wrote else "slave"
