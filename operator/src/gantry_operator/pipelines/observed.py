"""The observation of a pipeline's runs: the cached pods of its driver, and the driver's own report. Pure.

A running driver serves its progress on its page. The result is in its termination message, which Kubernetes keeps in
the pod. A driver that was killed leaves no result, only an exit code, and the end of its log as the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, final

import msgspec

from gantry_operator.pipelines.naming import DRIVER

Document = Mapping[str, Any]
"""An object of Kubernetes or a report as plain values."""


class ObservedPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of observations. It is never instantiated itself."""


@final
class DriverExit(ObservedPart, frozen=True):
    """The end of a driver's container."""

    exit_code: int
    at: str
    """The time when it ended, as Kubernetes writes it."""

    reason: str = ""
    """The reason that Kubernetes gives, such as `OOMKilled`."""

    report: Document | None = None
    """The driver's report, if the termination message is one."""

    text: str = ""
    """The termination message as it is."""


@final
class DriverPod(ObservedPart, frozen=True):
    """One pod of a driver."""

    name: str
    uid: str
    created: str = ""
    """The creation time, as Kubernetes writes it."""

    address: str = ""
    """The IP address; empty if it has none."""

    is_terminating: bool = False
    is_running: bool = False
    is_over: bool = False
    """Whether its container has ended, and will not be restarted."""

    waiting_reason: str = ""
    """The reason that Kubernetes gives if it does not run, such as `ImagePullBackOff` or `Unschedulable`."""

    restarts: int = 0
    """How often its container was restarted."""

    ended: DriverExit | None = None
    """The last end of its container."""


@final
class ObservedPipeline(ObservedPart, frozen=True):
    """The observation of one pipeline."""

    pods: tuple[DriverPod, ...] = ()
    page: Document | None = None
    """The present report of the running driver; None if it does not answer."""

    has_failed_for_good: bool = False
    """Whether its Job has failed finally."""

    is_done: bool = False
    """Whether its Job has completed successfully."""

    outdated_pods: tuple[str, ...] = ()
    """Pods that have not ended, for whose end the workload waits. They are of a deleted pipeline that wrote to the same
    claim, or of an earlier workload: one of another kind (the pipeline had a schedule before), or an audit's Job for an
    earlier spec."""

    @property
    def running_pod(self) -> DriverPod | None:
        """Return the running pod, whose page can be requested."""
        return next((pod for pod in self.pods if pod.is_running), None)

    @property
    def is_busy(self) -> bool:
        """Return whether a pod exists that has not ended."""
        return any(not pod.is_over for pod in self.pods)

    @property
    def last_exit(self) -> DriverExit | None:
        """Return the latest end of a run whose pod still exists."""
        known = [pod.ended for pod in self.pods if pod.ended is not None]
        return max(known, key=lambda one: one.at, default=None)


def pods_of(documents: Iterable[Document]) -> tuple[DriverPod, ...]:
    """Return the driver's pods, the oldest first."""
    found = [_pod(one) for one in documents if _component(one) == DRIVER]
    return tuple(sorted(found, key=lambda pod: (pod.created, pod.name)))


def writable_claims(document: Document) -> set[str]:
    """Return the names of the claims to which a pod may write."""
    spec = document.get("spec") or {}
    mounts = [one for container in spec.get("containers") or [] for one in container.get("volumeMounts") or []]
    volumes = {one.get("name") for one in mounts if not one.get("readOnly")}
    claims = {one.get("name"): one.get("persistentVolumeClaim") or {} for one in spec.get("volumes") or []}
    return {str(claim.get("claimName")) for name, claim in claims.items() if claim and name in volumes}


def has_job_condition(document: Document, condition_type: str) -> bool:
    """Return whether a Job has this condition: `Complete` or `Failed`."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return any(one.get("type") == condition_type and one.get("status") == "True" for one in conditions)


def _component(document: Document) -> str:
    return str((document["metadata"].get("labels") or {}).get("app.kubernetes.io/component", ""))


def _pod(document: Document) -> DriverPod:
    metadata, status = document["metadata"], document.get("status") or {}
    container: Document = next((one for one in status.get("containerStatuses") or [] if one.get("name") == DRIVER), {})
    state, before = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or before.get("terminated")
    is_over = status.get("phase") in ("Succeeded", "Failed")
    return DriverPod(
        name=metadata["name"],
        uid=str(metadata.get("uid", "")),
        created=str(metadata.get("creationTimestamp") or ""),
        address=str(status.get("podIP") or ""),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        is_running="running" in state and not is_over,
        is_over=is_over,
        waiting_reason="" if is_over else _waiting_reason(state, status),
        restarts=int(container.get("restartCount") or 0),
        ended=None if ended is None else _ended(ended),
    )


def _waiting_reason(state: Document, status: Document) -> str:
    reason = str((state.get("waiting") or {}).get("reason") or "")
    if reason:
        return reason
    for one in status.get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("reason") or "Unschedulable")
    return ""


def _ended(terminated: Document) -> DriverExit:
    text = str(terminated.get("message") or "")
    return DriverExit(
        exit_code=int(terminated.get("exitCode") or 0),
        at=str(terminated.get("finishedAt") or ""),
        reason=str(terminated.get("reason") or ""),
        report=parse_report(text),
        text=text,
    )


def parse_report(text: str) -> Document | None:
    """Parse the report of a run; None for any other text, such as the end of a log."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    is_ours = isinstance(document, dict) and document.get("v") == 1 and isinstance(document.get("job"), str)
    return document if is_ours else None
