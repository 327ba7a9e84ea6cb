"""The state of a broker, collected from its parts. Pure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gantry_broker.ha.master_session import MasterSession
from gantry_broker.server.roles.regaining import why_not_regained
from gantry_broker.store.loss import LossRecord, describe_missing
from gantry_status.orders import HaRole, HaStatus, RangeState, SlaveState

if TYPE_CHECKING:
    from gantry_broker.server.roles.roles import Roles


def compared_needed(electable: list[int], acks_needed: int) -> int:
    """With how many slaves a master compares after a start that may have lost bytes.

    Whatever was acknowledged is on ``acks_needed`` of them: so it is on one of so many. Where none is needed for an
    acknowledgement, all are asked who could have been promoted.
    """
    slaves = max(len(electable), acks_needed)
    return slaves - acks_needed + 1 if acks_needed else slaves


def loss_text(loss: LossRecord) -> str:
    """Why a broker takes no sends and delivers nothing that waits, for clients and people; empty if nothing is missing.

    A delivery of a delayed message and an end of a transaction append to the log, so they wait like sends.
    """
    if not loss.missing:
        return ""
    effect = "sends are refused, delayed messages and transactions wait"
    remedy = "bring the files or the volume back and restart, or run `gantry ha accept-loss`"
    return f"{describe_missing(loss.missing)}; {effect}; {remedy}"


def status_of(roles: Roles) -> HaStatus:
    """This moment."""
    settings, store, replication = roles.settings, roles.store, roles.replication
    record, follower = roles.records.record, replication.follower
    trouble = roles.trouble
    loss = store.loss
    if not trouble and loss.missing and follower is None:
        trouble = loss_text(loss)
    if not trouble and follower is not None and not follower.is_streaming:
        trouble = f"the master is not followed: {follower.trouble or 'it is being asked'}"
    master_id = settings.broker_id if record.is_master else record.master_id
    electable = record.electable if record.epoch else settings.ha.electable
    # A broker alone has no replica to heal damage. In a group members heal each other, and must not lose their votes.
    is_alone = roles.role is not HaRole.SLAVE and not [number for number in electable if number != master_id]
    history = replication.store.history
    missing = "" if replication.may_acknowledge() or not replication.is_leading else replication.missing()
    return HaStatus(
        role=roles.role,
        epoch=roles.epoch,
        promised_epoch=roles.promises.promise.epoch,
        broker_id=settings.broker_id,
        identity=store.identity.uuid,
        cluster=settings.cluster_name,
        broker_name=settings.broker_name,
        address=settings.address,
        ha_address=settings.ha_address,
        begin=store.min_physical,
        wrote=store.wrote,
        committed=store.committed,
        flushed=store.flushed,
        acked=store.acked,
        confirmed=follower.confirmed if follower is not None else store.confirmed,
        dispatched=store.dispatched,
        last_epoch=history.epoch,
        electable=tuple(number for number in electable if number != master_id),
        acks_needed=settings.ha.acks_needed if record.is_master or record.acks_needed < 0 else record.acks_needed,
        slaves=_slaves(roles) if roles.role is HaRole.MASTER else (),
        master=record.master if roles.role is HaRole.SLAVE else "",
        master_id=master_id,
        trouble=trouble or missing,
        epoch_start=history.epochs[-1].start if history.epochs else None,
        heard_ms=replication.heard_ms,
        granted_ms=replication.granted_ms,
        peak_bytes_per_s=replication.peak.bytes_per_s(store.wrote),
        is_whole=False if is_alone and store.guard.damaged else roles.completeness.is_whole,
        is_crash_safe=store.pool_status.is_crash_safe,
        is_draining=roles.is_draining,
        is_withdrawn=roles.is_withdrawn,
        may_acknowledge=roles.role is HaRole.MASTER and replication.may_acknowledge(),
        may_regain=not why_not_regained(roles.remembered),
        is_regained=roles.is_regained and roles.role is HaRole.MASTER,
        missing=tuple(RangeState(start=lost.start, end=lost.end, cause=lost.cause.value) for lost in loss.missing),
        accepted=tuple(
            RangeState(start=one.start, end=one.end, cause=one.cause.value, accepted_ms=one.accepted_ms)
            for one in loss.accepted
        ),
        damaged_bytes=sum(damage.end - damage.start for damage in store.guard.damaged),
    )


def _slaves(roles: Roles) -> tuple[SlaveState, ...]:
    server = roles.replication.server
    now = asyncio.get_running_loop().time()
    addresses: dict[str, str] = {}
    for stream in server.streams if server is not None else ():
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
        for slave in roles.replication.acks
    )
