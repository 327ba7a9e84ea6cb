"""Who sees everything that happens in a model world, and says at once what must never happen.

one master          of each epoch, for ever
no late return      nobody is given its role again by who stands beside it after a newer epoch began
no late word        nobody acknowledges what the master of a newer epoch does not have
nothing is lost     of what was acknowledged with k >= 1, by any promotion
no more than said   with k = 0: what a promotion loses is at most what was announced, and that is allowed
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from spec_world.brokers import RECORD_BYTES, Broker, Record, Store

from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import Spec


class Wrong(AssertionError):
    """A promise was broken."""


@final
class Judge:
    """Of one world."""

    def __init__(self, spec: Spec) -> None:
        self.safe: Final[set[Record]] = set()
        """What clients were told is safe, and nobody said is lost."""

        self.lost: Final[set[Record]] = set()
        self.masters: Final[dict[int, int]] = {}
        self.losses: Final[list[tuple[int, int]]] = []
        """Bytes lost and announced."""

        self.spec = spec
        """What is allowed; an edit gives another one."""

        self._newest: tuple[int, frozenset[Record]] = (0, frozenset())

    def lacks_something(self, store: Store) -> bool:
        """Whether a store that has acknowledged something has it no more."""
        return not (store.lacks | store.owes) <= set(store.log)

    def acknowledged(self, broker: Broker, end: int) -> None:
        """A master has told its clients that these are safe."""
        epoch, begun_with = self._newest
        told = broker.store.log[:end]
        for at in range(len(told) - 1, -1, -1):
            record = told[at]
            if record in self.safe:
                break
            if broker.store.epoch < epoch and record not in begun_with:
                raise Wrong(f"{broker.number} acknowledges {record} of epoch {broker.store.epoch} after epoch {epoch}")
            self.lost.discard(record)
            self.safe.add(record)

    def promoted(self, broker: Broker, lease: LeaseRecord | None) -> None:
        """A master begins an epoch."""
        epoch, number = broker.store.epoch, broker.number
        if self.masters.setdefault(epoch, number) != number:
            raise Wrong(f"epoch {epoch} has the masters {self.masters[epoch]} and {number}")
        log = frozenset(broker.store.log)
        if epoch < self._newest[0]:
            return
        self._newest = (epoch, log)
        gone = self.safe - log
        announced = self._announced(epoch, lease)
        if gone and broker.acks_needed:
            raise Wrong(f"{number} begins epoch {epoch} without {sorted(gone)[:5]}, which were acknowledged")
        if announced is not None and len(gone) * RECORD_BYTES > announced:
            raise Wrong(f"epoch {epoch} loses {len(gone) * RECORD_BYTES} bytes, and {announced} were announced")
        if gone:
            self.losses.append((len(gone) * RECORD_BYTES, -1 if announced is None else announced))
        self.lost.update(gone)
        self.safe.difference_update(gone)

    def _announced(self, epoch: int, lease: LeaseRecord | None) -> int | None:
        """What was said that this may lose; None if a person has accepted whatever it is."""
        terms = () if lease is None else lease.terms
        term = next((one for one in terms if one.epoch == epoch), None)
        if term is None:
            return 0
        goal = None if lease is None else lease.goal
        accepted = 0 if goal is None else goal.loss_accepted
        if term.loss < 0 or accepted is None:
            return None
        if term.loss > max(self.spec.failover.max_data_loss_bytes, accepted):
            raise Wrong(f"epoch {epoch} may lose {term.loss} bytes, which nobody has allowed")
        return term.loss

    def regained(self, number: int, epoch: int) -> None:
        """Somebody is to have the role again that it had before its process ended."""
        newest, _ = self._newest
        if epoch < newest:
            raise Wrong(f"{number} comes back as the master of epoch {epoch}, and epoch {newest} has begun")
        if self.masters.get(epoch, number) != number:
            raise Wrong(f"{number} comes back as the master of epoch {epoch}, which is {self.masters[epoch]}'s")

    def removed(self, broker: Broker | None, others: Iterable[Broker], *, is_accepted: bool = False) -> None:
        """A store is thrown away on purpose."""
        if broker is None:
            return
        rest: set[Record] = set().union(*(one.store.log for one in others if one is not broker))
        gone = (self.safe & set(broker.store.log)) - rest
        if gone and is_accepted:
            self.lost.update(gone)
            self.safe.difference_update(gone)
        elif gone:
            raise Wrong(f"the only copy of {sorted(gone)[:5]} is thrown away with {broker.number}")
