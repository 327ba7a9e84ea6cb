"""One process of an operator: its real loop, and ports to the model cluster that interrupt it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, final

from interruptions.faults import Fault, Interruption
from operator_world.cluster import GROUP, NAMESPACE, ModelCluster
from operator_world.fake_kubernetes import copied

from gantry_operator.api import Kept, Kind, Object, ObjectRef, ref_of, revision_of, uid_of
from gantry_operator.cache import Cache
from gantry_operator.errors import (
    ApiError,
    Conflict,
    InvalidObject,
    SidecarError,
    SidecarRefused,
    SidecarUnavailable,
    Unavailable,
)
from gantry_operator.group_reconciler import GroupContext, GroupReconciler
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.observe.unschedulable import ClusterPods
from gantry_operator.resource_loop import ResourceLoop
from gantry_operator.sidecars import Peer
from gantry_spec.executor import Expected
from gantry_status.orders import AnyOrder

T = TypeVar("T")

LATE_MS: Final = 2_000
"""How late watch events come, and how old a stale list is."""

LATE_FOR_MS: Final = 8_000
"""How long watch events come late, or twice."""


class Killed(BaseException):
    """The operator's process has ended: none of its code may continue."""


@final
class Interrupter:
    """Counts the effects of an operation, over all processes of the operator, and lets faults happen."""

    def __init__(self, interruptions: tuple[Interruption, ...] = ()) -> None:
        self.effects: Final[list[str]] = []
        """Every effect, as a text."""

        self.is_counting = False
        self.is_killed = False
        """Whether the present process has been killed and not been replaced."""

        self.is_stale_start = False
        """Whether the next process starts with an old list."""

        self.late_from_ms: dict[Fault, int] = {}
        """When events began to come late, or twice."""

        self.happened: Final[list[Interruption]] = []
        self._planned: Final = {one.effect: one.fault for one in interruptions}

    def take(self, text: str, now_ms: int) -> Fault | None:
        """Count an effect, and return the fault that happens to it, if one does."""
        if not self.is_counting:
            return None
        self.effects.append(text)
        number = len(self.effects)
        fault = self._planned.get(number)
        if fault is None:
            return None
        self.happened.append(Interruption(fault, number))
        if fault in (Fault.LATE_EVENTS, Fault.DOUBLE_EVENTS):
            self.late_from_ms[fault] = now_ms
            return None
        return fault

    def affects_events(self, fault: Fault, now_ms: int) -> bool:
        """Return whether watch events come late, or twice, now."""
        began_ms = self.late_from_ms.get(fault)
        return began_ms is not None and now_ms < began_ms + LATE_FOR_MS


@final
class Ports:
    """The API server and the sidecars as one process of the operator reaches them."""

    def __init__(self, cluster: ModelCluster, interrupter: Interrupter) -> None:
        self._cluster: Final = cluster
        self._api: Final = cluster.api
        self._interrupter: Final = interrupter
        self._is_dead = False

    def end(self) -> None:
        """Let every further call of this process end it."""
        self._is_dead = True

    async def _make(self, text: str, act: Callable[[], Awaitable[T]], errors: Mapping[Fault, Exception]) -> T:
        """Make an effect, or let the planned fault happen to it."""
        self._require_life()
        fault = self._interrupter.take(text, self._cluster.clock.ms)
        if fault is None:
            return await act()
        if fault in (Fault.CONFLICT, Fault.INVALID, Fault.THROTTLED, Fault.FAILED):
            raise errors[fault]
        if fault is not Fault.KILLED_BEFORE:
            try:
                answer = await act()
                if fault is Fault.REPEATED:
                    answer = await act()
            except (ApiError, SidecarError):
                if fault not in (Fault.KILLED_AFTER, Fault.STALE_START):
                    raise
            else:
                if fault is Fault.REPEATED:
                    return answer
                if fault is Fault.ANSWER_LOST:
                    raise errors[fault]
        self._interrupter.is_killed = True
        self._interrupter.is_stale_start = fault is Fault.STALE_START
        self.end()
        raise Killed

    def _require_life(self) -> None:
        if self._is_dead:
            raise Killed

    async def _write(self, verb: str, ref: ObjectRef, act: Callable[[], Awaitable[T]]) -> T:
        what = f"{verb} {ref}"
        conflict = Conflict(what, "injected (409)", 409)
        return await self._make(what, act, {
            # A creation conflicts with an object that exists, which is no fault.
            Fault.CONFLICT: conflict if verb != "create" else Unavailable(what, "injected (503)", 503),
            Fault.INVALID: InvalidObject(what, "injected (422)", 422),
            Fault.THROTTLED: Unavailable(what, "injected (429)", 429),
            Fault.FAILED: Unavailable(what, "injected (500)", 500),
            Fault.ANSWER_LOST: Unavailable(what, "no answer"),
        })  # fmt: skip

    # -- the API server ------------------------------------------------------------------------------------------------

    async def get(self, ref: ObjectRef) -> Object:
        self._require_life()
        return await self._api.get(ref)

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Object]:
        self._require_life()
        return await self._api.list(kind, namespace, labels)

    async def scan(self, kind: Kind, keep: Callable[[Object], T | None]) -> Kept[T]:
        self._require_life()
        return await self._api.scan(kind, keep)

    async def apply(self, document: Object) -> Object:
        return await self._write("apply", ref_of(document), lambda: self._api.apply(document))

    async def apply_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> Object:
        return await self._write("status", ref, lambda: self._api.apply_status(ref, status))

    async def patch(
        self, ref: ObjectRef, change: Mapping[str, Any], *, uid: str = "", revision: str = "", subresource: str = ""
    ) -> Object:
        return await self._write("patch", ref, lambda: self._api.patch(
            ref, change, uid=uid, revision=revision, subresource=subresource
        ))  # fmt: skip

    async def create(self, document: Object) -> Object:
        return await self._write("create", ref_of(document), lambda: self._api.create(document))

    async def delete(self, ref: ObjectRef, *, uid: str, grace_s: int | None = None, is_orphaning: bool = False) -> None:
        await self._write(
            "delete", ref, lambda: self._api.delete(ref, uid=uid, grace_s=grace_s, is_orphaning=is_orphaning)
        )

    # -- the sidecars --------------------------------------------------------------------------------------------------

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        self._require_life()
        return await self._cluster.status(peer)

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        self._require_life()
        return await self._cluster.topics(peer)

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        what = f"{type(order).__name__} {peer.host}"
        return await self._make(what, lambda: self._cluster.order(peer, order, expected), {
            Fault.CONFLICT: SidecarRefused("injected (409)"),
            Fault.INVALID: SidecarRefused("injected (422)"),
            Fault.THROTTLED: SidecarUnavailable("injected (429)"),
            Fault.FAILED: SidecarUnavailable("injected (500)"),
            Fault.ANSWER_LOST: SidecarUnavailable("no answer"),
        })  # fmt: skip


@final
class OperatorProcess:
    """One process of the operator, with a cache of its own."""

    def __init__(self, cluster: ModelCluster, interrupter: Interrupter, listed: list[Object]) -> None:
        """Start a process whose cache begins with a list of objects. What has changed since then is reported late."""
        self.cache: Final = Cache()
        for document in listed:
            self.cache.apply_event(None, copied(document))
        self._cluster: Final = cluster
        self._interrupter: Final = interrupter
        due_ms = cluster.clock.ms + LATE_MS
        self._later: Final[list[tuple[int, str, Object]]] = [
            (due_ms, what, document) for what, document in _changes_since(cluster, listed)
        ]
        self._is_late = bool(self._later)
        cluster.api.watchers.append(self._watch)
        self._ports: Final = Ports(cluster, interrupter)
        context = GroupContext(
            cache=self.cache, api=self._ports, sidecars=self._ports, clock=cluster.clock, metrics=Metrics(),
            base=Facts(image="gantry:test"), render=render, key=b"k" * 32,
            cluster_pods=ClusterPods(self._ports, cluster.clock),
        )  # fmt: skip
        self.loop: Final[ResourceLoop[GroupReconciler]] = ResourceLoop((NAMESPACE, GROUP), context)

    def _watch(self, what: str, document: Object) -> None:
        now_ms, faults = self._cluster.clock.ms, self._interrupter
        is_late = self._is_late or faults.affects_events(Fault.LATE_EVENTS, now_ms)
        self._is_late = is_late
        if not is_late:
            self.cache.apply_event(what, document)
        if is_late or faults.affects_events(Fault.DOUBLE_EVENTS, now_ms):
            self._later.append((now_ms + LATE_MS, what, document))

    def deliver_events(self) -> None:
        """Deliver the delayed events that are due."""
        now_ms = self._cluster.clock.ms
        while self._later and self._later[0][0] <= now_ms:
            _, what, document = self._later.pop(0)
            self.cache.apply_event(what, document)
        self._is_late = self._is_late and bool(self._later)  # events stay in their order

    async def step(self) -> None:
        """Run one round, and its actions to their ends."""
        self.deliver_events()
        try:
            await self.loop._reconcile_guarded()
            await self.loop.reconciler.settle()
        except Killed:
            assert self._interrupter.is_killed, "only an interruption kills an operator"

    async def end(self) -> None:
        """End the process: nothing of it continues."""
        self._ports.end()
        self._cluster.api.watchers.remove(self._watch)
        with suppress(Killed):
            await self.loop.reconciler.close()
        await asyncio.sleep(0)


def _changes_since(cluster: ModelCluster, listed: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield what a watch that begins with a list reports: what has changed in the cluster since then."""
    known = {ref_of(document): document for document in listed}
    for ref, document in cluster.api.objects.items():
        before = known.pop(ref, None)
        if before is not None and uid_of(before) != uid_of(document):
            yield "DELETED", copied(before)
        if before is None or revision_of(before) != revision_of(document):
            yield "MODIFIED", copied(document)
    for document in known.values():
        yield "DELETED", copied(document)
