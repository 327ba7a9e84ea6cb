"""One operator process: acquire leadership, list all resources, watch them, reconcile, and shut down in order.

probes and metrics    are served from the start to the end of the process
the leader Lease      is acquired before anything is changed; when it is lost, the process exits at once
a full list           comes before the first reconciliation, so that no decision rests on an incomplete cache
Kopf                  reports watch events to the cache, and changes nothing in the cluster
SIGTERM               cancels the loops of all resources, waits for pending calls to the API server, releases the Lease,
                      so that the next leader need not wait for its expiry, and only then waits briefly for Kopf to stop

The operator handles signals itself from start to end, and replaces the handlers that Kopf installs when it starts. With
Kopf's handlers, SIGTERM would end Kopf's tasks without setting the operator's stop flag. Kopf would then wait for five
seconds for its own task that awaits this flag, while the Lease is still held.

Where the operator shares its process (Kopf's own runner does so in tests), the embedding program supplies the watches
and handles the signals (``Collaborators``).
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
    GATEWAYS,
    GROUPS,
    JOBS,
    LEASES,
    PIPELINES,
    POD_MONITORS,
    PROMETHEUS_RULES,
    ROUTE_KINDS,
    Kind,
    Kubernetes,
    ObjectRef,
)
from gantry_operator.cache import Cache
from gantry_operator.clock import RealClock
from gantry_operator.errors import ApiError, Unavailable, is_kind_missing
from gantry_operator.group_archive import Archives
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.handlers import kopf_connection, kopf_registry, kopf_settings
from gantry_operator.kubernetes_api import KubernetesApi, client_of, configuration
from gantry_operator.leader_election import Candidate, Leadership, end_process
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.observe.gateways import uses_gateway
from gantry_operator.observe.unschedulable import ClusterPods
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.pages import HttpDriverPages
from gantry_operator.pipelines.reconciler import (
    PipelineContext,
    PipelineReconciler,
    pipeline_cache,
)
from gantry_operator.probes import probes
from gantry_operator.resource_loop import LoopManager
from gantry_operator.settings import OperatorSettings, own_identity, parse_address
from gantry_operator.sidecars import HttpSidecars, Sidecars
from gantry_operator.tokens import operator_key
from gantry_operator.watched_resources import WatchedResources

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""The time between two attempts to list all resources."""

OWN_KINDS_S: Final = 5.0
"""How long the API server may need until it serves the CRDs that the chart has just installed."""
SETTLE_S: Final = 1.0
"""How long shutdown waits for pending API calls. After that the Lease is not released, but left to expire."""
RELEASE_S: Final = 1.0
"""How long shutdown waits for the API server to release the Lease."""
WATCHES_END_S: Final = 1.0
"""How long shutdown waits for Kopf to end its watches, before they are cancelled."""


Watch = Callable[[WatchedResources, asyncio.Event], Awaitable[None]]
"""Reports watch events to the resources until the event is set."""


@final
@dataclass(frozen=True, kw_only=True)
class Collaborators:
    """The collaborators of an operator. The defaults are those of a process of its own."""

    watch: Watch | None = None
    """The source of watch events. None: the operator runs Kopf itself, and handles signals."""

    sidecars: Callable[[], AbstractAsyncContextManager[Sidecars]] = HttpSidecars
    """Creates the client for the sidecars of all groups."""

    on_lost: Callable[[], None] = end_process
    """Called when another operator may be the leader. After the call this operator must not change anything."""


@final
class Operator:
    """An operator from start to shutdown. Owned by the event loop of its process."""

    def __init__(self, settings: OperatorSettings, collaborators: Collaborators = Collaborators()) -> None:
        """Read the connection to the cluster. Raises ``SettingsError`` for settings that cannot be used."""
        self.settings: Final = settings
        self.collaborators: Final = collaborators
        self.metrics: Final = Metrics()
        self.clock: Final = RealClock()
        self.cache: Final = Cache(can_read_nodes=settings.can_read_nodes)
        self.resources: WatchedResources | None = None
        self.port = 0
        """The port of probes and metrics, once it is bound."""

        self._listen: Final = parse_address(settings.listen, "--listen")
        self._configuration: Final = configuration(settings.kubeconfig, settings.context)
        self._stop: Final = asyncio.Event()
        self._signals: Final = _Signals(self.stop)
        self._is_idle = True
        """Whether no API call of this process can still be pending; determined at shutdown, and true until then."""

    def stop(self) -> None:
        """Request an orderly shutdown of this operator."""
        self._stop.set()

    async def run(self) -> None:
        """Run until ``stop`` is called, a signal arrives, leadership is lost, or the watches end.

        Raises the error of the watches or of leader election if one of them failed.
        """
        settings = self.settings
        client = client_of(self._configuration)
        lease_api = KubernetesApi(client, timeout_s=settings.leader.retry_ms * 2 / 1000, threads=2)
        candidate = Candidate(settings.identity or own_identity(), settings.leader)
        ref = ObjectRef(LEASES, settings.namespace, settings.name)
        leadership = Leadership(lease_api, ref, candidate, self.clock, self.collaborators.on_lost)
        async with AsyncExitStack() as stack:
            stack.callback(lease_api.close)
            self.port = await stack.enter_async_context(probes(self._listen, self.metrics, self._health_problem))
            if self.collaborators.watch is None:
                stack.enter_context(self._signals)
            leader_task = asyncio.create_task(leadership.run(), name="gantry-leadership")
            try:
                await _wait_for_first(leadership.acquired.wait(), self._stop.wait())
                if not self._stop.is_set():
                    self.metrics.leader.set(1)
                    await self._lead(leadership, leader_task)
            finally:
                await self._resign(leadership, leader_task)

    async def _lead(self, leadership: Leadership, leader_task: asyncio.Task[None]) -> None:
        """Run as the leader: reconcile until a stop or the loss of leadership, then shut down in order."""
        settings = self.settings
        client = client_of(configuration(settings.kubeconfig, settings.context))
        api = KubernetesApi(client, on_call=self.metrics.record_call, may_write=leadership.is_leader)
        async with AsyncExitStack() as stack:
            stack.callback(api.close)
            sidecars = await stack.enter_async_context(self.collaborators.sidecars())
            kinds = KindDiscovery(api)
            gateway_kinds = await self._gateway_kinds(kinds)
            pipelines, archives = await self._pipelines(api, kinds, stack)
            context = GroupContext(
                cache=self.cache, api=api, sidecars=sidecars, clock=self.clock, metrics=self.metrics,
                base=await self._base_facts(kinds, gateway_kinds), render=render,
                key=await operator_key(api, settings.namespace, settings.name),
                cluster_pods=ClusterPods(api, self.clock),
                archives=archives,
                lease_duration_ms=settings.lease_duration_ms, namespaces=settings.namespaces,
            )  # fmt: skip
            groups = LoopManager(context, settings.namespaces)
            resources = self.resources = WatchedResources(groups, pipelines, gateway_kinds)
            await self._list_all(resources)
            resources_task = asyncio.create_task(resources.run(), name="gantry-resources")
            watches_task = asyncio.create_task(self._run_watches(resources), name="gantry-watches")
            discovery_task = asyncio.create_task(self._stop_on_new_kind(kinds), name="gantry-known-kinds")
            try:
                await _wait_for_first(asyncio.shield(watches_task), asyncio.shield(leader_task), self._stop.wait())
            finally:
                self._stop.set()
                await _cancel(discovery_task)
                await _cancel(resources_task)
                await resources.close()
                self._is_idle = await api.wait_until_idle(SETTLE_S)
                await self._resign(leadership, leader_task)
                await asyncio.wait([watches_task], timeout=WATCHES_END_S)
                await _cancel(watches_task)
            for task in (watches_task, leader_task):
                if not task.cancelled():
                    task.result()

    async def _stop_on_new_kind(self, kinds: KindDiscovery) -> None:
        """Stop the operator when a missing kind becomes available, so that the next process reconciles it, too."""
        kind = await kinds.wait_for_missing()
        log.warning("new resource kind available; restarting", extra={"kind": kind.plural})
        self.stop()

    async def _pipelines(
        self, api: Kubernetes, kinds: KindDiscovery, stack: AsyncExitStack
    ) -> tuple[LoopManager[PipelineReconciler] | None, Archives | None]:
        """Return the loops of pipelines, and the archives that groups may name.

        Both are None where the cluster lacks the kinds of pipelines, or the right to list them.
        """
        settings = self.settings
        for kind in (*PIPELINES, JOBS, CRON_JOBS):
            if not await kinds.is_available(kind, settings.namespaces, timeout_s=OWN_KINDS_S):
                log.warning("pipelines are not reconciled", extra={"reason": f"{kind.plural} cannot be listed"})
                return None, None
        engine = EngineFacts(
            image=settings.pipeline_image,
            pull_policy=settings.pipeline_pull_policy,
            pull_secrets=settings.pull_secrets,
            executors_role=settings.executors_role,
            operator_namespace=settings.namespace,
            operator_labels=dict(settings.operator_labels),
            prometheus_labels=dict(settings.prometheus_labels),
        )
        cache, pages = pipeline_cache(), await stack.enter_async_context(HttpDriverPages())
        context = PipelineContext(
            cache=cache, groups=self.cache, api=api, clock=self.clock, metrics=self.metrics, engine=engine, pages=pages
        )
        return LoopManager(context, settings.namespaces), Archives(cache=cache, engine=engine, pages=pages)

    async def _resign(self, leadership: Leadership, leader_task: asyncio.Task[None]) -> None:
        """Release the Lease if no API call is pending. A second call has no effect."""
        await _cancel(leader_task)
        if self._is_idle:
            with suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await leadership.release()

    async def _list_all(self, resources: WatchedResources) -> None:
        """List all resources, with retries, before the first decision."""
        while not self._stop.is_set():
            try:
                await resources.list_all()
                return
            except ApiError as error:
                log.warning("failed to list resources; retrying", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _gateway_kinds(self, kinds: KindDiscovery) -> tuple[Kind, ...]:
        """Return the kinds of the Gateway API to use; none where the cluster lacks them, or the right to list them.

        Without them external addresses are withdrawn, so an API server that does not answer is asked again.
        """
        if not await self._is_served(kinds, GATEWAYS):
            return ()
        for kind in ROUTE_KINDS:
            if await self._is_served(kinds, kind):
                return GATEWAYS, kind
        return ()

    async def _is_served(self, kinds: KindDiscovery, kind: Kind) -> bool:
        """Return whether the cluster has an optional kind. Groups that need it are looked for once it is missing."""
        while not self._stop.is_set():
            try:
                return await kinds.is_served(kind, self.settings.namespaces, self._has_gateways)
            except Unavailable as error:
                log.warning("failed to list resources; retrying", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)
        return False

    def _has_gateways(self) -> bool:
        """Return whether a group's external clients connect through a Gateway."""
        return any(uses_gateway(document) for document in self.cache.of_kind(GROUPS))

    async def _base_facts(self, kinds: KindDiscovery, gateway_kinds: Sequence[Kind]) -> Facts:
        settings = self.settings
        return Facts(
            image=settings.image,
            pull_policy=settings.pull_policy,
            pull_secrets=settings.pull_secrets,
            operator_namespace=settings.namespace,
            operator_labels=dict(settings.operator_labels),
            prometheus_labels=dict(settings.prometheus_labels),
            has_pod_monitor=await kinds.is_available(POD_MONITORS),
            has_prometheus_rule=await kinds.is_available(PROMETHEUS_RULES),
            route_api=gateway_kinds[-1].api_version if gateway_kinds else "",
        )

    async def _run_watches(self, resources: WatchedResources) -> None:
        if self.collaborators.watch is None:
            await self.watch(resources)
        else:
            await self.collaborators.watch(resources, self._stop)

    async def watch(self, resources: WatchedResources) -> None:
        """Run Kopf, which reports watch events, until the operator is stopped."""
        namespaces = self.settings.namespaces
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=kopf_registry(resources, lambda: kopf_connection(self._configuration)),
            settings=kopf_settings(),
            standalone=True,
            # Without an identity Kopf asks for the user's name, and the user of a pod may have none.
            identity=own_identity(),  # type: ignore[arg-type]
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=self._stop,
        )
        self._signals.install()
        await kopf.run_tasks(tasks, ignored=before)

    def _health_problem(self) -> str:
        return "" if self.resources is None else self.resources.describe_stale(self.settings.stale_s)


async def _wait_for_first(*waits: Awaitable[object]) -> None:
    """Wait until the first of these is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it; an exception of the task is dropped here."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@final
class _Signals:
    """Handles SIGTERM and SIGINT while it is entered. ``install`` replaces handlers that Kopf has installed since."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop: Final = stop

    def __enter__(self) -> None:
        self.install()

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def install(self) -> None:
        """Install the handlers of both signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)


RETRY_MISSING_S: Final = 0.5
"""The time between two checks for the kinds of the operator's own chart."""

PERIOD_MIN_S: Final = 2.0
"""The time before the first check for missing kinds."""

PERIOD_MAX_S: Final = 60.0
"""The longest time between two checks for missing kinds; the time doubles from check to check until then."""


NO_OBJECT: Final = "gantry.dev/none"
"""The label selector of a list that only checks for a kind: no object has this label."""


@final
class KindDiscovery:
    """Discovers which optional kinds the cluster has, and waits for the missing ones.

    The result determines what an operator reconciles and renders from the moment it becomes the leader. A CRD may be
    installed later: by the chart of the operator itself, whose CRDs and rights the API server takes a moment to serve,
    or much later, with Prometheus. Then the process shuts down in order, and the next one starts with all kinds.
    """

    def __init__(
        self, api: Kubernetes, *, period_min_s: float = PERIOD_MIN_S, period_max_s: float = PERIOD_MAX_S
    ) -> None:
        self._api: Final = api
        self._period_min_s: Final = period_min_s
        self._period_max_s: Final = period_max_s
        self._missing: Final[dict[Kind, tuple[Sequence[str], Callable[[], bool]]]] = {}
        """The missing kinds with the namespaces to list, and whether anything needs them."""

    async def is_available(self, kind: Kind, namespaces: Sequence[str] = (), *, timeout_s: float = 0.0) -> bool:
        """Return whether the cluster has this kind, and the operator may list it; False also if the API server fails.

        The check is repeated for ``timeout_s``, for kinds whose CRDs the operator's own chart installs.
        """
        waited_s = 0.0
        while not await self._is_listed(kind, namespaces):
            if waited_s >= timeout_s:
                self._missing[kind] = namespaces, lambda: True
                return False
            await asyncio.sleep(RETRY_MISSING_S)
            waited_s += RETRY_MISSING_S
        return True

    async def is_served(self, kind: Kind, namespaces: Sequence[str], is_needed: Callable[[], bool]) -> bool:
        """Return whether the cluster has this kind, and the operator may list it; a missing one is awaited if needed.

        Raises ``Unavailable`` if the API server gives no definite answer.
        """
        try:
            for namespace in namespaces or ("",):
                await self._api.list(kind, namespace, NO_OBJECT)
        except ApiError as error:
            if isinstance(error, Unavailable) and not is_kind_missing(error):
                raise
            self._missing[kind] = namespaces, is_needed
            return False
        return True

    async def _is_listed(self, kind: Kind, namespaces: Sequence[str]) -> bool:
        """Return whether the kind can be listed."""
        try:
            for namespace in namespaces or ("",):
                await self._api.list(kind, namespace, NO_OBJECT)
        except ApiError:
            return False
        return True

    async def wait_for_missing(self) -> Kind:
        """Wait until one of the missing kinds is available, and return it. Waits for ever if none is missing."""
        wait_s = self._period_min_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._period_max_s)
            for kind, (namespaces, is_needed) in list(self._missing.items()):
                if is_needed() and await self._is_listed(kind, namespaces):
                    return kind
