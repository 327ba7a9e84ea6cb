"""The state of a group's proxies by their Deployment: the status, the condition `ProxiesReady`, and events. Pure.

The condition exists only in a group that has proxies. It does not count for `Ready` and the phase, which are about
brokers: clients that use RocketMQ's remoting protocol need no proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gantry_operator.api import Object
from gantry_operator.event_recorder import Event
from gantry_operator.objects.proxy import endpoint
from gantry_spec.decide.decision import Condition
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.status import ProxyStatus

CONDITION: Final = "ProxiesReady"


class DeploymentCounts(NamedTuple):
    """The numbers of a Deployment's pods."""

    is_stopped: bool
    """Whether none should run."""

    ready: int
    updated: int
    """The number of pods of its present version; zero while that is unknown."""


def proxy_status(group: BrokerGroup, deployment: Object | None, external_endpoint: str) -> ProxyStatus:
    """Return the status of the proxies. Counts of an older version of the Deployment are zero, since they are unknown.

    A hibernated group desires none.
    """
    if not group.spec.proxy.replicas:
        return ProxyStatus()
    counts = counts_of(deployment)
    return ProxyStatus(
        desired=0 if counts.is_stopped else group.spec.proxy.replicas,
        ready=counts.ready,
        updated=counts.updated,
        endpoint=endpoint(group),
        external_endpoint=external_endpoint,
    )


def proxy_condition(status: ProxyStatus, deployment: Object | None) -> Condition | None:
    """Return the condition of the proxies; None for a group without proxies."""
    if not status.endpoint:
        return None
    if not status.desired:
        return Condition(type=CONDITION, is_true=False, reason="Hibernated")
    if status.ready >= status.desired and status.updated >= status.desired:
        return Condition(type=CONDITION, is_true=True, reason="AllReplicasReady")
    reason = "NoneReady" if not status.ready else "Updating" if status.ready >= status.desired else "TooFewReady"
    message = f"{status.ready} of {status.desired} proxies are ready, {status.updated} have the present settings"
    problem = problem_of(deployment)
    return Condition(
        type=CONDITION, is_true=False, reason=reason, message=f"{message}: {problem}" if problem else message
    )


def proxy_event(condition: Condition | None, before: Mapping[str, Any]) -> Event | None:
    """Return the event of a change from the condition in the status ``before``; None without a change.

    Only a change between ready and unavailable is an event: the updates of a Deployment have events of their own.
    """
    known = {one.get("type"): one for one in before.get("conditions") or []}.get(CONDITION, {})
    if condition is None or known.get("reason") == condition.reason:
        return None
    if condition.is_true:
        return Event("ProxiesReady", "all proxies are ready")
    if condition.reason == "NoneReady" and known.get("reason") in ("AllReplicasReady", "Updating", "TooFewReady"):
        return Event("ProxiesUnavailable", "no proxy is ready; gRPC clients cannot use the group", is_warning=True)
    return None


def counts_of(deployment: Object | None) -> DeploymentCounts:
    """Return the numbers of a Deployment's pods; zeros for one that does not exist."""
    known = _part(deployment, "status")
    is_current = known.get("observedGeneration") == _part(deployment, "metadata").get("generation")
    return DeploymentCounts(
        is_stopped=deployment is not None and not _count(_part(deployment, "spec"), "replicas"),
        ready=_count(known, "readyReplicas"),
        updated=_count(known, "updatedReplicas") if is_current else 0,
    )


def problem_of(deployment: Object | None) -> str:
    """Return why the Deployment has no progress; empty if Kubernetes reports no reason."""
    conditions = {one.get("type"): one for one in _part(deployment, "status").get("conditions") or []}
    failure, progress = conditions.get("ReplicaFailure", {}), conditions.get("Progressing", {})
    if failure.get("status") == "True":
        return str(failure.get("message") or "")
    return str(progress.get("message") or "") if progress.get("status") == "False" else ""


def _part(deployment: Object | None, name: str) -> Mapping[str, Any]:
    return {} if deployment is None else deployment.get(name) or {}


def _count(part: Mapping[str, Any], name: str) -> int:
    return int(part.get(name) or 0)
