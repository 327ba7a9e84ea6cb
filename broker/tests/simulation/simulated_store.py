"""One store over many processes: the actions that a history is made of, each followed by its checks.

The actions (``append``, ``crash``, ``reopen``) work in any state: ``append`` on a store that is down opens it first,
``reopen`` of a store that is up kills it first. So any action of a history can be left out, and a failing history can
be pasted into a test as it was printed. Every action may be the last one of its process: a trap that an earlier
``crash_at`` has armed ends it in the middle (see ``traps``).

This module has the actions of a running process and of its machine; ``process`` has those that start and end one.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final
from unittest.mock import patch

from simulation.checks import check_keys, check_queues
from simulation.model import TooLarge
from simulation.modes import Fault
from simulation.process import Process
from simulation.recorder import action
from simulation.situations import count_situation
from simulation.traps import ArmedError, InlineExecutor, ProcessEnded

from gantry_broker.errors import LogReadOnly, MessageTooLarge, PoolExhausted, StoreFailed, StoreFull
from gantry_broker.store import next_file
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.write_buffer import BufferState, read_state
from gantry_testing.faulty_disk import DEFAULT_CAPACITY

SPACE_RETRY_MS: Final = 1_000


@final
class SimulatedStore(Process):
    """One store, its machine and its model, with all actions of a history."""

    def end_of_history(self) -> None:
        """Run the final checks: without traps the store opens twice, then after a power loss, and lacks nothing."""
        self.depth += 1
        self.traps.disarm()
        self.free_disk()
        self.reopen(self.mode, is_twice=True)
        assert self.store is not None, "the store does not open, without faults"
        self.crash(Fault.POWER)
        self.reopen(self.mode)
        self.acks(len(self.model.pieces))
        check_queues(self.store, self.model, self.model.end)
        check_keys(self.store, self.model, self.model.end)
        self.depth -= 1

    def detach(self) -> None:
        """Detach the traps from the crash points."""
        self.traps.detach()

    # -- sending -------------------------------------------------------------------------------------------------------

    @action
    def append(self, sizes: Sequence[int], *, queue: int = 0, is_contiguous: bool = False, flags: int = 0) -> None:
        """Append a batch of bodies, with sizes as in ``Sender.drafts``."""
        store = self.open_store()
        if store is not None:
            self._append(store, self.sender.drafts(store, sizes, queue, flags), is_contiguous=is_contiguous)

    @action
    def refill(self, count: int, *, is_at_once: bool) -> None:
        """Append messages of the same sizes as those that were cut last, in their place."""
        store = self.open_store()
        cut = [piece for piece in self.model.cut if not piece.is_blank][:count]
        if store is None or not cut:
            return
        for batch in [cut] if is_at_once else [[piece] for piece in cut]:
            if self.store is not store:
                return
            self._append(store, self.sender.drafts_like(store, batch), is_contiguous=False)
        count_situation("refilled after a cut")

    def _append(self, store: MessageStore, drafts: list[Draft], *, is_contiguous: bool, is_retry: bool = False) -> None:
        model, before = self.model, store.log.wrote
        is_too_large = False
        try:
            model.place(drafts, self.sender.now_ms, is_contiguous=is_contiguous)
        except TooLarge:
            is_too_large = True
        try:
            physical, offsets = store.append_contiguous(drafts) if is_contiguous else store.append(drafts)
        except ProcessEnded:
            count_situation("died in append")
            return
        except MessageTooLarge:
            assert is_too_large, "a message was refused that fits"
            model.refuse(store.log.wrote)
        except (StoreFull, LogReadOnly):
            assert self.is_failure_excused(), "a send was refused without a cause"
            model.refuse(store.log.wrote)
            self.was_refused = True
        except PoolExhausted:
            model.refuse(store.log.wrote)
            self._drain(store, drafts, is_retry=is_retry)
            return
        else:
            assert not is_too_large, "a message was accepted that does not fit"
            self._placed(physical, offsets)
            count_situation("rolled", store.log.wrote // model.file_size - before // model.file_size)
        self.check_running(store)

    def _placed(self, physical: Sequence[int], offsets: Sequence[int]) -> None:
        placed = [piece for piece in self.model.pending if not piece.is_blank]
        assert physical == [piece.start for piece in placed], "a message is not at the model's offset"
        assert offsets == [piece.queue_offset for piece in placed], "a queue offset is not the next one"
        self.model.accept()
        count_situation("a send was refused and space came back", self.was_refused)
        self.was_refused = False

    def _drain(self, store: MessageStore, drafts: list[Draft], *, is_retry: bool) -> None:
        """Run rounds of the commit thread until an exhausted pool has drained: then one message can be sent again."""
        assert not is_retry or self.is_failure_excused(), "an exhausted pool does not drain"
        for _ in range(2):
            self.clock.advance(200)
            if self._has_ended("commit or flush", store.commit_step):
                return
        if not is_retry:
            self._append(store, drafts[:1], is_contiguous=False, is_retry=True)
            count_situation("pool exhausted and drained")

    # -- work of the helper threads ------------------------------------------------------------------------------------

    @action
    def rounds(self, ms: int, *, is_commit: bool = True, is_flush: bool = True) -> None:
        """Let time pass, and run one round of the commit thread and one of the flush thread."""
        store = self.open_store()
        self.clock.advance(ms)
        if store is None or (is_commit and self._has_ended("commit or flush", store.commit_step)):
            return
        if is_flush and self._has_ended("commit or flush", store.flush_step):
            return
        if is_commit or is_flush:
            self._check_shown(store)
        self.check_running(store)

    @action
    def flush(self) -> None:
        """Flush all that was written now."""
        store = self.open_store()
        if store is None:
            return

        def flush() -> None:
            try:
                assert store.flush() == store.log.wrote == store.log.flushed
            except StoreFailed:
                assert self.is_failure_excused(), "a flush failed without a cause"
                count_situation("a flush failed")
            store.advance()

        if not self._has_ended("commit or flush", flush):
            self.check_running(store)

    @action
    def append_while_syncing(self, sizes: Sequence[int]) -> None:
        """Flush, and append and commit more when the bytes are synced and do not count as flushed yet."""
        store = self.open_store()
        if store is None:
            return

        def append_and_commit() -> None:
            self._append(store, self.sender.drafts(store, sizes, 0, 0), is_contiguous=False)
            if self.store is store and not self._has_ended("commit or flush", store.commit_step):
                count_situation("committed while a sync ran")

        def flush() -> None:
            try:
                store.flush()
            except StoreFailed:
                assert self.is_failure_excused(), "a flush failed without a cause"

        self.traps.at_sync = append_and_commit
        has_ended = self._has_ended("commit or flush", flush)
        self.traps.at_sync = None
        if not has_ended:
            self.check_running(store)

    @action
    def remove_head(self, files: int) -> None:
        """Delete the oldest files, as far as that is allowed.

        If the process dies while the begin of the log could not be recorded for lack of space, the deletion is reported
        as a loss. So no history has both.
        """
        store = self.open_store()
        if store is None:
            return
        error = self.traps.error
        if self.traps.crash is not None and error is not None and error.what == "write" and error.code != errno.EIO:
            self.traps.error = None

        def remove() -> None:
            removable = [one.end_offset for one in store.removal.describe_oldest_files() if one.is_removable][:files]
            offset = removable[-1] if removable else store.log.min_physical
            try:
                trims = store.removal.measure(offset)
                self.model.min_physical = max(self.model.min_physical, offset)
                store.removal.retire(offset, trims)
                store.removal.unlink()
            except OSError:
                assert self.is_failure_excused(), "a file could not be deleted without a cause"
            else:
                self.min_physical_low = self.model.min_physical
                count_situation("the head was removed", len(removable))

        if not self._has_ended("the removal", remove):
            self.check_running(store)

    def _has_ended(self, what: str, work: Callable[[], object]) -> bool:
        """Run ``work``, and return whether the process has ended in it."""
        try:
            work()
        except ProcessEnded:
            count_situation(f"died in {what}")
            return True
        return False

    def _check_shown(self, store: MessageStore) -> None:
        """Check that everything confirmed is visible after a round."""
        if self.is_failure_excused():
            return
        self.check_running(store)
        for consumer in self.consumers:
            confirmed = [piece for piece in self.model.of(consumer.queue) if piece.end <= store.positions.confirmed]
            assert not confirmed or consumer.shown_end >= confirmed[-1].end, f"{consumer.queue} was not read"
            queue = store.queues.get(*consumer.queue)
            assert not confirmed or (queue is not None and queue.readable_end > confirmed[-1].queue_offset), (
                f"{queue!r} does not show what it may"
            )

    # -- slaves --------------------------------------------------------------------------------------------------------

    @action
    def acks(self, pieces: int) -> None:
        """Let slaves acknowledge so many more pieces of the log; with 0 all slaves have disconnected."""
        store = self.open_store()
        if store is None or not self.mode.is_waiting:
            return
        more = [piece.end for piece in self.model.pieces if piece.end > self.acked][:pieces]
        self.acked = more[-1] if more else self.acked
        self.reported_acked = self.acked if pieces else -1
        store.positions.set_acked(self.reported_acked)
        count_situation("slaves' acks", len(more))
        self._show(store)

    @action
    def clear_acked(self) -> None:
        """Stop waiting for slaves, until they acknowledge again."""
        store = self.open_store()
        if store is None or not self.mode.is_waiting:
            return
        count_situation("slaves not waited for", self.reported_acked is not None)
        self.reported_acked = None
        if not self._has_ended("the showing", store.positions.clear_acked):
            self._show(store)

    def _show(self, store: MessageStore) -> None:
        if not self._has_ended("the showing", store.advance):
            self._check_shown(store)
            self.check_running(store)

    # -- the machine ---------------------------------------------------------------------------------------------------

    @action
    def fail_at(self, what: str, countdown: int, code: int) -> None:
        """Arm a trap: the ``countdown``-th system call ``what`` from now on fails with the errno ``code``."""
        self.traps.error = ArmedError(what, countdown, code)

    @action
    def short_write(self, length: int) -> None:
        """Let the next write accept only so many bytes."""
        count_situation("short write")
        self.disk.short_write(length)

    @action
    def fill_disk(self, left: int) -> None:
        """Leave only so many bytes free from now on."""
        count_situation("disk full")
        self.disk.capacity = self.disk.space("/").used + left

    @action
    def free_disk(self) -> None:
        """Restore the disk's free space, and wait for the next attempt."""
        self.disk.capacity = DEFAULT_CAPACITY
        self.clock.advance(SPACE_RETRY_MS)

    @action
    def write_back(self, seed: int) -> None:
        """Let the kernel write back a random part of the page cache."""
        self.disk.write_back(seed)

    @action
    def keep_buffers(self) -> None:
        """Copy the run_and_check buffers, so that they can be put back later."""
        for path, volume in self.volumes.items():
            if volume.is_crash_safe:
                pieces = (bytes(data) for data in volume.pieces.values())
                self.kept_buffers.extend(
                    (path, data) for data in pieces if read_state(memoryview(data)) is BufferState.LIVE
                )


@contextmanager
def quiet_and_inline() -> Iterator[None]:
    """Create the log's next files in the caller's thread, and silence the store's logger."""
    logger = logging.getLogger("gantry_broker.store")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with patch.object(next_file, "ThreadPoolExecutor", InlineExecutor):
            yield
    finally:
        logger.setLevel(level)
