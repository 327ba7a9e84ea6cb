"""The message store: it joins the parts, and has the operations that need several of them. See ``contract``.

It uses one directory, with RocketMQ's layout and small files of its own:

    commitlog/  consumequeue/<topic>/<queue>/  index/  checkpoint  abort  lock  recovery-point.json  store.json
    store.json.bak  log-heads.json  log-end  loss.json  flush-failed  set-aside/  config/

The layers above keep further files in it. ``lifecycle`` builds, opens and closes the parts, and ``log_changes`` changes
the log as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, final

from gantry_broker.errors import QueueRebuilding
from gantry_broker.ports.buffers import BufferVolume
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk
from gantry_broker.ports.real_buffers import open_volume as open_real_volume
from gantry_broker.store.append import append_batch, append_contiguous
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.contract import StoreContract
from gantry_broker.store.copying import LogCopier
from gantry_broker.store.damage import Damage, DamageState
from gantry_broker.store.derived_repair import DerivedRepair
from gantry_broker.store.dispatcher import QueuesListener
from gantry_broker.store.draft import Draft
from gantry_broker.store.identity import Epoch, OwnershipRange, StoreIdentity
from gantry_broker.store.key_search import KeySearch
from gantry_broker.store.lifecycle import StoreLifecycle
from gantry_broker.store.log_changes import accept_loss, change_epochs, discard_log, prepare_void, truncate_log
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.positions import LogPositions
from gantry_broker.store.reader import PropertiesFilter, ReadResult, ReadStatus, TagsCodeFilter, read_messages
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.scan_dispatcher import Progress, ScanDispatcher
from gantry_broker.store.settings import StoreSettings
from gantry_broker.store.time_search import TimeSearch


@final
class MessageStore(StoreContract):
    """The message store of one directory, which implements ``StoreContract``."""

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
        is_awaited: Callable[[], bool] = lambda: False,
        open_volume: Callable[[str], BufferVolume] = open_real_volume,
        memory_scope: str = "",
    ) -> None:
        """Create the store, which is not open yet.

        The thread that detects a permanent failure (``failure``) calls ``on_fatal``, once; any thread may call
        ``on_progress`` when ``advance`` has work. ``is_awaited`` returns whether consumers wait for messages that
        become visible only when they are committed. Memory that survives the process does so only in the same
        ``memory_scope``.
        """
        self.root = root
        self.settings = settings
        self.on_appended: list[QueuesListener] = []
        """Called with the queues that have new visible messages."""
        self.on_wrote: list[Callable[[], None]] = []
        """Called after each append, before slaves or the disk have it."""
        self._disk: Final = disk
        self._clock: Final = clock
        self._store_host: Final = store_host
        self._is_awaited: Final = is_awaited
        self._skipped_damage: list[tuple[int, int]] = []
        self._unplaced: set[int] = set()
        """Starts of the damaged ranges that a start or a copier has found before their messages had units."""
        self._given_up: set[int] = set()
        """Starts of those whose repair is not waited for."""
        lifecycle = self._lifecycle = StoreLifecycle(
            root, settings, disk=disk, clock=clock, listeners=self.on_appended, on_fatal=on_fatal,
            on_progress=on_progress, open_volume=open_volume, memory_scope=memory_scope,
        )  # fmt: skip
        self.log = lifecycle.log
        self.queues = lifecycle.queues
        self.dispatcher = lifecycle.dispatcher
        self.pools = lifecycle.pools
        self.losses = lifecycle.losses
        self.removal = lifecycle.removal
        self.has_index = lifecycle.index is not None
        self.positions = LogPositions(
            lifecycle.log, lifecycle.dispatcher, lifecycle.pools, is_sync_flush=settings.flush.is_sync
        )
        self.guard = LogGuard(lifecycle.log, self._seals, clock, heal_wait_ms=settings.heal_wait_ms)
        """Verifies records before they are read or sent to a slave."""
        lifecycle.removal.on_begin_moved.append(self.guard.damage.expire)
        self.times = TimeSearch(lifecycle.log, lifecycle.queues, self.guard)
        """Finds messages by their store time."""
        self.repair = DerivedRepair(
            disk, lifecycle.log, lifecycle.queues, lifecycle.index, lifecycle.dispatcher, self.guard, seals=self._seals,
            delay_levels_ms=settings.delay_levels_ms, monotonic_ms=clock.monotonic_ms,
            on_repaired=self._notify_repaired, request_point=lifecycle.point_writer.request_point,
        )  # fmt: skip
        """Rebuilds damaged queues and index files online."""
        self.keys = KeySearch(
            lifecycle.log, lifecycle.index, self.guard, self.repair, self._seals, settings.delay_levels_ms
        )  # fmt: skip
        """Finds messages by their keys."""
        self._is_flush_timed: Final = settings.flush.is_timed

    def __repr__(self) -> str:
        return f"<MessageStore {self.root} open={self._lifecycle.is_open} {self.log!r}>"

    def _seals(self, offset: int) -> OwnershipRange:
        return self._lifecycle.identity.ownership_at(offset)

    def _notify_repaired(self, queues: Collection[ConsumeQueue]) -> None:
        for listener in self.on_appended:
            listener(queues)

    # -- opening and closing -------------------------------------------------------------------------------------------

    def open(
        self,
        progress: Progress | None = None,
        *,
        is_flushing: bool = True,
        on_locked: Callable[[], None] = lambda: None,
        is_unconfirmed_hidden: bool = False,
    ) -> RecoveryReport:
        report = self._lifecycle.open(
            progress, is_flushing=is_flushing, on_locked=on_locked, is_unconfirmed_hidden=is_unconfirmed_hidden
        )
        self._skipped_damage = report.damaged
        self._unplaced = {start for start, _ in report.damaged}
        for start, end in report.damaged:
            if end <= self.log.wrote:
                self.guard.damage.report(start, end - start)  # healed as soon as a replica is connected
        return report

    def close(self) -> None:
        self.repair.reset()
        self._lifecycle.close(self.advance)

    def flush(self) -> int:
        return self._lifecycle.flusher.flush()

    def advance(self) -> bool:
        self.log.return_buffers()
        self.repair.queues.enqueue_shortened()
        is_done = not self.dispatcher.is_held or self.dispatcher.release(self.positions.confirmed)
        self.repair.place_deferred()
        return is_done

    @property
    def is_writable(self) -> bool:
        return self._lifecycle.is_open and not self.log.is_read_only

    @property
    def identity(self) -> StoreIdentity:
        return self._lifecycle.identity

    @property
    def is_log_discarded(self) -> bool:
        return self._lifecycle.is_log_discarded

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft]) -> tuple[Sequence[int], Sequence[int]]:
        commit_log = self.log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        placed = append_batch(commit_log, self.dispatcher, self._store_host, drafts, now_ms)
        self.wake_threads()
        return placed

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[Sequence[int], Sequence[int]]:
        commit_log = self.log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        placed = append_contiguous(commit_log, self.dispatcher, self._store_host, drafts, now_ms)
        self.wake_threads()
        return placed

    def note_answered(self) -> None:
        self._lifecycle.log_end.raise_to(self.log.wrote)

    def wake_threads(self) -> None:
        commit_log, lifecycle = self.log, self._lifecycle
        for listener in self.on_wrote:
            listener()
        if lifecycle.committer is not None:
            if commit_log.wrote - commit_log.committed >= lifecycle.committer.wake_bytes:
                lifecycle.committer.wake()
            elif self.dispatcher.is_held and self._is_awaited():
                lifecycle.committer.request_commit()
        flusher = lifecycle.flusher
        is_woken = flusher.is_awaited or not self._is_flush_timed
        if is_woken and commit_log.wrote - commit_log.flushed >= flusher.wake_bytes:
            flusher.wake()

    @property
    def is_flush_awaited(self) -> bool:
        return self._lifecycle.flusher.is_awaited

    def await_flushes(self, *, is_awaited: bool) -> None:
        self._lifecycle.flusher.await_flushes(is_awaited=is_awaited)

    def commit_step(self) -> None:
        """Run one round of the commit thread, for a store that was opened without threads."""
        if self._lifecycle.committer is not None:
            self._lifecycle.committer.step()
        self.advance()

    def flush_step(self) -> None:
        """Run one round of the flush thread and of the recovery point thread."""
        self._lifecycle.flusher.step()
        self._lifecycle.point_writer.step()
        self.advance()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        accept: TagsCodeFilter = None,
        want: PropertiesFilter = None,
        units_max: int | None = None,
    ) -> ReadResult:
        for is_last in (False, True):
            try:
                return read_messages(
                    self.log,
                    self.queues.get(topic, queue_id),
                    offset,
                    count_max=count_max,
                    bytes_max=bytes_max,
                    accept=accept,
                    check_lost_or_repair=self.repair.queues.check_lost_or_repair,
                    guard=self.guard,
                    known_end=self.repair.queues.known_end,
                    want=want,
                    units_max=units_max,
                )
            except QueueRebuilding:
                if is_last or not self.repair.queues.repair_now(topic, queue_id):
                    raise
        raise AssertionError("the second read has returned or raised")

    def delete_topic(self, topic: str, before: int | None = None) -> bool:
        queues = {queue for queue in self.queues if queue.topic == topic}
        end, dispatched = self.log.wrote if before is None else before, self.dispatcher.dispatched
        has_damage = bool(self.guard.damage.damaged)  # A replica may still have these messages.
        if not has_damage:
            self.queues.forget_deletions(dispatched, self.log.min_physical)
        # A master has a queue for each message that is not dispatched: the append or the promotion has created it.
        has_undispatched = (before is not None or has_damage) and dispatched < end
        if not self.queues.delete_topic(topic, end, has_undispatched=has_undispatched):
            return False
        self.dispatcher.drop_held_units(queues)
        self._lifecycle.point_writer.request_point()
        return True

    # -- a slave's side ------------------------------------------------------------------------------------------------

    def start_copying(self) -> LogCopier:
        levels_ms = self.settings.delay_levels_ms
        index = self._lifecycle.index
        index_batch = None if index is None else index.put_batch
        scan_dispatcher = ScanDispatcher(self.log, self.queues, index_batch, levels_ms, is_tracking_touched=True)
        self.dispatcher.hold()
        self.repair.is_copying = True
        copier = LogCopier(
            self.log, self.dispatcher, self.queues, scan_dispatcher, seals=self.identity.ownership_at,
            delay_levels_ms=levels_ms, damaged=self._unhealed_ranges, report_damaged=self.report_unplaced,
            end_of_damage=self.guard.end_of_damage,
        )  # fmt: skip
        copier.collect_undispatched()
        return copier

    def _unhealed_ranges(self, is_final: bool) -> list[tuple[int, int]]:
        """Return the damaged ranges that the start has skipped, and others that no replica repairs.

        With ``is_final`` also those that one may repair: units are made without them.
        """
        damaged = self.guard.damage.damaged
        known = {damage.start for damage in damaged}
        skipped = [(start, end) for start, end in self._skipped_damage if start in known]
        lost = [
            (damage.start, damage.end)
            for damage in damaged
            if damage.start in self._given_up
            or (damage.start in self._unplaced and (is_final or damage.state is not DamageState.HEALING))
        ]
        return sorted({*skipped, *lost})

    @property
    def unplaced_damage(self) -> list[Damage]:
        """The damaged ranges that may have messages with unknown queue offsets, and that a replica may have.

        A store that is a master's must not continue its queues before they are repaired: a new message could get such
        an offset.
        """
        return [
            damage
            for damage in self.guard.damage.damaged
            if damage.start in self._unplaced - self._given_up and damage.state is DamageState.HEALING
        ]

    def report_unplaced(self, offset: int) -> None:
        """Report a damaged record that is in no queue yet, so that it is repaired."""
        self._unplaced.add(offset)
        self.guard.damage.report(offset)

    def give_up_unplaced(self) -> None:
        """Continue the queues without the messages of ``unplaced_damage``. Those that are repaired may stay hidden."""
        self._given_up |= {damage.start for damage in self.unplaced_damage}

    def truncate(self, end: int, epochs: Sequence[Epoch] | None = None) -> int:
        self.repair.reset()
        self._forget_damage(end)
        return truncate_log(self._lifecycle, end, epochs)

    def discard_log(self, begin: int, epochs: Sequence[Epoch]) -> None:
        self.repair.reset()
        self._forget_damage(0)
        discard_log(self._lifecycle, begin, epochs)

    def _forget_damage(self, end: int) -> None:
        """Remove recorded damage after ``end``, where the log is truncated: other records will be copied there."""
        self.guard.damage.truncate(end)
        self._skipped_damage = [(start, min(stop, end)) for start, stop in self._skipped_damage if start < end]
        self._given_up = {start for start in self._given_up if start < end}
        self._unplaced = {start for start in self._unplaced if start < end}

    def change_epochs(self, epochs: Sequence[Epoch]) -> None:
        change_epochs(self._lifecycle, epochs)

    def accept_loss(self, by: str) -> int:
        self.repair.reset()
        return accept_loss(self._lifecycle, by, self._clock.wall_ms())

    def prepare_void(self, start: int) -> Callable[[], None]:
        return prepare_void(self._lifecycle, start, self.guard.end_of_damage(start))


__all__ = ["Draft", "MessageStore", "ReadResult", "ReadStatus", "RecoveryReport"]
