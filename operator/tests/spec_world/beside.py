"""The sidecars of a model world: beside each broker somebody who knows no more than the Lease, if he reaches it, and
whoever answers of the others.

What he finds he orders a moment later, when everything may be different; the judge says whether it was right when he
found it. Twins take one thing from what he knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from spec_world.brokers import RECORD_BYTES, Refused

from gantry_spec import regaining
from gantry_spec.regaining import Alone, Regain, Rejoin, Stay

if TYPE_CHECKING:
    from spec_world.fleet import Fleet

PEAK_RECORDS_PER_S: Final = 20


@final
class Beside:
    """All sidecars of one world."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Final = fleet
        self.regained = 0
        self.rejoined = 0
        self.see: Callable[[Alone], Alone] = lambda alone: alone
        """What a twin makes of what is seen."""

        self._under_way: Final[list[tuple[int, Regain | Rejoin]]] = []

    def alone(self, number: int) -> Alone | None:
        """What one knows now; None beside a broker that does not run."""
        fleet, broker = self._fleet, self._fleet.brokers.get(number)
        if broker is None or not broker.is_up:
            return None
        peers = {
            other.number: other.report(fleet.now_ms, fleet.now_ms, PEAK_RECORDS_PER_S * RECORD_BYTES)
            for other in fleet.brokers.values()
            if other is not broker and other.is_up and fleet.reach(number, other.number)
        }
        is_read = fleet.reach(number, "api")
        return Alone(
            report=broker.report(fleet.now_ms, fleet.now_ms, PEAK_RECORDS_PER_S * RECORD_BYTES),
            peers=peers,
            is_lease_read=is_read,
            record=fleet.lease if is_read else None,
        )

    def find(self, number: int) -> None:
        """One looks around, and will order what follows from it."""
        alone = self.alone(number)
        found = Stay("its broker does not run") if alone is None else regaining.regained(self.see(alone))
        if isinstance(found, Regain):
            self._fleet.judge.regained(number, found.epoch)
        if not isinstance(found, Stay):
            self._under_way.append((number, found))

    def order(self, index: int) -> None:
        """Something that was found is ordered."""
        if not self._under_way:
            return
        number, found = self._under_way.pop(index % len(self._under_way))
        broker = self._fleet.brokers.get(number)
        if broker is None or not broker.is_up:
            return
        with suppress(Refused):
            if isinstance(found, Regain):
                broker.regain(found.epoch)
                self.regained += 1
            else:
                broker.follow(found.epoch, found.master)
                self.rejoined += 1
        self._fleet.acknowledge()
