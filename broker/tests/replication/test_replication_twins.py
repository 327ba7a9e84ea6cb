"""Guards of replication: each passes its scenario, and its twin, the same test without the guard, finds a violation.

A guard is a rule of the broker (`run_without_guards.GUARDS`), and its scenario the situation for which it exists.
R2, R3, R5 and R9 are rows of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from gantry_histories.findings import Kind
from gantry_histories.judges import Verdict
from replication import supervisor
from replication.guard_scenarios import GUARD_SCENARIOS
from replication.plans import Fault, Plan
from replication.run_without_guards import GUARDS
from replication.seeded_run import start_scene

from gantry_spec.ballot import Ballot, ElectionResult, count_ballots
from gantry_spec.lease import LeaseRecord

pytestmark = pytest.mark.needs_root
PATIENCE_S = 5.0
"""Seconds to wait for a member, shorter because one that cannot follow never will."""

ATTEMPTS = 3
QUICK = ("grants", "promises", "stream-epoch")
"""Guards whose scenarios run in `make verify`; the others need `--slow`."""

GUARDED = [pytest.param(guard, marks=() if guard in QUICK else pytest.mark.slow) for guard in sorted(GUARDS)]


def elect_the_shortest_log(record: LeaseRecord, ballots: Sequence[Ballot]) -> ElectionResult:
    """Elect the member with the shortest log of those that have promised."""
    result = count_ballots(record, ballots)
    if result.winner is None:
        return result
    shortest = min(ballots, key=lambda one: one.log_position)
    print(f"{shortest.number} of {ballots}")
    return result._replace(winner=shortest)


async def test_election_of_a_lagging_slave_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3's twin: the lagging slave is promoted, and messages that only the other one had are lost."""
    monkeypatch.setattr(supervisor, "count_ballots", elect_the_shortest_log)
    plan = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"}, faults=())
    async with start_scene(plan, tmp_path, is_root=True) as scene:
        await scene.faults.inject(Fault.LAG_AND_KILL)

        found = {finding.kind for finding in await scene.stop_and_check(PATIENCE_S)}

    assert Kind.LOST in found


def test_every_guard_has_a_scenario() -> None:
    """Each guard has a scenario, and each scenario has a guard."""
    assert set(GUARDS) == set(GUARD_SCENARIOS)


@pytest.mark.verify
@pytest.mark.parametrize("guard", GUARDED)
async def test_scenario_breaks_no_promise_with_its_guard(guard: str, tmp_path: Path) -> None:
    """The situation of the guard occurs, and no violation is found."""
    scenario = GUARD_SCENARIOS[guard]
    async with start_scene(scenario.plan, tmp_path, is_root=True, has_disks=scenario.has_disks) as scene:
        await scenario.run(scene)

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.parametrize("guard", GUARDED)
async def test_missing_guard_is_detected(guard: str, tmp_path: Path) -> None:
    """R2, R3, R5 and R9's twin: without the guard, the checker reports the violation.

    Some violations depend on timing: a kill has to come before the returning bytes are overwritten. So there are three
    attempts.
    """
    scenario = GUARD_SCENARIOS[guard]
    found: set[Kind] = set()
    for attempt in range(ATTEMPTS):
        path = tmp_path / str(attempt)
        path.mkdir()
        async with start_scene(
            scenario.plan, path, is_root=True, has_disks=scenario.has_disks, without=[guard]
        ) as scene:
            await scenario.run(scene)

            found |= {finding.kind for finding in await scene.stop_and_check(PATIENCE_S)}
        assert Kind.DISAGREEMENT not in found
        if found & scenario.kinds:
            return

    assert found & scenario.kinds, found


@pytest.mark.verify
@pytest.mark.needs_porcupine
async def test_stale_master_is_not_linearizable(tmp_path: Path) -> None:
    """A master that acknowledges after its successor did has no place in any order that Porcupine tries."""
    scenario = GUARD_SCENARIOS["grants"]
    verdicts = []
    for attempt in range(ATTEMPTS):
        path = tmp_path / str(attempt)
        path.mkdir()
        async with start_scene(scenario.plan, path, is_root=True, without=["grants"]) as scene:
            await scenario.run(scene)
            await scene.stop_and_check(PATIENCE_S)
            assert scene.judgement is not None
            assert scene.judgement.second is not None
            verdicts.append(scene.judgement.second.verdict)
        if verdicts[-1] is Verdict.NOT_LINEARIZABLE:
            assert "acknowledged by" in scene.judgement.second.evidence
            assert (path / "history.html").exists()
            return

    pytest.fail(f"expected a verdict that is not {verdicts}")
