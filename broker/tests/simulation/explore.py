"""Runs many histories until one fails, and shortens a failing one.

Hypothesis draws them from a seed: in the same program the same seed gives the same histories. Its own shrinking is off,
since it would have to draw again, and takes minutes. A history is a list of verbs, any of which can be left out, so
``shorten`` only leaves out verbs, as long as the rest fails at the same place.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation.life import Life, quiet_and_inline
from simulation.machine import FAILED, StoreHistory
from simulation.recorder import Call

STEPS: Final = 20
"""The most rules that one history has."""
TRIES_MAX: Final = 2_000


class Failure(NamedTuple):
    """The place and the text of a history's failure."""

    place: str
    text: str


def run_histories(start: int, count: int) -> list[Call] | None:
    """Run ``count`` histories of a seed. Return the verbs of the first that fails, or None."""
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
    """Replay all verbs on a new life. Return None if the history holds."""

    def replay_all(life: Life) -> None:
        for call in history:
            life.replay(call)

    return live(replay_all)


def live(history: Callable[[Life], None]) -> Failure | None:
    """Run a history on a new life, with its final checks. Return None if it holds."""
    life = Life()
    try:
        with quiet_and_inline():
            history(life)
            life.end_of_history()
    except Exception as exc:  # noqa: BLE001 -- any error is a failure of the history
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        return Failure(f"{Path(frame.filename).name}:{frame.lineno}", f"{type(exc).__name__}: {exc}")
    finally:
        life.detach()
    return None


def shorten(history: Sequence[Call]) -> list[Call]:
    """Leave out the verbs that are not needed to fail at the same place: big parts first, then single verbs."""
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
