"""A shard of model brokers in pods: the brokers and the checker of ``spec_world``, with their stores on volumes.

The control socket of a broker is two functions here: its status, with the socket's field names, and executing an order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from spec_world.brokers import RECORD_BYTES, Broker, Refused, Store
from spec_world.fleet import PEAK_RECORDS_PER_S, Fleet

from gantry_spec.broker_conf import broker_name, cluster_name
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Role
from gantry_status import orders


@final
class PodShard(Fleet):
    """The brokers of one shard. Owned by one test; ``read_lease`` returns the present Lease of the shard."""

    def __init__(self, group: str, number: int, spec: Spec, read_lease: Callable[[], LeaseRecord | None]) -> None:
        self._read_lease = read_lease
        super().__init__(spec, spec.replication.acks_needed)
        self.group = group
        self.number = number
        self.brokers = {}
        self.stores: dict[str, Store] = {}
        """The stores by the uid of their claim."""

    @property
    def lease(self) -> LeaseRecord | None:
        return self._read_lease()

    @lease.setter
    def lease(self, record: LeaseRecord | None) -> None:
        assert record is None, "cannot set a record: it is read from the cluster"

    def start_broker(self, member: int, claim: str) -> None:
        """Start a pod's broker on the volume of a claim, given by its uid."""
        store = self.stores.get(claim)
        if store is None:
            store = self.stores[claim] = Store(f"store-{member}-{self.next_serial()}")
        before = self.brokers.get(member)
        broker = Broker(member, store, self.acks_needed, "")
        broker.boot = 0 if before is None else before.boot
        self.brokers[member] = broker
        broker.start("", self.acks_needed, self.now_ms)

    def stop_broker(self, member: int) -> None:
        """End the process of a broker; its store stays on its disk."""
        self.flush(member)
        self.crash(member)
        self.disconnect(member)

    def delete_volume(self, member: int, claim: str) -> None:
        """Delete a volume with its store."""
        self.checker.check_removal(self.brokers.get(member), self.brokers.values())
        self.stores.pop(claim, None)

    def status(self, member: int) -> dict[str, Any]:
        """Return the status of a broker, as its control socket does."""
        broker = self.brokers[member]
        report = broker.report(self.now_ms, self.now_ms, PEAK_RECORDS_PER_S * RECORD_BYTES)
        own = {
            name: _unknown(getattr(report, name))
            for name in (
                *("epoch", "promised_epoch", "identity", "last_epoch", "epoch_start", "wrote", "committed", "flushed"),
                *(
                    "acked",
                    "confirmed",
                    "ha_address",
                    "heartbeat_age_ms",
                    "granted_ms",
                    "peak_bytes_per_s",
                    "master_id",
                ),
            )
        }
        acks = self.acks_needed if report.acks_needed is None else report.acks_needed
        return own | {
            "role": str(report.role),
            "broker_id": member,
            "broker_name": broker_name(self.group, self.number),
            "cluster": cluster_name(self.group),
            "master": report.master,
            "electable": list(report.electable),
            "acks_needed": acks,
            "slaves": [
                {"broker_id": ack.number, "identity": ack.identity, "received": _unknown(ack.received)}
                for ack in report.slaves
            ],
            "is_complete": report.is_complete,
            "is_crash_safe": True,
            "is_draining": report.is_draining,
            "is_withdrawn": report.is_withdrawn,
        }

    def execute_order(self, member: int, order: orders.AnyOrder, expected: Expected | None) -> None:
        """Execute an order. Raises ``Refused``, as the sidecar of a broker does."""
        broker = self.brokers[member]
        match order:
            case orders.PromiseRequest(epoch=epoch):
                broker.promise(epoch)
            case orders.Promote(epoch=epoch, electable=electable):
                if expected is not None:
                    self._check(broker, epoch, expected)
                if broker.promote(epoch, tuple(electable), self.next_serial()) and expected is not None:
                    self.checker.check_promotion(broker, self.lease)
            case orders.Follow(epoch=epoch, master=master):
                broker.follow(epoch, master)
            case orders.Fence(epoch=epoch):
                broker.fence(epoch)
            case orders.Drain(withdraw=withdraw, clients_only=clients_only):
                broker.drain(withdraw=withdraw, clients_only=clients_only)
            case orders.Flush():
                self.flush(member)
        self.acknowledge()

    def _check(self, broker: Broker, epoch: int, expected: Expected) -> None:
        place = (broker.store.last_epoch, len(broker.store.log) * RECORD_BYTES)
        if broker.store.epoch == epoch:
            return
        if expected.continues and (broker.role, broker.store.epoch) != (Role.MASTER, expected.continues):
            raise Refused(f"expected the master of epoch {expected.continues}, but the broker is {broker.role}")
        if place < (expected.last_epoch, expected.end):
            raise Refused("expected a longer log")


def _unknown(value: object) -> object:
    return -1 if value is None else value
