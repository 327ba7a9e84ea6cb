"""The store's facade: open, append, read, look up, close.

One directory, laid out as RocketMQ lays it out, and small files of ours:

    commitlog/  consumequeue/<topic>/<queue>/  index/  checkpoint  abort  lock  recovery-point.json  store.json
    log-heads.json

The parts are in files of their own; this one joins them. ``open`` and ``close`` wait for the disk; nothing else does,
so everything else may run in the event loop's thread, and must. Threads move the positions meanwhile, and say so
through ``on_progress``; whoever gave it calls ``advance`` in the loop's thread, which acts on it. ``opening`` is how it
starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, final

from gantry_broker.errors import IndexRebuilding, QueueRebuilding, StoreCorrupt
from gantry_broker.ports.buffers import BufferVolume
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, write_fully
from gantry_broker.ports.real_buffers import open_volume as open_real_volume
from gantry_broker.store.append import append_batch, append_contiguous
from gantry_broker.store.confirm import Positions, confirmed_offset, promised_offset
from gantry_broker.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue, Tally
from gantry_broker.store.copying import LogCopier
from gantry_broker.store.derived_repair import DerivedRepair, IndexRepair
from gantry_broker.store.dispatcher import AppendedListener
from gantry_broker.store.draft import Draft
from gantry_broker.store.identity import Epoch, StoreIdentity, Stretch
from gantry_broker.store.integrity import Integrity
from gantry_broker.store.key_hash import key_hash
from gantry_broker.store.key_index import KeyMatches
from gantry_broker.store.life import StoreLife
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.loss import LossRecord
from gantry_broker.store.queue_repair import QueueRepair
from gantry_broker.store.reader import Accept, ReadResult, ReadStatus, Want, read_messages
from gantry_broker.store.record_dispatch import record_facts
from gantry_broker.store.record_taker import Progress, RecordTaker
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.settings import CONSUME_UNIT_BYTES, StoreSettings
from gantry_broker.store.standstill import accept_loss, change_epochs, cut_log, restart_log
from gantry_broker.store.time_search import earliest_time, offset_by_time, store_time
from gantry_broker.store.write_pool import PoolStatus
from gantry_wire.message import RECORD_BYTES_MIN, RecordFault, check_record

log = logging.getLogger(__name__)

QUEUE_OFFSET_MAX: Final = (1 << 63) // CONSUME_UNIT_BYTES - 1
"""A unit's place in its queue's files is a long, too."""


@final
class MessageStore:
    """A store directory in use by this process. All methods belong to the loop's thread."""

    def __init__(
        self,
        root: str,
        settings: StoreSettings,
        *,
        disk: Disk,
        clock: Clock,
        store_host: bytes,
        on_fatal: Callable[[Exception], None],
        on_progress: Callable[[], None] = lambda: None,
        open_volume: Callable[[str], BufferVolume] = open_real_volume,
        memory_scope: str = "",
    ) -> None:
        """``on_fatal`` is called once, when a write or a sync has failed, ``on_progress`` when ``advance`` has work.

        Both come from helper threads. Memory that outlives the process does so in the same ``memory_scope`` only.
        """
        self.root: Final = root
        self.settings: Final = settings
        self.on_appended: Final[list[AppendedListener]] = []
        """Called once per batch with the queues that have become longer for consumers."""
        self.is_awaited: Callable[[], bool] = lambda: False
        """Whether somebody waits for messages that are not shown before they are committed."""
        self.on_wrote: Callable[[], None] = lambda: None
        """Called after every append, in the same turn of the loop."""
        self.acked: int | None = None
        """Up to where enough slaves have the log; None where nobody waits for them."""
        self._taker: RecordTaker | None = None
        self._stepped_over: list[tuple[int, int]] = []
        self._disk: Final = disk
        self._clock: Final = clock
        self._store_host: Final = store_host
        self._life: Final = StoreLife(
            root, settings, disk=disk, clock=clock, listeners=self.on_appended, on_fatal=on_fatal,
            on_progress=on_progress, open_volume=open_volume, memory_scope=memory_scope,
        )  # fmt: skip
        self._log: Final = self._life.log
        self._queues: Final = self._life.queues
        self._index: Final = self._life.index
        self._dispatcher: Final = self._life.dispatcher
        self._flusher: Final = self._life.flusher
        self._points: Final = self._life.points
        self._pools: Final = self._life.pools
        self._is_flush_woken: Final = settings.flush.is_sync or not settings.flush.is_timed
        self.guard: Final = LogGuard(
            self._log, lambda offset: self._life.identity.ours_from(offset), clock, heal_wait_ms=settings.heal_wait_ms
        )
        """By which everything is verified that leaves the log."""

        self.removal: Final = self._life.removal
        """How the oldest files are deleted, for whoever decides it."""
        self.repair: Final = self._make_repair()
        """What rebuilds queues and index where they are found wrong; whoever serves gives it turns."""
        self.guard.on_healed = self._healed
        self.on_healed_record: Final[list[Callable[[str, int], None]]] = []
        """Called with topic and place of each record that was damaged, and is good again."""

    def __repr__(self) -> str:
        return f"<MessageStore {self.root} open={self._life.is_open} {self._log!r}>"

    def _make_repair(self) -> DerivedRepair:
        levels_ms, clock = self.settings.delay_levels_ms, self._clock
        queues = QueueRepair(
            self._log, self._queues, seals=self._seals, deleted=self._deleted, delay_levels_ms=levels_ms,
            monotonic_ms=clock.monotonic_ms, repaired=self._repaired, request_point=self._points.request_point,
        )  # fmt: skip
        if self._index is None:
            return DerivedRepair(queues, None)
        index = IndexRepair(
            self._disk, self._log, self._queues, self._index, self._dispatcher, seals=self._seals,
            deleted=self._deleted, delay_levels_ms=levels_ms, monotonic_ms=clock.monotonic_ms,
            request_point=self._points.request_point,
        )  # fmt: skip
        return DerivedRepair(queues, index)

    def _healed(self, start: int, end: int) -> None:
        """``[start, end)`` of the log is good again: queues that were built while it was not get what they lack."""
        self.repair.queues.forget_lost(start, end)
        view = self.log_view(start)[: end - start]
        touched: set[ConsumeQueue] = set()
        position = 0
        for stop in self.guard.record_ends(view, start):
            facts = record_facts(view, position, stop - position, self.settings.delay_levels_ms)
            for listener in self.on_healed_record:
                listener(facts.topic, start + position)
            queue = self._queues.get(facts.topic, facts.queue_id)
            number = facts.queue_offset
            is_wanted = facts.is_queued and start + position >= self._points.deleted.get(facts.topic, -1)
            if queue is not None and is_wanted and queue.min_offset <= number < queue.readable_end:
                unit = queue.unit(number)
                if unit is not None and unit[1] == FILLER_SIZE:
                    queue.replace_unit(number, UNIT.pack(start + position, stop - position, facts.tags_code))
                    touched.add(queue)
            position = stop
        if touched:
            self._repaired(touched)

    def _seals(self, offset: int) -> Stretch:
        return self.identity.ours_from(offset)

    def _deleted(self) -> Mapping[str, int]:
        return self._points.deleted

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(
        self,
        progress: Progress | None = None,
        *,
        is_flushing: bool = True,
        on_locked: Callable[[], None] = lambda: None,
        is_tail_hidden: bool = False,
    ) -> RecoveryReport:
        """Lock, recover, and be ready. Waits for the disk; ``progress(done, total)`` is told of bytes read.

        ``on_locked`` is called as soon as the directory is ours, before anything in it is read.

        Raises ``StoreLocked``, ``StoreMismatch``, ``StoreFull``, ``ConfigCorrupt`` or ``StoreUnusable``. Without
        ``is_flushing`` no threads run, for tests and tools that call ``commit_step`` and ``flush_step`` themselves.
        With ``is_tail_hidden`` consumers see only what the recovery point knows as shown; ``start_copying`` goes on.
        """
        report = self._life.open(progress, is_flushing=is_flushing, on_locked=on_locked, is_tail_hidden=is_tail_hidden)
        self._stepped_over = report.damaged
        for start, end in report.damaged:
            if end <= self.wrote:
                self.guard.report(start, end - start)  # and so healed as soon as a replica is connected
        return report

    def _damaged_since_start(self) -> list[tuple[int, int]]:
        """What the start has stepped over and no replica has given yet."""
        known = {damage.start for damage in self.guard.damaged}
        return [(start, end) for start, end in self._stepped_over if start in known]

    def close(self) -> None:
        """Stop cleanly: no more appends, commit and flush everything, remove the abort marker, let go of all files.

        If a flush fails or has failed, the marker stays, and the next start recovers.
        """
        self.repair.forget()
        self._life.close(self.advance)

    @property
    def identity(self) -> StoreIdentity:
        """Who this store is, and who wrote which part of its log."""
        return self._life.identity

    def advance(self) -> bool:
        """Act on what the threads have done: buffers go back, consumers see what is confirmed now.

        False when there was no room to show all of it: call again, later.
        """
        self._log.return_buffers()
        self.repair.queues.take_shortened()
        return not self._dispatcher.is_held or self._dispatcher.release(self.confirmed)

    # -- missing ranges ------------------------------------------------------------------------------------------------

    @property
    def loss(self) -> LossRecord:
        """What is missing in the log and was not accepted, and what was."""
        return self._life.loss

    @property
    def is_restarted(self) -> bool:
        """Whether the log was thrown away since this start, and copied anew."""
        return self._life.is_restarted

    def check_missing(self) -> bool:
        """Whether something is still missing, after bytes were fetched. Waits for the disk."""
        return self._life.check_missing()

    def forget_missing(self) -> None:
        """Everything that a master has is here: nothing is missing at the end any more. Waits for the disk."""
        self._life.forget_missing_end()

    def accept_loss(self, by: str) -> int:
        """Go on without what is missing, behind the vouched end; where the log ends then. Waits for the disk."""
        self.repair.forget()
        return accept_loss(self._life, by, self._clock.wall_ms())

    # -- positions -----------------------------------------------------------------------------------------------------

    @property
    def min_physical(self) -> int:
        """The first byte of the log that is still there."""
        return self._log.min_physical

    @property
    def wrote(self) -> int:
        return self._log.wrote

    @property
    def committed(self) -> int:
        return self._log.committed

    @property
    def flushed(self) -> int:
        return self._log.flushed

    @property
    def promised(self) -> int:
        """Records that end at or before it may be acknowledged."""
        return promised_offset(self._positions, is_sync_flush=self.settings.flush.is_sync)

    @property
    def confirmed(self) -> int:
        """How far consumers may see."""
        return confirmed_offset(
            self._positions,
            is_sync_flush=self.settings.flush.is_sync,
            is_crash_safe=self._pools.status.is_crash_safe,
        )

    @property
    def _positions(self) -> Positions:
        return Positions(self._log.wrote, self._log.committed, self._log.flushed, self.acked)

    def wait_for_slaves(self, acked: int) -> None:
        """Nothing is promised or confirmed beyond ``acked``, up to where enough slaves have the log."""
        self.acked = acked
        self._dispatcher.hold()

    def wait_for_nobody(self) -> None:
        """Slaves are not waited for any more: what their acks alone held back is promised, and confirmed."""
        self.acked = None
        if not self._is_held_here and self._dispatcher.release(self._log.wrote):
            self._dispatcher.release(self._log.wrote, keep_holding=False)

    @property
    def _is_held_here(self) -> bool:
        """Whether consumers see less than what is written, whatever slaves have."""
        return self.settings.flush.is_sync or not self._pools.status.is_crash_safe

    @property
    def pool_status(self) -> PoolStatus:
        """The write buffers in one look."""
        return self._pools.status

    @property
    def sync_count(self) -> int:
        """How many times a file of the log was synced since the start."""
        return self._log.sync_count

    @property
    def dispatched(self) -> int:
        return self._dispatcher.dispatched

    @property
    def is_behind(self) -> bool:
        """Whether confirmed messages could not be shown for want of room."""
        return self._dispatcher.is_behind

    @property
    def last_timestamp_ms(self) -> int:
        """The store time of the newest message."""
        return self._log.last_timestamp_ms

    @property
    def is_next_file_wanted(self) -> bool:
        """Whether the log's current file is half full and the next one could not be made."""
        return self._log.is_next_file_wanted

    def make_next_file(self) -> None:
        """Have the log's next file made in the background, since there is room again."""
        self._log.preallocate()

    @property
    def integrity(self) -> Integrity:
        """What is known of damage to the log."""
        damaged, counters = self.guard.damaged, self.guard.counters
        return Integrity(
            damaged_records=len(damaged),
            damaged_bytes=sum(damage.end - damage.start for damage in damaged),
            damaged_records_found=counters.found,
            healed_records=counters.healed,
            lost_records=counters.lost,
        )

    @property
    def is_writable(self) -> bool:
        return self._life.is_open and not self._log.is_read_only

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it does not exist. Raises ``ValueError`` for a name that cannot be a topic's."""
        return self._queues.get_or_create(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it exists."""
        return self._queues.get(topic, queue_id)

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def topics(self) -> dict[str, list[int]]:
        """Topics that have queues, with the queue ids in order."""
        return self._queues.topics()

    def idle_queues(self) -> Iterator[ConsumeQueue]:
        """Queues that had messages and have none any more: all that they held has expired."""
        for queue in self._queues:
            if queue.end == queue.readable_end > 0:
                last = queue.unit(queue.end - 1)
                if last is None or last[0] < self._log.min_physical:
                    yield queue

    def set_start_offset(self, topic: str, queue_id: int, offset: int) -> bool:
        """Let a queue that has never had a message begin at ``offset``. False where it has, or goes on there anyway.

        Raises ``StoreFull``, and ``ValueError`` for what cannot be a queue or a number.
        """
        if not 0 <= offset <= QUEUE_OFFSET_MAX:
            raise ValueError(f"{offset} is not the number of a message")
        queue = self._queues.get_or_create(topic, queue_id)
        if queue.files.files or not queue.min_offset == queue.end < offset:
            return False
        queue.set_start_offset(offset)
        return True

    def read_in_order(self, is_expected: bool) -> None:
        """Whether reading ahead is worth while in the log: not where consumers look at old messages here and there."""
        self._log.files.read_in_order(is_expected)

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """What was appended to each topic since this start. Read only."""
        return self._queues.tallies

    def delete_topic(self, topic: str, before: int | None = None) -> bool:
        """Drop all queues of a topic; its messages stay in the log until they expire. False if it has none.

        A slave hears of it later: messages behind ``before`` are of a topic that was made again.
        """
        queues = {queue for queue in self._queues if queue.topic == topic}
        if not self._queues.delete_topic(topic):
            return False
        self._dispatcher.forget(queues)
        self._points.deleted = {**self._points.deleted, topic: self._log.wrote if before is None else before}
        if self._taker is not None:
            self._taker.deleted = self._points.deleted
        self._points.request_point()
        return True

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """Append a batch: (physical offsets, queue offsets). All or nothing.

        Raises ``StoreFull``, ``PoolExhausted``, ``LogReadOnly`` or ``MessageTooLarge``.
        """
        commit_log = self._log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        placed = append_batch(commit_log, self._dispatcher, self._store_host, drafts, now_ms)
        self._wake_threads()
        return placed

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """As ``append``, with all records in one file."""
        commit_log = self._log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        placed = append_contiguous(commit_log, self._dispatcher, self._store_host, drafts, now_ms)
        self._wake_threads()
        return placed

    def note_answered(self) -> None:
        """All that is written counts as stored, though not flushed: a sender was answered that did not wait."""
        self._life.log_end.raise_to(self._log.wrote)

    def appended_elsewhere(self) -> None:
        """A ``LogCopier`` has appended: the helper threads may have work."""
        self._wake_threads()

    def _wake_threads(self) -> None:
        """Let the threads begin that somebody waits for, or that have enough to do; and the slaves."""
        commit_log = self._log
        self.on_wrote()
        if self._life.committer is not None:
            if commit_log.wrote - commit_log.committed >= self._life.committer.wake_bytes:
                self._life.committer.wake()
            elif self._dispatcher.is_held and self.is_awaited():
                self._life.committer.want()
        if self._is_flush_woken and commit_log.wrote - commit_log.flushed >= self._flusher.wake_bytes:
            self._flusher.wake()

    def flush(self) -> int:
        """Wait until everything written is on the disk; up to where. Raises ``StoreFailed``. Not for the loop."""
        return self._flusher.flush()

    def commit_step(self) -> None:
        """One round of the commit thread, for whoever opened without threads."""
        if self._life.committer is not None:
            self._life.committer.step()
        self.advance()

    def flush_step(self) -> None:
        """One round of the flush thread and of the one that writes recovery points."""
        self._flusher.step()
        self._points.step()
        self.advance()

    # -- dispatch ------------------------------------------------------------------------------------------------------

    def hold_dispatch(self) -> None:
        """From now on messages are stored, but shown to consumers only by ``release_dispatch``."""
        self._dispatcher.hold()

    def release_dispatch(self, confirmed: int) -> None:
        """Show every message that ends at or before the physical offset ``confirmed``."""
        self._dispatcher.release(confirmed)

    def stop_holding_dispatch(self) -> None:
        """Show everything, and show what comes at once."""
        self._dispatcher.release(self._log.wrote, keep_holding=False)

    # -- a slave's side ------------------------------------------------------------------------------------------------

    def start_copying(self) -> LogCopier:
        """Become a slave's store: records come from a master now, by way of what is returned, and no other."""
        levels_ms = self.settings.delay_levels_ms
        taker = RecordTaker(self._disk, self._log, self._queues, self._index, levels_ms)
        taker.deleted = self._points.deleted
        self._taker = taker
        self._dispatcher.hold()
        copier = LogCopier(
            self._log, self._dispatcher, self._queues, taker, seals=self.identity.ours_from,
            delay_levels_ms=levels_ms, damaged=self._damaged_since_start,
        )  # fmt: skip
        copier.take_over()
        return copier

    def cut(self, end: int, epochs: Sequence[Epoch] | None = None) -> int:
        """Let the log end at ``end``, durably; how many bytes were cut. See ``standstill``, also for the other two.

        All three wait for the disk, and afterwards nothing is as it was: whoever copies begins with ``start_copying``.
        """
        self.repair.forget()
        self._forget_damage(end)
        return cut_log(self._life, end, epochs)

    def restart(self, begin: int, epochs: Sequence[Epoch]) -> None:
        """Throw everything away, and begin anew at ``begin``, where a log file begins."""
        self.repair.forget()
        self._forget_damage(0)
        restart_log(self._life, begin, epochs)

    def _forget_damage(self, end: int) -> None:
        """Remove recorded damage behind ``end``, where the log is cut: records that are copied there are good."""
        self.guard.cut(end)
        self._stepped_over = [(start, min(stop, end)) for start, stop in self._stepped_over if start < end]

    def change_epochs(self, epochs: Sequence[Epoch]) -> None:
        """From now on the log has this history, on the disk, too."""
        change_epochs(self._life, epochs)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        accept: Accept = None,
        want: Want = None,
        units_max: int | None = None,
    ) -> ReadResult:
        """Messages of a queue from ``offset`` on; see ``reader``.

        Raises ``QueueRebuilding`` while the unit of ``offset`` is rebuilt. Most rebuilds take one step, which is taken
        at once.
        """
        for is_last in (False, True):
            try:
                return read_messages(
                    self._log,
                    self._queues.get(topic, queue_id),
                    offset,
                    count_max=count_max,
                    bytes_max=bytes_max,
                    accept=accept,
                    doubt=self.repair.queues.is_lost,
                    guard=self.guard,
                    known_end=self.repair.queues.known_end,
                    want=want,
                    units_max=units_max,
                )
            except QueueRebuilding:
                if is_last or not self.repair.queues.repair_now(topic, queue_id):
                    raise
        raise AssertionError("the second read has returned or raised")

    def _repaired(self, queues: Collection[ConsumeQueue]) -> None:
        for listener in self.on_appended:
            listener(queues)

    def log_view(self, offset: int) -> memoryview:
        """The log from ``offset`` on, as far as it lies in one piece of memory; empty where there is none.

        Not to be kept: the memory may go to somebody else with the next ``advance``.
        """
        extent = self._log.at(offset)
        if extent is None or not self._log.min_physical <= offset < self._log.wrote:
            return memoryview(b"")
        end = min(extent.end_offset, self._log.wrote)
        return extent.view[offset - extent.base_offset : end - extent.base_offset]

    def forget_sums(self) -> None:
        """Know no sums of queues any more, as after a start: everything is verified record by record again."""
        for queue in self._queues:
            queue.forget_sums()

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        """Verified records from ``offset`` on: as many as fit, at least one, of those that lie in one extent.

        Empty at the log's end, and where the record at ``offset`` is damaged.
        """
        return self.guard.whole_records(offset, bytes_max)

    def rewriting(self, offset: int, data: bytes) -> Callable[[], None]:
        """What writes ``data`` over the log at ``offset``, durably, to be called in a worker thread.

        The loop's half is done at once: a write buffer that holds the range has it. Raises ``StoreCorrupt`` where the
        log has no such range in one file; what is returned raises ``OSError``.
        """
        file, end = self._log.files.at(offset), offset + len(data)
        if file is None or not self._log.min_physical <= offset < end <= min(self._log.wrote, file.end_offset):
            raise StoreCorrupt(offset, "the log has no such range any more")
        base, path, disk = file.base_offset, file.path, self._disk
        if file.buffer is not None and end > file.buffer.start:
            first = max(offset, file.buffer.start)
            file.buffer.view[first - base : end - base] = data[first - offset :]

        def rewrite() -> None:
            # A descriptor of its own: the log's may be closed meanwhile, and its number given to another file.
            target = disk.open(path)
            try:
                target.reserve(end - base)
                write_fully(target, data, offset - base)
                target.sync()
            finally:
                target.close()

        return rewrite

    def newest(self, offset: int) -> bytes:
        """Everything from ``offset`` to the log's end, if that was appended last, in one piece; empty otherwise."""
        return self._log.newest(offset)

    def message_at(self, physical_offset: int, *, is_known: bool = False) -> bytes | None:
        """The whole record at ``physical_offset``, verified, or None.

        A damaged one is reported, and so fetched from a replica. ``is_known`` says that a record begins there; without
        it the place may be a client's word, and must look like the begin of a record that lies in no other one.
        """
        extent = self._log.at(physical_offset)
        if extent is None or not self._log.min_physical <= physical_offset < self._log.wrote:
            return None
        guard = self.guard
        self._log.demand_own(physical_offset)
        position, size = physical_offset - extent.base_offset, guard.size_at(physical_offset)
        # A copy: what is verified must be what is given away.
        data = bytes(extent.view[position : position + max(size, RECORD_BYTES_MIN)])
        is_sealed = self.identity.is_ours(physical_offset)
        check = check_record(data, 0, physical_offset=physical_offset, is_sealed=is_sealed)
        if check.is_good:
            return data
        looks_like_one = check.fault in (RecordFault.CRC, RecordFault.SEAL)
        if is_known or (looks_like_one and guard.record_around(physical_offset) == physical_offset):
            guard.report(physical_offset)
        return None

    @property
    def has_index(self) -> bool:
        """Whether messages can be found by their keys."""
        return self._index is not None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """A queue offset by store time; see ``time_search``. 0 for a queue that does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else offset_by_time(self._log, self.guard, queue, timestamp_ms, is_upper=upper)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """The store time of a queue's first message, or -1."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else earliest_time(self._log, self.guard, queue)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of one message, or -1."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else store_time(self._log, self.guard, queue, offset)

    def key_matches(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Where records are that may carry ``key``, newest first, and how far the index has come."""
        index = self._index
        if index is None:
            return KeyMatches([], 0, 0)
        was_behind = index.is_behind
        matches = index.find(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
        value, kept = key_hash(topic, key), []
        for physical in matches.physical_offsets:
            if self._is_indexed_right(physical, value):
                kept.append(physical)
            else:
                index.distrust_entry(physical, f"an entry leads to {physical}, where no message has its key")
        if index.is_behind and not was_behind:
            for listener in self.repair.on_damage:
                listener()
        return matches._replace(physical_offsets=kept, is_complete=not index.is_behind)

    def _is_indexed_right(self, physical: int, value: int) -> bool:
        """Whether the record at ``physical`` has a key with this hash, or is rotten: that is not the index's fault."""
        extent = self._log.at(physical)
        if physical < self._log.min_physical or physical >= self._log.wrote or extent is None:
            return physical < self._log.min_physical
        self._log.demand_own(physical)
        position, is_sealed = physical - extent.base_offset, self.identity.is_ours(physical)
        check = check_record(extent.view, position, physical_offset=physical, is_sealed=is_sealed)
        if not check.is_good:
            return check.fault in (RecordFault.CRC, RecordFault.SEAL)
        facts = record_facts(extent.view, position, check.size, self.settings.delay_levels_ms)
        return any(key_hash(facts.topic, key) == value for key in facts.keys)

    def query_keys(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[bytes], int, int]:
        """Records that may carry ``key`` (equal hashes come along), and how far the index has come: time, offset.

        Raises ``IndexRebuilding`` where there may be more.
        """
        matches = self.key_matches(topic, key, count_max, begin_ms, end_ms)
        if not matches.is_complete:
            raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
        records = [record for offset in matches.physical_offsets if (record := self.message_at(offset)) is not None]
        return records, matches.last_timestamp_ms, matches.last_physical


__all__ = ["Draft", "MessageStore", "ReadResult", "ReadStatus", "RecoveryReport"]
