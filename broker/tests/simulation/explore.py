"""Runs many histories until one fails, and shortens a failing one.

Hypothesis draws them from a seed: in the same program the same seed gives the same histories. Its own shrinking is off,
since it would have to draw again, and takes minutes. A history is a list of actions (see ``simulated_store``), any of
which can be left out, so ``shorten`` only leaves out actions, as long as the rest fails at the same place. A history
*holds* if no check fails in it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation.machine import FAILED, StoreHistory
from simulation.recorder import Call
from simulation.simulated_store import SimulatedStore, quiet_and_inline

STEPS: Final = 20
"""The most rules that one history has."""
TRIES_MAX: Final = 2_000
"""The most attempts to leave out actions of a failed history."""


class Failure(NamedTuple):
    """The place and the text of a history's failure."""

    place: str
    """The file and the line that raised the exception."""

    text: str
    """The type and the message of the exception."""


def run_histories(start: int, count: int) -> list[Call] | None:
    """Run ``count`` histories of a seed. Return the actions of the first that fails, or None."""
    FAILED.clear()
    drawn = settings(
        max_examples=count, stateful_step_count=STEPS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    try:
        run_state_machine_as_test(seed(start)(StoreHistory), settings=drawn)
    except Exception:
        if not FAILED:
            raise  # the state machine has an error, not a history
        return list(FAILED)
    return None


def replay_history(history: Sequence[Call]) -> Failure | None:
    """Replay all actions on a new store. Return None if the history holds."""

    def replay_all(simulated: SimulatedStore) -> None:
        for call in history:
            simulated.replay(call)

    return run_and_check(replay_all)


def run_and_check(history: Callable[[SimulatedStore], None]) -> Failure | None:
    """Run a history on a new store, with its final checks. Return None if it holds."""
    simulated = SimulatedStore()
    try:
        with quiet_and_inline():
            history(simulated)
            simulated.end_of_history()
    except Exception as exc:  # noqa: BLE001 -- any error is a failure of the history
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        return Failure(f"{Path(frame.filename).name}:{frame.lineno}", f"{type(exc).__name__}: {exc}")
    finally:
        simulated.detach()
    return None


def shorten(history: Sequence[Call]) -> list[Call]:
    """Leave out the actions that are not needed to fail at the same place: big parts first, then single actions."""
    short = list(history)
    failure = replay_history(short)
    if failure is None:
        return short
    tries, size = 0, max(1, len(short) // 2)
    while tries < TRIES_MAX:
        is_shorter = False
        start = 0
        while start < len(short):
            candidate = short[:start] + short[start + size :]
            tries += 1
            found = replay_history(candidate)
            if found is not None and found.place == failure.place:
                short, is_shorter = candidate, True
            else:
                start += size
        if size == 1 and not is_shorter:
            break
        size = size if is_shorter else max(1, size // 2)
    return short


def format_history(history: Sequence[Call]) -> str:
    """Format the history as lines for a test, with its failure."""
    failure = replay_history(history)
    lines = [f"    {call}" for call in history]
    return "\n".join([*lines, f"fails at {failure.place}: {failure.text}" if failure else "holds when replayed"])
