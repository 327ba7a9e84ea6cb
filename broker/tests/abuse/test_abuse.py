"""Every attack in small against real processes: bytes within the budget, the honest client served, a small log.

Judged are bytes, answers, open files and tracebacks, never time. The honest client keeps the protocol, and must be
served beside the attack. Each attack that a setting (its guard) bounds has its twin with that setting off, except
`many-bursts`, whose twin runs only at full size (`scripts/abuse --twins`).
"""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
run_abuse = importlib.import_module("abuse.run_abuse")

SCALE = 0.2
"""The share of connections and requests of `make abuse`, with small budgets."""
SCENARIOS = run_abuse.scenarios(SCALE)
WITH_TWIN = [scenario for scenario in SCENARIOS if scenario.is_guard_optional]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
def test_attack_stays_within_its_budget_and_honest_client_is_served(scenario: object, tmp_path: Path) -> None:
    """Memory grows by the budget and its slack at most, no answer is missing or wrong, and no traceback is logged."""
    outcome = run_abuse.run_one(scenario, tmp_path, requests=40, quiet_requests=40)

    assert run_abuse.faults(scenario, outcome) == []
    assert outcome.opened, "the attack has opened no connection, and so proves nothing"
    assert len(outcome.attacked_ms) >= 40


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("scenario", WITH_TWIN, ids=[scenario.name for scenario in WITH_TWIN])
def test_attack_without_its_guard_exceeds_the_budget(scenario: object, tmp_path: Path) -> None:
    """The twin: with the budget off the attack costs more memory, or more of each turn, than is allowed with it."""
    outcome = run_abuse.run_one(scenario, tmp_path, is_guarded=False, requests=40, quiet_requests=10)

    assert run_abuse.cost_faults(scenario, outcome), outcome
    assert outcome.errors == []


def test_required_attacks_exist_and_a_row_fits_the_table() -> None:
    """No required attack has been dropped, each name is unique, and a row has a value for each column."""
    names = {scenario.name for scenario in SCENARIOS}

    assert {"deferred-answers", "many-bursts"} <= names
    assert {"half-frames", "non-readers", "resets", "header-bombs", "pipelining", "slow-handshakes"} <= names
    assert len(names) == len(SCENARIOS)
    line = run_abuse.row(SCENARIOS[0], run_abuse.Outcome(name="x"), is_guarded=True)
    assert len(run_abuse.table([line]).splitlines()) == 2
