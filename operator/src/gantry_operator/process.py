"""One operator's process: wait to lead, list everything, watch, look after every group, and end in order.

probes and metrics    from the beginning to the end
the leader's Lease    won before anything is changed; lost: the process ends at once
a full list           before the first look, so that nothing is decided from half of what is there
Kopf                  its watches tell the cache, and nothing else
SIGTERM               every group's task is ended; what they have asked the API server is waited for; the Lease is given
                      back, so that the next one need not wait; and only then is Kopf's end waited for, a short while

Signals are ours from the beginning to the end. Kopf takes them for itself when it begins; then a task of its own would
wait for a flag that nobody sets, and Kopf for that task, five seconds long, with the Lease still held.

Where the operator is not alone in its process (Kopf's own runner has one for tests), whoever has begun it says who
tells it what changes, and takes the signals (``Around``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final, final

import kopf

from gantry_operator.api import (
    CRON_JOBS,
    JOBS,
    LEASES,
    PIPELINES,
    POD_MONITORS,
    PROMETHEUS_RULES,
    Kind,
    Kubernetes,
    Place,
)
from gantry_operator.cache import Cache
from gantry_operator.clock import RealClock
from gantry_operator.errors import ApiError
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.handlers import connection_of, registry_of, settings_of
from gantry_operator.kubernetes_api import KubernetesApi, client_of, configuration
from gantry_operator.leader_election import Candidate, Leadership, end_process
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.pages import HttpPages
from gantry_operator.pipelines.reconciler import (
    PipelineContext,
    PipelineReconciler,
    pipeline_cache,
)
from gantry_operator.probes import probes
from gantry_operator.resource_loop import LoopKeeper
from gantry_operator.settings import OperatorSettings, address_of, own_identity
from gantry_operator.sidecars import HttpSidecars, Sidecars
from gantry_operator.tokens import operator_key
from gantry_operator.watched_resources import WatchedResources

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
OWN_KINDS_S: Final = 5.0
"""How long the API server may need until it serves what came with the chart."""
SETTLE_S: Final = 1.0
"""For calls that are under way at the end. One that takes longer lets the Lease run out instead of being given back."""
RELEASE_S: Final = 1.0
"""For the API server to take the Lease back."""
WATCHES_END_S: Final = 1.0
"""For Kopf to end its watches; they are cut off then."""


Watch = Callable[[WatchedResources, asyncio.Event], Awaitable[None]]
"""Reports what changes, until the event is set."""


@final
@dataclass(frozen=True, kw_only=True)
class Around:
    """What is around an operator; as it stands here, a process of its own."""

    watch: Watch | None = None
    """None for a Kopf of its own, and for signals."""

    sidecars: Callable[[], AbstractAsyncContextManager[Sidecars]] = HttpSidecars
    """The way to them."""

    on_lost: Callable[[], None] = end_process
    """What is done when another one may lead. Whatever it is: this one must do nothing more."""


@final
class Operator:
    """Owned by the event loop of its process."""

    def __init__(self, settings: OperatorSettings, around: Around = Around()) -> None:
        """Raises ``SettingsError``."""
        self.settings: Final = settings
        self.around: Final = around
        self.metrics: Final = Metrics()
        self.clock: Final = RealClock()
        self.cache: Final = Cache(knows_machines=settings.looks_at_machines)
        self.resources: WatchedResources | None = None
        self.port = 0
        """Of probes and metrics, once it listens."""

        self._listen: Final = address_of(settings.listen, "--listen")
        self._configuration: Final = configuration(settings.kubeconfig, settings.context)
        self._stop: Final = asyncio.Event()
        self._signals: Final = _Signals(self.stop)
        self._is_settled = True
        """Whether nothing that was begun here may still be under way."""

    def stop(self) -> None:
        """End in order."""
        self._stop.set()

    async def run(self) -> None:
        """Until stopped."""
        settings = self.settings
        client = client_of(self._configuration)
        lease_api = KubernetesApi(client, timeout_s=settings.leader.retry_ms * 2 / 1000, threads=2)
        candidate = Candidate(settings.identity or own_identity(), settings.leader)
        place = Place(LEASES, settings.namespace, settings.name)
        leadership = Leadership(lease_api, place, candidate, self.clock, self.around.on_lost)
        async with AsyncExitStack() as stack:
            stack.callback(lease_api.close)
            self.port = await stack.enter_async_context(probes(self._listen, self.metrics, self._complaint))
            if self.around.watch is None:
                stack.enter_context(self._signals)
            leading = asyncio.create_task(leadership.run(), name="gantry-leadership")
            try:
                await _first(leadership.won.wait(), self._stop.wait())
                if not self._stop.is_set():
                    self.metrics.leader.set(1)
                    await self._lead(leadership, leading)
            finally:
                await self._resign(leadership, leading)

    async def _lead(self, leadership: Leadership, leading: asyncio.Task[None]) -> None:
        settings = self.settings
        client = client_of(configuration(settings.kubeconfig, settings.context))
        api = KubernetesApi(client, noted=self.metrics.called, may_write=leadership.is_leader)
        async with AsyncExitStack() as stack:
            stack.callback(api.close)
            sidecars = await stack.enter_async_context(self.around.sidecars())
            known = KnownKinds(api)
            context = GroupContext(
                cache=self.cache, api=api, sidecars=sidecars, clock=self.clock, metrics=self.metrics,
                base=await self._base(known), render=render,
                key=await operator_key(api, settings.namespace, settings.name),
                lease_duration_ms=settings.lease_duration_ms,
            )  # fmt: skip
            pipelines = await self._pipelines(api, known, stack)
            groups = LoopKeeper(context, settings.namespaces)
            resources = self.resources = WatchedResources(groups, pipelines)
            await self._listed(resources)
            keeping = asyncio.create_task(resources.run(), name="gantry-resources")
            watching = asyncio.create_task(self._watches(resources), name="gantry-watches")
            asking = asyncio.create_task(self._more(known), name="gantry-known-kinds")
            try:
                await _first(asyncio.shield(watching), asyncio.shield(leading), self._stop.wait())
            finally:
                self._stop.set()
                await _ended(asking)
                await _ended(keeping)
                await resources.close()
                self._is_settled = await api.settled(SETTLE_S)
                await self._resign(leadership, leading)
                await asyncio.wait([watching], timeout=WATCHES_END_S)
                await _ended(watching)
            for task in (watching, leading):
                if not task.cancelled():
                    task.result()

    async def _more(self, known: KnownKinds) -> None:
        """End when the cluster has come to know more than it did: the next process looks after that, too."""
        kind = await known.until_more()
        log.warning("new resource kind available; restarting", extra={"kind": kind.plural})
        self.stop()

    async def _pipelines(
        self, api: Kubernetes, known: KnownKinds, stack: AsyncExitStack
    ) -> LoopKeeper[PipelineReconciler] | None:
        """The keeper of pipelines, where the cluster has such kinds and the operator may list them."""
        settings = self.settings
        for kind in (*PIPELINES, JOBS, CRON_JOBS):
            if not await known.has(kind, settings.namespaces, patience_s=OWN_KINDS_S):
                log.warning("pipelines are not reconciled", extra={"reason": f"{kind.plural} cannot be listed"})
                return None
        engine = EngineFacts(
            image=settings.pipeline_image,
            pull_policy=settings.pipeline_pull_policy,
            pull_secrets=settings.pull_secrets,
            executors_role=settings.executors_role,
            operator_namespace=settings.namespace,
            operator_labels=dict(settings.operator_labels),
            prometheus_labels=dict(settings.prometheus_labels),
        )
        context = PipelineContext(
            cache=pipeline_cache(), groups=self.cache, api=api, clock=self.clock, metrics=self.metrics, engine=engine,
            pages=await stack.enter_async_context(HttpPages()),
        )  # fmt: skip
        return LoopKeeper(context, settings.namespaces)

    async def _resign(self, leadership: Leadership, leading: asyncio.Task[None]) -> None:
        """Give the Lease back, if nothing is under way; a second time does nothing."""
        await _ended(leading)
        if self._is_settled:
            with suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await leadership.release()

    async def _listed(self, resources: WatchedResources) -> None:
        """Everything, before anything is decided."""
        while not self._stop.is_set():
            try:
                await resources.list_all()
                return
            except ApiError as error:
                log.warning("failed to list resources; retrying", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _base(self, known: KnownKinds) -> Facts:
        settings = self.settings
        return Facts(
            image=settings.image,
            pull_policy=settings.pull_policy,
            pull_secrets=settings.pull_secrets,
            operator_namespace=settings.namespace,
            operator_labels=dict(settings.operator_labels),
            prometheus_labels=dict(settings.prometheus_labels),
            has_pod_monitor=await known.has(POD_MONITORS),
            has_prometheus_rule=await known.has(PROMETHEUS_RULES),
        )

    async def _watches(self, resources: WatchedResources) -> None:
        if self.around.watch is None:
            await self.watch(resources)
        else:
            await self.around.watch(resources, self._stop)

    async def watch(self, resources: WatchedResources) -> None:
        """Have Kopf tell what changes, until stopped."""
        namespaces = self.settings.namespaces
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry_of(resources, lambda: connection_of(self._configuration)),
            settings=settings_of(),
            standalone=True,
            # Without one Kopf asks for the user's name, and a pod's user may have none.
            identity=own_identity(),  # type: ignore[arg-type]
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=self._stop,
        )
        self._signals.take()
        await kopf.run_tasks(tasks, ignored=before)

    def _complaint(self) -> str:
        return "" if self.resources is None else self.resources.stale(self.settings.stale_s)


async def _first(*waits: Awaitable[object]) -> None:
    """Until one of them is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancelled, if it still runs; what it raised is its own."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@final
class _Signals:
    """SIGTERM and SIGINT, while inside; ``take`` takes them back from whoever has taken them."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop: Final = stop

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def take(self) -> None:
        """Ours from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)


AGAIN_S: Final = 0.5
FIRST_S: Final = 2.0
LAST_S: Final = 60.0
"""Between two questions, in the end."""


@final
class KnownKinds:
    """Which kinds the cluster has, of those that it need not have; and waiting for those that it has not.

    What is reconciled and rendered follows from it when an operator becomes the leader. A definition may come later:
    with the very chart that brings the operator, whose definitions and rights the API server takes a moment to serve,
    or years after it, with a Prometheus. Then the process ends in order, and the next one starts with everything.
    """

    def __init__(self, api: Kubernetes, *, first_s: float = FIRST_S, last_s: float = LAST_S) -> None:
        self._api: Final = api
        self._first_s: Final = first_s
        self._last_s: Final = last_s
        self._missing: Final[dict[Kind, Sequence[str]]] = {}

    async def has(self, kind: Kind, namespaces: Sequence[str] = (), *, patience_s: float = 0.0) -> bool:
        """Whether the cluster has such things, and we may look at them. One that we may not look at is left alone.

        Of what comes with our own chart it is asked a little longer (``patience_s``).
        """
        asked_s = 0.0
        while not await self._is_listed(kind, namespaces):
            if asked_s >= patience_s:
                self._missing[kind] = namespaces
                return False
            await asyncio.sleep(AGAIN_S)
            asked_s += AGAIN_S
        return True

    async def _is_listed(self, kind: Kind, namespaces: Sequence[str]) -> bool:
        try:
            for namespace in namespaces or ("",):
                await self._api.list(kind, namespace, "gantry.dev/none")
        except ApiError:
            return False
        return True

    async def until_more(self) -> Kind:
        """Wait until one of those that were missing is there. For ever, where none was."""
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._last_s)
            for kind, namespaces in list(self._missing.items()):
                if await self.has(kind, namespaces):
                    return kind
