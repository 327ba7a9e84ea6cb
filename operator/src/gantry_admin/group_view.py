"""The document of the whole group: this sidecar's status and its peers', joined by broker name, and the durability
ledger of each shard.

No election takes place here: every member that is reachable, whose broker is running or stalled, and that reports
itself as master in the newest epoch is shown. If two do, both are shown, because an administrator has to see that.

The ledger is `gantry_spec.ledger`'s, made from what the sidecars report:

    statuses of a shard's sidecars -> ObservedShard -> ledger_of(...) -> Ledger       once a second, and when asked

The supervisor and the operator use the same function, so the number shown here is the one by which a rolling update
waits. (A failover is refused by the loss that its election computes.) The facts that they know from the Lease and the
spec are taken from the master's own report: its epoch, the electable members, the acks it needs, and whether it flushes
before it answers. Where roles do not move, no member is electable, and every slave of the master counts as a copy.

An unknown flush mode is treated as the weaker one: the data at risk may be overstated, never understated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, final

import msgspec
from pydantic import Field

from gantry_admin.documents import AtRiskDocument, Document, SlaveDocument, StatusDocument
from gantry_admin.peers import Peers
from gantry_admin.proxies import Proxies, ProxyDocument
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.ledger import Fault, Ledger, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import Flush, FlushMode, Replication
from gantry_spec.manifest.quantities import Size
from gantry_spec.observed import Member, ObservedLease, ObservedShard, Report, Role
from gantry_status.broker_state import SlaveState

SELF: Final = "self"
"""What stands for the URL of this sidecar itself."""


class MemberDocument(Document):
    """One broker of the group, as its sidecar reports it."""

    url: str
    is_self: bool
    is_reachable: bool
    age_ms: int | None
    """The age of the status; null if there is none."""

    fault: str | None
    """Why the last request failed; null if it succeeded."""

    status: StatusDocument | None


class RiskDocument(Document):
    """The acknowledged data that one fault would destroy in a shard now."""

    fault: Literal["process", "machine", "disk", "slave"] = Field(
        description="The master's process, its machine (which comes back with its disk), its disk, or the most "
        "advanced slave and then the master's disk."
    )
    bytes: int | None = Field(description="Acknowledged bytes that exist nowhere else.")
    age_ms: int | None = Field(description="Age of the oldest of these bytes, at most.")
    band: str = Field(
        description="A round upper bound of `bytes`, as a group's status and alerts show it; else `more` or `unknown`."
    )


class LedgerDocument(Document):
    """The durability ledger of a shard, by which rolling updates wait."""

    is_fresh: bool = Field(description="Whether it is based on a recent report.")
    master: int | None = Field(description="The number of the master.")
    epoch: int | None
    acknowledged: int | None = Field(description="The offset up to which sends may have been acknowledged.")
    wrote: int | None
    committed: int | None
    flushed: int | None
    replicated: int | None = Field(description="The offset of the most advanced slave that may be promoted.")
    acks_needed: int
    in_sync: list[int] = Field(description="Slaves within `--max-lag`, by number.")
    is_draining: bool
    bottleneck: str | None = Field(description="The step that the bytes at risk wait for: buffer, disk or slave.")
    flush_mode: Literal["sync", "async"] = Field(description="Whether sends wait for the disk; `async` if unknown.")
    risks: list[RiskDocument]


class ShardDocument(Document):
    """The brokers with one broker name: a master and its slaves."""

    broker_name: str
    epoch: int | None = Field(description="The newest epoch of any member.")
    masters: list[str] = Field(
        description="Sidecars whose broker reports itself as master in the newest epoch; one in a healthy shard."
    )
    stale_masters: list[str] = Field(description="Sidecars whose broker reports itself as master in an older epoch.")
    members: list[str]
    wrote: int | None
    confirmed: int | None
    at_risk: list[AtRiskDocument] = Field(description="The data at risk as the master's sidecar reports it.")
    ledger: LedgerDocument | None = Field(default=None, description="Null unless exactly one master reports its role.")


class BrokerGroupDocument(Document):
    """This broker and those of the --peer sidecars, by shard, and the gRPC proxies."""

    shards: list[ShardDocument]
    members: list[MemberDocument]
    proxies: list[ProxyDocument] = Field(
        default=[], description="The gRPC proxies at the --proxy addresses; known from about a second after a request."
    )


def group_view(
    own: StatusDocument, peers: Peers, proxies: Proxies, ledgers: ShardLedgers, now_ms: int
) -> BrokerGroupDocument:
    """Return the group at ``now_ms``, on this machine's clock since boot."""
    members = [MemberDocument(url=SELF, is_self=True, is_reachable=True, age_ms=0, fault=None, status=own)]
    for peer in peers.reports.values():
        is_reachable = peer.fault is None
        members.append(
            MemberDocument(
                url=peer.url, is_self=False, is_reachable=is_reachable, age_ms=peer.age_ms(), fault=peer.fault,
                status=peer.status,
            )
        )  # fmt: skip
    shards = shards_of(members, ledgers, now_ms)
    return BrokerGroupDocument(shards=shards, members=members, proxies=proxies.documents())


def shards_of(members: list[MemberDocument], ledgers: ShardLedgers, now_ms: int) -> list[ShardDocument]:
    """Return the shards of these members, sorted by broker name."""
    by_name: dict[str, list[tuple[MemberDocument, StatusDocument]]] = {}
    for member in members:
        if member.status is not None and member.status.broker_name is not None:
            by_name.setdefault(member.status.broker_name, []).append((member, member.status))
    return [_shard(name, found, ledgers, now_ms) for name, found in sorted(by_name.items())]


def _shard(
    name: str, found: list[tuple[MemberDocument, StatusDocument]], ledgers: ShardLedgers, now_ms: int
) -> ShardDocument:
    epochs = [status.epoch for _, status in found if status.epoch is not None]
    newest = max(epochs) if epochs else None
    # The last report of a broker whose process is gone does not make it a master.
    masters = [
        (member, status) for member, status in found
        if status.role == "master" and member.is_reachable and status.loop_state.state in ("running", "stalled")
    ]  # fmt: skip
    current = [(member, status) for member, status in masters if status.epoch == newest]
    master = current[0][1] if len(current) == 1 else None
    return ShardDocument(
        broker_name=name,
        epoch=newest,
        masters=[member.url for member, _ in current],
        stale_masters=[member.url for member, status in masters if status.epoch != newest],
        members=[member.url for member, _ in found],
        wrote=None if master is None else master.wrote,
        confirmed=None if master is None else master.confirmed,
        at_risk=[] if master is None else master.at_risk,
        ledger=ledgers.ledger_at(name, [member for member, _ in current], now_ms),
    )


def observed_shard(status: StatusDocument, asked_ms: int) -> ObservedShard | None:
    """Return a shard with only its master, as its sidecar reports it; None if the report does not identify it."""
    reported_role = status.reported_role
    if reported_role is None or reported_role.broker_id is None or status.role != "master" or status.epoch is None:
        return None
    slaves = tuple(_slave_state(slave) for slave in status.slaves)
    electable = tuple(reported_role.electable) or tuple(slave.number for slave in slaves)
    report = Report(
        asked_ms=asked_ms,
        answered_ms=asked_ms,
        boot_id=status.boot_id or "",
        role=Role.MASTER,
        epoch=status.epoch,
        promised_epoch=reported_role.promised_epoch,
        identity=reported_role.identity,
        wrote=status.wrote,
        committed=status.committed,
        flushed=status.flushed,
        acked=status.acked if reported_role.acks_needed else None,
        confirmed=status.confirmed,
        slaves=slaves,
        electable=electable,
        acks_needed=reported_role.acks_needed,
        master_id=reported_role.broker_id,
        is_draining=reported_role.is_draining,
        is_crash_safe=None if status.buffer is None else status.buffer.is_crash_safe,
    )
    term = Term(
        epoch=status.epoch,
        master=reported_role.broker_id,
        identity=reported_role.identity,
        electable=tuple(Voter(number) for number in electable),
        acks_needed=reported_role.acks_needed or 0,
    )
    lease = ObservedLease(record=LeaseRecord(epoch=status.epoch, terms=(term,)), seen_ms=asked_ms)
    return ObservedShard(number=0, lease=lease, members=(Member(number=reported_role.broker_id, report=report),))


def _slave_state(slave: SlaveDocument) -> SlaveState:
    return SlaveState(
        number=slave.slave_id, identity=slave.identity or "", received=slave.received, flushed=slave.flushed
    )


def ledger_document(ledger: Ledger, flush_mode: str | None) -> LedgerDocument:
    """Return the document of a ledger."""
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
        bottleneck=ledger.bottleneck or None,
        flush_mode="async" if flush_mode is None else flush_mode,  # type: ignore[arg-type]
        risks=[_risk_document(fault, ledger) for fault in Fault],
    )


def _risk_document(fault: Fault, ledger: Ledger) -> RiskDocument:
    risk = ledger.risk(fault)
    return RiskDocument(fault=fault.value, bytes=risk.bytes, age_ms=risk.age_ms, band=risk.band)


@final
class ShardLedgers:
    """The last ledger of each shard, by broker name. The next one computes ages from it. Owned by the event loop."""

    def __init__(self, lag_bytes_max: int) -> None:
        base = Spec()
        replication = msgspec.structs.replace(base.replication, max_lag=Size(lag_bytes_max))
        self._specs: Final = {mode: _spec(base, replication, mode) for mode in FlushMode}
        self._last: Final[dict[str, Ledger]] = {}

    def __repr__(self) -> str:
        return f"<ShardLedgers {', '.join(self._last)}>"

    def last(self, name: str) -> Ledger | None:
        """Return the ledger of the last update; None without one."""
        return self._last.get(name)

    def ledger_at(self, name: str, masters: Iterable[MemberDocument], now_ms: int) -> LedgerDocument | None:
        """Update and return the ledger of a shard; None unless exactly one broker reports itself as the master."""
        found = [member for member in masters if member.status is not None]
        status = found[0].status if len(found) == 1 else None
        if status is None:
            return None
        age_ms = (found[0].age_ms or 0) + (status.loop_state.since_ms or 0)
        shard = observed_shard(status, now_ms - age_ms)
        if shard is None:
            return None
        mode = FlushMode.SYNC if status.flush_mode == "sync" else FlushMode.ASYNC
        self._last[name] = ledger_of(self._specs[mode], shard, now_ms, self._last.get(name))
        return ledger_document(self._last[name], status.flush_mode)


def _spec(base: Spec, replication: Replication, mode: FlushMode) -> Spec:
    flush: Flush = msgspec.structs.replace(base.flush, mode=mode)
    return msgspec.structs.replace(base, replication=replication, flush=flush)
