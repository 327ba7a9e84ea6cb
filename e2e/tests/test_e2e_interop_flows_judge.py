"""The checks of delays, retries and queue locks: each fault in a history breaks exactly its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop.flows_judge import DelayHistory, LockHistory

SECOND = 1_000_000
NUMBER = 11
"""Is delayed by level 1, one second, and fails once: 11 % 7 - 3."""

CORRECT_LINES = [
    f"ok {NUMBER} 1 0 10",
    f"seen {NUMBER} 0 0 {SECOND} 100 0",
    f"seen {NUMBER} 1 1 {4 * SECOND} 200 1",
    "ok 0 0 5 9",
    "seen 0 0 0 20 50 1",
    "unknown 2 MQClientException",
    "sent 12",
]


def history_of_delays(folder: Path, lines: list[str]) -> DelayHistory:
    """Return a history of delays that is read from these lines."""
    (folder / "history.txt").write_text("\n".join(lines) + "\n")
    return DelayHistory(folder).read()


def test_correct_history_of_delays_breaks_nothing(tmp_path: Path) -> None:
    """Messages are delayed, failed, redelivered and taken; duplicates are counted and no fault."""
    history = history_of_delays(tmp_path, [*CORRECT_LINES, f"seen {NUMBER} 1 1 {5 * SECOND} 200 1"])

    assert (history.broken(), history.is_complete(), history.is_sent) == ([], True, True)
    assert (history.counts()["twice"], history.counts()["unknown"], history.counts()["retries"]) == (1, 1, 2)


FAULTS = {
    "lost": (CORRECT_LINES[:2] + CORRECT_LINES[3:], "is consumed in the end"),
    "early": ([CORRECT_LINES[0], f"seen {NUMBER} 0 0 {SECOND - 1} 100 0", *CORRECT_LINES[2:]], "before its time"),
    "hasty": (
        [*CORRECT_LINES[:2], f"seen {NUMBER} 1 1 {4 * SECOND - 1} 200 1", *CORRECT_LINES[3:]],
        "no retry comes before its time",
    ),
    "anew": ([*CORRECT_LINES, f"seen {NUMBER} 0 1 {9 * SECOND} 300 0"], "restart the failure count"),
    "leap": ([*CORRECT_LINES, f"seen 13 2 1 {9 * SECOND} 300 0"], "failed one time more"),
    "beyond": ([*CORRECT_LINES, f"seen {NUMBER} 2 1 {9 * SECOND} 300 1"], "more often than planned"),
    "never sent": ([*CORRECT_LINES, f"seen -1 0 0 {9 * SECOND} 300 1"], "was sent"),
}


@pytest.mark.parametrize(("lines", "rule"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_delays_is_found(tmp_path: Path, lines: list[str], rule: str) -> None:
    """Exactly the rule for the fault is broken."""
    [broken_rule] = history_of_delays(tmp_path, lines).broken()
    assert rule in broken_rule


@pytest.mark.parametrize("fault", ["leap", "beyond"])
def test_lost_replies_of_pops_are_counted_as_failures(tmp_path: Path, fault: str) -> None:
    """The broker counts deliveries that no listener got: in pop mode they are counted here, and no fault."""
    lines, _ = FAULTS[fault]
    history_of_delays(tmp_path, lines)
    history = DelayHistory(tmp_path, is_popping=True).read()

    assert (history.broken(), history.counts()["lapsed"]) == ([], 1)


@pytest.mark.parametrize("fault", ["lost", "early", "hasty", "anew", "never sent"])
def test_other_faults_are_found_in_pop_mode_too(tmp_path: Path, fault: str) -> None:
    """Only the counts of failures have another rule."""
    lines, rule = FAULTS[fault]
    history_of_delays(tmp_path, lines)
    [broken_rule] = DelayHistory(tmp_path, is_popping=True).read().broken()

    assert rule in broken_rule


def history_of_locks(folder: Path, *, first: list[str], second: list[str]) -> LockHistory:
    """Return a history of queue locks that is read from the lines of two consumers."""
    (folder / "sent-1.txt").write_text("ok 0 0 0\nok 4 0 1\nok 8 0 2\nsent 0\n")
    (folder / "taken-2.txt").write_text("".join(f"{line}\n" for line in first))
    (folder / "taken-3.txt").write_text("".join(f"{line}\n" for line in second))
    return LockHistory(folder).read()


FIRST = ["taken 0 0 0 10 12", "taken 4 0 1 12 14"]


def test_correct_history_of_locks_breaks_nothing(tmp_path: Path) -> None:
    """The second consumer begins at the committed offset of the first: one message is duplicated, in order."""
    history = history_of_locks(tmp_path, first=FIRST, second=["taken 4 0 1 50 52", "taken 8 0 2 52 54"])

    assert (history.broken(), history.is_complete(), history.consumers()) == ([], True, {"2", "3"})
    assert (history.counts()["twice"], history.queues_served_last_by("3")) == (1, 1)


@pytest.mark.parametrize(
    ("second", "rule"),
    [
        (["taken 4 0 1 50 52"], "is consumed"),
        (["taken 12 0 3 50 52", "taken 8 0 2 52 54"], "none is skipped"),
        (["taken 3 0 2 50 52", "taken 8 0 2 52 54"], "as they were sent"),
        (["taken 8 0 2 13 15"], "one consumer at a time"),
    ],
    ids=["lost", "skipped", "disordered", "shared"],
)
def test_each_fault_of_locks_is_found(tmp_path: Path, second: list[str], rule: str) -> None:
    """Exactly the rule for the fault is broken."""
    [broken_rule] = history_of_locks(tmp_path, first=FIRST, second=second).broken()
    assert rule in broken_rule
