"""The role of a broker as one value: its report, and whether it may regain its last role. It changes nothing.

    master of epoch e --- its process ends, another begins ---> no role --- order `regain e` ---> master of epoch e

The rule: **regaining a role is as safe as never having lost it, or it is refused.** An epoch is one history, so nothing
of it may be missing here: a master that has lost its tail would write other bytes at the same offsets. An election
computes its quorum from the number of electable slaves of the term and from the ``k`` acks that a send needed, so both
must be unchanged. A promise, or the end of the role, stays in effect over any number of restarts.

After that the broker is in the same state as a master that could not be reached for a while, and the same guards apply:
nothing is acknowledged without ``k`` acks of slaves that have promised no other master, or, where none is needed,
without a grant (a short permission to acknowledge) of every electable slave or the Lease (``ha/acknowledgement``),
which a new process does not have. The sender of the order decides whether this master is still *wanted*:
``gantry_spec.role_recovery``.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gantry_broker.ha.master_session import MasterSession
from gantry_broker.ha.role_files import RoleRecord
from gantry_broker.server.roles.replication import Replication
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.loss import LossRecord, describe_missing
from gantry_broker.store.message_store import MessageStore
from gantry_status.orders import HaRole, HaStatus, RangeState, SlaveState
from gantry_status.quorum import intersecting_quorum


class RoleStatus(NamedTuple):
    """The current role of a broker, and the record of the last one on its disk."""

    role: HaRole
    """The current role."""

    record: RoleRecord
    """The record of the last role, on the disk."""

    log_epoch: int
    """Newest epoch in the history of the broker's log."""

    promised_epoch: int
    """Epoch below which this broker follows no master, nor is one."""

    is_complete: bool | None
    """Whether no data is missing here (`store.data_completeness`); None if unknown."""

    acks_needed: int
    """Number of slaves that this process would wait for as a master."""

    epoch: int = 0
    """Epoch of the current role."""

    problem: str = ""
    """Why the broker is not in the role that it should have; empty if it is."""

    is_draining: bool = False
    """Whether a drain is in effect, in which sends are refused."""

    is_withdrawn: bool = False
    """Whether this broker is registered as one that accepts no sends."""

    is_regained: bool = False
    """Whether it is, or was, the master of this epoch by ``regain``."""


def explain_no_regain(status: RoleStatus) -> str:
    """Return why the broker may not regain its last role; empty if it may.

    A slave regains its role by following the master of the same epoch.
    """
    record = status.record
    if status.role is not HaRole.UNASSIGNED:
        return f"this broker is {status.role}"
    if not record.epoch:
        return "this broker had no role before"
    if record.is_over:
        return f"the role of epoch {record.epoch} was revoked"
    if status.promised_epoch > record.epoch:
        return f"epoch {status.promised_epoch} was promised after the role of epoch {record.epoch} was taken"
    return _explain_no_master_regain(status) if record.is_master else ""


def _explain_no_master_regain(status: RoleStatus) -> str:
    epoch = status.record.epoch
    if status.log_epoch != epoch:
        return f"the log ends in epoch {status.log_epoch}, not in epoch {epoch}"
    if status.is_complete is not True:
        return "this broker may have lost acknowledged messages"
    if status.record.acks_needed != status.acks_needed:
        then, now = status.record.acks_needed, status.acks_needed
        return f"this broker waited for {then} slaves in epoch {epoch}, and would wait for {now} now"
    return ""


def count_slaves_to_compare(electable: list[int], acks_needed: int) -> int:
    """Return with how many slaves a master compares after a start that may have lost messages.

    An acknowledged message is on ``acks_needed`` slaves, so at least one of the returned number has it. Where no ack is
    needed, all slaves are asked that could have been promoted.
    """
    slaves = max(len(electable), acks_needed)
    return intersecting_quorum(slaves, acks_needed) if acks_needed else slaves


def describe_loss(loss: LossRecord) -> str:
    """Return why a broker accepts no sends, delivers no delayed messages and ends no transactions.

    Empty if nothing is missing. Delivering a delayed message and ending a transaction append to the log, so both wait
    as long as sends are refused.
    """
    if not loss.missing:
        return ""
    effect = "sends are refused, and delayed messages and transactions wait"
    remedy = "bring the files or the volume back and restart, or run `gantry ha accept-loss`"
    return f"{describe_missing(loss.missing)}; {effect}; {remedy}"


def report_role(
    status: RoleStatus, settings: BrokerSettings, store: MessageStore, replication: Replication
) -> HaStatus:
    """Return the current role and positions as the answer to an order."""
    policy, slave = replication.policy, replication.slave
    record, follower = status.record, slave.follower
    problem = status.problem
    loss = store.losses.record
    if not problem and loss.missing and follower is None:
        problem = describe_loss(loss)
    if not problem and follower is not None and not follower.is_streaming:
        problem = f"not following the master: {follower.problem or 'connecting'}"
    master_id = settings.broker_id if record.is_master else record.master_id
    electable = record.electable if record.epoch else settings.ha.electable
    # A single broker has no replica to repair damage. Members of a group repair each other, and keep their votes.
    is_alone = status.role is not HaRole.SLAVE and not [number for number in electable if number != master_id]
    is_configured = status.role is HaRole.MASTER or record.acks_needed < 0
    history = replication.slave_store.history
    may_answer = policy.may_acknowledge() or not replication.master.is_leading
    missing_grants = "" if may_answer else policy.describe_missing_grants()
    return HaStatus(
        role=status.role,
        epoch=status.epoch,
        promised_epoch=status.promised_epoch,
        broker_id=settings.broker_id,
        identity=store.identity.uuid,
        cluster=settings.cluster_name,
        broker_name=settings.broker_name,
        address=settings.address,
        ha_address=settings.ha_address,
        begin=store.log.min_physical,
        wrote=store.log.wrote,
        committed=store.log.committed,
        flushed=store.log.flushed,
        acked=store.positions.acked,
        confirmed=replication.confirmed,
        dispatched=store.dispatcher.dispatched,
        last_epoch=history.epoch,
        electable=tuple(number for number in electable if number != master_id),
        acks_needed=settings.ha.acks_needed if is_configured else record.acks_needed,
        slaves=_slaves(replication) if status.role is HaRole.MASTER else (),
        master=record.master if status.role is HaRole.SLAVE else "",
        master_id=master_id,
        problem=problem or missing_grants,
        epoch_start=history.epochs[-1].start if history.epochs else None,
        heartbeat_age_ms=slave.heartbeat_age_ms,
        granted_ms=slave.granted_ms,
        peak_bytes_per_s=replication.peak.bytes_per_s(store.log.wrote),
        is_complete=False if is_alone and store.guard.damage.damaged else status.is_complete,
        is_crash_safe=store.pools.status.is_crash_safe,
        is_draining=status.is_draining,
        is_withdrawn=status.is_withdrawn,
        may_acknowledge=status.role is HaRole.MASTER and policy.may_acknowledge(),
        may_regain=not explain_no_regain(status),
        is_regained=status.is_regained and status.role is HaRole.MASTER,
        missing=tuple(RangeState(start=lost.start, end=lost.end, cause=lost.cause.value) for lost in loss.missing),
        accepted=tuple(
            RangeState(start=one.start, end=one.end, cause=one.cause.value, accepted_ms=one.accepted_ms)
            for one in loss.accepted
        ),
        damaged_bytes=sum(damage.end - damage.start for damage in store.guard.damage.damaged),
    )


def _slaves(replication: Replication) -> tuple[SlaveState, ...]:
    now = asyncio.get_running_loop().time()
    addresses: dict[str, str] = {}
    for stream in replication.master.server.streams:
        session = stream.session
        if isinstance(session, MasterSession) and session.hello is not None:
            addresses[session.hello.store_uuid] = session.hello.address
    return tuple(
        SlaveState(
            identity=slave.identity,
            number=slave.broker_id,
            address=addresses.get(slave.identity, ""),
            received=slave.received,
            flushed=slave.flushed,
            ack_age_ms=int((now - slave.acked_at) * 1000),
        )
        for slave in replication.acks
    )
