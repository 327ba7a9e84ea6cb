"""The checker of a model world's invariants: it checks each acknowledgement, promotion, recovery and removal at once.

one master            an epoch never has two masters
no late recovery      no sidecar decides that its broker recovers its role after a newer epoch has begun
no late ack           no broker acknowledges a record that the master of a newer epoch does not have
no loss               where acks are needed no promotion loses an acknowledged record
no unannounced loss   where none is needed a promotion loses at most what was announced and allowed
no removed copy       no store is removed with the only copy of an acknowledged record, unless a person accepts that
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from spec_world.brokers import RECORD_BYTES, Broker, Record, Store

from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import Spec


class InvariantViolation(AssertionError):
    """An invariant of the model world is violated."""


@final
class InvariantChecker:
    """The checker of one model world."""

    def __init__(self, spec: Spec) -> None:
        self.acknowledged: Final[set[Record]] = set()
        """The acknowledged records that were not announced as lost."""

        self.lost: Final[set[Record]] = set()
        """The acknowledged records of which a promotion announced the loss, or a person accepted it."""

        self.masters: Final[dict[int, int]] = {}
        """The master of each epoch."""

        self.losses: Final[list[tuple[int, int]]] = []
        """The lost and the announced bytes of each lossy promotion."""

        self.spec = spec
        """The spec with the allowed loss, which edits replace."""

        self._newest: tuple[int, frozenset[Record]] = (0, frozenset())
        """The newest epoch and the records with which it began."""

    def has_lost_records(self, store: Store) -> bool:
        """Return whether a store lacks a record that it, or an earlier disk of its member, had."""
        return not (store.lost | store.lost_with_earlier_disks) <= set(store.log)

    def check_acknowledged(self, broker: Broker, end: int) -> None:
        """Check the records that a master has acknowledged to its clients."""
        epoch, begun_with = self._newest
        acknowledged_records = broker.store.log[:end]
        for at in range(len(acknowledged_records) - 1, -1, -1):
            record = acknowledged_records[at]
            if record in self.acknowledged:
                break
            if broker.store.epoch < epoch and record not in begun_with:
                raise InvariantViolation(
                    f"{broker.number} acknowledges {record} of epoch {broker.store.epoch} after epoch {epoch}"
                )
            self.lost.discard(record)
            self.acknowledged.add(record)

    def check_promotion(self, broker: Broker, lease: LeaseRecord | None) -> None:
        """Check a promotion: a master has begun an epoch."""
        epoch, number = broker.store.epoch, broker.number
        if self.masters.setdefault(epoch, number) != number:
            raise InvariantViolation(f"epoch {epoch} has the masters {self.masters[epoch]} and {number}")
        log = frozenset(broker.store.log)
        if epoch < self._newest[0]:
            return
        self._newest = (epoch, log)
        gone = self.acknowledged - log
        announced = self._announced(epoch, lease)
        if gone and broker.acks_needed:
            raise InvariantViolation(
                f"{number} begins epoch {epoch} without {sorted(gone)[:5]}, which were acknowledged"
            )
        if announced is not None and len(gone) * RECORD_BYTES > announced:
            raise InvariantViolation(
                f"epoch {epoch} loses {len(gone) * RECORD_BYTES} bytes, and {announced} were announced"
            )
        if gone:
            self.losses.append((len(gone) * RECORD_BYTES, -1 if announced is None else announced))
        self.lost.update(gone)
        self.acknowledged.difference_update(gone)

    def _announced(self, epoch: int, lease: LeaseRecord | None) -> int | None:
        """Return the announced loss of a promotion; None if a person has accepted any loss."""
        terms = () if lease is None else lease.terms
        term = next((one for one in terms if one.epoch == epoch), None)
        if term is None:
            return 0
        goal = None if lease is None else lease.goal
        accepted = 0 if goal is None else goal.loss_accepted
        if term.loss < 0 or accepted is None:
            return None
        if term.loss > max(self.spec.failover.max_data_loss_bytes, accepted):
            raise InvariantViolation(f"epoch {epoch} may lose {term.loss} bytes, more than is allowed")
        return term.loss

    def check_regained_role(self, number: int, epoch: int) -> None:
        """Check a recovery: a broker may have the role again that it had before its process ended."""
        newest, _ = self._newest
        if epoch < newest:
            raise InvariantViolation(
                f"{number} comes back as the master of epoch {epoch}, and epoch {newest} has begun"
            )
        if self.masters.get(epoch, number) != number:
            raise InvariantViolation(
                f"{number} comes back as the master of epoch {epoch}, which is {self.masters[epoch]}'s"
            )

    def check_removal(self, broker: Broker | None, others: Iterable[Broker], *, is_accepted: bool = False) -> None:
        """Check the removal of a store: it must not have the only copy of a record."""
        if broker is None:
            return
        rest: set[Record] = set().union(*(one.store.log for one in others if one is not broker))
        gone = (self.acknowledged & set(broker.store.log)) - rest
        if gone and is_accepted:
            self.lost.update(gone)
            self.acknowledged.difference_update(gone)
        elif gone:
            raise InvariantViolation(f"the only copy of {sorted(gone)[:5]} is removed with {broker.number}")
