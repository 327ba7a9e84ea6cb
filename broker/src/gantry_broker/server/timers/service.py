"""Keeps timer messages of any delay, and delivers each when it is due: the service of the timer topic.

    send ------> rmq_sys_wheel_timer, queue 0 --read--> due files, by hour --load--> window --due--> its own topic
    recall ----> rmq_sys_wheel_timer, queue 0 --read-->       `- cancels a message before it is delivered

**The log decides.** The due files and the window follow from the timer topic, and are built again from it when they are
missing or damaged. Only the progress (`progress`) is stored beside the log, and is copied to slaves.

After a start or a promotion nothing is delivered before all messages from before it are read: one of them may be the
recall of another. A slave reads, and delivers nothing.

**Clock.** A message is due by the wall clock, as in RocketMQ, and never delivered before. A clock that is set forward
makes messages due. If it is set back, messages wait for the time that they name, those with a delay as well: their time
was fixed when they were stored. The delay levels differ, since they are defined by a duration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.server.timers.delivery import TimerDelivery
from gantry_broker.server.timers.due_files import HOUR_MS, DamagedDueFile, DueFiles
from gantry_broker.server.timers.due_index import BUFFERED_MAX, FLUSH_INTERVAL_S, SPLIT_AHEAD_MS, DueIndex
from gantry_broker.server.timers.entries import JAVA_PRECISION_MAX_MS, Entry, due_of, first_key
from gantry_broker.server.timers.java_progress import read_java_state, write_java_progress
from gantry_broker.server.timers.progress import TABLE, TimerProgress
from gantry_broker.server.timers.reader import TimerReader
from gantry_broker.server.timers.rolling import TimerRoller
from gantry_broker.server.timers.window import RUN_MAX, DueWindow
from gantry_wire import names

log = logging.getLogger(__name__)

TICK_S: Final = 0.05
"""The longest sleep: how late a message may be read, and so the shortest delay that is kept exactly."""
PAUSE_S: Final = 0.01
"""The shortest sleep: messages that are due within it are delivered together."""
FAILURE_PAUSE_S: Final = 1.0
"""The pause after the store has refused copies, or the disk an access to the due files."""
ROLL_INTERVAL_S: Final = 1.0
"""How often the oldest messages are checked for their age."""
FILES_TICK_S: Final = 0.2
"""How often the task of the due files checks what it has to do."""
LOOK_AHEAD_MS: Final = 10_000
"""The window is loaded this long before its end is due."""
HORIZON_MS: Final = 60_000
"""How far ahead messages are loaded, if there are few."""


@final
class TimerService:
    """The timers of one broker. Owned by the event loop; `run` and `run_files` are its tasks."""

    def __init__(self, core: BrokerCore) -> None:
        self.files: Final = DueFiles(core.disk, core.settings.store_path)
        self.progress: Final = TimerProgress(core, self._first_pending)
        self.window: Final = DueWindow()
        self.index: Final = DueIndex(self.files)
        self.reader: Final = TimerReader(core, self.progress, self.index, self.window)
        self.delivery: Final = TimerDelivery(core, self.progress, self.reader, self.window)
        self.roller: Final = TimerRoller(core, self.progress, self.reader, self.window)
        self.rounds = 0
        """The number of steps that found nothing more to do."""

        self._core: Final = core
        self._is_restart_needed = True
        self._is_caught_up = False
        self._promotion_end = 0
        """The end of the log when this broker became the master."""
        self._flush_at = 0.0
        self._roll_at = 0.0
        self._is_rebuild_needed = False
        self._wake_files: Final = asyncio.Event()
        self._passed_offset = 0
        """Messages before this queue offset are delivered; known at a stop only."""

    def __repr__(self) -> str:
        return f"<TimerService {self.reader!r} {self.window!r} {self.progress!r}>"

    # ------- events of the broker

    async def start(self) -> None:
        """Open the due files, after recovery and before the tasks start."""
        core = self._core
        self.progress.adopt(await run_in_thread(lambda: read_java_state(core.disk, core.settings.store_path)))
        indexed = await run_in_thread(self.files.open)
        if not self.reader.restore(indexed):
            log.warning("due files do not match the log; building them again", extra={"read": indexed.queue_offset})
            self._is_rebuild_needed = True
        core.persistence.mark(TABLE, now=False)  # RocketMQ's file may be damaged.

    async def close(self) -> None:
        """Find the first pending message, for a RocketMQ broker that takes over. Called when the tasks have ended."""
        if not self.is_ready:
            return
        with suppress(BrokerError):  # The queue is being rebuilt: RocketMQ then reads more messages, and loses none.
            self._passed_offset = await self.roller.find_pending(self.files.first_offset)

    def _first_pending(self) -> int:
        return max(self.files.first_offset, self._passed_offset)

    def save_progress(self, save: Callable[[dict[str, Any]], None], document: dict[str, Any]) -> None:
        """Write the document of the progress with ``save``, and RocketMQ's file. Called in a worker thread."""
        save(document)
        core = self._core
        write_java_progress(core.disk, core.settings.store_path, self.progress.java_progress(document))

    def on_log_changed(self, end: int) -> None:
        """Start again from the durable progress: the log ends at ``end`` now, or the role may have changed."""
        self.delivery.on_log_changed(end)
        self.reader.restart(self.reader.position)
        self._is_restart_needed = True
        self._is_caught_up = False

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master and may append to the log, which no other thread is changing."""
        return self._core.gate.may_append

    @property
    def is_ready(self) -> bool:
        """Whether everything from before the promotion is read, so that messages may be delivered or recalled."""
        return self.is_master and self._is_caught_up and not self._is_restart_needed

    def is_pending(self, entry: Entry) -> bool:
        """Whether a message of the timer topic is not delivered yet, and not about to be: call it when ready."""
        if entry.queue_offset >= self.reader.position or entry.encode() in self.reader.urgent:
            return True
        return not self.progress.state.is_passed(entry.due_ms, entry.queue_offset)

    def pending_count(self) -> int:
        """Return how many messages wait, without those of topics that are not counted."""
        return self.progress.pending.total()

    def runtime_info(self) -> dict[str, str | int]:
        """Return RocketMQ's figures about timers for `brokerStatus`."""
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        due_ms = self.delivery.next_due_ms()
        late_ms = 0 if due_ms is None else max(0, self._core.clock.wall_ms() - due_ms)
        return {
            "timerReadBehind": late_ms // 1000,
            "timerOffsetBehind": 0 if queue is None else max(0, queue.end - self.reader.position),
            "timerCongestNum": self.pending_count(),
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }

    # ------- the task that reads and delivers

    async def run(self) -> None:
        """Read the timer topic and deliver due messages, until cancelled."""
        while True:
            try:
                pause_s = self._step()
            except BrokerError as error:
                log.warning("failed to process timer messages; will retry", extra={"reason": str(error)})
                pause_s = FAILURE_PAUSE_S
            await asyncio.sleep(pause_s)

    def read_now(self) -> bool:
        """Read a slice of new messages. True if all are read, and messages may be delivered or recalled."""
        if self._core.gate.is_store_lent:
            return False
        if not self.is_master:
            self._is_restart_needed = True
        elif self._is_restart_needed:
            self._begin_term()
        # Checked before reading, since the dispatched position grows meanwhile.
        is_all_dispatched = self._core.store.dispatcher.dispatched >= self._promotion_end
        is_end = self.reader.read_slice(is_master=self.is_master)
        if is_end and is_all_dispatched and self.is_master and not self._is_rebuild_needed:
            self._is_caught_up = True
        return is_end and self.is_ready

    def _begin_term(self) -> None:
        """Start from the progress, since the log may have changed."""
        state = self.progress.state
        self.reader.restart(state.read)
        self.window.restart(state.last.due_ms, keeps_recalls=False)
        self._promotion_end = self._core.store.log.wrote
        self._is_restart_needed = self._is_caught_up = False

    def _step(self) -> float:
        """Do one slice of the work; return the pause after it in seconds."""
        if self._core.gate.is_store_lent:
            return TICK_S
        is_read = self.read_now()
        if not self.is_ready:
            is_idle = not self.is_master or self.reader.is_waiting or self.index.is_full
            return TICK_S if is_idle or self.reader.position >= self._readable_end() else 0
        if self.delivery.healed.offsets:
            self.delivery.deliver_healed()
        if self.delivery.deliver_slice():
            self._wake_files_if_needed()
            return 0
        if not is_read and not self.reader.is_waiting and not self.index.is_full:
            return 0
        if self._roll():
            return 0
        self._save_read_position()
        self._wake_files_if_needed()
        if is_read and self._is_empty:
            self.progress.pending.clear()
        self.rounds += 1
        due_ms = self.delivery.next_due_ms()
        wait_s = TICK_S if due_ms is None else (due_ms - self._core.clock.wall_ms()) / 1000
        return min(TICK_S, max(PAUSE_S, wait_s))

    def _roll(self) -> bool:
        """Store old messages again, if the last check is long enough ago. True if there may be more of them."""
        now = asyncio.get_running_loop().time()
        if now < self._roll_at:
            return False
        is_more = self.roller.step()
        self._roll_at = now if is_more else now + ROLL_INTERVAL_S
        return is_more

    def _readable_end(self) -> int:
        return self._core.readable_range(names.TIMER_TOPIC, 0)[1]

    def _save_read_position(self) -> None:
        """Record that further messages are read, so that a start does not read them again."""
        state, read = self.progress.state, self.reader.settled_position
        if read != state.read:
            self.progress.change(state._replace(read=read))

    # ------- the task of the due files

    async def run_files(self) -> None:
        """Flush, load and remove due files, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                is_more = await self._maintain_files(loop.time())
            except DamagedDueFile as error:
                log.error("due file is damaged; building all of them again from the log", extra={"reason": str(error)})
                self._is_rebuild_needed, is_more = True, True
            except OSError as error:
                log.warning("failed to access due files; will retry", extra={"reason": str(error)})
                await asyncio.sleep(FAILURE_PAUSE_S)
                continue
            if is_more:
                continue
            self._wake_files.clear()
            try:
                async with asyncio.timeout(FILES_TICK_S):
                    await self._wake_files.wait()
            except TimeoutError:
                continue

    async def _maintain_files(self, now: float) -> bool:
        """Do one piece of work on the due files. True if there may be more."""
        if self._is_rebuild_needed:
            await self._rebuild()
            return True
        self.window.forget_recalls_if_many(self._oldest_due_ms())
        now_ms = self._core.clock.wall_ms()
        if self.is_load_needed:
            read = self.reader.position
            await self.index.load(self.window, self.progress.state, read=read, horizon_ms=now_ms + HORIZON_MS)
            return True
        if self.index.is_split_needed(now_ms):
            await self.index.split_step(now_ms + SPLIT_AHEAD_MS)
            return True
        if self.index.buffered and (now >= self._flush_at or self.index.buffered >= BUFFERED_MAX):
            await self.index.flush(self.reader.indexed_position)
            self._flush_at = now + FLUSH_INTERVAL_S
            return True
        # The present state is behind the settled one if the clock was set back a moment ago.
        settled_ms = min(self.progress.settle_steps().last.due_ms, self.progress.state.last.due_ms)
        return await self.index.remove_before((settled_ms - JAVA_PRECISION_MAX_MS) // HOUR_MS)

    def _oldest_due_ms(self) -> int:
        """Return a time before which no undelivered message is due."""
        late, last_ms = self.reader.urgent.peek(), self.progress.state.last.due_ms
        return last_ms if late is None else min(last_ms, due_of(late))

    @property
    def is_load_needed(self) -> bool:
        """Whether the window ends soon, and has room."""
        ahead = first_key(self._core.clock.wall_ms() + LOOK_AHEAD_MS)
        return self.is_ready and self.window.covered < ahead and len(self.window) < RUN_MAX // 2

    @property
    def _is_empty(self) -> bool:
        """Whether no message is pending: all that were counted are read, and neither files nor memory have one."""
        if self.reader.position < self.progress.pending.read:
            return False
        return not (len(self.window) or len(self.reader.urgent) or self.index.buffered or not self.files.is_empty)

    def _wake_files_if_needed(self) -> None:
        if self.is_load_needed:
            self._wake_files.set()

    async def _rebuild(self) -> None:
        """Remove all due files and read the timer topic from its start; until then nothing is delivered."""
        self._is_caught_up = False
        await run_in_thread(self.files.remove_all)
        self.files.forget()
        self.index.clear()
        self.reader.restart(0)
        self.progress.pending.restart()
        self._is_restart_needed, self._is_rebuild_needed = True, False
