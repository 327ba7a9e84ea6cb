"""The broker as its sidecar observes it: its status page, its last report about its role, and what follows from both.

The parts that need the broker's state use this object (tables, rates, readiness, metrics and the endpoints), and it
depends on none of them.
"""

from __future__ import annotations

import uuid
from typing import Final, final

from gantry_admin.at_risk import AtRisk, acked_offset, at_risk
from gantry_admin.describe import loop_state_document
from gantry_admin.documents import LoopStateDocument
from gantry_admin.errors import Problem
from gantry_admin.link import BrokerLink
from gantry_admin.settings import BrokerPaths, HealthSettings
from gantry_admin.watch import PageObservation, PageWatch
from gantry_status import Reading
from gantry_status.clocks import Clock, now
from gantry_status.orders import HaStatus


@final
class ObservedBroker:
    """The observed state of one broker. Owned by the event loop. Every method answers from memory."""

    def __init__(self, paths: BrokerPaths, health: HealthSettings, *, clock: Clock = now) -> None:
        """Create it without contacting the broker: the sidecar starts ``watch`` and ``link``."""
        self.watch: Final = PageWatch(str(paths.page), clock=clock)
        self.link: Final = BrokerLink(str(paths.control), clock=clock)
        self._health: Final = health

    def __repr__(self) -> str:
        return f"<ObservedBroker {self.watch!r} {self.link!r}>"

    @property
    def observation(self) -> PageObservation:
        """The last observation of the status page."""
        return self.watch.observation

    @property
    def reading(self) -> Reading | None:
        """The last publication of the broker, regardless of its age."""
        return self.watch.observation.reading

    def boot_id(self) -> uuid.UUID | None:
        """Return the identifier of the broker's process from its status page; None without a page."""
        return None if self.reading is None else self.reading.origin.boot_id

    def loop_state(self) -> LoopStateDocument:
        """Return the state of the broker's event loop."""
        return loop_state_document(self.observation, self.watch.now_ns(), self._health)

    def check_running(self, consequence: str) -> None:
        """Raise ``Problem`` 503, whose text begins with ``consequence``, unless the broker's event loop runs."""
        loop_state = self.loop_state()
        if loop_state.state != "running":
            raise Problem(503, f"{consequence}: {loop_state.reason}")

    def fresh_state(self) -> HaStatus | None:
        """Return the broker's recent report about its role; None if it is too old, or the event loop does not run."""
        return self.link.role_report.fresh_status(self.watch.now_ns()) if self.loop_state().state == "running" else None

    def acked(self) -> int | None:
        """Return the offset up to which enough slaves have the log; None if unknown."""
        reading, state = self.reading, self.link.role_report.fresh_status(self.watch.now_ns())
        if reading is None:
            return None
        reported, acks_needed = (None, 0) if state is None else (state.acked, state.acks_needed or 0)
        return acked_offset(reading.status, reported, acks_needed)

    def risks(self) -> tuple[AtRisk, ...]:
        """Return the data at risk now; empty without a status page."""
        reading = self.reading
        if reading is None:
            return ()
        return at_risk(reading.status, self.acked(), self.watch.history, self.watch.now_ns())
