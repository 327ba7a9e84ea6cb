"""The role of a broker as one value: what it reports of it, and whether it may have its last one back. Pure.

    master of epoch e --- its process ends, another begins ---> no role --- order `regain e` ---> master of epoch e

The rule it guards: **having a role again is as safe as never having lost it, or it is refused.** An epoch is one
history, so nothing of it may be missing here: a master that has lost its tail would write other bytes at the same
offsets. An election counts on ``S`` slaves of which ``k`` acknowledge, so both must be those of then. What was
promised or taken since stays so, however often the process ends.

With that it is where a master is that could not be reached for a while, and the same guards stop it: nothing is
acknowledged without ``k`` acks of slaves that have promised no other master, or, where none is needed, without a key
(``ha/acknowledgement``); a new process has none. Whether it is still *wanted* is decided by the sender:
``gantry_spec.regaining``.
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
from gantry_status.quorum import intersecting


class RoleStatus(NamedTuple):
    """The role that a broker has now, and what it has on its disk of the last one."""

    role: HaRole
    """The one that it has now."""

    record: RoleRecord
    log_epoch: int
    """The newest of its log's history."""

    promised_epoch: int
    is_whole: bool | None
    acks_needed: int
    """How many this process would wait for."""

    epoch: int = 0
    """In which it has its role."""

    trouble: str = ""
    is_draining: bool = False
    is_withdrawn: bool = False
    is_regained: bool = False


def why_not_regained(known: RoleStatus) -> str:
    """Why it may not; empty if it may. A slave regains its role by following the master of the very epoch."""
    record = known.record
    if known.role is not HaRole.UNASSIGNED:
        return f"this is {known.role}"
    if not record.epoch:
        return "it had no role before"
    if record.is_over:
        return f"its role of epoch {record.epoch} was taken from it"
    if known.promised_epoch > record.epoch:
        return f"epoch {known.promised_epoch} was promised since epoch {record.epoch}"
    return _why_no_master(known) if record.is_master else ""


def _why_no_master(known: RoleStatus) -> str:
    epoch = known.record.epoch
    if known.log_epoch != epoch:
        return f"its log ends in epoch {known.log_epoch}, and not in epoch {epoch}"
    if known.is_whole is not True:
        return "it may lack what it has acknowledged"
    if known.record.acks_needed != known.acks_needed:
        return (
            f"it waited for {known.record.acks_needed} slaves in epoch {epoch}, and would wait for {known.acks_needed}"
        )
    return ""


def compared_needed(electable: list[int], acks_needed: int) -> int:
    """With how many slaves a master compares after a start that may have lost bytes.

    What was acknowledged is on ``acks_needed`` of them: so it is on one of so many. Where none is needed for an
    acknowledgement, all are asked who could have been promoted.
    """
    slaves = max(len(electable), acks_needed)
    return intersecting(slaves, acks_needed) if acks_needed else slaves


def loss_text(loss: LossRecord) -> str:
    """Why a broker takes no sends and delivers nothing that waits, for clients and people; empty if nothing is missing.

    A delivery of a delayed message and an end of a transaction append to the log, so they wait like sends.
    """
    if not loss.missing:
        return ""
    effect = "sends are refused, delayed messages and transactions wait"
    remedy = "bring the files or the volume back and restart, or run `gantry ha accept-loss`"
    return f"{describe_missing(loss.missing)}; {effect}; {remedy}"


def report_role(
    status: RoleStatus, settings: BrokerSettings, store: MessageStore, replication: Replication
) -> HaStatus:
    """Report the role of this moment, in the words of orders."""
    policy, slave = replication.policy, replication.slave
    record, follower = status.record, slave.follower
    trouble = status.trouble
    loss = store.losses.record
    if not trouble and loss.missing and follower is None:
        trouble = loss_text(loss)
    if not trouble and follower is not None and not follower.is_streaming:
        trouble = f"the master is not followed: {follower.trouble or 'connecting'}"
    master_id = settings.broker_id if record.is_master else record.master_id
    electable = record.electable if record.epoch else settings.ha.electable
    # A broker alone has no replica to heal damage. In a group members heal each other, and must not lose their votes.
    is_alone = status.role is not HaRole.SLAVE and not [number for number in electable if number != master_id]
    history = replication.store.history
    missing = "" if policy.may_acknowledge() or not replication.master.is_leading else policy.missing()
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
        acks_needed=settings.ha.acks_needed if record.is_master or record.acks_needed < 0 else record.acks_needed,
        slaves=_slaves(replication) if status.role is HaRole.MASTER else (),
        master=record.master if status.role is HaRole.SLAVE else "",
        master_id=master_id,
        trouble=trouble or missing,
        epoch_start=history.epochs[-1].start if history.epochs else None,
        heard_ms=slave.heartbeat_age_ms,
        granted_ms=slave.granted_ms,
        peak_bytes_per_s=replication.peak.bytes_per_s(store.log.wrote),
        is_whole=False if is_alone and store.guard.damage.damaged else status.is_whole,
        is_crash_safe=store.pools.status.is_crash_safe,
        is_draining=status.is_draining,
        is_withdrawn=status.is_withdrawn,
        may_acknowledge=status.role is HaRole.MASTER and policy.may_acknowledge(),
        may_regain=not why_not_regained(status),
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
