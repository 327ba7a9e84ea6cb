"""Histories that cannot fail prove nothing: with a safeguard removed, each of these must fail.

Every directed history holds with the safeguard, which is tested, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from simulation import sabotage
from simulation.explore import live, replay_history, run_histories
from simulation.life import Life
from simulation.modes import Fault, Medium, Mode

SAFE = Mode(Medium.CRASH_SAFE)
SYNC = Mode(is_sync=True)
WAITING = Mode(is_waiting=True)


def torn_and_refilled(life: Life) -> None:
    """A tail is torn, messages of the same sizes replace a part of it, and the process crashes again."""
    for seed in range(12):
        life.append([300])
        life.flush()
        life.append([300, 300, 300, 300, 300])
        life.crash(Fault.POWER_HOLE, seed)
        life.refill(1, is_at_once=True)
        life.crash(Fault.KILL)


def older_buffer_comes_back(life: Life) -> None:
    """The log was continued, and a copy of an older buffer is found with it."""
    life.reopen(SAFE)
    life.append([300, 300, 300])
    life.keep_buffers()
    life.crash(Fault.POWER)
    life.append([300])
    life.reopen(SAFE, before=["stale"])


def killed_before_the_commit(life: Life) -> None:
    life.reopen(SAFE)
    life.append([300])
    life.crash(Fault.KILL)


def power_lost_before_the_flush(life: Life) -> None:
    life.reopen(SYNC)
    life.append([300])
    life.rounds(200, is_flush=False)
    life.crash(Fault.POWER)


def torn_inside_of_bodies(life: Life) -> None:
    for seed in range(12):
        life.append([1500, 1500])
        life.crash(Fault.POWER_HOLE, seed)


def flush_failed_and_then_the_power(life: Life) -> None:
    life.append([1500])
    life.fail("sync", 1, 5)
    life.flush()
    life.crash(Fault.KILL)
    life.reopen(Mode())
    life.crash(Fault.POWER)


def power_lost_after_the_flush(life: Life) -> None:
    life.append([300])
    life.flush()
    life.crash(Fault.POWER)


def write_taken_in_part(life: Life) -> None:
    life.reopen(SAFE)
    life.append([300])
    life.short_write(100)
    life.rounds(200)
    life.flush()
    life.crash(Fault.KILL_BUFFERS_GONE)


def restarted_before_slaves_had_all(life: Life) -> None:
    life.reopen(WAITING)
    for _ in range(6):
        life.append([300])
    life.acks(3)
    life.rounds(10_000)
    life.crash(Fault.KILL)
    life.reopen(WAITING)


def queue_half_built(life: Life) -> None:
    for _ in range(39):
        life.append([300])
    life.flush()
    life.reopen(Mode())
    # One seed in about sixty loses one sector of the queue alone. If a start writes otherwise, choose another seed.
    life.die("mid-truncation", 1, Fault.POWER_TORN, 121)
    life.reopen(Mode(), before=["queues"])


CASES: list[tuple[Callable[[], AbstractContextManager[None]], Callable[[Life], None]]] = [
    (sabotage.cut_without_zeroing, torn_and_refilled),
    (sabotage.cut_without_zeroing_unseen, torn_and_refilled),
    (sabotage.any_buffer_trusted, older_buffer_comes_back),
    (sabotage.no_replay, killed_before_the_commit),
    (sabotage.shown_when_written, power_lost_before_the_flush),
    (sabotage.shown_after_a_start, restarted_before_slaves_had_all),
    (sabotage.hidden_for_ever, restarted_before_slaves_had_all),
    (sabotage.slaves_not_waited_for, restarted_before_slaves_had_all),
    (sabotage.doubt_kept_in_memory, queue_half_built),
    (sabotage.acknowledged_when_written, power_lost_before_the_flush),
    (sabotage.checksums_ignored, torn_inside_of_bodies),
    (sabotage.nothing_rewritten, flush_failed_and_then_the_power),
    (sabotage.flushed_before_the_sync, power_lost_after_the_flush),
    (sabotage.short_writes_not_continued, write_taken_in_part),
]
ids = [sabotaged.__name__ for sabotaged, _ in CASES]


@pytest.mark.parametrize(("sabotaged", "history"), CASES, ids=ids)
def test_directed_history_detects_missing_safeguard(
    sabotaged: Callable[[], AbstractContextManager[None]], history: Callable[[Life], None]
) -> None:
    """The history fails without the safeguard, by an assertion of the model, and holds with it."""
    assert live(history) is None

    with sabotaged():
        failure = live(history)

    assert failure is not None
    assert failure.text.startswith("AssertionError"), failure


OFTEN_IN_DANGER = [
    sabotage.cut_without_zeroing,
    sabotage.any_buffer_trusted,
    sabotage.no_replay,
    sabotage.shown_after_a_start,
    sabotage.acknowledged_when_written,
    sabotage.flushed_before_the_sync,
]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("sabotaged", OFTEN_IN_DANGER, ids=lambda sabotaged: sabotaged.__name__)
def test_random_histories_detect_missing_safeguard(sabotaged: Callable[[], AbstractContextManager[None]]) -> None:
    """Random histories detect it, too, and a failing history fails again when it is replayed."""
    with sabotaged():
        failed = run_histories(start=1, count=500)
        assert failed is not None
        assert replay_history(failed) is not None

    assert replay_history(failed) is None
