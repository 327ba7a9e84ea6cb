"""The durability ledger of every shard that the sidecars see: `gantry_spec.ledger`'s, from what they say.

    statuses of a shard's sidecars -> ObservedShard -> ledger_of(...) -> Ledger       once a second, and when asked

The supervisor and the operator count by the same function, so nobody is told another number here than the one by which
a roll waits or a failover is refused. What they know from the Lease and the spec is taken from the master's own word:
its epoch, who may be elected, how many acks it needs, whether it flushes before it answers. Where a broker's roles do
not move nobody may be elected; there every slave of the master counts, since a copy is a copy.

A flush mode that is not known is taken for the weaker one: more is shown at risk then than is, never less.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

import msgspec

from gantry_admin.documents import SlaveDocument, StatusDocument
from gantry_admin.group_documents import LedgerDocument, MemberDocument, RiskDocument
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.ledger import Fault, Ledger, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import Flush, FlushMode, Replication
from gantry_spec.manifest.quantities import Size
from gantry_spec.observed import Member, ObservedLease, ObservedShard, Report, Role
from gantry_status.broker_state import SlaveState


def observed(status: StatusDocument, asked_ms: int) -> ObservedShard | None:
    """A shard with its master alone, as its sidecar tells of it; None if that is not enough to name it."""
    said = status.said
    if said is None or said.broker_id is None or status.role != "master" or status.epoch is None:
        return None
    slaves = tuple(_ack(slave) for slave in status.slaves)
    electable = tuple(said.electable) or tuple(slave.number for slave in slaves)
    report = Report(
        asked_ms=asked_ms,
        answered_ms=asked_ms,
        boot_id=status.boot_id or "",
        role=Role.MASTER,
        epoch=status.epoch,
        promised_epoch=said.promised_epoch,
        identity=said.identity,
        wrote=status.wrote,
        committed=status.committed,
        flushed=status.flushed,
        acked=status.acked if said.acks_needed else None,
        confirmed=status.confirmed,
        slaves=slaves,
        electable=electable,
        acks_needed=said.acks_needed,
        master_id=said.broker_id,
        is_draining=said.is_draining,
        is_crash_safe=None if status.buffer is None else status.buffer.is_crash_safe,
    )
    term = Term(
        epoch=status.epoch,
        master=said.broker_id,
        identity=said.identity,
        electable=tuple(Voter(number) for number in electable),
        acks_needed=said.acks_needed,
    )
    lease = ObservedLease(record=LeaseRecord(epoch=status.epoch, terms=(term,)), seen_ms=asked_ms)
    return ObservedShard(number=0, lease=lease, members=(Member(number=said.broker_id, report=report),))


def _ack(slave: SlaveDocument) -> SlaveState:
    return SlaveState(
        number=slave.slave_id, identity=slave.identity or "", received=slave.received, flushed=slave.flushed
    )


def ledger_document(ledger: Ledger, flush_mode: str | None) -> LedgerDocument:
    """As it is answered."""
    return LedgerDocument(
        is_fresh=ledger.is_fresh,
        master=ledger.master,
        epoch=ledger.epoch or None,
        acknowledged=ledger.acknowledged,
        wrote=ledger.wrote,
        committed=ledger.committed,
        flushed=ledger.flushed,
        replicated=ledger.replicated,
        acks_needed=ledger.acks_needed,
        in_sync=list(ledger.in_sync),
        is_draining=ledger.is_draining,
        bound=ledger.bound or None,
        flush_mode="async" if flush_mode is None else flush_mode,  # type: ignore[arg-type]
        risks=[_risk_document(fault, ledger) for fault in Fault],
    )


def _risk_document(fault: Fault, ledger: Ledger) -> RiskDocument:
    risk = ledger.risk(fault)
    return RiskDocument(fault=fault.value, bytes=risk.bytes, age_ms=risk.age_ms, band=risk.band)


@final
class ShardLedgers:
    """The last ledger of each shard, by broker name, from which the next one tells ages. Owned by the event loop."""

    def __init__(self, lag_bytes_max: int) -> None:
        base = Spec()
        replication = msgspec.structs.replace(base.replication, max_lag=Size(lag_bytes_max))
        self._specs: Final = {mode: _spec(base, replication, mode) for mode in FlushMode}
        self._last: Final[dict[str, Ledger]] = {}

    def __repr__(self) -> str:
        return f"<ShardLedgers {', '.join(self._last)}>"

    def last(self, name: str) -> Ledger | None:
        """As it was looked at last."""
        return self._last.get(name)

    def look(self, name: str, masters: Iterable[MemberDocument], now_ms: int) -> LedgerDocument | None:
        """The ledger of this shard now; None unless exactly one broker says that it is the master."""
        found = [member for member in masters if member.status is not None]
        status = found[0].status if len(found) == 1 else None
        if status is None:
            return None
        age_ms = (found[0].age_ms or 0) + (status.motion.since_ms or 0)
        shard = observed(status, now_ms - age_ms)
        if shard is None:
            return None
        mode = FlushMode.SYNC if status.flush_mode == "sync" else FlushMode.ASYNC
        self._last[name] = ledger_of(self._specs[mode], shard, now_ms, self._last.get(name))
        return ledger_document(self._last[name], status.flush_mode)


def _spec(base: Spec, replication: Replication, mode: FlushMode) -> Spec:
    flush: Flush = msgspec.structs.replace(base.flush, mode=mode)
    return msgspec.structs.replace(base, replication=replication, flush=flush)
