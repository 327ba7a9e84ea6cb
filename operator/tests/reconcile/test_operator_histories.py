"""Random histories of a group in a model cluster: two operators, restarts of both, partitions, deletions, edits.

A failure names its seed; this replays one: `GANTRY_SEED=7 pytest operator/tests/reconcile/test_operator_histories.py`.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelCluster
from operator_world.simulation import ASYNC, SYNC, Simulation, operator_of

from gantry_operator.api import PODS, ObjectRef, ref_of
from gantry_operator.errors import ApiError, Unavailable
from gantry_operator.group_reconciler import GroupReconciler
from gantry_operator.resource_loop import ResourceLoop

SHAPES: Final[list[dict[str, Any]]] = [
    SYNC | {"slaves": 2},
    SYNC,
    ASYNC,
    SYNC | {"slaves": 2, "replication": {"mode": "Sync", "inSyncReplicas": 3}},
]
SEEDS: Final = range(8)
STEPS: Final = 160
RECOVERY_STEPS_MAX: Final = 1_200
"""The limit for the group to become ready after all faults have ended."""


class History:
    """A random history that follows from its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = ModelCluster(SHAPES[seed % len(SHAPES)], 4)
        self.loops: list[ResourceLoop[GroupReconciler]] = [operator_of(self.cluster) for _ in range(2)]
        self.is_api_down = False
        self.images = 0
        """How often the image was edited."""

        self.cluster.api.fault_of = self.fault_of

    def fault_of(self, verb: str, ref: ObjectRef) -> ApiError | None:
        is_lost = self.random.random() < 0.02
        return Unavailable(str(ref), "down") if self.is_api_down or is_lost else None

    async def run(self) -> None:
        for _ in range(STEPS):
            self.inject_fault()
            await self.step()

    async def step(self) -> None:
        """Run a round of one, both or none of the operators; their orders may still be pending after that."""
        for index in range(2):
            if self.random.random() < 0.8:
                loop = self.loops[index]
                try:
                    await loop.reconcile_once()
                except ApiError:
                    continue
                if self.random.random() < 0.7:
                    await loop.reconciler.settle()
        self.cluster.advance(self.random.choice([50, 250, 250, 1_000]))

    def inject_fault(self) -> None:
        cluster, chance = self.cluster, self.random.random()
        nodes = [f"node-{number}" for number in range(4)]
        pods = cluster.pods()
        if chance < 0.03 and not cluster.unreachable:
            cluster.disconnect_node(self.random.choice(nodes))
        elif chance < 0.09 and cluster.unreachable:
            cluster.reconnect_node(next(iter(cluster.unreachable)))
        elif chance < 0.12 and pods:
            cluster.terminate(self.random.choice(pods))
        elif chance < 0.14 and pods:
            self.delete_by_force(self.random.choice(pods))
        elif chance < 0.16:
            self.loops[self.random.randrange(2)] = operator_of(cluster)
        elif chance < 0.18:
            cluster.annotate(promote=f"0={self.random.randrange(3)}@{self.random.randrange(99)}")
        elif chance < 0.19:
            self.images += 1
            cluster.edit(image=f"gantry:{self.images}")
        elif chance < 0.21:
            self.is_api_down = not self.is_api_down

    def delete_by_force(self, pod: dict[str, Any]) -> None:
        """Delete a pod as `kubectl delete --force` does, without a confirmation of its machine."""
        if self.cluster.api.on_delete[PODS](pod, 0):
            self.cluster.api.remove(ref_of(pod))

    async def run_until_healthy(self) -> None:
        """End all faults, and run steps until the group is ready, which it must become by itself."""
        self.is_api_down = False
        for node in list(self.cluster.unreachable):
            self.cluster.reconnect_node(node)
        self.cluster.annotate(promote=None)
        simulation = Simulation.of(self.cluster, self.loops[0])
        for _ in range(RECOVERY_STEPS_MAX):
            if simulation.is_healthy():
                return
            await self.step()
        raise AssertionError(f"all faults have ended, but the group is not ready: {simulation.describe()}")


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("seed", [int(os.environ["GANTRY_SEED"])] if "GANTRY_SEED" in os.environ else SEEDS)
async def test_no_history_violates_a_guarantee_and_all_recover(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """All acknowledgements and promotions are checked; without faults the group becomes ready again by itself."""
    history = History(seed)

    await history.run()
    await history.run_until_healthy()

    assert not [one for one in caplog.records if one.exc_info], "an action or a round ended with an unexpected error"
    assert history.cluster.shards[0].checker.acknowledged, "no message was acknowledged"
    assert history.loops[0].key == (NAMESPACE, GROUP)
