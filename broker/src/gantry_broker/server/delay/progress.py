"""The offsets that each delay level is delivered up to: the present ones, and those that no fault can revert.

    level 3   [ ...... settled ...... delivered ...... end of its queue )
                       |- copies of earlier messages are flushed, and on as many slaves as sends wait for
                       `- a restart, or another master, continues here

Delivery appends a copy of a message to its own topic, so a delivered offset is only as durable as the log up to the end
of the copies. Each step is kept with that end until the log is durable there, and the file holds no later offset:
copies that a crash or a new master removes are delivered again. A message may be delivered twice, and is never lost.

The same holds for the document that a slave receives from its master: it is stamped with the end of the master's log,
and applied when the slave's log has that end and the master has confirmed it. Earlier, it would skip messages whose
copies were lost with the master.
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
"""The name of the table file with the offsets."""
STEPS_MAX: Final = 256
"""The limit of steps of one level. When there are as many, since slaves are missing, a new step replaces the last."""


class Step(NamedTuple):
    """A step of delivery: the copies of messages before ``offset`` end at ``end`` in the log."""

    end: int
    offset: int
    is_ours: bool
    """Whether this broker delivered it, so that slaves must confirm it; a master's step is confirmed when applied."""


@final
class DelayProgress:
    """The delivered and the settled offset of each delay level. Owned by the event loop."""

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
        """Load the offsets of the file."""
        self._steps.clear()
        self._waiting.clear()
        self._delivered = dict(document.offset_table)
        self._settled = dict(document.offset_table)

    def document(self) -> DelayOffsetDocument:
        """Return the document for the file: the settled offsets."""
        offsets = self.settle_steps()
        if any(self._steps.values()):
            self._core.persistence.mark(TABLE, now=False)
        self._version = self._version.next(self._core.clock.wall_ms())
        return DelayOffsetDocument(offset_table=offsets, data_version=self._version)

    def delivered_document(self) -> DelayOffsetDocument:
        """Return the delivered offsets, which are valid only for a log that has all of this one."""
        return DelayOffsetDocument(offset_table=dict(self._delivered), data_version=self._version)

    def next_offset(self, level: int) -> int:
        """Return the offset of the first undelivered message of a level."""
        return self._delivered.get(level, 0)

    def advance(self, level: int, offset: int) -> None:
        """Record that messages before ``offset`` are delivered; their copies end at the end of the log."""
        self._delivered[level] = offset
        self._put(level, Step(self._core.store.log.wrote, offset, is_ours=True))
        self._core.persistence.mark(TABLE, now=False)

    def settle_steps(self) -> dict[int, int]:
        """Settle the steps whose end in the log is durable now; return the settled offset of each level."""
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
            self.settle_steps()
        if len(steps) >= STEPS_MAX:
            steps.pop()
        steps.append(step)

    # ------- on a slave

    def receive(self, document: DelayOffsetDocument, end: int) -> None:
        """Add a document that the master sent when its log ended at ``end``."""
        self._waiting.receive(document, end)

    def apply_up_to(self, position: int) -> None:
        """Apply documents for a log that equals the master's up to ``position``, which is confirmed."""
        newest = self._waiting.take_reached(position)
        if newest is not None:
            self._apply_document(*newest)

    def _apply_document(self, end: int, document: DelayOffsetDocument) -> None:
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
        """Revert to offsets that the log supports, because a stream from a master begins, perhaps from another one.

        Called after the log was truncated to the common part, if it was, and before records of the master are appended.
        """
        self._waiting.clear()
        wrote, settled = self._core.store.log.wrote, self.settle_steps()
        for level, steps in self._steps.items():
            safe = [step for step in steps if not step.is_ours and step.end <= wrote]
            self._steps[level] = deque(safe)
            self._delivered[level] = safe[-1].offset if safe else settled.get(level, 0)

    def become_master(self) -> None:
        """Apply documents up to the end of the log, and forget later ones: this broker is the master.

        A level that was delivered beyond the end of its queue is reset to that end, so that no new message is skipped.
        """
        store = self._core.store
        self.apply_up_to(store.log.wrote)
        self._waiting.clear()
        for level, offset in self._delivered.items():
            queue = store.queues.get(names.SCHEDULE_TOPIC, level - 1)
            end = 0 if queue is None else queue.end
            if offset > end:
                facts = {"level": level, "old": offset, "end": end}
                log.warning("reset delay level to the end of its queue", extra=facts)
                self._steps.pop(level, None)
                self._delivered[level] = self._settled[level] = end
