"""The broker as its sidecar observes it: its status page, its last answer about its role, and what follows from both.

The one object that everything else in the sidecar takes: tables, rates, readiness, metrics and the endpoints read it,
and it knows none of them.
"""

from __future__ import annotations

from typing import Final, final

from gantry_admin.at_risk import AtRisk, acked_offset, at_risk
from gantry_admin.describe import motion_document
from gantry_admin.documents import BrokerMotion
from gantry_admin.errors import Problem
from gantry_admin.link import BrokerLink
from gantry_admin.settings import BrokerPaths, HealthSettings
from gantry_admin.watch import Look, PageWatch
from gantry_status import Reading
from gantry_status.moment import Now, now
from gantry_status.orders import HaStatus


@final
class ObservedBroker:
    """Owned by the event loop. Every method answers from memory."""

    def __init__(self, paths: BrokerPaths, health: HealthSettings, *, clock: Now = now) -> None:
        """Touches no broker: ``watch`` and ``link`` are started by the sidecar."""
        self.watch: Final = PageWatch(str(paths.page), clock=clock)
        self.link: Final = BrokerLink(str(paths.control), clock=clock)
        self._health: Final = health

    def __repr__(self) -> str:
        return f"<ObservedBroker {self.watch!r} {self.link!r}>"

    @property
    def look(self) -> Look:
        """The last look at the page."""
        return self.watch.look

    @property
    def reading(self) -> Reading | None:
        """The last publication, whatever its age."""
        return self.watch.look.reading

    def motion(self) -> BrokerMotion:
        """Whether the broker moves."""
        return motion_document(self.look, self.watch.now_ns(), self._health)

    def check_moving(self, consequence: str) -> None:
        """Raise ``Problem`` 503, with what follows from it, unless the broker moves."""
        motion = self.motion()
        if motion.state != "moving":
            raise Problem(503, f"{consequence}: {motion.reason}")

    def fresh_state(self) -> HaStatus | None:
        """What the broker reported lately about its role; None if it did not, or stands still."""
        return self.link.word.fresh(self.watch.now_ns()) if self.motion().state == "moving" else None

    def acked(self) -> int | None:
        """How far enough slaves have the log."""
        reading, state = self.reading, self.link.word.fresh(self.watch.now_ns())
        if reading is None:
            return None
        reported, acks_needed = (None, 0) if state is None else (state.acked, state.acks_needed or 0)
        return acked_offset(reading.status, reported, acks_needed)

    def risks(self) -> tuple[AtRisk, ...]:
        """What would be lost now."""
        reading = self.reading
        if reading is None:
            return ()
        return at_risk(reading.status, self.acked(), self.watch.history, self.watch.now_ns())
