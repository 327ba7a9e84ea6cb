"""Operations that are interrupted at their writes and orders reach their goals, lose nothing and leave nothing behind.

`make interruptions` runs every interruption; here is one of some dozens, and each planted fault is found.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from interruptions.faults import ALL, Fault, Interruption, pairs, single
from interruptions.operations import OPERATIONS
from interruptions.runs import RunResult, run_operation
from interruptions.twins import planted

from gantry_operator.api import ObjectRef
from gantry_operator.execute.applier import Applier
from gantry_testing.tree import ROOT

PROGRAM = ROOT / "operator/tests/interruptions/run_interruptions.py"


async def run_alone(name: str) -> RunResult:
    """Run an operation without interruptions."""
    alone = await run_operation(name)
    assert alone.is_good, (alone.violation, alone.stuck)
    return alone


def differences(result: RunResult, alone: RunResult) -> list[str]:
    """Return how the objects differ after two runs of an operation."""
    return sorted(f"{kind} {name}" for kind, name in result.objects ^ alone.objects)


@pytest.mark.parametrize("fault", ALL)
async def test_interrupted_switchover_is_completed(fault: Fault) -> None:
    """The fault happens at an effect in its middle."""
    alone = await run_alone("switchover")
    result = await run_operation("switchover", (Interruption(fault, 9),))

    assert result.interruptions == (Interruption(fault, 9),)
    assert (result.violation, result.stuck, differences(result, alone)) == ("", "", [])


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_operation_survives_pairs_of_interruptions(name: str) -> None:
    """Two pairs of each operation, and every fault once."""
    alone = await run_alone(name)
    effects = len(alone.effects)
    for plan in pairs(effects, 2, f"test/{name}") + single(effects)[:: max(1, effects)]:
        result = await run_operation(name, plan)
        assert (result.violation, result.stuck, differences(result, alone)) == ("", "", []), plan


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("effect", ["delete leases shop/g-1", "delete statefulsets shop/g-1-slave"])
async def test_removed_shard_is_not_created_again_by_an_operator_that_starts_with_an_old_list(
    effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list still has the shard's StatefulSets with their brokers. A twin that believes it starts them again."""
    alone = await run_alone("remove a shard")
    plan = (Interruption(Fault.STALE_START, alone.effects.index(effect) + 1),)
    result = await run_operation("remove a shard", plan)
    assert (result.violation, result.stuck, differences(result, alone)) == ("", "", [])

    async def is_current(applier: Applier, ref: ObjectRef) -> bool:
        return True

    monkeypatch.setattr(Applier, "_is_current", is_current)
    twin = await run_operation("remove a shard", plan)
    assert "what was done is undone" in twin.violation or "the goal is not reached" in twin.stuck


@pytest.mark.parametrize(
    ("twin", "name", "found"),
    [
        ("act twice", "scale in", "the broker of member 2 was stopped"),
        ("forget a fence", "switchover", "the goal is not reached"),
        ("delete before the fence", "scale in", "is deleted while its broker runs"),
    ],
)
async def test_planted_fault_is_found(twin: str, name: str, found: str) -> None:
    """The same operation is good without it."""
    with planted(twin):
        result = await run_operation(name)

    assert found in result.violation + result.stuck
    assert (await run_operation(name)).is_good


def test_invalid_interruption_is_refused() -> None:
    """The message names the part, the form and the faults."""
    arguments = ["--operation", "failover", "--at", "killed@x"]
    result = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert "'killed@x' is no interruption: write FAULT@EFFECT, with one of killed before" in result.stderr
