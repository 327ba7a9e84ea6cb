"""One run: an operation with interruptions, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, final

from interruptions.faults import Interruption
from interruptions.operations import OPERATIONS, Operation
from interruptions.process import LATE_MS, Interrupter, OperatorProcess
from operator_world.cluster import GROUP, NAMESPACE, ModelCluster
from operator_world.fake_kubernetes import copied
from spec_world.invariant_checker import InvariantViolation

from gantry_operator.api import CLAIMS, EVENTS, GROUPS, VOLUMES, Object

STEP_MS: Final = 250
LOAD: Final = 0.2
"""The share of their greatest load that masters take: more would only make runs slower."""

BEFORE_STEPS: Final = 12
"""In these rounds before the operation begins, the operator, which has just started, finds nothing to do."""

LIMIT_MS: Final = 150_000
"""How long an operation may take, with all its interruptions, in the time of the model."""

REST_STEPS: Final = 60
"""How many rounds are run after the goal: what is done must stay done, and then nothing is written any more."""

CALM_STEPS: Final = 12
"""In so many of the last rounds a healthy group writes nothing but its status."""


@dataclass
class RunResult:
    """The result of one run."""

    interruptions: tuple[Interruption, ...]
    effects: list[str] = field(default_factory=list)
    """All effects of the operation, also those of its processes that were killed."""

    violation: str = ""
    """What was broken; empty if nothing was."""

    stuck: str = ""
    """Why the operation did not reach its goal; empty if it did."""

    objects: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of every object in the end, but events, and volumes, whose names are new each time."""

    @property
    def is_good(self) -> bool:
        return not self.violation and not self.stuck


@final
class Run:
    """A cluster, the operator's present process, and the checks."""

    def __init__(
        self, operation: Operation, cluster: ModelCluster, interruptions: tuple[Interruption, ...] = ()
    ) -> None:
        """``cluster`` is that of the group before the operation."""
        self._operation: Final = operation
        self._interrupter: Final = Interrupter(interruptions)
        self._cluster: Final = cluster
        self._cluster.api.watchers.append(self._check_event)
        self._snapshots: Final[list[tuple[int, list[Object]]]] = []
        self._violations: Final[list[str]] = []
        self._process = self._start_process(self._listed())

    def _listed(self) -> list[Object]:
        return [copied(one) for one in self._cluster.api.objects.values()]

    def _start_process(self, listed: list[Object]) -> OperatorProcess:
        return OperatorProcess(self._cluster, self._interrupter, listed)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_event(self, what: str, document: Object) -> None:
        """Check that no claim is deleted while a broker uses it. Kubernetes keeps it until the broker's pod is gone."""
        is_deleted = what == "DELETED" or bool(document["metadata"].get("deletionTimestamp"))
        if not is_deleted or document["kind"] != CLAIMS.name:
            return
        name = document["metadata"]["name"].removeprefix("data-")
        pod = next((one for one in self._cluster.pods() if one["metadata"]["name"] == name), None)
        if pod is None:
            return
        place = self._cluster.place(pod)
        broker = self._cluster.shards[place.shard].brokers.get(place.member)
        is_away = pod["spec"].get("nodeName") in self._cluster.unreachable
        if broker is not None and broker.is_up and not is_away:
            self._violations.append(f"the claim of {name} is deleted while its broker runs")

    def _check_brokers(self) -> None:
        """Check that no broker is stopped that must run, and no two of a roll at once."""
        shard, operation = self._cluster.shards.get(0), self._operation
        if shard is None or not self._interrupter.is_counting:
            return
        down = [number for number in (1, 2, 3) if number in shard.brokers and not shard.brokers[number].is_up]
        stopped = [number for number in operation.staying if number in down]
        if stopped:
            self._violations.append(f"the broker of member {stopped[0]} was stopped")
        if operation.is_rolling and len(down) > 1:
            self._violations.append(f"the brokers of members {down} were stopped at once")

    def _check_losses(self) -> None:
        """Check that a synchronous group has lost nothing."""
        for number, shard in self._cluster.shards.items():
            if shard.acks_needed and shard.checker.lost:
                self._violations.append(f"shard {number} has lost {len(shard.checker.lost)} acknowledged records")

    def _is_healthy(self) -> bool:
        group = self._cluster.api.found(GROUPS, NAMESPACE, GROUP)
        status = (group or {}).get("status") or {}
        ready = {one["type"]: one["status"] for one in status.get("conditions", [])}.get("Ready")
        is_current = group is not None and status.get("observedGeneration") == group["metadata"]["generation"]
        return ready == "True" and is_current

    # -- the course of a run -------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        self._snapshots.append((self._cluster.clock.ms, self._listed() if self._interrupter.is_counting else []))
        del self._snapshots[: -LATE_MS // STEP_MS - 2]
        await self._process.step()
        if self._interrupter.is_killed:
            await self._replace_process()
        self._cluster.advance(STEP_MS)
        self._check_brokers()

    async def _replace_process(self) -> None:
        """Start another process of the operator in place of the killed one."""
        await self._process.end()
        is_stale = self._interrupter.is_stale_start
        self._interrupter.is_killed = self._interrupter.is_stale_start = False
        listed = self._snapshots[0][1] if is_stale and self._snapshots[0][1] else self._listed()
        self._process = self._start_process(listed)

    async def _run_until(self, is_done: Callable[[], bool], what: str) -> str:
        """Run until a condition holds. Return why it does not; empty if it does."""
        end_ms = self._cluster.clock.ms + LIMIT_MS
        while not is_done():
            if self._cluster.clock.ms > end_ms:
                explanation = self._process.loop.reconciler.decision.explanation
                return f"{what}: {'; '.join(map(str, explanation))}"
            await self._step()
        return ""

    async def run(self) -> RunResult:
        """Run the operation with its interruptions."""
        operation, result = self._operation, RunResult(())
        try:
            for _ in range(0 if operation.is_new else BEFORE_STEPS):
                await self._step()
            self._interrupter.is_counting = True
            is_done = operation.begin(self._cluster)
            result.stuck = await self._run_until(lambda: is_done() and self._is_end(), "the goal is not reached")
            if not result.stuck:
                await self._rest(is_done)
        except InvariantViolation as error:
            self._violations.append(str(error))
        self._check_losses()
        await self._process.end()
        result.interruptions = tuple(self._interrupter.happened)
        result.effects = self._interrupter.effects
        result.violation = "; ".join(dict.fromkeys(self._violations))
        result.objects = frozenset(
            (ref.kind.name, ref.name) for ref in self._cluster.api.objects if ref.kind not in (EVENTS, VOLUMES)
        )
        return result

    def _is_end(self) -> bool:
        return self._is_healthy() or not self._operation.is_healthy_after

    async def prepare(self) -> None:
        """Run until the group is as it must be before the operation."""
        operation = self._operation
        if not operation.is_new:
            await self._require(self._is_healthy, "the group does not begin")
        if operation.before is not None:
            await self._require(operation.before(self._cluster), "the operation before is not done")
        await self._process.end()
        self._cluster.api.watchers.clear()

    async def _require(self, is_done: Callable[[], bool], what: str) -> None:
        reason = await self._run_until(is_done, what)
        assert not reason, reason

    async def _rest(self, is_done: Callable[[], bool]) -> None:
        """Run on for a while: nothing may be undone, and in the end nothing is written any more."""
        for number in range(REST_STEPS):
            before = len(self._interrupter.effects)
            await self._step()
            written = self._interrupter.effects[before:]
            if number >= REST_STEPS - CALM_STEPS and [one for one in written if not one.startswith("status")]:
                self._violations.append(f"the operator still writes long after the end: {written}")
                return
        if not (is_done() and self._is_end()):
            self._violations.append("what was done is undone")


_PREPARED: Final[dict[str, ModelCluster]] = {}
"""The clusters before each operation, which runs copy."""


async def run_operation(name: str, interruptions: tuple[Interruption, ...] = ()) -> RunResult:
    """Run an operation with interruptions."""
    operation = OPERATIONS[name]
    if name not in _PREPARED:
        cluster = ModelCluster(operation.spec, operation.nodes)
        cluster.load = LOAD
        await Run(operation, cluster).prepare()
        _PREPARED[name] = cluster
    return await Run(operation, deepcopy(_PREPARED[name]), interruptions).run()
