"""What can be done to a group: values. Each may be done twice, late, or by two at once, and does no harm then.

Orders go to one broker and carry the epoch that makes them harmless when late; they are the orders of the control
socket under the same names. Writes to the Lease carry the version that they replace. What concerns processes and
volumes carries the id of the one that is meant. ``gantry_spec.executor`` executes them.
"""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.lease import LeaseRecord


class Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Root of all actions. Never decided itself."""

    shard: int
    why: str = ""
    """For people."""


class MemberAction(Action, frozen=True, kw_only=True):
    """Something for one member."""

    member: int


class OrderAction(MemberAction, frozen=True, kw_only=True):
    """An order to a member, which carries it out itself."""


class ProcessAction(MemberAction, frozen=True, kw_only=True):
    """Something that whoever runs the members does to the process or volume of one."""


class LeaseAction(Action, frozen=True, kw_only=True):
    """Replace the Lease's record, if it still has the version that was seen."""

    expected: str | None
    """The version; None if there must be no Lease yet."""

    record: LeaseRecord


@final
class Wait(Action, frozen=True, kw_only=True):
    """Do nothing, and say for what."""

    until_ms: int | None = None
    """When it is over at the latest, if that is known."""


@final
class Refuse(Action, frozen=True, kw_only=True):
    """Do nothing: what a person has ordered by hand cannot be done as it is."""

    remedy: str
    """What the person can do."""

    can_be_forced: bool = False
    """Whether it would be done with ``PromotionRequest.is_forced``."""


# -- orders ------------------------------------------------------------------------------------------------------------


@final
class Promise(OrderAction, frozen=True, kw_only=True):
    """Have it promise an epoch."""

    epoch: int


@final
class Promote(OrderAction, frozen=True, kw_only=True):
    """Have it be the master of an epoch. Never decided before the Lease names it for that epoch.

    It was named for a log that ends at ``end`` of ``last_epoch`` at least. Whoever delivers the order asks for the
    status first, on the same connection and so of the same process, and gives it only if that is still true: a power
    cut may have come between.
    """

    epoch: int
    electable: tuple[int, ...]
    last_epoch: int
    end: int
    continues: int = 0
    """The same: of which epoch it must be the master up to now; 0 if it was elected, and its log stands still."""

    force: bool = False
    """Whether it takes its log as it is, though something may be lost: a person accepts that."""


@final
class Resume(OrderAction, frozen=True, kw_only=True):
    """Have a master that is drained take sends again: a promotion in its own epoch."""

    epoch: int
    electable: tuple[int, ...]


@final
class Follow(OrderAction, frozen=True, kw_only=True):
    """Have it follow a master; one that believes it is one is demoted by that."""

    epoch: int
    master: str
    """Where that is."""


@final
class Fence(OrderAction, frozen=True, kw_only=True):
    """Have it have no role."""

    epoch: int


@final
class Drain(OrderAction, frozen=True, kw_only=True):
    """Have a master hand over what it has, before its role moves or it is restarted."""

    timeout_ms: int


@final
class Withdraw(OrderAction, frozen=True, kw_only=True):
    """Have a master refuse sends unstored for a while, and routes say so: the slaves that they need are about to go, or
    clients shall not come at all."""

    timeout_ms: int
    goes_on: bool = False
    """Whether only clients send nothing more: delayed messages, transactions and retries go on."""

    is_ordered: bool = False
    """Whether it is meant for good, and so neither waits for other shards nor for what is at risk."""


# -- the Lease ---------------------------------------------------------------------------------------------------------


@final
class TakeLease(LeaseAction, frozen=True, kw_only=True):
    """Take a new epoch. From now on the last master's renewals fail."""


@final
class Crown(LeaseAction, frozen=True, kw_only=True):
    """Name the master of the epoch that was taken."""


@final
class SetElectable(LeaseAction, frozen=True, kw_only=True):
    """Begin a new epoch of the same master, with others who may be elected after it."""


@final
class KeepLease(LeaseAction, frozen=True, kw_only=True):
    """Put down which stores have votes, and forget terms that a newer one holds."""


# -- processes and volumes ---------------------------------------------------------------------------------------------


@final
class Start(ProcessAction, frozen=True, kw_only=True):
    """See to it that it is there and runs."""


@final
class Restart(ProcessAction, frozen=True, kw_only=True):
    """Stop it as it should be stopped, and start it with what the spec says now."""

    boot_id: str
    """Of the process or pod that is meant."""


@final
class Remove(ProcessAction, frozen=True, kw_only=True):
    """Stop it for good. What becomes of its volume is the spec's business."""

    boot_id: str
    """Of the process or pod that is meant."""

    holds_nothing: bool = False
    """Whether no message is left on its shard."""


@final
class ReplaceDisk(ProcessAction, frozen=True, kw_only=True):
    """Give up its volume, and start it with an empty one."""

    disk_id: str
    """Of the volume that is meant."""

    is_accepted: bool = False
    """Whether a person has accepted that it may be the only copy."""


@final
class Sleep(Action, frozen=True, kw_only=True):
    """Stop all of a shard's processes, which hold the same; volumes and the Lease stay."""


@final
class ClearRequest(Action, frozen=True, kw_only=True):
    """What was ordered is done, or never can be."""

    request: str
