"""Pop consumption of this broker: messages stay invisible to a group for a while, and are delivered again until acked.

    pop      -> messages, and [ck ...] in the log; answered when that may be acknowledged
    ack      -> [ack ...] in the log; answered in the same way
    no ack   -> [copies in the retry topic ..., ack], appended together, when the invisible time is over

Only the log decides what is popped and acked (`journal`), so a start and a promotion lose nothing and deliver no acked
message again. `popping` reads messages, `writer` appends, `revival` delivers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.pop.checkpoints import PopQueue, PopState
from gantry_broker.server.pop.healing import HealedPops
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.log_reader import PopLogReader
from gantry_broker.server.pop.order import ORDER_TABLE, SEPARATOR, OrderedQueues
from gantry_broker.server.pop.popping import Popper
from gantry_broker.server.pop.revival import Reviver
from gantry_broker.server.pop.writer import NOT_READY, PopWriter
from gantry_broker.server.pull.pull_hold import PullHold
from gantry_broker.server.send.ack_gate import AckGate
from gantry_wire import Command

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""How often messages whose time is over are delivered again, and offsets are committed."""
FAILURE_PAUSE_S: Final = 1.0
"""The pause after the store has refused an append."""
READY_TIMEOUT_S: Final = 10.0
"""How long a request waits until the checkpoints are read after a start."""
READY_POLL_S: Final = 0.005
"""How often a waiting request checks whether they are read."""

LATER: Final = "the change may be lost, repeat the request"
"""The beginning of the answer to an administrator whose change is not durable."""


@final
class Pops:
    """Pop consumption of one broker. Owned by the event loop; ``run`` is its task."""

    def __init__(
        self,
        core: BrokerCore,
        ordered: OrderedQueues,
        ack_gate: AckGate,
        hold: PullHold,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._core: Final = core
        self._hold: Final = hold
        self.ordered: Final = ordered
        """The queues that are consumed in order."""

        self.journal: Final = PopJournal(core)
        self.writer: Final = PopWriter(core, self.journal, ack_gate, loop)
        self.popper: Final = Popper(core, self.journal, self.writer, ordered, loop)
        self.reviver: Final = Reviver(core, self.journal, self.writer)
        self.healed: Final = HealedPops(core, self.journal)
        self._ordered_change_count = 0
        self._deferred: list[Callable[[], None]] = []
        """Changes by administrators that came while the checkpoints were read. No request is served before them."""

        self._deferred_epoch = -1
        """The epoch of these changes: another master has made them itself, and perhaps others since."""

        self.journal.on_ready.append(hold.wake_all)
        self.writer.on_acked.append(self._on_acked)
        core.offsets.on_set.append(self._on_offset_set)
        core.offsets.on_forgotten.append(self._on_forgotten)
        core.offsets.waits_for_changes.append(self.wait_for_changes)

    def __repr__(self) -> str:
        return f"<Pops {self.journal!r}>"

    def runtime_info(self) -> dict[str, int]:
        """Return the figures of pop consumption for `brokerStatus`; the counters start with the broker."""
        writer, reviver = self.writer, self.reviver
        state = self.journal.state if self.journal.is_master else PopState()
        return {
            "popInflightMessages": state.inflight_count,
            "popOpenCheckpoints": state.open_count,
            "popReviveLagMillis": state.overdue_ms(self.journal.times.monotonic_ms()),
            "popUnflushedOffsets": self.journal.unsettled_count,
            "popMessages": self.popper.pop_count,
            "popAckedMessages": writer.ack_count,
            "popRedeliveredMessages": reviver.revived_count,
            "popDeadLetters": reviver.given_up_count,
            "popExpiredMessages": reviver.dropped_count,
        }

    async def oldest_unacked(self) -> Mapping[tuple[str, str, int], int] | None:
        """Return the offset of the oldest message that is popped and not acked, by topic, group and queue.

        None if it is unknown: a master has not read all records yet, or a record is damaged and may be healed. Another
        broker has no state, or that of its last term as the master, so it reads the log.
        """
        journal, epoch = self.journal, self._core.store.identity.epoch
        if journal.is_master:
            return journal.state.oldest_open() if journal.is_ready else None
        reader = PopLogReader(self._core, journal.times)
        is_read = reader.begin() and reader.read_slice()
        while not is_read and not reader.is_waiting:
            await asyncio.sleep(0)
            is_read = reader.read_slice()
        # In another epoch the log may have lost acks that were read.
        return reader.state.oldest_open() if is_read and self._core.store.identity.epoch == epoch else None

    # -- readiness -----------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the state is complete, with all changes by administrators."""
        return self.journal.is_ready and not self._deferred

    def read_if_short(self) -> bool:
        """Whether the state is complete; reads the first slice if none is read. Raises errors of the store."""
        journal = self.journal
        if not journal.is_ready and (not journal.is_master or journal.is_reading or not journal.read_next()):
            return False
        self._apply_deferred()
        return True

    async def when_ready(self, command: Command, act: Callable[[], Command | None]) -> Command | None:
        """Call ``act`` when the task has read the state, and return its answer; or refuse the request on timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_TIMEOUT_S
        while not self.is_ready:
            if loop.time() >= deadline:
                return self._core.stats.refusals.reply(command, NOT_READY)
            await asyncio.sleep(READY_POLL_S)
        refusal = self._core.gate.refusal(command.code)
        return act() if refusal is None else self._core.stats.refusals.reply(command, refusal)

    # -- events --------------------------------------------------------------------------------------------------------

    def on_log_changed(self, end: int) -> None:
        """Forget records from ``end`` on, where the log ends now: other records will be appended there."""
        self.journal.on_log_changed()
        self.ordered.forget_beyond(self._end_of)
        self.healed.on_log_changed(end)

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._core.store.queues.get(topic, queue_id)
        return 0 if queue is None else queue.end

    def wake_if_free(self, queue: PopQueue) -> None:
        """Retry the pops of an ordered queue if an ack has freed it."""
        if not self.popper.is_blocked(queue, None):
            self._hold.mark_queues([(queue.topic, queue.queue_id)])

    def _on_acked(self) -> None:
        """Retry the pops that wait because too many messages were not acked, where there is room now."""
        limited = self.popper.limited
        woken = [one for one in limited if self.popper.has_room(one)]
        limited.difference_update(woken)
        self._hold.mark_queues({(one.topic, one.queue_id) for one in woken})

    def _on_offset_set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let the group continue at an offset that an administrator has set. Raises errors of the store."""
        self.ordered.forget(f"{topic}{SEPARATOR}{group}", queue_id, self.journal.times.pop_time_ms())
        self._apply_or_defer(lambda: self._reset(group, topic, queue_id, offset))

    def _reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        state, is_used = self.journal.state, self.journal.is_used
        queue = state.queue(topic, group, queue_id) if is_used else state.queues.get((topic, group, queue_id))
        if queue is not None:
            self.popper.reset(queue, offset)

    def _on_forgotten(self, topic: str | None, group: str | None) -> None:
        """Forget the checkpoints of a topic or a group that was deleted. Raises errors of the store."""
        self.ordered.forget_keys(topic, group, self.journal.times.pop_time_ms())
        self._apply_or_defer(lambda: self._forget(topic, group))

    def _forget(self, topic: str | None, group: str | None) -> None:
        for queue in list(self.journal.state.queues.values()):
            if topic in (None, queue.topic) and group in (None, queue.group):
                self.writer.set_position(queue, None, is_void=True)
                del self.journal.state.queues[queue.topic, queue.group, queue.queue_id]

    def _apply_or_defer(self, change: Callable[[], None]) -> None:
        """Make a change, or keep it until the checkpoints are read. A slave has nothing to change."""
        if not self.journal.is_master:
            return
        if self.read_if_short():
            change()
            return
        epoch = self._core.store.identity.epoch
        if epoch != self._deferred_epoch:
            self._deferred.clear()
            self._deferred_epoch = epoch
        self._deferred.append(change)

    def _apply_deferred(self) -> None:
        """Make the changes that were kept; one that the store refuses is kept. Raises errors of the store."""
        if not self._deferred:
            return
        if self._deferred_epoch != self._core.store.identity.epoch:
            self._deferred.clear()
        while self._deferred:
            self._deferred[0]()
            del self._deferred[0]
        self._hold.wake_all()

    async def wait_for_changes(self) -> None:
        """Wait until changes by administrators are made, and their records are on the disk.

        A change that was kept is in memory only, so it is not answered as successful before. Raises Refused if it is
        not made in time, or if another broker may have become the master: then it may be lost.
        """
        core, loop = self._core, asyncio.get_running_loop()
        epoch, deadline = core.store.identity.epoch, loop.time() + READY_TIMEOUT_S
        while self._deferred and self.journal.is_master and core.store.identity.epoch == epoch:
            if loop.time() >= deadline:
                raise Refused(NOT_READY.code, f"{LATER}: the checkpoints of popped messages are still read")
            await asyncio.sleep(READY_POLL_S)
        if not self.journal.is_master or core.store.identity.epoch != epoch:
            raise Refused(NOT_READY.code, f"{LATER}: this broker is not the master any more")
        if self.journal.is_used:
            await asyncio.to_thread(core.store.flush)

    # -- the task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the log, deliver messages again, commit offsets, until cancelled."""
        while True:
            try:
                pause_s = self._step()
            except BrokerError as error:
                log.warning("failed to process popped messages; will retry", extra={"reason": str(error)})
                pause_s = FAILURE_PAUSE_S
            await asyncio.sleep(pause_s)

    def _step(self) -> float:
        """Do one slice of the work; return the pause after it in seconds."""
        journal = self.journal
        if not journal.is_master:
            return TICK_S
        if not journal.read_next():
            return TICK_S if journal.is_waiting else 0
        self._apply_deferred()
        is_more = self.healed.step()
        is_more |= self.reviver.revive_due()
        journal.settle()
        journal.store_state_if_due()
        self._wake_free_queues()
        return 0 if is_more else TICK_S

    def _wake_free_queues(self) -> None:
        """Retry pops of ordered queues that are not blocked any more, and mark their table for writing."""
        free = self.ordered.take_free(self.journal.times.monotonic_ms())
        if free:
            self._hold.mark_queues(free)
        if self.ordered.change_count != self._ordered_change_count:
            self._ordered_change_count = self.ordered.change_count
            self._core.persistence.mark(ORDER_TABLE, now=False)
