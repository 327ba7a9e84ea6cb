"""The durability ledger: how many acknowledged bytes one more fault would lose now, and how old they are.

    [0 ......... flushed ......... committed ......... acknowledged ... wrote)       the master
    [0 ................... received)                                                 its furthest slave
                                    `- at risk at a power loss ----|

A fault loses what was acknowledged beyond every copy that survives it. If a number is not known, and no other copy has
everything, the risk is unknown, and unknown is never zero: it blocks every action that would add to the risk. The
status of a group has bands, since exact byte counts would change at every observation."""

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
"""The greatest number of bytes in each band, and the text of the band. More bytes have the band ``more``."""


class Fault(StrEnum):
    """A fault in a shard for which the loss is calculated."""

    PROCESS = "process"
    """The master's process fails; its machine keeps running."""

    MACHINE = "machine"
    """The master's machine loses power and comes back with its disk."""

    DISK = "disk"
    """The master's disk is lost, or its machine is lost for good."""

    SLAVE = "slave"
    """The slave with the longest log is lost, and then the master's disk."""


@final
class Risk(msgspec.Struct, frozen=True, kw_only=True):
    """How much one fault would lose."""

    bytes: int | None = None
    """How many acknowledged bytes would be lost; None if unknown."""

    age_ms: int | None = None
    """The greatest possible age of the oldest byte at risk; 0 if none is at risk, None if unknown."""

    @property
    def band(self) -> str:
        """The band of the bytes at risk, which changes less often than their number."""
        return band_of(self.bytes)


UNKNOWN_RISK: Final = Risk()
"""The risk of a shard about which nothing is known."""


@final
class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The durability of one shard at one moment."""

    shard: int
    observed_ms: int
    """When the master's report was requested on which this ledger is based; without one, when it was calculated."""

    is_fresh: bool = False
    """Whether there is such a report, and it is no older than ``failover.after``."""

    master: int | None = None
    """The number of the master; None if there is none."""

    epoch: int = 0
    acknowledged: int | None = None
    """The offset up to which sends may have been acknowledged; None if unknown."""

    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    replicated: int | None = None
    """How far the electable slave with the longest log has received; 0 if there is none, None if it is unknown."""

    acks_needed: int = 0
    """How many slaves must have a message before it is acknowledged."""

    in_sync: tuple[int, ...] = ()
    """The numbers of the slaves that are within ``maxLag`` of the master."""

    acknowledging: tuple[int, ...] = ()
    """The numbers of the slaves in sync whose acks the master counts: the electable ones, or all if none is."""

    is_draining: bool = False
    """Whether the master refuses sends while its log is flushed and replicated."""

    risks: dict[Fault, Risk] = {}
    """How much each fault would lose now; a fault without an entry has an unknown risk."""

    bottleneck: str = ""
    """What the bytes at risk wait for: `buffer`, `disk` or `slave`; empty if nothing, or if it is unknown."""

    def risk(self, fault: Fault) -> Risk:
        """Return how much one fault would lose."""
        return self.risks.get(fault, UNKNOWN_RISK)

    def not_in_sync(self, spec: Spec) -> list[int]:
        """Return the members of the spec that are neither the master nor in sync.

        A scaled-in slave may be in sync as well, until it is removed; it does not stand in for one of these.
        """
        return [number for number in spec.members if number not in {self.master, *self.in_sync}]


def band_of(size: int | None) -> str:
    """Return the smallest band that holds a number of bytes."""
    if size is None:
        return "unknown"
    return next((name for limit, name in BANDS if size <= limit), "more")


def worst_band(bands: Iterable[str]) -> str:
    """Return the band with the most bytes. Unknown is worse than any number, and is the result without any band."""
    order = (*(name for _, name in BANDS), "more", "unknown")
    return max(bands, key=order.index, default="unknown")


def ledger_of(spec: Spec, shard: ObservedShard, now_ms: int, previous: Ledger | None = None) -> Ledger:
    """Return the ledger of a shard now. The age of the bytes at risk is calculated from ``previous``."""
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
    copies = dict.fromkeys(Fault, replicated) | {Fault.SLAVE: _second_furthest(report.slaves, set(term.numbers))}
    ages = {fault: _age(fault, report, survives[fault], copies[fault], acknowledged, previous) for fault in Fault}
    near = in_sync(spec, report)
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
        in_sync=near,
        acknowledging=tuple(number for number in near if not term.numbers or number in term.numbers),
        is_draining=report.is_draining,
        risks={
            fault: Risk(bytes=bytes_beyond(acknowledged, survives[fault], copies[fault]), age_ms=ages[fault])
            for fault in Fault
        },
        bottleneck=_bottleneck(report, replicated),
    )


def bytes_behind(shard: ObservedShard) -> dict[int, int | None]:
    """Return how many bytes each member lacks of the log of the shard's master, by the member's number.

    The value is None for members that do not report as slaves, such as the master itself, and for all members while the
    master has not reported. The master is the one that the Lease names. Where the Lease cannot be read or names none,
    it is the member that reports this role in the newest epoch.
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
    """Return the numbers of a master's slaves that are within ``maxLag``."""
    if report.wrote is None:
        return ()
    bar = report.wrote - spec.replication.max_lag
    return tuple(sorted(one.number for one in report.slaves if one.received is not None and one.received >= bar))


def _acknowledged(spec: Spec, report: Report, acks_needed: int) -> int | None:
    """Return the offset up to which sends may have been acknowledged."""
    ends = [report.wrote]
    if acks_needed:
        ends.append(report.confirmed if report.acked is None else report.acked)
    if spec.flush.mode is FlushMode.SYNC:
        ends.append(report.flushed)
    known = [end for end in ends if end is not None]
    return min(known) if len(known) == len(ends) else None


def _replicated(slaves: tuple[SlaveState, ...], electable: set[int]) -> int | None:
    """Return how far the furthest electable slave has received; 0 if there is none, None if it is unknown."""
    received = [one.received for one in slaves if one.number in electable]
    known = [one for one in received if one is not None]
    return max(known, default=None if received else 0)


def _second_furthest(slaves: tuple[SlaveState, ...], electable: set[int]) -> int | None:
    """Return how far the second furthest electable slave has received; 0 if there is none, None if it is unknown."""
    received = [one.received for one in slaves if one.number in electable]
    known = sorted((one for one in received if one is not None), reverse=True)
    if len(known) > 1:
        return known[1]
    return 0 if len(received) <= 1 else None


def bytes_beyond(end: int | None, local: int | None, copy: int | None) -> int | None:
    """Return how many bytes before ``end`` are in neither copy. If one known copy reaches ``end`` the result is 0."""
    if end is None:
        return None
    known = [one for one in (local, copy) if one is not None]
    if any(one >= end for one in known):
        return 0
    return end - max(known) if len(known) == 2 else None


def _age(
    fault: Fault, report: Report, local: int | None, copy: int | None, end: int | None, previous: Ledger | None
) -> int | None:
    """Return the greatest possible age of the oldest byte at risk: since the last observation without that byte."""
    size = bytes_beyond(end, local, copy)
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


def _bottleneck(report: Report, replicated: int | None) -> str:
    """Return what the bytes at risk wait for, as in ``Ledger.bottleneck``."""
    wrote, committed, flushed = report.wrote, report.committed, report.flushed
    if wrote is None or committed is None or flushed is None:
        return ""
    if replicated is not None and replicated >= wrote:
        return "disk" if flushed < wrote else ""
    return "buffer" if committed < wrote else "disk" if flushed < wrote else "slave"
