"""One store over its processes: the actions that start and end a process, and the checks that belong to them.

    reopen ... work ... crash | crash_at (a trap, in the middle of anything) | stop        reopen ...

An *action* is a method of the store that a history consists of and that is recorded (see ``recorder``). While the store
is down, ``guaranteed_end`` is the offset that the log must reach at least when it is opened next, by the rules in
``modes``. Everything else that recovery must restore is in the model: byte for byte, and nothing after
its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulation.checks import ROOT, Consumer, check_keys, check_log, check_queues, log_files
from simulation.crashes import apply_fault, put_back, remove_derived, undisturbed_log
from simulation.drafts import Sender, make_store
from simulation.model import Model, Queue
from simulation.modes import (
    SMALL,
    Fault,
    Mode,
    Positions,
    covers_acknowledged,
    covers_shown,
    guaranteed_end,
    new_volumes,
)
from simulation.recorder import HistoryRecorder, action
from simulation.situations import count_situation
from simulation.traps import ArmedCrash, ProcessEnded, Traps
from simulation.waiting_master import become_master, check_hidden

from gantry_broker.errors import StoreFailed, StoreFull, StoreUnusable
from gantry_broker.store.identity import LOG_END_MAX
from gantry_broker.store.message_store import MessageStore, RecoveryReport
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import DEFAULT_CAPACITY, FaultyDisk

PROCESS_MS: Final = 1_000
"""The time between two processes. Names of index files are times, which must differ."""


class Process(HistoryRecorder):
    """The store of a history, with the actions that start and end its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.disk: Final = FaultyDisk()
        self.volumes: Final = new_volumes()
        self.clock: Final = FakeClock()
        self.traps: Final = Traps()
        self.model: Final = Model(SMALL.mapped_file_size_commit_log)
        self.sender: Final = Sender(self.clock, self.model)
        self.consumers: Final = [Consumer(queue) for queue in self.sender.QUEUES]
        self.mode = Mode()
        """The mode in which the store was opened last."""
        self.store: MessageStore | None = None
        """The open store; None while it is down."""
        self.guaranteed_end = 0
        self.crashed_at, self.crashed_mode = Positions(0, 0, 0), self.mode
        """The positions and the mode of the last process when it ended."""
        self.acknowledged = 0
        """The offset before which all messages may have been acknowledged."""
        self.flushed = 0
        """The furthest flushed offset of the present process."""
        self.confirmed = 0
        """The furthest offset of the present log that was ever visible to consumers."""
        self.acked = 0
        """Up to where slaves have the log, in a mode that waits for them."""
        self.reported_acked: int | None = None
        """The acknowledgement that the store knows; None if it does not wait for slaves."""
        self.kept_buffers: Final[list[tuple[str, bytes]]] = []
        """(path, bytes) of buffers that were run_and_check when they were copied."""
        self.min_physical_low = 0
        """The begin of the log after the last complete removal or recovery: a start may find no lower one."""
        self.was_refused = False
        self._undisturbed: dict[int, bytes] | None = None
        """The log that a disturbed recovery must end with."""
        self._is_excused = False
        """Whether the disk was full, or an operation has failed, since the store was opened last."""
        self._errors_before = 0
        """The number of injected errors when the store was opened last."""
        self._is_aside_excused = False
        """Whether the next recovery may move write buffers aside, because the last fault has damaged the log."""
        self._foreign_volumes: set[str] = set()
        """Volumes into which stale or foreign buffers were put."""
        self._is_derived_lost = False
        """Whether queues or the recovery point were deleted, and with them the next offsets of empty queues."""
        self._recorded_ends: dict[Queue, int] = {}
        """The ends of deleted queues that the recovery point has."""
        self.traps.attach(self.disk)

    # -- opening -------------------------------------------------------------------------------------------------------

    def open_store(self) -> MessageStore | None:
        """Return the store, and open it in its last mode if it was down. None if it cannot be opened."""
        if self.store is None:
            self.reopen(self.mode)
        return self.store

    @action
    def reopen(self, mode: Mode, *, before: Sequence[str] = (), is_twice: bool = False) -> None:
        """Open the store in ``mode``, after each of the damages ``before`` to the files of the last process.

        A damage is a key of ``crashes.DERIVED``, ``power``, ``stale`` or ``foreign`` (old or foreign write buffers).
        With ``is_twice`` the recovery is repeated, and must change nothing.
        """
        if self.store is not None:
            self.crash(Fault.KILL)
        for what in before:
            self._damage_remains(what)
        if self.traps.crash is not None and self._undisturbed is None:
            self._undisturbed = undisturbed_log(self.disk, self.volumes, self.clock, mode, self.traps)
        if mode.medium is not self.mode.medium or mode.is_sync is not self.mode.is_sync:
            count_situation("mode changed at a reopen")
        self.mode = mode
        count_situation(f"mode: {mode}")
        self.clock.advance(PROCESS_MS)
        self.traps.revive()
        self._errors_before = self.traps.errors_met
        self._is_excused = False
        report = self._open()
        if report is not None and is_twice:
            with self.traps.paused():
                self._open_again(report)

    def _open(self) -> RecoveryReport | None:
        store = make_store(self.disk, self.volumes, self.clock, self.mode)
        # Without slaves a start makes everything visible that it finds, even if it dies before a consumer reads.
        self.reported_acked, self.confirmed = (-1, self.confirmed) if self.mode.is_waiting else (None, LOG_END_MAX)
        if self.reported_acked is not None:
            store.positions.set_acked(self.reported_acked)
        try:
            report = store.open(is_flushing=False, is_unconfirmed_hidden=self.mode.is_waiting)
        except ProcessEnded:
            count_situation("died in recovery")
            return None
        except (StoreUnusable, StoreFull):
            self._open_failed()
            return None
        self.store = store
        self._recovered(store, report)
        if self.mode.is_waiting and not self._become_master(store, report):
            return None
        self._opened(store, report)
        return report

    def _open_failed(self) -> None:
        assert self.is_failure_excused(), "the store cannot be opened, without a cause"
        count_situation("an open failed")
        self.end_process(Fault.KILL)
        self.disk.capacity = DEFAULT_CAPACITY  # or all further openings of the history would fail

    def _become_master(self, store: MessageStore, report: RecoveryReport) -> bool:
        """Become a master that waits for slaves. Return False if the process has ended meanwhile."""
        check_hidden(store, self.model, report.start, self.confirmed)
        try:
            become_master(store, is_new=not report.is_clean)
        except ProcessEnded:
            count_situation("died becoming a master")
            return False
        except (StoreFailed, StoreFull):
            self._open_failed()
            return False
        count_situation("hidden at an opening", report.start < report.end)
        return True

    def _open_again(self, first: RecoveryReport) -> None:
        """Repeat the recovery on what the first one has left, and check that it changes nothing."""
        before = log_files(self.disk)
        self.end_process(Fault.KILL)
        again = self._open()
        if again is not None:
            assert (again.end, again.cut_bytes, again.replayed_bytes, again.set_aside) == (first.end, 0, 0, [])
            assert log_files(self.disk) == before, "recovering twice gives other bytes"
            count_situation("recovered twice")

    def _damage_remains(self, what: str) -> None:
        with self.traps.paused():
            if what == "power":
                self.end_process(Fault.POWER)
            elif what in ("stale", "foreign"):
                self._foreign_volumes |= put_back(self.volumes, self.kept_buffers[-3:], is_foreign=what == "foreign")
                self._undisturbed = None
            else:
                self._remove_derived(what)

    def _remove_derived(self, what: str) -> None:
        point = RecoveryPointFile(self.disk, ROOT).read()
        if not remove_derived(self.disk, what) or what not in ("queues", "point"):
            return
        self._is_derived_lost, self._recorded_ends = True, {}
        if what == "queues" and point is not None:
            self._recorded_ends = {
                (topic, int(number)): end for topic, ends in point.queues.items() for number, end in ends.items()
            }

    def _recovered(self, store: MessageStore, report: RecoveryReport) -> None:
        """Check the log after a recovery, regardless of what is visible."""
        model = self.model
        self._count(report)
        assert report.end >= self.guaranteed_end, (
            f"the log ends at {report.end}, and must reach {self.guaranteed_end} in {self.mode}"
        )
        assert (report.damaged, report.lost_flushed_bytes) == ([], 0)
        is_excused = self._is_aside_excused or self._foreign_volumes
        assert is_excused or not report.set_aside, f"buffers were set aside: {report.set_aside}"
        assert (store.log.wrote, store.log.committed, store.log.flushed) == (report.end,) * 3
        assert self.min_physical_low <= store.log.min_physical <= model.min_physical
        count_situation("lost what was not promised", model.end > report.end)
        count_situation("a refilled cut met another crash", model.recover(report.end))
        model.min_physical = self.min_physical_low = store.log.min_physical
        if self._undisturbed is not None and self.traps.crash is None:
            assert log_files(self.disk) == self._undisturbed, "a crash in recovery has changed what it ends with"
            count_situation("converged after a crash in recovery")
        self._undisturbed = None
        check_log(self.disk, model)
        self.acknowledged = self.flushed = self.guaranteed_end = report.end
        self.crashed_at = Positions(report.end, report.end, report.end)
        self.acked = min(self.acked, report.end)
        self.confirmed = min(self.confirmed, report.end) if self.mode.is_waiting else report.end
        for consumer in self.consumers:
            consumer.go_back(model)

    def _opened(self, store: MessageStore, report: RecoveryReport) -> None:
        """Check queues and index after an opening, when messages can be sent."""
        model, shown = self.model, report.start if self.mode.is_waiting else report.end
        recorded = self._recorded_ends
        self.sender.adopt_empty_queue_ends(store, recorded, is_derived_lost=self._is_derived_lost)
        for consumer in self.consumers:
            consumer.go_back(model)  # again, since a queue that has lost everything has begun at 0
        check_queues(store, model, shown)
        if not self.is_failure_excused():
            check_keys(store, model, shown)
        self._is_aside_excused = self._is_derived_lost = False
        self._recorded_ends = {}
        self._foreign_volumes.discard(self.mode.medium.value)
        self.check_running(store)

    def _count(self, report: RecoveryReport) -> None:
        count_situation("replayed", report.replayed_records)
        count_situation("replayed over a roll", report.replayed_bytes > self.model.file_size)
        count_situation("cut", report.cut_bytes > 0)
        count_situation("set aside", len(report.set_aside))
        is_full = report.start == self.model.min_physical
        count_situation("read the whole log" if is_full else "started at a recovery point", not report.is_clean)

    # -- the end of a process ------------------------------------------------------------------------------------------

    @action
    def crash(self, fault: Fault, seed: int = 0) -> None:
        """End the process or the machine by ``fault``."""
        if self.open_store() is None:
            return
        count_situation(f"fault: {fault.name.lower()}")
        self.end_process(fault, seed)

    @action
    def crash_at(self, what: str, countdown: int, fault: Fault, seed: int = 0, torn_bytes: int = -1) -> None:
        """Arm a trap: at the ``countdown``-th ``what`` from now on, the process ends by ``fault``.

        ``what`` is a crash point or a kind of system call; of a write, ``torn_bytes`` are written first.
        """

        def end(where: str) -> None:
            count_situation(f"died at {where}")
            count_situation(f"fault: {fault.name.lower()}")
            self.end_process(fault, seed)

        self.traps.crash = ArmedCrash(what, countdown, end, torn_bytes)

    @action
    def stop(self) -> None:
        """Stop cleanly; a stop that fails must leave the abort marker."""
        store = self.open_store()
        if store is None:
            return
        try:
            store.close()
        except ProcessEnded:
            count_situation("died in a clean stop")
            return
        is_clean = not self.disk.exists(f"{ROOT}/abort")
        assert is_clean or self.is_failure_excused(), "a stop was not clean, without a cause"
        self.end_process(Fault.KILL)
        if is_clean:
            count_situation("clean stop")
            assert store.log.wrote == store.log.committed == store.log.flushed
            self.guaranteed_end = store.log.wrote
            self.crashed_at = Positions(store.log.wrote, store.log.wrote, store.log.wrote)

    def end_process(self, fault: Fault, seed: int = 0) -> None:
        """End the process by ``fault``, and compute what the next start must find."""
        store = self.store
        if store is not None:
            at = Positions(store.log.wrote, store.log.committed, store.log.flushed)
            self.crashed_at, self.crashed_mode = at, self.mode
            self._note_confirmed(store)
            self.guaranteed_end = guaranteed_end(self.mode, fault, at)
            if covers_acknowledged(self.mode, fault):
                assert self.acknowledged <= self.guaranteed_end, "an acknowledged message can be lost"
            if covers_shown(self.mode, fault):
                shown = max(consumer.shown_end for consumer in self.consumers)
                assert shown <= self.guaranteed_end, "a message that was shown can be lost"
        else:
            self.guaranteed_end = min(self.guaranteed_end, guaranteed_end(self.crashed_mode, fault, self.crashed_at))
        if fault not in (Fault.KILL, Fault.KILL_COPYING):
            self._undisturbed = None
        if fault.is_power or fault is Fault.KILL_BUFFERS_GONE:
            self._foreign_volumes.clear()
        self._is_aside_excused |= fault in (Fault.KILL_BUFFERS_GONE, Fault.KILL_COLD)
        self.store = None
        apply_fault(self.disk, self.volumes, self.model, fault, self.crashed_at, seed)
        if fault not in (Fault.KILL, Fault.KILL_COPYING):
            self.clock.reboot(0)  # some memory is lost: no store may expect what was in it

    # -- checks of a running store -------------------------------------------------------------------------------------

    def check_running(self, store: MessageStore) -> None:
        """Check what must hold after every action while the store is open."""
        assert store.log.wrote >= store.log.committed >= store.log.flushed >= self.flushed, repr(store)
        assert store.log.wrote == self.model.end, f"the log is at {store.log.wrote}, the model at {self.model.end}"
        self.flushed = store.log.flushed
        self._note_confirmed(store)
        self.acknowledged = max(self.acknowledged, store.positions.promised)
        if not store.is_writable:
            assert self.is_failure_excused(), "the log is read-only without a cause"
            count_situation("the log failed")
        for consumer in self.consumers:
            consumer.read(store, self.model, self.confirmed)

    def _note_confirmed(self, store: MessageStore) -> None:
        """Check that nothing is confirmed or promised that slaves lack, if it must wait for them."""
        furthest = max(store.positions.confirmed, store.positions.promised)
        assert self.reported_acked is None or furthest <= max(self.reported_acked, 0), f"{furthest} is at no slave"
        self.confirmed = max(self.confirmed, store.positions.confirmed)

    def is_failure_excused(self) -> bool:
        """Return whether a send, a flush or an open may fail, since a fault was injected since the last open."""
        self._is_excused |= self.disk.capacity < DEFAULT_CAPACITY or self.traps.errors_met > self._errors_before
        return self._is_excused
