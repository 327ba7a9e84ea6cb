"""The state machine: Hypothesis draws histories from the actions of a ``SimulatedStore``.

A failing history is not printed as rules: each rule calls actions of a ``SimulatedStore``, which records them, and they
are left in ``FAILED``. The order of the rules' names determines the histories of a seed.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from simulation.crashes import DERIVED
from simulation.drafts import REST, REST_OVER, REST_SHORT
from simulation.modes import Fault, Medium, Mode
from simulation.recorder import Call
from simulation.simulated_store import SimulatedStore, quiet_and_inline
from simulation.situations import count_situation
from simulation.traps import CODES, CRASH_OPERATIONS, ERROR_OPERATIONS

from gantry_broker.store import crash_points

EQUAL_BYTES: Final = 300
"""The size of most bodies, so that many records have the same size."""

RECOVERY_CRASH_POINTS: Final = (
    crash_points.MID_REPLAY, crash_points.AFTER_REPLAY, crash_points.MID_TRUNCATION, crash_points.MID_RECOVERY,
    crash_points.AFTER_SYNC, crash_points.MID_POINT, crash_points.MID_CHECKPOINT,
)  # fmt: skip
WORK_CRASH_POINTS: Final = (
    crash_points.AFTER_APPEND, crash_points.MID_ROLL, crash_points.MID_COMMIT, crash_points.MID_RETURN,
    crash_points.AFTER_SYNC, crash_points.MID_POINT, crash_points.MID_CHECKPOINT,
)  # fmt: skip
REPLAY_CRASH_POINTS: Final = (crash_points.MID_REPLAY, crash_points.AFTER_REPLAY, crash_points.MID_TRUNCATION)
WORK_CALLS: Final = ("write", "sync", "sync", "create", "zero", "sync_directory")
"""Kinds of system calls that fail while the store works; a kind that is listed twice is drawn twice as often."""

REMOVAL_CALLS: Final = ("any", "remove", "sync", "sync_directory")
"""Kinds of system calls before which the process ends while the oldest files are deleted."""

is_waiting = st.sampled_from((False, False, True))
modes = st.builds(
    Mode, medium=st.sampled_from(Medium), is_sync=st.booleans(), is_ahead=st.booleans(), buffers=st.integers(2, 3),
    is_waiting=is_waiting,
)  # fmt: skip
replayed = st.builds(
    Mode, medium=st.sampled_from((Medium.CRASH_SAFE, Medium.MOVED)), is_sync=st.booleans(), is_ahead=st.booleans(),
    buffers=st.just(3), is_waiting=is_waiting,
)  # fmt: skip
sizes = st.lists(
    st.sampled_from((EQUAL_BYTES, EQUAL_BYTES, 0, 1, 100, 700, 1500, REST, REST_SHORT, REST_OVER, 4096)),
    min_size=1, max_size=5,
)  # fmt: skip
queues = st.integers(0, 2)
faults = st.sampled_from(Fault)
seeds = st.integers(0, 1 << 16)
damages = st.lists(st.sampled_from((*DERIVED, "power", "stale", "foreign")), max_size=3, unique=True)
power_faults = st.sampled_from([fault for fault in Fault if fault.is_power])
kill_points = st.sampled_from(crash_points.ALL)
recovery_places = st.sampled_from((*CRASH_OPERATIONS, *RECOVERY_CRASH_POINTS))
operations = st.sampled_from(CRASH_OPERATIONS)

FAILED: Final[list[Call]] = []
"""The actions of the last history that has failed."""


class StoreHistory(RuleBasedStateMachine):
    """One history of one store."""

    def __init__(self) -> None:
        super().__init__()
        self._patches: Final = ExitStack()
        self._patches.enter_context(quiet_and_inline())
        self.simulated: Final = SimulatedStore()

    @initialize(mode=modes)
    def begin(self, mode: Mode) -> None:
        self.simulated.reopen(mode)

    @rule(sizes=sizes, queue=queues, is_contiguous=st.booleans(), flags=st.sampled_from((0, 0, 0, 4)))
    def append(self, sizes: list[int], queue: int, is_contiguous: bool, flags: int) -> None:
        self.simulated.append(sizes, queue=queue, is_contiguous=is_contiguous, flags=flags)

    @rule(count=st.integers(1, 16), queue=queues)
    def append_equal(self, count: int, queue: int) -> None:
        for _ in range(count):
            self.simulated.append([EQUAL_BYTES], queue=queue)

    @rule(count=st.integers(1, 8), is_at_once=st.booleans())
    def refill(self, count: int, is_at_once: bool) -> None:
        self.simulated.refill(count, is_at_once=is_at_once)

    @rule(ms=st.sampled_from((0, 1, 200, 1_000, 10_000)), is_commit=st.booleans(), is_flush=st.booleans())
    def rounds(self, ms: int, is_commit: bool, is_flush: bool) -> None:
        self.simulated.rounds(ms, is_commit=is_commit, is_flush=is_flush)

    @rule()
    def commit(self) -> None:
        self.simulated.rounds(200, is_flush=False)

    @rule()
    def flush(self) -> None:
        self.simulated.flush()

    @rule(count=st.integers(0, 12), queue=queues, fault=faults, seed=seeds)
    def crash(self, count: int, queue: int, fault: Fault, seed: int) -> None:
        for _ in range(count):
            self.simulated.append([EQUAL_BYTES], queue=queue)
        self.simulated.crash(fault, seed)

    @rule(mode=modes, sizes=sizes, fault=power_faults, seed=seeds)
    def crash_after_a_busy_sync(self, mode: Mode, sizes: list[int], fault: Fault, seed: int) -> None:
        self.simulated.reopen(mode)
        self.simulated.append([EQUAL_BYTES])
        self.simulated.append_while_syncing(sizes)
        self.simulated.crash(fault, seed)

    @rule(fault=power_faults, seed=seeds, count=st.integers(1, 8), is_at_once=st.booleans(), again=faults)
    def crash_and_refill(self, fault: Fault, seed: int, count: int, is_at_once: bool, again: Fault) -> None:
        self.simulated.append([EQUAL_BYTES] * 3)
        self.simulated.crash(fault, seed)
        self.simulated.refill(count, is_at_once=is_at_once)
        self.simulated.crash(again, seed)

    @rule(mode=modes, before=damages, is_twice=st.booleans())
    def reopen(self, mode: Mode, before: list[str], is_twice: bool) -> None:
        self.simulated.reopen(mode, before=before, is_twice=is_twice)

    @rule(mode=modes, before=damages, what=recovery_places, countdown=st.integers(1, 8), fault=faults, seed=seeds)
    def die_reopening(self, mode: Mode, before: list[str], what: str, countdown: int, fault: Fault, seed: int) -> None:
        if self.simulated.store is not None:
            self.simulated.crash(Fault.KILL)
        self.simulated.crash_at(what, countdown, fault, seed)
        self.simulated.reopen(mode, before=before)

    @rule()
    def stop(self) -> None:
        self.simulated.stop()

    @rule(what=operations, countdown=st.integers(1, 12), fault=faults, seed=seeds, torn_bytes=st.integers(-1, 700))
    def die_at_call(self, what: str, countdown: int, fault: Fault, seed: int, torn_bytes: int) -> None:
        self.simulated.crash_at(what, countdown, fault, seed, torn_bytes if torn_bytes else -1)

    @rule(what=kill_points, countdown=st.integers(1, 3), fault=faults, seed=seeds)
    def die_at_point(self, what: str, countdown: int, fault: Fault, seed: int) -> None:
        self.simulated.crash_at(what, countdown, fault, seed)

    @rule(what=st.sampled_from(WORK_CRASH_POINTS), countdown=st.integers(1, 3), fault=faults, seed=seeds, mode=modes)
    def die_at_work(self, what: str, countdown: int, fault: Fault, seed: int, mode: Mode) -> None:
        self.simulated.reopen(mode)
        self.simulated.crash_at(what, countdown, fault, seed)
        for _ in range(10):
            self.simulated.append([EQUAL_BYTES])
        self.simulated.rounds(10_000)
        self.simulated.flush()

    @rule(
        what=st.sampled_from(REPLAY_CRASH_POINTS), countdown=st.integers(1, 2), fault=faults, seed=seeds, mode=replayed
    )
    def die_replaying(self, what: str, countdown: int, fault: Fault, seed: int, mode: Mode) -> None:
        self.simulated.reopen(mode)
        for _ in range(10):
            self.simulated.append([EQUAL_BYTES])
        self.simulated.crash(Fault.KILL_COPYING, seed)
        self.simulated.crash_at(what, countdown, fault, seed)
        self.simulated.reopen(mode)

    @rule(what=st.sampled_from(REMOVAL_CALLS), countdown=st.integers(1, 4), fault=faults, seed=seeds)
    def die_removing(self, what: str, countdown: int, fault: Fault, seed: int) -> None:
        for _ in range(10):
            self.simulated.append([EQUAL_BYTES])
        self.simulated.flush()
        self.simulated.crash_at(what, countdown, fault, seed)
        self.simulated.remove_head(2)

    @rule(what=st.sampled_from(ERROR_OPERATIONS), countdown=st.integers(1, 6), code=st.sampled_from(sorted(CODES)))
    def fail(self, what: str, countdown: int, code: str) -> None:
        self.simulated.fail_at(what, countdown, CODES[code])

    @rule(mode=modes, what=st.sampled_from(WORK_CALLS), countdown=st.integers(1, 3), fault=faults, seed=seeds)
    def fail_at_work(self, mode: Mode, what: str, countdown: int, fault: Fault, seed: int) -> None:
        self.simulated.reopen(mode)
        self.simulated.append([1500])
        self.simulated.fail_at(what, countdown, CODES["EIO"])
        for _ in range(6):
            self.simulated.append([EQUAL_BYTES])
        self.simulated.rounds(10_000)
        self.simulated.flush()
        self.simulated.crash(fault, seed)

    @rule(mode=replayed, fault=power_faults, count=st.integers(0, 3), what=st.sampled_from(("stale", "foreign")))
    def meet_foreign_buffer(self, mode: Mode, fault: Fault, count: int, what: str) -> None:
        self.simulated.reopen(mode)
        self.simulated.append([EQUAL_BYTES] * 3)
        self.simulated.keep_buffers()
        self.simulated.crash(fault)
        for _ in range(count):
            self.simulated.append([EQUAL_BYTES])
        self.simulated.reopen(mode, before=[what])

    @rule(pieces=st.sampled_from((0, 1, 2, 5, 1_000)))
    def acks(self, pieces: int) -> None:
        self.simulated.acks(pieces)

    @rule()
    def clear_acked(self) -> None:
        self.simulated.clear_acked()

    @rule(mode=modes, pieces=st.integers(0, 8), fault=faults, seed=seeds, again=modes)
    def crash_waiting(self, mode: Mode, pieces: int, fault: Fault, seed: int, again: Mode) -> None:
        self.simulated.reopen(mode._replace(is_waiting=True))
        for _ in range(6):
            self.simulated.append([EQUAL_BYTES])
        self.simulated.acks(pieces)
        self.simulated.rounds(10_000)
        self.simulated.append([EQUAL_BYTES] * 2)
        self.simulated.crash(fault, seed)
        self.simulated.reopen(again._replace(is_waiting=True))
        self.simulated.acks(pieces)

    @rule(length=st.integers(1, 600))
    def short_write(self, length: int) -> None:
        self.simulated.short_write(length)

    @rule(left=st.sampled_from((None, None, 0, 100, 4_096, 10_000)))
    def fill_disk(self, left: int | None) -> None:
        if left is None:
            self.simulated.free_disk()
        else:
            self.simulated.fill_disk(left)

    @rule(files=st.integers(1, 3))
    def remove_head(self, files: int) -> None:
        self.simulated.remove_head(files)

    @rule()
    def keep_buffers(self) -> None:
        self.simulated.keep_buffers()

    @rule(seed=seeds)
    def write_back(self, seed: int) -> None:
        self.simulated.write_back(seed)

    def teardown(self) -> None:
        """Run the final checks of a history, unless it has failed already."""
        try:
            if sys.exc_info()[0] is None:
                self.simulated.end_of_history()
                count_situation("history")
                FAILED.clear()
            else:
                FAILED[:] = self.simulated.history
        except BaseException:
            FAILED[:] = self.simulated.history
            raise
        finally:
            self.simulated.detach()
            self._patches.close()
