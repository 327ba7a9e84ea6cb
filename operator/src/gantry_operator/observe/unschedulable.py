"""Explains why pods of a group are not scheduled: what they need, and which node is nearest, for the group's status.

    no pod waits         nothing is read and nothing is calculated: the caches have the pods of groups
    a pod waits          after ``GRACE_MS`` the pods of all namespaces are read, and compared with the cached Nodes
    it still waits       the same every ``EXPLAIN_MS``; the pods are read at most as often for all groups together

The reading runs beside the rounds of the group, which may have a failover to decide. The scheduler's own message is a
part of the text, since the scheduler has more rules than this estimate (``gantry_spec.capacity``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

from gantry_operator.api import CLAIMS, NODES, PODS, VOLUMES, Kubernetes, Object, ObjectRef, labels_of, uid_of
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError
from gantry_operator.event_recorder import Event
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.capacity.nodes import Candidate, Nodes, Reservation, reservation_of, reservations, shortage_text
from gantry_spec.capacity.plan import pods_text
from gantry_spec.capacity.resources import InvalidQuantity, need_text, requests_of
from gantry_spec.decide.decision import Condition

log = logging.getLogger(__name__)

CONDITION: Final = "PodsScheduled"
UNSCHEDULABLE: Final = "Unschedulable"
"""The reason of the condition of a pod, and of the group's, where the scheduler found no node."""

EVENT: Final = "PodsUnschedulable"
"""The event reason where other pods than before are not scheduled."""

GRACE_MS: Final = 5_000
"""How long a pod may wait before the status mentions it: a successor often waits for the volume of its predecessor."""

EXPLAIN_MS: Final = 60_000
"""The least time between two explanations, and between two reads of all pods of the cluster."""

EXPLAINED_MAX: Final = 10
"""The most pods that are explained one by one; further ones are only counted."""

SCHEDULER_TEXT_MAX: Final = 300
"""The most characters of the scheduler's message."""


@final
class ClusterPods:
    """What the pods of all namespaces reserve, read at most once every ``EXPLAIN_MS`` for all groups of an operator."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api: Final = api
        self._clock: Final = clock
        self._lock: Final = asyncio.Lock()
        self._read_ms: int | None = None
        self._known: list[Reservation] | None = None

    def __repr__(self) -> str:
        return f"<ClusterPods known={None if self._known is None else len(self._known)}>"

    async def reserved(self) -> list[Reservation] | None:
        """Return what the pods reserve; None if they cannot be read."""
        async with self._lock:
            now_ms = self._clock.now_ms()
            if self._read_ms is None or now_ms - self._read_ms >= EXPLAIN_MS:
                self._read_ms = now_ms
                try:
                    self._known = await self._api.scan(PODS, reservation_of)
                except (ApiError, InvalidQuantity) as error:
                    self._known = None
                    log.info("pods of all namespaces cannot be read", extra={"reason": str(error)})
            return self._known


@final
class UnschedulablePods:
    """The pods of one group that are not scheduled, with the reasons. Owned by the task of the group's loop."""

    def __init__(self, objects: GroupObjects, api: Kubernetes, clock: Clock, cluster_pods: ClusterPods) -> None:
        self._objects: Final = objects
        self._api: Final = api
        self._clock: Final = clock
        self._cluster_pods: Final = cluster_pods
        self._since_ms: Final[dict[str, int]] = {}
        """Since when a pod waits, by its uid."""

        self._due: frozenset[str] = frozenset()
        """The names of the pods that have waited for longer than ``GRACE_MS``."""

        self._explained: tuple[frozenset[str], str] | None = None
        """The names of the explained pods, and the text."""

        self._explained_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._reported: frozenset[str] | None = None
        """The names of the pods in the last event; None until this process knows them."""

    def __repr__(self) -> str:
        return f"<UnschedulablePods waiting={len(self._since_ms)}>"

    def update(self, before: Mapping[str, Any]) -> None:
        """Take over the present pods, and begin an explanation if one is due. ``before`` is the status so far."""
        now_ms = self._clock.now_ms()
        waiting = {uid_of(pod): pod for pod in self._waiting_pods()}
        for uid in self._since_ms.keys() - waiting.keys():
            del self._since_ms[uid]
        is_reported = _reported_message(before) is not None
        for uid in waiting.keys() - self._since_ms.keys():
            self._since_ms[uid] = now_ms - (GRACE_MS if is_reported else 0)
        pods = [pod for uid, pod in waiting.items() if now_ms - self._since_ms[uid] >= GRACE_MS]
        self._due = frozenset(str(pod["metadata"]["name"]) for pod in pods)
        if not pods:
            self._explained = None
            return
        is_other = self._explained is None or self._explained[0] != self._due
        if (is_other or now_ms - self._explained_ms >= EXPLAIN_MS) and (self._task is None or self._task.done()):
            self._explained_ms = now_ms
            self._task = asyncio.create_task(self._explain(self._due, pods), name="gantry-unschedulable")

    def condition(self, before: Mapping[str, Any]) -> Condition | None:
        """Return the condition while pods are not scheduled: the present one, until this process has explained them."""
        message = _reported_message(before) if self._due else None
        if self._explained is not None:
            message = self._explained[1]
        if message is None:
            return None
        return Condition(type=CONDITION, is_true=False, reason=UNSCHEDULABLE, message=message)

    def event(self, before: Mapping[str, Any]) -> Event | None:
        """Return the event of a change: other pods are not scheduled than at the last event, or none are left.

        What the status had before this process began is no change.
        """
        if self._due and self._explained is None:
            return None  # not explained yet
        names, text = self._explained or (frozenset[str](), "")
        known, self._reported = self._reported, names
        if known is None:
            was_reported = _reported_message(before) is not None
            known = names if names and was_reported else frozenset({"of an earlier process"} if was_reported else ())
        if names == known:
            return None
        return Event(EVENT, text, is_warning=True) if names else Event(CONDITION, "all pods are scheduled")

    async def settle(self) -> None:
        """Wait until no explanation is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Cancel an explanation that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- one explanation -----------------------------------------------------------------------------------------------

    def _waiting_pods(self) -> Iterator[Object]:
        for pod in self._objects.cache.of_group(PODS, self._objects.key):
            if _scheduler_message(pod) is not None and not pod["metadata"].get("deletionTimestamp"):
                yield pod

    async def _explain(self, names: frozenset[str], pods: Sequence[Object]) -> None:
        """Explain these pods. An error of this process's own must not affect the group, which only lacks the text."""
        try:
            text = await self._text_of(pods)
        except Exception:
            group = "/".join(self._objects.key)
            log.exception("unexpected error while explaining unscheduled pods", extra={"group": group})
            text = f"not scheduled: {', '.join(sorted(names))}"
        if names == self._due:
            self._explained = names, text

    async def _text_of(self, pods: Sequence[Object]) -> str:
        """Return what the pods need, which nodes are nearest, and what the scheduler reports."""
        cache = self._objects.cache
        documents = cache.of_kind(NODES) if cache.can_read_nodes else []
        reserved = await self._cluster_pods.reserved() if documents else None
        own = reservations(cache.of_group(PODS, self._objects.key))
        nodes = Nodes(documents, own if reserved is None else reserved)
        texts: dict[str, list[str]] = {}
        for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"]))[:EXPLAINED_MAX]:
            # A pod takes some milliseconds in a large cluster, and other groups have their rounds.
            await asyncio.sleep(0)
            text = self._text(pod, await self._volume_affinities(pod), nodes, is_complete=reserved is not None)
            texts.setdefault(text, []).append(str(pod["metadata"]["name"]))
        parts = [f"{pods_text(names)} {text}" for text, names in texts.items()]
        parts += [f"{len(pods) - EXPLAINED_MAX} more pods wait"] if len(pods) > EXPLAINED_MAX else []
        return "; ".join(parts)

    def _text(self, pod: Object, affinities: Sequence[Object], nodes: Nodes, *, is_complete: bool) -> str:
        """Return what a pod needs, the nearest node, and the scheduler's message."""
        try:
            requests = requests_of(pod)
        except InvalidQuantity as error:  # an API server of a later version may have other forms
            return f"is not scheduled: {error}"
        candidate = Candidate(
            name=str(pod["metadata"]["name"]),
            namespace=self._objects.key[0],
            labels=labels_of(pod),
            spec=pod["spec"],
            requests=requests,
            volume_affinities=affinities,
        )
        parts = [f"needs {need_text(requests)}"]
        if nodes.documents:
            without = "" if is_complete else "not counting pods of others, "
            parts.append(without + shortage_text(nodes, candidate, nodes.verdicts(candidate)))
        message = " ".join((_scheduler_message(pod) or "").split())[:SCHEDULER_TEXT_MAX]
        return "; ".join([*parts, *([f"scheduler: {message}"] if message else [])])

    async def _volume_affinities(self, pod: Object) -> list[Object]:
        """Return the required node affinities of the volumes that the pod's claims are bound to."""
        found = []
        for volume in (pod.get("spec") or {}).get("volumes") or []:
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            claim = self._objects.cache.get(ObjectRef(CLAIMS, self._objects.key[0], name)) if name else None
            bound = ((claim or {}).get("spec") or {}).get("volumeName")
            if not bound or not self._objects.cache.can_read_nodes:
                continue
            try:
                document = await self._api.get(ObjectRef(VOLUMES, "", bound))
            except ApiError:
                continue
            required = ((document.get("spec") or {}).get("nodeAffinity") or {}).get("required")
            found += [required] if required else []
        return found


def _scheduler_message(pod: Object) -> str | None:
    """Return the message of the scheduler that it found no node for a pod; None if it has not reported this."""
    if (pod.get("spec") or {}).get("nodeName"):
        return None
    for one in (pod.get("status") or {}).get("conditions") or []:
        if (one.get("type"), one.get("status"), one.get("reason")) == ("PodScheduled", "False", UNSCHEDULABLE):
            return str(one.get("message") or "")
    return None


def _reported_message(status: Mapping[str, Any]) -> str | None:
    """Return the message of a status that pods are not scheduled; None if it has no such condition."""
    conditions = status.get("conditions") or []
    found = (one for one in conditions if one.get("type") == CONDITION and one.get("status") == "False")
    return next((str(one.get("message") or "") for one in found), None)
