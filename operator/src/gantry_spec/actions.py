"""The actions of a decision, as values. Each is safe to execute twice, late, or concurrently.

Orders go to one broker. They carry an epoch that makes them harmless when they are late, except ``Drain`` and
``Withdraw``, which carry none: sends that a late one refuses are accepted again after the next decision (``Resume``).
``gantry_spec.executor.order_of`` returns the control socket's order for each. Writes to the Lease carry the version
that they replace. ``Restart``, ``Remove`` and ``ReplaceDisk`` carry the id of the process or volume; ``Start`` and
``Hibernate`` carry none. ``gantry_spec.executor`` executes all actions except ``Wait`` and ``Refuse``, which only give
the reason why nothing is done.
"""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.lease import LeaseRecord


class Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The base class of all actions. It is never instantiated itself."""

    shard: int
    """The number of the shard, counted from 0."""

    why: str = ""
    """The reason for the action, for people."""


class MemberAction(Action, frozen=True, kw_only=True):
    """An action on one member."""

    member: int
    """The member's own number, counted from 1."""


class OrderAction(MemberAction, frozen=True, kw_only=True):
    """An order that is sent to a member, which carries it out itself."""


class ProcessAction(MemberAction, frozen=True, kw_only=True):
    """An action on a member's process or volume, executed by the local supervisor or in Kubernetes."""


class LeaseAction(Action, frozen=True, kw_only=True):
    """Replace the record in the Lease if it still has the observed version."""

    expected: str | None
    """The version of the record to replace; None if there must be no record yet."""

    record: LeaseRecord


@final
class Wait(Action, frozen=True, kw_only=True):
    """Do nothing until a condition is met; ``why`` describes the condition."""

    until_ms: int | None = None
    """When the wait ends at the latest; None if unknown."""


@final
class Refuse(Action, frozen=True, kw_only=True):
    """Do nothing: a manual promotion cannot be carried out as requested."""

    remedy: str
    """What the person can do about it."""

    can_be_forced: bool = False
    """Whether the request would be carried out with ``PromotionRequest.is_forced``."""


# -- orders ------------------------------------------------------------------------------------------------------------


@final
class Promise(OrderAction, frozen=True, kw_only=True):
    """Order a member to promise an epoch."""

    epoch: int


@final
class Promote(OrderAction, frozen=True, kw_only=True):
    """Order a member to be the master of an epoch. It is never decided before the Lease names the member for that
    epoch.

    The member was elected with a log that ended at ``end`` of ``last_epoch`` or later. The sender of the order requests
    the status first, on the same connection and so from the same process, and sends the order only if this is still
    true: a power loss may have happened since the election.
    """

    epoch: int
    electable: tuple[int, ...]
    """The slaves whose acks count, and so those that may be promoted after this epoch."""

    last_epoch: int
    """The last epoch in the member's log when it was elected."""

    end: int
    """The end of the member's log when it was elected."""

    continues: int = 0
    """The epoch of which it must still be the master; 0 if it was elected, and its log does not change."""

    force: bool = False
    """Whether it accepts its log as it is although data may be lost, because a person accepts the loss."""


@final
class Resume(OrderAction, frozen=True, kw_only=True):
    """Order a drained or withdrawn master to take sends again. It is a promotion in the master's own epoch."""

    epoch: int
    electable: tuple[int, ...]
    """The slaves whose acks count, as in the master's promotion."""


@final
class Follow(OrderAction, frozen=True, kw_only=True):
    """Order a member to follow a master. A member that has the master role itself is demoted by this."""

    epoch: int
    master: str
    """The address of the master's replication port."""


@final
class Fence(OrderAction, frozen=True, kw_only=True):
    """Order a member to give up its role, and to refuse roles below an epoch."""

    epoch: int


@final
class Drain(OrderAction, frozen=True, kw_only=True):
    """Order a master to refuse sends and flush and replicate its log, before its role moves or it is restarted."""

    timeout_ms: int
    """After this time the order is answered, although not everything is flushed and replicated."""


@final
class Withdraw(OrderAction, frozen=True, kw_only=True):
    """Order a master to refuse sends before storing them, without a time limit, and to register without the write
    permission, because slaves whose acks are needed are about to stop, or because the shard is fenced, scaled in or
    about to hibernate."""

    timeout_ms: int
    """After this time the order is answered, although not everything is flushed and replicated; the drain continues."""

    clients_only: bool = False
    """Whether only sends of clients are refused, while delayed messages, transactions and retries continue."""

    is_ordered: bool = False
    """Whether a person requested it permanently, so that it waits neither for other shards nor for bytes at risk."""


# -- the Lease ---------------------------------------------------------------------------------------------------------


@final
class TakeEpoch(LeaseAction, frozen=True, kw_only=True):
    """Take a new epoch in the Lease. From then on the last master's renewals of the Lease fail."""


@final
class RecordMaster(LeaseAction, frozen=True, kw_only=True):
    """Record the master of the epoch that was taken, or of the first record of a shard."""


@final
class SetElectable(LeaseAction, frozen=True, kw_only=True):
    """Begin a new epoch of the same master with another set of electable slaves."""


@final
class UpdateTerms(LeaseAction, frozen=True, kw_only=True):
    """Record which stores have votes, and drop terms whose acknowledged data, except for a permitted loss, is in the
    newest term."""


# -- processes and volumes ---------------------------------------------------------------------------------------------


@final
class Start(ProcessAction, frozen=True, kw_only=True):
    """Create the member if it does not exist, and start it."""


@final
class Restart(ProcessAction, frozen=True, kw_only=True):
    """Stop the member gracefully and start it with the configuration of the current spec."""

    boot_id: str
    """The id of the process or pod to which the action applies."""


@final
class Remove(ProcessAction, frozen=True, kw_only=True):
    """Remove the member. The spec decides whether its volume is kept."""

    boot_id: str
    """The id of the process or pod to which the action applies."""

    is_empty: bool = False
    """Whether the member's shard has no messages left."""


@final
class ReplaceDisk(ProcessAction, frozen=True, kw_only=True):
    """Give up the member's volume, and start the member with an empty one."""

    disk_id: str
    """The id of the volume to which the action applies."""

    is_accepted: bool = False
    """Whether a person has accepted that the volume may hold the only copy of messages."""


@final
class Hibernate(Action, frozen=True, kw_only=True):
    """Stop all processes of a shard. The volumes and the Lease are kept.

    It is decided when no master takes sends. The logs of the members that run are equal then, unless the shard had no
    master that could be drained.
    """


@final
class ClearRequest(Action, frozen=True, kw_only=True):
    """Remove a person's request that is done or can never be done."""

    request: str
    """The id of the request: of a promotion (``PromotionRequest.id``), or of a restore (``ObservedShard.restore``)."""

    is_dropped: bool = False
    """Whether the request can never be done, and was not."""
