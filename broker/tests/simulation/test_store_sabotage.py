"""Histories that cannot fail prove nothing: with a safeguard removed, each of these must fail.

Every directed history holds with the safeguard, which is tested, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from simulation import directed, sabotage
from simulation.explore import replay_history, run_and_check, run_histories
from simulation.simulated_store import SimulatedStore

CASES: list[tuple[Callable[[], AbstractContextManager[None]], Callable[[SimulatedStore], None]]] = [
    (sabotage.cut_without_zeroing, directed.torn_and_refilled),
    (sabotage.cut_without_zeroing_unseen, directed.torn_and_refilled),
    (sabotage.any_buffer_trusted, directed.older_buffer_comes_back),
    (sabotage.no_replay, directed.killed_before_the_commit),
    (sabotage.shown_when_written, directed.power_lost_before_the_flush),
    (sabotage.shown_after_a_start, directed.restarted_before_slaves_had_all),
    (sabotage.hidden_for_ever, directed.restarted_before_slaves_had_all),
    (sabotage.slaves_not_waited_for, directed.restarted_before_slaves_had_all),
    (sabotage.damaged_queues_stay_in_recovery_point, directed.queue_half_built),
    (sabotage.acknowledged_when_written, directed.power_lost_before_the_flush),
    (sabotage.checksums_ignored, directed.torn_inside_of_bodies),
    (sabotage.nothing_rewritten, directed.flush_failed_and_then_the_power),
    (sabotage.flushed_before_the_sync, directed.power_lost_after_the_flush),
    (sabotage.later_commit_counted, directed.committed_while_a_sync_ran),
    (sabotage.buffer_of_any_start_trusted, directed.cut_buffer_comes_back_before_anything_is_sent),
    (sabotage.recorded_ends_ignored, directed.expired_queue_without_files),
    (sabotage.short_writes_not_continued, directed.write_taken_in_part),
]
"""Each sabotage with a *directed history*: one that was written to make it fail."""

ids = [sabotaged.__name__ for sabotaged, _ in CASES]


@pytest.mark.parametrize(("sabotaged", "history"), CASES, ids=ids)
def test_directed_history_detects_missing_safeguard(
    sabotaged: Callable[[], AbstractContextManager[None]], history: Callable[[SimulatedStore], None]
) -> None:
    """The history fails without the safeguard, by an assertion of the model, and holds with it."""
    assert run_and_check(history) is None

    with sabotaged():
        failure = run_and_check(history)

    assert failure is not None
    assert failure.text.startswith("AssertionError"), failure


FOUND_BY_RANDOM_HISTORIES = [
    sabotage.cut_without_zeroing,
    sabotage.any_buffer_trusted,
    sabotage.no_replay,
    sabotage.shown_after_a_start,
    sabotage.acknowledged_when_written,
    sabotage.flushed_before_the_sync,
]
"""Safeguards on which so many histories depend that 500 random ones must detect the loss."""


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("sabotaged", FOUND_BY_RANDOM_HISTORIES, ids=lambda sabotaged: sabotaged.__name__)
def test_random_histories_detect_missing_safeguard(sabotaged: Callable[[], AbstractContextManager[None]]) -> None:
    """Random histories detect it, too, and a failing history fails again when it is replayed."""
    with sabotaged():
        failed = run_histories(start=1, count=500)
        assert failed is not None
        assert replay_history(failed) is not None

    assert replay_history(failed) is None
