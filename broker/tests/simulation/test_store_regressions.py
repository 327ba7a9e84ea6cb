"""Histories that have failed once hold now."""

from __future__ import annotations

import pytest
from simulation.explore import run_and_check
from simulation.regressions import REGRESSIONS, History


@pytest.mark.parametrize("history", REGRESSIONS, ids=lambda history: history.__name__)
def test_regression_history_holds(history: History) -> None:
    """A history that has failed once holds now."""
    assert run_and_check(history) is None
