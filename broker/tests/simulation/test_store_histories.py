"""A slice of what ``run_histories.py`` does, and always the same histories: whatever breaks one is new."""

from __future__ import annotations

import pytest
from simulation.explore import run_histories, shorten, tell
from simulation.tally import MET

FREQUENT = (
    "replayed", "replayed over a roll", "cut", "refilled after a cut", "a refilled cut met another crash",
    "died in recovery", "converged after a death in recovery", "recovered twice", "rolled",
)  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_whatever_happens_the_store_keeps_what_its_mode_promises_and_nothing_cut_returns(seed: int) -> None:
    """For any history: what was promised is there, byte for byte; what was cut never is; recovery converges."""
    failed = run_histories(seed, 50)

    assert failed is None, f"seed {seed}; shortened:\n{tell(shorten(failed))}"


def test_the_slice_has_met_what_it_is_about() -> None:
    """Histories in which nothing happens prove nothing."""
    MET.clear()
    run_histories(1, 50)

    assert [what for what in FREQUENT if not MET[what]] == []
