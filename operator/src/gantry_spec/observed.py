"""What was seen of a group: values that say when they were true, since what is seen is always old.

    asked_ms                    answered_ms            now_ms
       |---- the report was true here ----|               |        all on the clock of whoever looks

A report is *of then or later* than when it was asked for, and *of then or earlier* than when it was answered; nothing
more is known about its age. Every number that is not known is None. Zero is a fact.

The adapter of a cluster fills this from sidecars, pods and Leases, the one of a single machine from sockets and
processes. Both fill in what is the case, and judge nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, final

import msgspec

from gantry_spec.lease import DURATION_MS, LeaseRecord
from gantry_status.broker_state import BrokerState, HaRole

Role = HaRole

CHECK_TOPIC: Final = "GANTRY_SELF_CHECK"
"""Topic of the messages that ``gantry`` sends to itself; they are no user's."""

QUIET_MS: Final = 40_000
"""Clients ask for routes every 30 s: a client that still knows a shard that is scaled away has asked by then."""


class Process(StrEnum):
    """What is known of a member's process or pod."""

    UNKNOWN = "Unknown"
    """Nobody can say: its machine does not answer."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    """It is known not to run. It may be about to start."""

    ABSENT = "Absent"
    """There is none, nor will there be without an order."""


class Disk(StrEnum):
    """What is known of a member's volume."""

    UNKNOWN = "Unknown"
    PRESENT = "Present"
    LOST = "Lost"
    """It is gone, or cannot be read."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Root of all that was seen. Never seen itself."""


@final
class Report(BrokerState, frozen=True, kw_only=True):
    """The state of one broker, and when it was true."""

    asked_ms: int
    answered_ms: int
    boot_id: str = ""
    """Of the process that reported, by the name that whoever runs it has for it."""

    def as_last_word(self) -> LastWord:
        """What is kept of a master's report over its death."""
        return LastWord(
            epoch=self.epoch,
            asked_ms=self.asked_ms,
            boot_id=self.boot_id,
            epoch_start=self.epoch_start,
            wrote=self.wrote,
            peak_bytes_per_s=self.peak_bytes_per_s,
        )


def report_of(status: Mapping[str, Any], *, asked_ms: int, answered_ms: int, boot_id: str = "") -> Report:
    """The report in a broker's answer to ``status``. Raises ValueError when it is none.

    The answer comes as plain values (JSON) from another process, so it is decoded as a whole or refused. What only the
    observer knows is added to it.
    """
    more = {"asked_ms": asked_ms, "answered_ms": answered_ms, "boot_id": boot_id}
    try:
        return msgspec.convert({"role": Role.UNASSIGNED, **status, **more}, Report)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is no status of a broker: {error}") from error


def is_of(answer: Mapping[str, Any], broker_name: str, member: int) -> bool:
    """Return whether an answer to ``status`` is of this member: its pod's address may belong to another pod by now."""
    return (answer.get("broker_name"), answer.get("broker_id")) == (broker_name, member)


def members_of(wanted: Iterable[int], present: Iterable[int], record: LeaseRecord | None) -> list[int]:
    """Return the members of a shard: those of the spec, those that are there, and those that the Lease names."""
    return sorted({*wanted, *present, *(() if record is None else record.members)})


@final
class Member(Part, frozen=True):
    """One broker of a shard, there or not."""

    number: int
    """Its own, from 1, which it keeps in every role."""

    process: Process = Process.UNKNOWN
    process_asked_ms: int = 0
    """When somebody who knows was asked."""

    stopped_by_ms: int | None = None
    """Of one that does not run: when that was first known."""

    boot_id: str = ""
    """Of its process or pod, as whoever runs it knows, whether it reports or not."""

    started_by_ms: int | None = None
    """When that was first known to run."""

    disk_id: str = ""
    """The same of its volume."""

    template: str = ""
    """Hash of what it was started with."""

    acks_needed: int = 0
    """How many acks it would need as a master, as it was started."""

    disk: Disk = Disk.UNKNOWN
    disk_lost_since_ms: int | None = None
    is_leaving: bool = False
    """Whether its machine is to be emptied."""

    report: Report | None = None
    """The newest."""


@final
class LastWord(Part, frozen=True):
    """The newest report of the newest term's master while it was the master, kept over its death."""

    epoch: int
    asked_ms: int
    boot_id: str = ""
    """Of its process then."""

    epoch_start: int | None = None
    wrote: int | None = None
    peak_bytes_per_s: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Of two last words of a shard the one with the greater order counts."""
        return self.epoch, self.asked_ms


def last_word_after(known: LastWord | None, report: Report) -> LastWord | None:
    """The last word of a shard after one more report: that of the newest master."""
    if report.role is not Role.MASTER:
        return known
    word = report.as_last_word()
    return word if known is None or word.order > known.order else known


@final
class PromotionRequest(Part, frozen=True):
    """What a person has ordered for one shard, and has not taken back."""

    id: str
    """Of the order, so that the same one is not obeyed twice."""

    to: int | None = None
    """The member that is to be the master; None leaves the choice to the election."""

    loss_accepted: int | None = 0
    """How many bytes may be lost; None for whatever it is."""

    members: tuple[int, ...] = ()
    """All members that are known, where a person runs the group by hand: no spec counts them, and no Lease remembers
    terms. Empty everywhere else, and then the fields below say nothing."""

    electable: tuple[int, ...] = ()
    """The members that may be the master, if the person names them; else those that the members have recorded."""

    old_master: int | None = None
    """The last master, if no member that answers has recorded it."""

    is_forced: bool = False
    """Whether the person accepts too few voters, or a master that has less than another member."""

    drain_timeout_ms: int = 10_000
    """How long a master that hands over may take to drain."""


@final
class ObservedLease(Part, frozen=True):
    """The shard's Lease as it was read last."""

    record: LeaseRecord | None = None
    """None if there is none."""

    seen_ms: int = 0
    """When this version was first seen, on the clock of whoever looks."""


@final
class ObservedShard(Part, frozen=True):
    """One shard."""

    number: int
    lease: ObservedLease | None = None
    """None if it could not be read."""

    members: tuple[Member, ...] = ()
    last_word: LastWord | None = None
    request: PromotionRequest | None = None
    replace_disks: tuple[int, ...] = ()
    """Members whose lost volume somebody has given up."""

    restore: str = ""
    """The order to begin again with the volumes that are there, if somebody has given it."""

    is_fenced: bool = False
    """Whether it shall take no sends, and get no other master."""

    is_asleep: bool = False
    """Whether nothing of it is made to run any more; something may still be on its way out."""

    holds_nothing: bool | None = None
    """Whether no message and no consumer is left on it."""

    left: str = ""
    """What is left on one that is scaled away, for people."""


def remaining_messages(messages: Mapping[str, int]) -> dict[str, int]:
    """Return how many messages are left on a shard that is scaled away, by topic; without any it may be removed.

    ``messages`` has the number of messages of every topic on the shard. RocketMQ's own topics count, too: a delayed
    message is stored in SCHEDULE_TOPIC_XXXX until it is due, and an open transaction in RMQ_SYS_TRANS_HALF_TOPIC.
    """
    return {topic: count for topic, count in messages.items() if count and topic != CHECK_TOPIC}


@final
class Observed(Part, frozen=True):
    """A group."""

    shards: tuple[ObservedShard, ...] = ()
    template: str = ""
    """Hash of what members should be started with."""

    is_paused: bool = False
    is_hibernated: bool = False
    """Whether no process of it shall run."""

    lease_duration_ms: int = DURATION_MS
    """Of Leases that are made from now on."""

    generation: int = 0
    """Of the spec that was looked at."""
