"""The archive of one group: the facts for rendering its server, and the condition `ArchiveReady`.

    the TopicArchive     is in the cache of pipelines
    its claim            is read when the group begins to name it, then every ``RETRY_MS`` until the server is ready,
                         and every ``IDLE_MS`` afterwards: access modes decide where the server can run
    the server's pods    and their Deployment are in the cache of groups
    the server's report  is requested every ``RETRY_MS`` while no pod is ready, beside the rounds of the group, which
                         may have a failover to decide. It contains why the archive cannot be read

The condition exists only in a group that names an archive. It does not count for `Ready` and the phase: brokers serve
what their logs have without it, and delete nothing that is to be archived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from gantry_operator.api import CLAIMS, DEPLOYMENTS, PIPELINES, PODS, Kubernetes, Object, ObjectRef, labels_of
from gantry_operator.cache import Cache
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, NotFound
from gantry_operator.event_recorder import Event
from gantry_operator.objects import ArchiveFacts, names
from gantry_operator.observe.group_objects import GroupObjects
from gantry_operator.pipelines.facts import EngineFacts, Problem
from gantry_operator.pipelines.observed import parse_report
from gantry_operator.pipelines.pages import DriverPages
from gantry_operator.pipelines.serving import archive_facts
from gantry_operator.pipelines.status import text
from gantry_operator.proxy_report import counts_of, problem_of
from gantry_operator.status import MESSAGE_MAX
from gantry_spec.decide.decision import Condition
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.pipelines import ARCHIVE

CONDITION: Final = "ArchiveReady"
NOT_READY: Final = "ArchiveNotReady"
"""The event reason where reads from the archive wait for something, or begin to wait for something else."""

RETRY_MS: Final = 10_000
IDLE_MS: Final = 600_000
TOPIC_ARCHIVES: Final = next(kind for kind in PIPELINES if kind.name == ARCHIVE.name)


@final
@dataclass(frozen=True, kw_only=True)
class Archives:
    """The archives of all namespaces, as the loops of pipelines know them."""

    cache: Cache
    engine: EngineFacts
    pages: DriverPages


@final
class GroupArchive:
    """The archive of one group. Owned by the task of the group's loop."""

    def __init__(self, objects: GroupObjects, api: Kubernetes, clock: Clock, archives: Archives | None) -> None:
        """``archives`` is None where the operator does not reconcile pipelines."""
        self._objects: Final = objects
        self._api: Final = api
        self._clock: Final = clock
        self._archives: Final = archives
        self._claim: Object | None = None
        self._claim_name = ""
        """The claim that was read last; empty if none was."""

        self._read_ms = 0
        self._warning = ""
        """Why a server that runs cannot read the archive, as reported last."""

        self._asked_ms = 0
        self._task: asyncio.Task[None] | None = None
        self.condition: Condition | None = None
        """Whether a server of the archive is ready, as observed last; None without an archive."""

    def __repr__(self) -> str:
        return f"<GroupArchive {'/'.join(self._objects.key)}>"

    async def observe(self, group: BrokerGroup) -> ArchiveFacts | None:
        """Observe archive and server. Return the facts for rendering the server; None if there is to be none."""
        name, archives = group.spec.retention.archive, self._archives
        if name is None:
            self.condition, self._claim_name, self._warning = None, "", ""
            return None
        if archives is None:
            self.condition = _not_ready(
                "PipelinesUnavailable", "the operator does not reconcile pipelines; see its log"
            )
            return None
        document = archives.cache.get(ObjectRef(TOPIC_ARCHIVES, group.metadata.namespace, name))
        await self._read_claim(group.metadata.namespace, document)
        server = ObjectRef(DEPLOYMENTS, group.metadata.namespace, names.archive_server_name(group.metadata.name))
        deployment = self._objects.cache.get(server)
        found = archive_facts(group, archives.engine, document, self._claim, deployment)
        if isinstance(found, Problem):
            self.condition = _not_ready(*found)
            return None
        self.condition = self._server_condition(found, archives, deployment, group.spec.retention.server.replicas)
        return found

    def event(self, before: Mapping[str, Any]) -> Event | None:
        """Return the event of a change from the condition in the status ``before``; None without a change."""
        known = {one.get("type"): one for one in before.get("conditions") or []}.get(CONDITION, {})
        condition = self.condition
        if condition is None or condition.reason == "Hibernated":
            return None
        if condition.is_true:
            return None if known.get("status") == "True" else Event(CONDITION, "the archive server is ready")
        if (known.get("status"), known.get("message")) == ("False", condition.message[:MESSAGE_MAX]):
            return None
        return Event(NOT_READY, condition.message, is_warning=condition.reason != "ServerStarting")

    async def settle(self) -> None:
        """Wait until no request for a report is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Cancel a request that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _read_claim(self, namespace: str, document: Object | None) -> None:
        """Read the claim of the archive if that is due. If it cannot be read, what was read last stays known."""
        spec = {} if document is None else document.get("spec") or {}
        name = str(((spec.get("destination") or {}).get("pvc") or {}).get("claimName") or "")
        now_ms = self._clock.now_ms()
        is_ready = self.condition is not None and self.condition.is_true
        again_ms = IDLE_MS if is_ready else RETRY_MS
        if not name or (name == self._claim_name and now_ms - self._read_ms < again_ms):
            return
        if name != self._claim_name:
            self._claim = None
        self._claim_name, self._read_ms = name, now_ms
        try:
            self._claim = await self._api.get(ObjectRef(CLAIMS, namespace, name))
        except NotFound:
            self._claim = None
        except ApiError:
            return

    def _server_condition(
        self, found: ArchiveFacts, archives: Archives, deployment: Object | None, desired: int
    ) -> Condition:
        counts = counts_of(deployment)
        if counts.is_stopped:
            return _not_ready("Hibernated", "")
        if counts.ready:
            self._warning = ""
            message = f"{counts.ready} of {desired} servers are ready" if counts.ready < desired else ""
            return Condition(type=CONDITION, is_true=True, reason="ServerReady", message=message)
        pods = [
            pod for pod in self._objects.cache.of_group(PODS, self._objects.key)
            if labels_of(pod).get(names.COMPONENT_LABEL) == names.ARCHIVE_SERVER
        ]  # fmt: skip
        if self._claim is None:
            return _not_ready("VolumeUnknown", f"claim {found.claim} of TopicArchive {found.name} cannot be read")
        jobs = archives.cache.of_group(PODS, (self._objects.key[0], found.pipeline))
        problem = volume_problem(found, pods, jobs)
        if problem:
            return _not_ready("VolumeOnAnotherNode", problem)
        self._request_report(pods, archives.pages)
        if self._warning:
            return _not_ready("CannotRead", self._warning)
        problem = "; ".join(filter(None, [*map(pod_problem, pods), problem_of(deployment)]))
        reason = "ServerFailing" if any(map(_has_ended, pods)) else "ServerStarting"
        return _not_ready(reason, problem or "no pod of the archive server is ready")

    def _request_report(self, pods: Sequence[Object], pages: DriverPages) -> None:
        """Begin to request the report of a server, if that is due."""
        addresses = [str((pod.get("status") or {}).get("podIP") or "") for pod in pods]
        now_ms, is_idle = self._clock.now_ms(), self._task is None or self._task.done()
        if any(addresses) and is_idle and now_ms - self._asked_ms >= RETRY_MS:
            self._asked_ms = now_ms
            fetching = self._fetch_report(next(filter(None, addresses)), pages)
            self._task = asyncio.create_task(fetching, name="gantry-archive")

    async def _fetch_report(self, address: str, pages: DriverPages) -> None:
        """Keep the warning of a server's report; none without an answer."""
        warning = (await pages.fetch(address) or {}).get("warning")
        self._warning = text(warning, "text") if isinstance(warning, Mapping) else ""


def volume_problem(archive: ArchiveFacts, servers: Sequence[Object], jobs: Sequence[Object]) -> str:
    """Return why pods of the server cannot mount the claim; empty if its job runs on the same Node, or not at all."""
    if not archive.is_on_one_node:
        return ""
    for server in servers:
        own = _node_of(server)
        for job in jobs:
            other = _node_of(job)
            is_over = (job.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if own and other and own != other and not is_over:
                return (
                    f"claim {archive.claim} can be mounted on one Node only: {job['metadata']['name']} has it on"
                    f" {other}, and {server['metadata']['name']} is on {own}; use a claim with ReadWriteMany, or make"
                    f" room on {other}"
                )
    return ""


def pod_problem(pod: Object) -> str:
    """Return why a pod of the server does not run, with the end of its last run; empty if it runs."""
    status = pod.get("status") or {}
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or []), {})
    waiting = (container.get("state") or {}).get("waiting") or {}
    scheduled: Mapping[str, Any] = next(
        (one for one in status.get("conditions") or [] if one.get("type") == "PodScheduled"), {}
    )
    reason = str(
        waiting.get("reason") or (scheduled.get("message") if scheduled.get("status") == "False" else "") or ""
    )
    ended = _last_end(container)
    message = str(ended.get("message") or "")
    last = str((parse_report(message) or {}).get("text") or message.strip().rpartition("\n")[2])
    found = ": ".join(one for one in (reason, last) if one)
    return f"{pod['metadata']['name']}: {found}" if found else ""


def _has_ended(pod: Object) -> bool:
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return any(_last_end(one) for one in containers)


def _last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {}
    for state in ("lastState", "state"):
        found = (container.get(state) or {}).get("terminated") or found
    return found


def _node_of(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _not_ready(reason: str, message: str) -> Condition:
    return Condition(type=CONDITION, is_true=False, reason=reason, message=message)
