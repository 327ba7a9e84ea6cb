"""Observed shards for tests: one master and some slaves, with the changes that a test needs."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gantry_spec.lease import Goal, LeaseRecord, Term, Voter
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Disk, Member, ObservedGroup, ObservedLease, ObservedShard, Process, Report, Role
from gantry_status.broker_state import SlaveState

NOW_MS: Final = 1_000_000
"""The time of the decision."""

EPOCH: Final = 3_000
"""The present epoch."""

ADDRESS: Final = "{}.example:10912"
"""The replication address of a member, by its number."""


def spec_with(**fields: Any) -> Spec:
    """Return a spec as it is parsed from a manifest."""
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "g"}}
    return group_of(head | {"spec": fields}).spec


def report_of(number: int, *, wrote: int, role: Role = Role.SLAVE, master: int = 1, **other: Any) -> Report:
    """Return the report of a healthy member: everything is flushed, and the last epoch is the present one."""
    values: dict[str, Any] = {
        "asked_ms": NOW_MS - 100,
        "answered_ms": NOW_MS - 90,
        "role": role,
        "epoch": EPOCH,
        "promised_epoch": EPOCH,
        "identity": f"store-{number}",
        "last_epoch": EPOCH,
        "epoch_start": 0,
        "wrote": wrote,
        "committed": wrote,
        "flushed": wrote,
        "ha_address": ADDRESS.format(number),
        "master": ADDRESS.format(master) if role is Role.SLAVE else "",
        "heartbeat_age_ms": 50 if role is Role.SLAVE else None,
        "granted_ms": 3_000 if role is Role.SLAVE else 0,
        "is_complete": True,
        "is_crash_safe": True,
        "peak_bytes_per_s": 1_000,
    }
    return Report(**(values | other))


def member_of(number: int, report: Report | None, **other: Any) -> Member:
    """Return a member that runs with the configuration of the spec."""
    values: dict[str, Any] = {
        "process": Process.RUNNING,
        "process_asked_ms": NOW_MS - 100,
        "boot_id": f"boot-{number}",
        "disk_id": f"disk-{number}",
        "template": "t",
        "acks_needed": 1,
        "disk": Disk.PRESENT,
    }
    return Member(number=number, report=report, **(values | other))


def lease_record_of(
    master: int = 1, slaves: tuple[int, ...] = (2,), *, acks_needed: int = 1, epoch: int = EPOCH
) -> LeaseRecord:
    """Return a settled record of a Lease."""
    term = Term(
        epoch=epoch,
        master=master,
        identity=f"store-{master}",
        electable=tuple(Voter(number, f"store-{number}") for number in slaves),
        acks_needed=acks_needed,
    )
    return LeaseRecord(version="7", epoch=epoch, terms=(term,), goal=Goal(why="it began"))


def healthy_shard(
    *, slaves: int = 1, wrote: int = 10_000, acks_needed: int = 1, number: int = 0, **master: Any
) -> ObservedShard:
    """Return a shard whose members are all healthy."""
    numbers = tuple(range(2, slaves + 2))
    acks = tuple(SlaveState(number=one, identity=f"store-{one}", received=wrote, flushed=wrote) for one in numbers)
    fields = {"acked": wrote if acks_needed else None, "confirmed": wrote, "slaves": acks} | master
    values: dict[str, Any] = {"wrote": wrote, "role": Role.MASTER} | fields
    members = [member_of(1, report_of(1, **values), acks_needed=acks_needed)]
    members += [member_of(one, report_of(one, wrote=wrote), acks_needed=acks_needed) for one in numbers]
    lease = ObservedLease(record=lease_record_of(1, numbers, acks_needed=acks_needed), seen_ms=NOW_MS - 60_000)
    return ObservedShard(number=number, lease=lease, members=tuple(members))


def observed_group(*shards: ObservedShard, **other: Any) -> ObservedGroup:
    """Return a group of these shards."""
    return ObservedGroup(shards=shards, **({"template": "t"} | other))


def with_member(shard: ObservedShard, number: int, **changes: Any) -> ObservedShard:
    """Return the shard with changed fields of one member."""
    members = [msgspec.structs.replace(one, **changes) if one.number == number else one for one in shard.members]
    return msgspec.structs.replace(shard, members=tuple(members))


def with_report(shard: ObservedShard, number: int, **changes: Any) -> ObservedShard:
    """Return the shard with changed fields of one member's report."""
    report = next(one.report for one in shard.members if one.number == number)
    assert report is not None, "only an existing report can be changed"
    return with_member(shard, number, report=msgspec.structs.replace(report, **changes))


def with_record(shard: ObservedShard, record: LeaseRecord | None, *, age_ms: int = 60_000) -> ObservedShard:
    """Return the shard with another record in its Lease."""
    return msgspec.structs.replace(shard, lease=ObservedLease(record=record, seen_ms=NOW_MS - age_ms))
