"""Claims that an operator deletes: in a roll, and in a hibernation. Gantry's operator runs with a model of a cluster.

    roll          a new image; the first new pod is not scheduled for longer than `storage.replaceAfter`
    hibernation   the annotation is set for a while, and removed; with `storage.retain: Never`

The failure has occurred if a claim of a broker is deleted or made again, or an acknowledged message is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from operator_world.simulation import SYNC, Simulation

from gantry_museum.exhibit import Exhibit, Outcome, Stage, System, Thread
from gantry_operator.api import CLAIMS, PODS, STATEFUL_SETS, Object, uid_of
from gantry_operator.errors import Conflict
from gantry_operator.execute.pods import PodExecutor
from gantry_operator.observe import machines
from gantry_spec import actions as act
from gantry_spec.observed import Disk

SLAVES: Final = 2
NODES: Final = 4
REPLACE_AFTER: Final = "10m"
SLOW_S: Final = 15 * 60
"""How long the first new pod waits for a machine: longer than `REPLACE_AFTER`."""
ROLL_SECONDS_MAX: Final = 3_600.0
STEP_MS: Final = 1_000
HIBERNATED_ROUNDS: Final = 400


def claims_of(simulation: Simulation) -> dict[str, str]:
    """Return the uids of the claims by their names."""
    return {claim["metadata"]["name"]: uid_of(claim) for claim in simulation.cluster.api.of_kind(CLAIMS)}


def deletions_of(simulation: Simulation) -> int:
    """Return how often the operator has deleted a claim."""
    return sum(verb == "delete" and ref.kind == CLAIMS for verb, ref in simulation.cluster.api.calls)


def lost_of(simulation: Simulation) -> int:
    """Return the number of lost acknowledged messages, by the model's checker."""
    return sum(len(shard.checker.lost) for shard in simulation.cluster.shards.values())


def run_roll(stage: Stage) -> Outcome:
    """Roll a group slowly, and count deleted claims."""
    return asyncio.run(_roll(stage.is_twin))


async def _roll(is_twin: bool) -> Outcome:
    spec = SYNC | {"slaves": SLAVES, "storage": {"replaceAfter": REPLACE_AFTER}}
    simulation = await Simulation(spec, nodes=NODES).run_until_healthy()
    before, pods = claims_of(simulation), _pod_uids(simulation)
    with _claims_taken_for_lost() if is_twin else _unchanged():
        simulation.cluster.edit(image="gantry:next")
        await simulation.run_until(lambda: _pod_uids(simulation) != pods, "the first pod is deleted")
        simulation.cluster.is_scheduling = False
        for _ in range(SLOW_S * 1_000 // STEP_MS):
            await simulation.step(STEP_MS)
        simulation.cluster.is_scheduling = True
        await simulation.run_until(
            lambda: is_twin or (simulation.is_healthy() and not _pod_uids(simulation) & pods), "the roll ends",
            ROLL_SECONDS_MAX,
        )  # fmt: skip
    kept = sum(claims_of(simulation).get(name) == uid for name, uid in before.items())
    deleted, lost = deletions_of(simulation), lost_of(simulation)
    return Outcome(
        deleted > 0 or kept < len(before) or lost > 0,
        (
            f"The operator deleted {deleted} claims; {kept} of {len(before)} claims are still the same after a roll"
            f" that waited {SLOW_S // 60} min for its first pod.",
            f"{lost} acknowledged messages are lost.",
        ),
    )


def _pod_uids(simulation: Simulation) -> set[str]:
    return {uid_of(pod) for pod in simulation.cluster.pods()}


@contextmanager
def _claims_taken_for_lost() -> Iterator[None]:
    """Let the operator take every volume for lost, as if no pod that it lists used it."""
    with patch.object(machines, "disk_of", lambda claim, home: Disk.LOST):
        yield


@contextmanager
def _unchanged() -> Iterator[None]:
    yield


def run_hibernation(stage: Stage) -> Outcome:
    """Hibernate a group whose volumes are deleted with it, and resume it."""
    return asyncio.run(_hibernate_unguarded() if stage.is_twin else _hibernate())


SHORT_LIVED: Final[dict[str, Any]] = SYNC | {"slaves": SLAVES, "storage": {"retain": "Never"}}


async def _hibernate() -> Outcome:
    simulation = await Simulation(SHORT_LIVED, nodes=NODES).run_until_healthy()
    before = claims_of(simulation)
    simulation.cluster.annotate(hibernate="true")
    await simulation.run_until(lambda: simulation.condition("Hibernated")[0] == "True", "it is hibernated")
    for _ in range(HIBERNATED_ROUNDS):
        await simulation.step()
    pods, meanwhile = len(simulation.cluster.api.of_kind(PODS)), claims_of(simulation)
    simulation.cluster.annotate(hibernate=None)
    await simulation.run_until(simulation.is_healthy, "it is resumed")
    return _judge(simulation, before, f"While hibernated, the group had {pods} pods and {len(meanwhile)} claims.")


async def _hibernate_unguarded() -> Outcome:
    """Scale the StatefulSets to zero without the check of their retention policy."""
    simulation = await Simulation(SHORT_LIVED, nodes=NODES).run_until_healthy()
    before = claims_of(simulation)
    with patch.object(PodExecutor, "_refuse_to_delete_volumes", _allow):
        try:
            executor = PodExecutor(simulation.loop.reconciler.observer.objects, simulation.cluster.api)
            await executor.execute(act.Hibernate(shard=0))
        except Conflict as error:
            raise AssertionError("the guard is still there") from error
    for _ in range(8):
        simulation.cluster.advance(STEP_MS)
    pods, sets = len(simulation.cluster.api.of_kind(PODS)), len(simulation.cluster.api.of_kind(STATEFUL_SETS))
    return _judge(simulation, before, f"{sets} StatefulSets were scaled to zero; the group had {pods} pods.")


def _allow(executor: PodExecutor, document: Object) -> None:
    del executor, document


def _judge(simulation: Simulation, before: dict[str, str], fact: str) -> Outcome:
    kept = sum(claims_of(simulation).get(name) == uid for name, uid in before.items())
    lost = lost_of(simulation)
    return Outcome(
        kept < len(before) or lost > 0,
        (
            fact,
            f"{kept} of {len(before)} claims of a master and {SLAVES} slaves are still the same at the end, and {lost}"
            " acknowledged messages are lost.",
        ),
    )


NOT_RUN: Final = "an operator of another system is not run here"

ROLL: Final = Exhibit(
    name="roll-claims",
    title="Mounted claims deleted in a roll",
    threads=(Thread("redpanda-data/redpanda-operator", (1866,)),),
    reported="""\
During a rolling restart, a controller that removes unused claims deleted the claims of running brokers. It searched for
the pods with the labels of the new template, which pods that were not rolled yet do not have, so it took their claims
for unused; only a delay had kept it from that, and the roll took longer. The brokers came back without data.""",
    scenario=f"""\
Gantry's operator rolls a group with {SLAVES} slaves to a new image, with `storage.replaceAfter: {REPLACE_AFTER}`. The
first new pod finds no machine for {SLOW_S // 60} minutes. The failure occurs if a claim is deleted or made again, or an
acknowledged message is lost.""",
    run=run_roll,
    systems=(System.GANTRY, System.TWIN),
    absent={System.APACHE: NOT_RUN},
    twin="takes the volumes of running pods for lost",
)

HIBERNATION: Final = Exhibit(
    name="hibernation-claims",
    title="Replica claims dropped by hibernation",
    threads=(Thread("cloudnative-pg/cloudnative-pg", (6653,)),),
    reported="""\
A cluster of three instances was hibernated with the plugin's command. Only the claims of the primary were left; those
of both replicas were deleted, which the reporter did not expect after reading about the annotation of the same name.
The maintainers closed it: the command and the annotation were different features.""",
    scenario=f"""\
Gantry's operator hibernates a group with {SLAVES} slaves by its annotation, with `storage.retain: Never`, and resumes
it. The failure occurs if a claim is not the same at the end, or an acknowledged message is lost.""",
    run=run_hibernation,
    systems=(System.GANTRY, System.TWIN),
    absent={System.APACHE: NOT_RUN},
    twin="does not check that volumes stay",
    remark="Gantry has one kind of hibernation, so the difference between two of them does not apply.",
)
