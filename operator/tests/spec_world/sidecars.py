"""The sidecars of a model world, which recover roles of restarted brokers from the Lease and from reports of peers.

A sidecar gives its order some time after its check, when the state may be different. The checker of invariants
verifies that a master's role was rightly regained at the time of the check. Twins, which are tests without one rule,
hide one fact from the sidecar.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from spec_world.brokers import RECORD_BYTES, Refused

from gantry_spec import role_recovery
from gantry_spec.role_recovery import RecoveryInput, Regain, Rejoin, StayUnassigned

if TYPE_CHECKING:
    from spec_world.fleet import Fleet

PEAK_RECORDS_PER_S: Final = 20
"""The greatest load of a master."""


@final
class Sidecars:
    """All sidecars of one model world."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Final = fleet
        self.roles_regained = 0
        self.rejoined = 0
        """How often a restarted slave followed its master again."""

        self.alter_input: Callable[[RecoveryInput], RecoveryInput] = lambda known: known
        """A hook with which twins change the input of the check."""

        self._pending_orders: Final[list[tuple[int, Regain | Rejoin]]] = []

    def recovery_input(self, number: int) -> RecoveryInput | None:
        """Return what a broker's sidecar knows now; None if the broker does not run."""
        fleet, broker = self._fleet, self._fleet.brokers.get(number)
        if broker is None or not broker.is_up:
            return None
        peers = {
            other.number: other.report(fleet.now_ms, fleet.now_ms, PEAK_RECORDS_PER_S * RECORD_BYTES)
            for other in fleet.brokers.values()
            if other is not broker and other.is_up and fleet.can_reach(number, other.number)
        }
        is_read = fleet.can_reach(number, "api")
        return RecoveryInput(
            report=broker.report(fleet.now_ms, fleet.now_ms, PEAK_RECORDS_PER_S * RECORD_BYTES),
            peers=peers,
            is_lease_read=is_read,
            record=fleet.lease if is_read else None,
        )

    def check_recovery(self, number: int) -> None:
        """Check whether a broker may recover its role, and queue the resulting order."""
        known = self.recovery_input(number)
        found = (
            StayUnassigned("its broker does not run")
            if known is None
            else role_recovery.decide_recovery(self.alter_input(known))
        )
        if isinstance(found, Regain):
            self._fleet.checker.check_regained_role(number, found.epoch)
        if not isinstance(found, StayUnassigned):
            self._pending_orders.append((number, found))

    def order(self, index: int) -> None:
        """Give one of the queued orders to its broker."""
        if not self._pending_orders:
            return
        number, found = self._pending_orders.pop(index % len(self._pending_orders))
        broker = self._fleet.brokers.get(number)
        if broker is None or not broker.is_up:
            return
        with suppress(Refused):
            if isinstance(found, Regain):
                broker.regain(found.epoch)
                self.roles_regained += 1
            else:
                broker.follow(found.epoch, found.master)
                self.rejoined += 1
        self._fleet.acknowledge()
