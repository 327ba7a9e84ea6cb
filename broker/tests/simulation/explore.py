"""Many histories, until one fails; and a failing one made short.

Hypothesis draws them, from a seed: in the same program the same seed gives the same histories. It does not shorten
here, since it would have to draw again, and takes minutes. A history is a list of verbs which can be left out at will,
so leaving out is all that ``shorten`` does, as long as what remains fails at the same place.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation.life import Life, alone
from simulation.machine import FAILED, StoreHistory
from simulation.telling import Call

STEPS: Final = 20
"""How many rules a history has at most."""
TRIES_MAX: Final = 2_000


class Failure(NamedTuple):
    """Where a history has failed, and how."""

    place: str
    text: str


def run_histories(start: int, count: int) -> list[Call] | None:
    """The histories of a seed, ``count`` of them: what one that fails has said, or None."""
    FAILED.clear()
    drawn = settings(
        max_examples=count, stateful_step_count=STEPS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    try:
        run_state_machine_as_test(seed(start)(StoreHistory), settings=drawn)
    except Exception:
        if not FAILED:
            raise  # the machine is wrong, not a history
        return list(FAILED)
    return None


def relive(history: Sequence[Call]) -> Failure | None:
    """Say all verbs to a new life. None if it holds."""

    def say_all(life: Life) -> None:
        for call in history:
            life.say(call)

    return live(say_all)


def live(history: Callable[[Life], None]) -> Failure | None:
    """A whole life. None if it holds."""
    life = Life()
    try:
        with alone():
            history(life)
            life.end_of_history()
    except Exception as exc:  # noqa: BLE001 -- whatever it is, it is what a history may end with
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        return Failure(f"{Path(frame.filename).name}:{frame.lineno}", f"{type(exc).__name__}: {exc}")
    finally:
        life.detach()
    return None


def shorten(history: Sequence[Call]) -> list[Call]:
    """Leave out what is not needed to fail at the same place: big parts first, then one verb after the other."""
    short = list(history)
    failure = relive(short)
    if failure is None:
        return short
    tries, size = 0, max(1, len(short) // 2)
    while tries < TRIES_MAX:
        is_shorter = False
        start = 0
        while start < len(short):
            candidate = short[:start] + short[start + size :]
            tries += 1
            found = relive(candidate)
            if found is not None and found.place == failure.place:
                short, is_shorter = candidate, True
            else:
                start += size
        if size == 1 and not is_shorter:
            break
        size = size if is_shorter else max(1, size // 2)
    return short


def tell(history: Sequence[Call]) -> str:
    """The history as lines for a test, and how it fails."""
    failure = relive(history)
    lines = [f"    {call}" for call in history]
    return "\n".join([*lines, f"fails at {failure.place}: {failure.text}" if failure else "holds when it is relived"])
