"""What is observed of a pipeline's runs: its driver's pods as the cache has them, and the run's own report. Pure.

A running driver serves its progress on its page. How it ended is in its termination message, which Kubernetes keeps in
the pod. A driver that was killed has none; then its exit code has to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, final

import msgspec

from gantry_operator.pipelines.naming import DRIVER

Document = Mapping[str, Any]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Root of what is observed. Never written itself."""


@final
class Ended(Part, frozen=True):
    """How a driver's container ended."""

    exit_code: int
    at: str
    reason: str = ""
    words: Document | None = None
    """Its last words, if they are ours."""

    text: str = ""
    """Its last words, if they are not."""


@final
class DriverPod(Part, frozen=True):
    """One pod of a driver."""

    name: str
    uid: str
    created: str = ""
    address: str = ""
    is_going: bool = False
    is_running: bool = False
    is_over: bool = False
    """Whether its container has ended for good."""

    waits_for: str = ""
    """Why it does not run, in Kubernetes' word: `ImagePullBackOff`, `Unschedulable`."""

    restarts: int = 0
    ended: Ended | None = None
    """How its container ended last."""


@final
class ObservedPipeline(Part, frozen=True):
    """Of one pipeline."""

    pods: tuple[DriverPod, ...] = ()
    page: Document | None = None
    """What the running driver says now; None: it does not answer."""

    has_failed_for_good: bool = False
    """Whether its Job has given up."""

    is_done: bool = False
    """Whether its Job has ended well."""

    strangers: tuple[str, ...] = ()
    """Workloads of another shape (it had a schedule before) that still have a pod."""

    @property
    def running(self) -> DriverPod | None:
        """The one whose page may be asked."""
        return next((pod for pod in self.pods if pod.is_running), None)

    @property
    def is_busy(self) -> bool:
        """Whether a pod is there that has not ended."""
        return any(not pod.is_over for pod in self.pods)

    @property
    def last_ended(self) -> Ended | None:
        """The run that ended last, as far as its pod is still there."""
        known = [pod.ended for pod in self.pods if pod.ended is not None]
        return max(known, key=lambda one: one.at, default=None)


def pods_of(documents: Iterable[Document]) -> tuple[DriverPod, ...]:
    """The driver's pods, the oldest first."""
    found = [_pod(one) for one in documents if _component(one) == DRIVER]
    return tuple(sorted(found, key=lambda pod: (pod.created, pod.name)))


def job_ended(document: Document, kind: str) -> bool:
    """Whether a Job has this condition: `Complete` or `Failed`."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


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
        is_going=bool(metadata.get("deletionTimestamp")),
        is_running="running" in state and not is_over,
        is_over=is_over,
        waits_for="" if is_over else _waits_for(state, status),
        restarts=int(container.get("restartCount") or 0),
        ended=None if ended is None else _ended(ended),
    )


def _waits_for(state: Document, status: Document) -> str:
    reason = str((state.get("waiting") or {}).get("reason") or "")
    if reason:
        return reason
    for one in status.get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("reason") or "Unschedulable")
    return ""


def _ended(terminated: Document) -> Ended:
    text = str(terminated.get("message") or "")
    return Ended(
        exit_code=int(terminated.get("exitCode") or 0),
        at=str(terminated.get("finishedAt") or ""),
        reason=str(terminated.get("reason") or ""),
        words=words_of(text),
        text=text,
    )


def words_of(text: str) -> Document | None:
    """A run's document; None for anything else, such as the end of a log."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    is_ours = isinstance(document, dict) and document.get("v") == 1 and isinstance(document.get("job"), str)
    return document if is_ours else None
