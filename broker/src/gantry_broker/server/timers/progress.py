"""Which timer messages are delivered: the present state, and the one that no fault can revert.

    timer queue         [ ............ read ............ end )
    due order           [ ............ mark ............ )      messages before `read`, up to the mark, are delivered

Messages are delivered in the order of (due time, queue offset), so one pair, the *mark*, shows which messages of the
queue before `read` are delivered. A message that is read later and is due before the mark is late, and is delivered at
once, before `read` moves past it. If the wall clock was set back, new messages may be due before the mark and not yet
due: from their offset on a second mark counts, which begins at the present time.

Delivery appends a copy, so a state is only as durable as the log up to the end of the copies. Each state is kept with
that end until the log is durable there; the file holds no later state, and a slave applies its master's states when its
own log has that end and the master has confirmed it. So a crash or a promotion delivers again what was delivered after
the last durable state, which is saved every `flushConsumerOffsetInterval`; it never skips a message.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.stamped_documents import StampedDocuments
from gantry_broker.server.timers.java_progress import JavaProgress
from gantry_broker.server.timers.marks import START, Mark, TimerState
from gantry_broker.server.timers.pending import PendingCounts
from gantry_wire import names
from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.clients import Document

log = logging.getLogger(__name__)

TABLE: Final = "timerProgress"
"""The name of the table file with the progress."""
STEPS_MAX: Final = 256
"""The limit of states that wait for the log. When there are as many, since slaves are missing, a new one replaces the
last."""
MARKS_MAX: Final = 64
"""The limit of marks: one for each time that the clock was set back, until the time before is reached again."""


class TimerDocument(Document):
    """The content of timerProgress.json, as it is also sent to slaves."""

    read: int = 0
    marks: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    kept: int = 0
    pending: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of pending messages by topic, in the state that ``counted`` has."""
    counted: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    counted_read: int = 0
    first_pending: int = 0
    """Messages of the queue before this are delivered, or not in the log any more."""
    data_version: DataVersion | None = None

    def state(self) -> TimerState:
        """Return the state of the document."""
        return TimerState(self.read, _decode_marks(self.marks), self.kept)

    def counted_state(self) -> TimerState:
        """Return the state in which ``pending`` is right."""
        return TimerState(self.counted_read, _decode_marks(self.counted))


def _decode_marks(marks: list[tuple[int, int, int]]) -> tuple[Mark, ...]:
    return tuple(Mark(*mark) for mark in marks) or (START,)


def _encode_marks(state: TimerState) -> list[tuple[int, int, int]]:
    return [(mark.start, mark.due_ms, mark.queue_offset) for mark in state.marks]


class Step(NamedTuple):
    """A state of delivery, with the end of its copies in the log."""

    end: int
    state: TimerState
    is_ours: bool
    """Whether this broker delivered it, so that slaves must confirm it; a master's step is confirmed when applied."""


@final
class TimerProgress:
    """The delivered and the settled state of the timers. Owned by the event loop."""

    def __init__(self, core: BrokerCore, find_first_pending: Callable[[], int] = lambda: 0) -> None:
        self.state = TimerState()
        """The present state."""
        self.pending: Final = PendingCounts()
        self._core: Final = core
        self._find_first_pending: Final = find_first_pending
        self._settled = TimerState()
        self._steps: Final[deque[Step]] = deque()
        self._waiting: Final = StampedDocuments[TimerDocument]()
        self._version = DataVersion(timestamp=core.clock.wall_ms())

    def __repr__(self) -> str:
        return f"<TimerProgress {self.state} settled={self._settled}>"

    def load(self, document: TimerDocument) -> None:
        """Load the state of the file."""
        self._steps.clear()
        self._waiting.clear()
        self.state = self._settled = document.state()
        self.pending.load(document.pending, document.counted_state())

    def adopt(self, state: TimerState) -> None:
        """Continue from the progress of a RocketMQ broker that has used this store, if it is further than ours."""
        if state.read > self.state.read and state.last.due_ms > self.state.last.due_ms:
            log.info("continuing from the timer progress of RocketMQ", extra={"read": state.read})
            self.state = self._settled = state

    def java_progress(self, document: Mapping[str, Any]) -> JavaProgress:
        """Return the content of RocketMQ's file for a document that is written."""
        marks = document.get("marks") or [START]
        version = msgspec.convert(document.get("dataVersion") or {}, DataVersion)
        return JavaProgress(marks[-1][1], document.get("firstPending", 0), version)

    def document(self) -> TimerDocument:
        """Return the document for the file: the settled state."""
        settled = self.settle_steps()
        if self._steps:
            self._core.persistence.mark(TABLE, now=False)
        self._version = self._version.next(self._core.clock.wall_ms())
        return self._encode(settled)

    def delivered_document(self) -> TimerDocument:
        """Return the present state, which is valid only for a log that has all of this one."""
        return self._encode(self.state)

    def _encode(self, state: TimerState) -> TimerDocument:
        counted = self.pending.counted_state(self.state)
        return TimerDocument(
            read=state.read, marks=_encode_marks(state), kept=state.kept, pending=self.pending.by_topic(),
            counted=_encode_marks(counted), counted_read=counted.read,
            first_pending=min(state.read, self._find_first_pending()), data_version=self._version,
        )  # fmt: skip

    def change(self, state: TimerState) -> None:
        """Record a new state; the copies that it needs end at the end of the log."""
        if state == self.state:
            return
        self.state = state
        self._put(Step(self._core.store.log.wrote, state, is_ours=True))
        self._core.persistence.mark(TABLE, now=False)

    def settle_steps(self) -> TimerState:
        """Settle the steps whose end in the log is durable now; return the settled state."""
        store = self._core.store
        flushed = store.log.flushed
        confirmed = min(flushed, store.positions.confirmed)
        while self._steps and self._steps[0].end <= (confirmed if self._steps[0].is_ours else flushed):
            self._settled = self._steps.popleft().state
        return self._settled

    def _put(self, step: Step) -> None:
        if len(self._steps) >= STEPS_MAX:
            self.settle_steps()
        if len(self._steps) >= STEPS_MAX or (self._steps and self._steps[-1].end == step.end):
            self._steps.pop()
        self._steps.append(step)

    # ------- on a slave

    def receive(self, document: TimerDocument, end: int) -> None:
        """Add a document that the master sent when its log ended at ``end``."""
        self._waiting.receive(document, end)

    def apply_up_to(self, position: int) -> None:
        """Apply documents for a log that equals the master's up to ``position``, which is confirmed."""
        newest = self._waiting.take_reached(position)
        if newest is None:
            return
        end, document = newest
        self.state = document.state()
        self.pending.load(document.pending, document.counted_state())
        self._put(Step(end, self.state, is_ours=False))
        self._version = document.data_version or self._version
        self._core.persistence.mark(TABLE, now=False)

    def begin_copying(self) -> None:
        """Revert to a state that the log supports, because a stream from a master begins, perhaps from another one.

        Called after the log was truncated to the common part, if it was, and before records of the master are appended.
        """
        self._waiting.clear()
        wrote, settled = self._core.store.log.wrote, self.settle_steps()
        safe = [step for step in self._steps if not step.is_ours and step.end <= wrote]
        self._steps.clear()
        self._steps.extend(safe)
        self.state = safe[-1].state if safe else settled

    def become_master(self) -> None:
        """Apply documents up to the end of the log, and forget later ones: this broker is the master."""
        store = self._core.store
        self.apply_up_to(store.log.wrote)
        self._waiting.clear()
        queue = store.queues.get(names.TIMER_TOPIC, 0)
        end = 0 if queue is None else queue.end
        if self.state.read > end:
            log.warning("reset timer progress to the end of its queue", extra={"read": self.state.read, "end": end})
            self._steps.clear()
            self.state = self._settled = self.state.clamp(end)
