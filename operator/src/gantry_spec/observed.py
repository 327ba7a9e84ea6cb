"""The observed state of a group: values with the time at which they were true, since an observation is always old.

    asked_ms                    answered_ms            now_ms
       |---- the report was true here ----|               |        all on the observer's clock

A report was true at some moment between its request (``asked_ms``) and its answer (``answered_ms``); nothing more is
known about its age. A number that is not known is None. Zero is a known value.

The operator fills these values from sidecars, pods and Leases; the local supervisor fills them from sockets and
processes. Both record facts only and draw no conclusions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, final

import msgspec

from gantry_spec.lease import DURATION_MS, LeaseRecord
from gantry_status.broker_state import BrokerState, HaRole
from gantry_status.former_names import STATE_NAMES, with_present_names

Role = HaRole

CHECK_TOPIC: Final = "GANTRY_SELF_CHECK"
"""Topic of the messages that ``gantry`` sends to itself for its self-check; no user's message is in it."""

EMPTY_FOR_MS: Final = 40_000
"""How long a shard must stay empty before it is removed. Clients request routes every 30 s, so by then none uses it."""


class Process(StrEnum):
    """The known state of a member's process or pod."""

    UNKNOWN = "Unknown"
    """The state cannot be determined, for example because the member's machine does not answer."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    """The process is known not to run. It may be about to start."""

    ABSENT = "Absent"
    """No process or pod exists, and none is created without an action."""


class Disk(StrEnum):
    """The known state of a member's volume."""

    UNKNOWN = "Unknown"
    PRESENT = "Present"
    LOST = "Lost"
    """The volume is gone or cannot be read."""


class ObservedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of all observed values. It is never instantiated itself."""


@final
class Report(BrokerState, frozen=True, kw_only=True):
    """The reported state of one broker, with the time at which it was true."""

    asked_ms: int
    """When the report was requested, on the observer's clock."""

    answered_ms: int
    """When its answer arrived, on the observer's clock."""

    boot_id: str = ""
    """The id of the process or pod that reported, as its supervisor or Kubernetes names it."""

    def as_last_report(self) -> LastReport:
        """Return the part of a master's report that is kept after the master has ended."""
        return LastReport(
            epoch=self.epoch,
            asked_ms=self.asked_ms,
            boot_id=self.boot_id,
            epoch_start=self.epoch_start,
            wrote=self.wrote,
            peak_bytes_per_s=self.peak_bytes_per_s,
        )


def report_of(status: Mapping[str, Any], *, asked_ms: int, answered_ms: int, boot_id: str = "") -> Report:
    """Return the report in a broker's answer to ``status``. Raises ValueError when the answer is not a broker status.

    The answer comes as plain values (JSON) from another process, so it is decoded as a whole or refused. The times and
    the boot id, which only the observer knows, are added.
    """
    more = {"asked_ms": asked_ms, "answered_ms": answered_ms, "boot_id": boot_id}
    try:
        present = with_present_names(dict(status), STATE_NAMES)
        return msgspec.convert({"role": Role.UNASSIGNED, **present, **more}, Report)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a broker status: {error}") from error


def is_status_of(answer: Mapping[str, Any], broker_name: str, member: int) -> bool:
    """Return whether a status answer is of this member. The address of its pod may belong to another pod by now."""
    return (answer.get("broker_name"), answer.get("broker_id")) == (broker_name, member)


def members_of(wanted: Iterable[int], present: Iterable[int], record: LeaseRecord | None) -> list[int]:
    """Return the members of a shard: those of the spec, those that exist, and those that the Lease names."""
    return sorted({*wanted, *present, *(() if record is None else record.members)})


@final
class Member(ObservedPart, frozen=True):
    """One broker of a shard, whether or not it exists."""

    number: int
    """The member's own number, counted from 1. The member keeps it in every role."""

    process: Process = Process.UNKNOWN
    """The state of the member's process or pod."""

    process_asked_ms: int = 0
    """When the state of the process was last requested from a source that is never out of date: the API server itself
    and not a cache, or the local supervisor; 0 if never."""

    stopped_by_ms: int | None = None
    """When the process was first known not to run; None while it runs or this is unknown."""

    boot_id: str = ""
    """The id of the process or pod, as its supervisor or Kubernetes names it. It is known without a report, too."""

    started_by_ms: int | None = None
    """When the process or pod with this ``boot_id`` was first known to run."""

    disk_id: str = ""
    """The id of the member's volume."""

    template: str = ""
    """The hash of the configuration with which the member was started."""

    acks_needed: int = 0
    """How many acks the member needs as a master, by the configuration with which it was started."""

    disk: Disk = Disk.UNKNOWN
    """The state of the member's volume."""

    disk_lost_since_ms: int | None = None
    """When the volume was first known to be lost; None while it is not."""

    is_leaving: bool = False
    """Whether the member's machine is being drained or may be removed, or its pod is being deleted or evicted."""

    report: Report | None = None
    """The newest report of the member; None if it has never reported."""


@final
class LastReport(ObservedPart, frozen=True):
    """The newest report of the newest term's master while it was the master, kept after its process has ended."""

    epoch: int
    """The epoch in which it was the master."""

    asked_ms: int
    """When the report was requested, on the observer's clock."""

    boot_id: str = ""
    """The id of the master's process at that time."""

    epoch_start: int | None = None
    """The offset at which the last epoch in its log begins; None if unknown."""

    wrote: int | None = None
    """The end of its log in this report; None if unknown."""

    peak_bytes_per_s: int | None = None
    """At least the growth of its log in any second of the minute before; None if unknown."""

    @property
    def order(self) -> tuple[int, int]:
        """The position among the last reports of a shard: the greatest is the newest."""
        return self.epoch, self.asked_ms


def last_report_after(known: LastReport | None, report: Report) -> LastReport | None:
    """Return the last report of a shard after one more report: the newest one of the newest master."""
    if report.role is not Role.MASTER:
        return known
    latest = report.as_last_report()
    return latest if known is None or latest.order > known.order else known


@final
class PromotionRequest(ObservedPart, frozen=True):
    """The promotion that a person requested for one shard and has not withdrawn."""

    id: str
    """The id of the request, so that the same request is not carried out twice."""

    to: int | None = None
    """The number of the member to promote; None leaves the choice to the election."""

    loss_accepted: int | None = 0
    """How many bytes the promotion may lose; None accepts any loss."""

    members: tuple[int, ...] = ()
    """The numbers of all known members, in a promotion with `gantry ha promote`: no spec counts the members and no
    Lease records the terms. Empty in all other cases, in which the fields below have no meaning."""

    electable: tuple[int, ...] = ()
    """The members that may become master, if the person names them; otherwise those that the members have recorded."""

    old_master: int | None = None
    """The number of the last master, needed only if no member that answers has recorded it."""

    is_forced: bool = False
    """Whether the person accepts too few voters, or a master whose log is shorter than another member's."""

    drain_timeout_ms: int = 10_000
    """How long the master may take to drain before the role moves."""


@final
class ObservedLease(ObservedPart, frozen=True):
    """The shard's Lease as of the last read."""

    record: LeaseRecord | None = None
    """The record in the Lease; None if there is no Lease or it has no record."""

    seen_ms: int = 0
    """When this version of the record was first observed, on the observer's clock."""


@final
class ObservedShard(ObservedPart, frozen=True):
    """One shard, as it was observed."""

    number: int
    lease: ObservedLease | None = None
    """The shard's Lease; None if it could not be read."""

    members: tuple[Member, ...] = ()
    last_report: LastReport | None = None
    """The newest report of the newest term's master from its time as master; None if there is none."""

    request: PromotionRequest | None = None
    """The promotion that a person requests; None if there is none."""

    replace_disks: tuple[int, ...] = ()
    """The members whose lost volume may be replaced: a person has given it up, or its machine is out of service."""

    restore: str = ""
    """The id of the request to restore the shard from its existing volumes; empty if there is none."""

    is_fenced: bool = False
    """Whether the shard must refuse sends and keep its master."""

    is_scaled_to_zero: bool = False
    """Whether the shard is scaled to zero; its processes may still be ending."""

    is_empty: bool | None = None
    """Whether the shard has no messages left, and got none for a while; None if this is unknown."""

    remaining_text: str = ""
    """What a removed shard still holds, as text for people."""


def remaining_messages(messages: Mapping[str, int]) -> dict[str, int]:
    """Return how many messages are left on a shard beyond ``spec.shards``, by topic. Without any it may be removed.

    ``messages`` has the number of messages of every topic on the shard. RocketMQ's system topics count, too: a delayed
    message is stored in SCHEDULE_TOPIC_XXXX until it is due, and an open transaction in RMQ_SYS_TRANS_HALF_TOPIC.
    """
    return {topic: count for topic, count in messages.items() if count and topic != CHECK_TOPIC}


@final
class ObservedGroup(ObservedPart, frozen=True):
    """One group, as it was observed."""

    shards: tuple[ObservedShard, ...] = ()
    template: str = ""
    """The hash of the configuration with which members should be started."""

    is_paused: bool = False
    """Whether a person has ordered the operator to take no action."""

    is_hibernated: bool = False
    """Whether the group must be stopped: none of its processes may run."""

    lease_duration_ms: int = DURATION_MS
    """The duration of Leases that are created from now on."""

    generation: int = 0
    """The generation of the spec that was observed."""
