"""A roll that never ends, because the first new pod cannot become ready. Gantry's operator runs with a model cluster.

    an edit whose pods no machine can take -> the first of them is pending -> the edit is corrected -> the roll ends

The scheduler of the model takes pods of every template but the impossible one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final
from unittest.mock import patch

from operator_world.simulation import SYNC, Simulation

from gantry_museum.exhibit import Exhibit, Outcome, Stage, System, Thread
from gantry_museum.scenes.operator_claims import NOT_RUN, lost_of
from gantry_operator.api import Object
from gantry_operator.execute import scheduler

IMPOSSIBLE: Final = "gantry:no-machine-takes-it"
CORRECTED: Final = "gantry:corrected"
STUCK_S: Final = 10 * 60
ROLL_S_MAX: Final = 10 * 60
"""How long the corrected roll may take; the model needs about a minute for it."""
STEP_MS: Final = 1_000


def run(stage: Stage) -> Outcome:
    """Correct a roll that is stuck, and wait until all pods have the corrected template."""
    return asyncio.run(_roll(stage.is_twin))


async def _roll(is_twin: bool) -> Outcome:
    simulation = await Simulation(SYNC | {"slaves": 2}, nodes=4).run_until_healthy()
    with _never_replaced() if is_twin else nullcontext():
        simulation.cluster.edit(image=IMPOSSIBLE)
        for _ in range(STUCK_S * 1_000 // STEP_MS):
            await _step(simulation)
        stuck = sum("nodeName" not in pod["spec"] for pod in simulation.cluster.pods())
        assert stuck, "no pod is pending"
        served = "a master served" if simulation.cluster.master(0) is not None else "no master served"
        simulation.cluster.edit(image=CORRECTED)
        seconds = await _seconds_to_roll(simulation)
    end = f"ended {seconds} s after the correction" if seconds is not None else f"had not ended after {ROLL_S_MAX} s"
    return Outcome(
        seconds is None,
        (
            f"With the impossible template {stuck} of 3 pods was pending for {STUCK_S // 60} min, and {served}.",
            f"The roll {end}; {lost_of(simulation)} acknowledged messages are lost.",
        ),
    )


async def _seconds_to_roll(simulation: Simulation) -> int | None:
    """Return the seconds until the group is ready with the corrected template; None if it takes too long."""
    for passed in range(ROLL_S_MAX * 1_000 // STEP_MS):
        await _step(simulation)
        if simulation.is_healthy() and all(_image(pod) == CORRECTED for pod in simulation.cluster.pods()):
            return passed * STEP_MS // 1_000
    return None


async def _step(simulation: Simulation) -> None:
    """Reconcile once. Machines take pods, unless the template or a waiting pod is the impossible one."""
    waiting = [pod for pod in simulation.cluster.pods() if "nodeName" not in pod["spec"]]
    is_impossible = simulation.cluster.group["spec"].get("image") == IMPOSSIBLE
    simulation.cluster.is_scheduling = not is_impossible and not any(_image(pod) == IMPOSSIBLE for pod in waiting)
    await simulation.step(STEP_MS)


def _image(pod: Object) -> str:
    images = {str(one.get("image")) for one in pod["spec"]["containers"]}
    return next((one for one in (IMPOSSIBLE, CORRECTED) if one in images), "")


@contextmanager
def _never_replaced() -> Iterator[None]:
    """Let the operator wait for a pod that does not run, also if it must be restarted."""
    with patch.object(scheduler, "restarted_targets", lambda actions: set()):
        yield


EXHIBIT: Final = Exhibit(
    name="endless-roll",
    title="A roll that never ends",
    threads=(Thread("strimzi/strimzi-kafka-operator", (3710,)),),
    reported="""\
A rolling update was started when pods were not ready, and never finished: each round of the operator waited for a pod
that could not become ready until a time-out, and began again. Pods that could not start with the earlier settings were
not replaced after the settings had been corrected.""",
    scenario=f"""\
Gantry's operator rolls a group with two slaves to a template that no machine takes; after {STUCK_S // 60} minutes the
template is corrected. The failure occurs if not all pods have the corrected template, and the group is not ready,
within {ROLL_S_MAX // 60} minutes.""",
    run=run,
    systems=(System.GANTRY, System.TWIN),
    absent={System.APACHE: NOT_RUN},
    twin="waits for a pending pod before it replaces it",
    remark="""\
This scenario found the failure in Gantry's operator of that time: for a pending pod with an outdated template it
decided both to start and to restart it, and executed only the first, which waits for the pod. A restart now replaces a
start.""",
)
