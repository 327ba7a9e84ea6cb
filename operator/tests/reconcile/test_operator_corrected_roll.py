"""A roll whose first new pod cannot start ends when the edit is corrected.

A twin repeats the test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import pytest
from operator_world.simulation import SYNC, Simulation

from gantry_operator.api import Object
from gantry_operator.execute import scheduler

IMPOSSIBLE, CORRECTED = "gantry:impossible", "gantry:corrected"
STUCK_ROUNDS = 40
ROLL_ROUNDS = 400


def image_of(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["image"])


async def corrected_roll() -> tuple[list[str], list[str]]:
    """Roll to an image that no machine takes, then to another one; return the images before and after."""
    simulation = await Simulation(SYNC | {"slaves": 2}, nodes=4).run_until_healthy()

    async def run_rounds(count: int) -> None:
        for _ in range(count):
            waiting = [image_of(pod) for pod in simulation.cluster.pods() if "nodeName" not in pod["spec"]]
            wanted = simulation.cluster.group["spec"]["image"]
            simulation.cluster.is_scheduling = IMPOSSIBLE not in (wanted, *waiting)
            await simulation.step()

    simulation.cluster.edit(image=IMPOSSIBLE)
    await run_rounds(STUCK_ROUNDS)
    before = [image_of(pod) for pod in simulation.cluster.pods()]
    assert simulation.cluster.master(0) == 1, "expected that the master is not restarted"
    simulation.cluster.edit(image=CORRECTED)
    await run_rounds(ROLL_ROUNDS)
    return before, [image_of(pod) for pod in simulation.cluster.pods()]


async def test_pending_pod_of_an_impossible_template_is_replaced() -> None:
    """Only one pod has the impossible template, and all pods have the corrected one in the end."""
    before, after = await corrected_roll()

    assert before.count(IMPOSSIBLE) == 1
    assert after == [CORRECTED] * 3


async def test_without_the_replacement_the_roll_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the start of a pending pod keeps its restart from being executed."""
    monkeypatch.setattr(scheduler, "restarted_targets", lambda actions: set())

    _, after = await corrected_roll()

    assert after.count(IMPOSSIBLE) == 1
