"""How far each delay level is delivered: as it is now, and as far as nothing can take it back.

    level 3   [ settled ...... delivered ...... end of its queue )
              |        `- on the disk, and with as many slaves as are waited for
              `- what a restart, or another master, goes on from

Delivering moves a message from its level's queue into its own topic by appending it anew, so an offset is only as good
as the log up to where those copies end. Each step is kept with that end until the log is safe there, and the file says
no more than that: what a crash or a new master cuts off is delivered again. Twice is possible, never is not.

On a slave the same is true of what its master says: a document is stamped with the end of the master's log, and it is
taken over when this log has got so far and the master calls that much confirmed. Before, it would skip messages whose
copies died with the master.
"""

import logging
from collections import deque
from typing import Final, NamedTuple, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.offsets import DelayOffsetDocument
from gantry_broker.server.core.stamped_documents import StampedDocuments
from gantry_wire import names
from gantry_wire.commands.admin import DataVersion

log = logging.getLogger(__name__)

TABLE: Final = "delayOffset"
STEPS_MAX: Final = 256
"""Of one level. When no slave comes for hours the newest step stands for many: it is settled later than it could be."""


class Step(NamedTuple):
    """What is delivered before ``offset`` ends at ``end`` in the log."""

    end: int
    offset: int
    is_ours: bool
    """Delivered here, so that slaves have to confirm it; what a master says was confirmed when it was taken."""


@final
class DelayProgress:
    """Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self._delivered: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._steps: dict[int, deque[Step]] = {}
        self._waiting: Final = StampedDocuments[DelayOffsetDocument]()
        self._version = DataVersion(timestamp=core.clock.wall_ms())

    def __repr__(self) -> str:
        return f"<DelayProgress delivered={self._delivered} settled={self._settled}>"

    def load(self, document: DelayOffsetDocument) -> None:
        """What the file says."""
        self._steps.clear()
        self._waiting.clear()
        self._delivered = dict(document.offset_table)
        self._settled = dict(document.offset_table)

    def document(self) -> DelayOffsetDocument:
        """For the file: as far as nothing can take it back."""
        offsets = self.settled()
        if any(self._steps.values()):
            self._core.persistence.mark(TABLE, now=False)
        self._version = self._version.next(self._core.clock.wall_ms())
        return DelayOffsetDocument(offset_table=offsets, data_version=self._version)

    def delivered(self) -> DelayOffsetDocument:
        """As far as it is delivered now; true of a log that has all of ours."""
        return DelayOffsetDocument(offset_table=dict(self._delivered), data_version=self._version)

    def offset(self, level: int) -> int:
        """The first message of a level that is not delivered."""
        return self._delivered.get(level, 0)

    def advance(self, level: int, offset: int) -> None:
        """What is before ``offset`` is delivered, and its copies are the end of the log."""
        self._delivered[level] = offset
        self._put(level, Step(self._core.store.log.wrote, offset, is_ours=True))
        self._core.persistence.mark(TABLE, now=False)

    def settled(self) -> dict[int, int]:
        """Up to where each level is delivered for good."""
        store = self._core.store
        flushed = store.log.flushed
        confirmed = min(flushed, store.positions.confirmed)
        for level, steps in self._steps.items():
            while steps and steps[0].end <= (confirmed if steps[0].is_ours else flushed):
                self._settled[level] = steps.popleft().offset
        return dict(self._settled)

    def _put(self, level: int, step: Step) -> None:
        steps = self._steps.setdefault(level, deque())
        if len(steps) >= STEPS_MAX:
            self.settled()
        if len(steps) >= STEPS_MAX:
            steps.pop()
        steps.append(step)

    # ------- a slave's side

    def receive(self, document: DelayOffsetDocument, end: int) -> None:
        """What a master says, when its log ends at ``end``."""
        self._waiting.receive(document, end)

    def reach(self, position: int) -> None:
        """This log is the master's up to ``position``, and that much is confirmed."""
        newest = self._waiting.reach(position)
        if newest is not None:
            self._take(*newest)

    def _take(self, end: int, document: DelayOffsetDocument) -> None:
        table = document.offset_table
        for level, offset in table.items():
            known = self._delivered.get(level, 0)
            if offset < known:  # another master, which has delivered less
                self._steps.pop(level, None)
                self._settled[level] = min(self._settled.get(level, 0), offset)
            if offset != known:
                self._put(level, Step(end, offset, is_ours=False))
        for level in self._delivered.keys() - table.keys():
            self._steps.pop(level, None)
            self._settled.pop(level, None)
        self._delivered = dict(table)
        self._version = document.data_version or self._version
        self._core.persistence.mark(TABLE, now=False)

    def begin_copying(self) -> None:
        """A master is followed from now on: nothing is believed that its log may not have.

        Called when the log was cut to what both have, and before anything of the master's is appended.
        """
        self._waiting.clear()
        wrote, settled = self._core.store.log.wrote, self.settled()
        for level, steps in self._steps.items():
            safe = [step for step in steps if not step.is_ours and step.end <= wrote]
            self._steps[level] = deque(safe)
            self._delivered[level] = safe[-1].offset if safe else settled.get(level, 0)

    def lead(self) -> None:
        """This broker is the master, and its log is the truth up to its end; what was said of more is forgotten.

        Nor may new messages be skipped because a level was delivered further than its queue now goes.
        """
        store = self._core.store
        self.reach(store.log.wrote)
        self._waiting.clear()
        for level, offset in self._delivered.items():
            queue = store.queues.get(names.SCHEDULE_TOPIC, level - 1)
            end = 0 if queue is None else queue.end
            if offset > end:
                facts = {"level": level, "old": offset, "end": end}
                log.warning("a delay level was delivered beyond its queue, and was set back", extra=facts)
                self._steps.pop(level, None)
                self._delivered[level] = self._settled[level] = end
