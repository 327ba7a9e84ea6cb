"""Resizes running brokers in place: CPU, memory and volumes change without a restart, where the cluster can do that.

    the pod was made for other resources than its          `pods/resize`: one pod of a shard at a time, the master last
    template has now
    its machine has no room now (Deferred), or a quota     the pod waits, and the group's status says why
    the API server refuses the resize, the machine can     the pod must be restarted, as after any other edit
    never do it (Infeasible), or it takes no effect
    the file system of a larger volume is not enlarged     the same: its driver does that only when it is mounted

The hash of a template leaves these resources out (``objects.broker_pod``). For which resources a pod was made, an
annotation of it says: what others have changed since then, such as the defaults of a LimitRange, is left alone.

    gantry.dev/resources   A            A           A             B             written by the template, or at the end
    gantry.dev/resizing                 B           B                           written before the resize
    the pod's resources    A            A           B             B
                           (an edit)    (marked)    (resized)     (has taken effect)

So the next operator continues where this one ends, and an edit that comes back to A is a resize, too. How long a resize
takes, and how often it was refused, is kept in memory.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, final

import msgspec

from gantry_operator.api import Kubernetes, Object, annotations_of, ref_of, revision_of, uid_of
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, Conflict, Forbidden, InvalidObject, NamespaceTerminating, NotFound
from gantry_operator.objects.memory import RESIZABLE, SECTIONS, resizable
from gantry_operator.objects.names import RESIZING_ANNOTATION, RESOURCES_ANNOTATION
from gantry_operator.observe import pods
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.cluster_objects import BROKER_CONTAINER
from gantry_spec.decide.decision import Condition
from gantry_spec.manifest.quantities import quantity_bytes

log = logging.getLogger(__name__)

EFFECT_MS: Final = 120_000
"""How long kubelet may take for a resize that it does not defer; then the pod is restarted."""
SETTLE_MS: Final = 10_000
"""How long kubelet may take to judge a resize: until then its last judgement may be about an earlier one."""
FILE_SYSTEM_MS: Final = 600_000
"""How long kubelet may take to enlarge the file system of a mounted volume; then the pod is restarted, once."""
RETRY_MS: Final = 5_000
"""The time after an error of the API server before the same resize is tried again."""
HELD_RETRY_MS: Final = 60_000
"""The same where the API server keeps to a quota or a limit of the namespace."""
REFUSALS_MAX: Final = 3
"""How often the API server must refuse a resize before it counts: a restart is dearer than a call."""
GAP_MS: Final = 10_000
"""A round after a longer time, such as a pause of the group, knows nothing about what was in between."""
POLICIES: Final = ("admission webhook", "ValidatingAdmissionPolicy")
"""What the API server says if a policy of the cluster denies a resize: it would deny a new pod, too."""
NO_RIGHT: Final = "cannot patch resource"
"""What the API server says if the operator lacks the right to resize pods; other denials are those of a quota."""

FILE_SYSTEM_PENDING: Final = "FileSystemResizePending"
"""The condition of a claim whose volume is larger than its file system."""
PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"


class _Goal(NamedTuple):
    """The resources that the pods of a shard should have."""

    text: str
    """As in the annotation of the template."""

    resources: Object
    """As the API server writes them."""


class _Try(NamedTuple):
    """What is known about a resize besides the pod."""

    text: str
    """The goal; what is known about another one does not count."""

    since_ms: int
    """When the resize was sent, or deferred last."""

    refusals: int = 0
    retry_ms: int = 0
    held: str = ""
    """Why the namespace does not allow it now."""


@final
class Resizer:
    """Resizes the pods of one group. Owned by the task of the group's loop."""

    def __init__(self, objects: GroupObjects, api: Kubernetes, clock: Clock) -> None:
        self.waits: Final[list[str]] = []
        """Why resizes are not complete, as texts for people, after the last round."""

        self._objects: Final = objects
        self._api: Final = api
        self._clock: Final = clock
        self._tries: Final[dict[str, _Try]] = {}
        """By the uid of the pod."""
        self._round_ms = clock.now_ms()
        """When the last round was."""

    def __repr__(self) -> str:
        return f"<Resizer tries={len(self._tries)} waits={len(self.waits)}>"

    async def resize(self) -> list[str]:
        """Begin and complete the resizes that are due now. Return which have begun, as texts for people."""
        begun, alive = list[str](), set[str]()
        self.waits.clear()
        now_ms = self._clock.now_ms()
        gap_ms, self._round_ms = now_ms - self._round_ms, now_ms
        if gap_ms > GAP_MS:
            for uid, known in self._tries.items():
                self._tries[uid] = known._replace(since_ms=known.since_ms + gap_ms)
        for shard in sorted(self._objects.shards()):
            goal, found = self._goal(shard), self._pods(shard)
            alive |= {uid_of(pod) for pod in found}
            if goal is not None:
                waits_before = len(self.waits)
                begun += await self._resize_one(shard, goal, found)
                open_pods = [pod["metadata"]["name"] for pod in self._pods(shard) if _is_open(pod, goal)]
                if open_pods and len(self.waits) == waits_before:
                    self.waits.append(f"pods to resize: {', '.join(open_pods)}")
        for uid in self._tries.keys() - alive:
            del self._tries[uid]
        return begun

    def must_restart(self, shard: int, pod: Object) -> bool:
        """Return whether a pod of the present template gets the resources of its template only by a restart."""
        goal = self._goal(shard)
        return self._needs_mount(pod) or (goal is not None and self._is_impossible(pod, goal))

    def condition(self) -> Condition | None:
        """Return the condition while a resize is not complete."""
        if not self.waits:
            return None
        return Condition(type="Resized", is_true=False, reason="Waiting", message="; ".join(self.waits))

    # -- one shard -----------------------------------------------------------------------------------------------------

    async def _resize_one(self, shard: int, goal: _Goal, found: list[Object]) -> list[str]:
        """Continue with the next pod of a shard that does not have its resources, unless one must be restarted.

        A pod that waits for room, or for a quota, does not hold up the others.
        """
        template = self._objects.stateful_sets(shard).template
        found = [pod for pod in found if pods.template_hash_of(pod) == template and _is_open(pod, goal)]
        for pod in found:
            if _is_sent(pod, goal) and _reason(pod, PENDING) == DEFERRED:
                self._tries[uid_of(pod)] = self._try(pod, goal)._replace(since_ms=self._clock.now_ms())
        if any(self._is_impossible(pod, goal) for pod in found):
            return []
        for pod in sorted(filter(_is_kept, found), key=lambda pod: not _is_sent(pod, goal)):
            name = pod["metadata"]["name"]
            if not _is_sent(pod, goal):
                held = self._hold(shard, pod, goal)
                if not held:
                    return await self._send(pod, goal)
                self.waits.append(f"pod {name} is not resized: {held}")
            elif _reason(pod, PENDING) == DEFERRED:
                text = f"the machine of pod {name} has no room for its resources: {_message(pod, PENDING)}"
                self.waits.append(text)
            else:
                await self._complete(pod, goal)
                return []
        return []

    def _hold(self, shard: int, pod: Object, goal: _Goal) -> str:
        """Return why a resize is not sent now; empty if it may be."""
        known = self._try(pod, goal)
        if self._clock.now_ms() < known.retry_ms:
            return known.held or "the API server refused it, and is asked again"
        if not self._objects.machine(pod).is_reachable:
            return "its machine does not answer"
        others = [self._objects.pod(shard, member) for member in self._objects.stateful_sets(shard).members]
        others = [one for one in others if one is None or uid_of(one) != uid_of(pod)]
        if _is_less_memory(pod, goal.resources) and not all(one is not None and _is_running(one) for one in others):
            return "another broker of the shard does not run, and less memory could end this one"
        return ""

    async def _send(self, pod: Object, goal: _Goal) -> list[str]:
        """Mark a pod, and change its resources. Return what was begun."""
        ref, before = ref_of(pod), _resources_of(pod)
        try:
            if annotations_of(pod).get(RESIZING_ANNOTATION) != goal.text:
                pod = await self._annotate(pod, _marks(pod, goal))
            wanted = _wanted(pod, goal)
            if _container_resources(pod) == wanted:
                self._tries[uid_of(pod)] = self._try(pod, goal)._replace(since_ms=self._clock.now_ms())
                return []  # an edit that came back, or another form of the same text
            containers = [
                one | {"resources": wanted} if one["name"] == BROKER_CONTAINER else one
                for one in pod["spec"]["containers"]
            ]
            change = {"spec": {"containers": containers}}
            revision = revision_of(pod)
            answer = await self._api.patch(ref, change, uid=uid_of(pod), revision=revision, subresource="resize")
        except Conflict:
            return []  # the pod has changed meanwhile: the next round sees it
        except NamespaceTerminating:
            raise
        except ApiError as error:
            self._record_failure(pod, goal, error)
            return []
        self._objects.cache.put(answer)
        if _container_resources(answer) != wanted:  # something in the cluster decides otherwise
            self._refuse(pod, goal, "the resources of the pod were changed again")
            return []
        known = self._try(pod, goal)
        self._tries[uid_of(pod)] = known._replace(since_ms=self._clock.now_ms(), held="")
        return [f"pod {ref.name} is resized in place: {_text(before)} to {_text(goal.resources)}"]

    async def _annotate(self, pod: Object, values: Mapping[str, str | None]) -> Object:
        """Change annotations of a pod. Raises leaves of ``ApiError``."""
        answer = await self._api.patch(ref_of(pod), {"metadata": {"annotations": dict(values)}}, uid=uid_of(pod))
        self._objects.cache.put(answer)
        return answer

    async def _complete(self, pod: Object, goal: _Goal) -> None:
        """Record that a pod has its resources, once kubelet has judged the resize and has nothing left to do."""
        uid, name, now_ms = uid_of(pod), pod["metadata"]["name"], self._clock.now_ms()
        known = self._tries[uid] = self._try(pod, goal)
        if now_ms - known.since_ms < SETTLE_MS or not _has_taken_effect(pod, goal):
            self.waits.append(f"pod {name} is being resized")
        elif now_ms >= known.retry_ms:
            try:
                await self._annotate(pod, {RESOURCES_ANNOTATION: goal.text, RESIZING_ANNOTATION: None})
            except NamespaceTerminating:
                raise
            except ApiError as error:
                self._tries[uid] = known._replace(retry_ms=now_ms + RETRY_MS)
                log.info("failed to complete resize; retrying", extra={"object": name, "reason": str(error)})
            else:
                del self._tries[uid]

    # -- what is impossible --------------------------------------------------------------------------------------------

    def _is_impossible(self, pod: Object, goal: _Goal) -> bool:
        """Return whether only a restart gives a pod its resources."""
        if not _is_open(pod, goal) or pod["metadata"].get("deletionTimestamp"):
            return False
        if not _is_kept(pod) or _restarts_container(pod):
            return True
        known = self._try(pod, goal)
        if known.refusals >= REFUSALS_MAX:
            return True
        if not _is_sent(pod, goal) or _reason(pod, PENDING) == DEFERRED:
            return False
        if _reason(pod, PENDING) == INFEASIBLE:
            return self._clock.now_ms() - known.since_ms >= SETTLE_MS
        is_late = self._clock.now_ms() - known.since_ms >= EFFECT_MS
        return is_late and not _has_taken_effect(pod, goal) and self._objects.machine(pod).is_reachable

    def _try(self, pod: Object, goal: _Goal) -> _Try:
        """Return what is known about the resize of a pod; if nothing is, it begins now."""
        known = self._tries.get(uid_of(pod))
        return known if known is not None and known.text == goal.text else _Try(goal.text, self._clock.now_ms())

    def _record_failure(self, pod: Object, goal: _Goal, error: ApiError) -> None:
        """Record why the API server has not changed a pod."""
        text, now_ms = str(error), self._clock.now_ms()
        is_policy = any(word in text for word in POLICIES)
        is_held = is_policy or (isinstance(error, Forbidden) and error.status == 403 and NO_RIGHT not in text)
        if not is_held and (isinstance(error, InvalidObject | NotFound) or NO_RIGHT in text):
            self._refuse(pod, goal, text)
            return
        pause_ms, held = (HELD_RETRY_MS, text) if is_held else (RETRY_MS, "")
        known = self._try(pod, goal)
        self._tries[uid_of(pod)] = known._replace(since_ms=now_ms, retry_ms=now_ms + pause_ms, held=held)
        log.warning("failed to resize pod; retrying", extra={"object": str(ref_of(pod)), "reason": str(error)})

    def _refuse(self, pod: Object, goal: _Goal, reason: str) -> None:
        known, now_ms = self._try(pod, goal), self._clock.now_ms()
        count = known.refusals + 1
        self._tries[uid_of(pod)] = _Try(goal.text, now_ms, refusals=count, retry_ms=now_ms + RETRY_MS, held=reason)
        if count == REFUSALS_MAX:
            log.info("pod cannot be resized; restarting it", extra={"object": str(ref_of(pod)), "reason": reason})

    def _needs_mount(self, pod: Object) -> bool:
        """Return whether the pod has run since its volume became larger than its file system, and for long since."""
        claim = self._objects.claim_of(pod)
        pending = None if claim is None else _condition(claim, FILE_SYSTEM_PENDING)
        since = _time((pending or {}).get("lastTransitionTime"))
        created = _time(pod["metadata"].get("creationTimestamp"))
        if since is None or created is None or created >= since:
            return False
        return self._clock.wall() - since >= timedelta(milliseconds=FILE_SYSTEM_MS)

    # -- objects -------------------------------------------------------------------------------------------------------

    def _goal(self, shard: int) -> _Goal | None:
        """Return the goal of a shard; None if it has no StatefulSet, or one of an earlier operator."""
        stateful_sets = self._objects.stateful_sets(shard)
        home = stateful_sets.master or stateful_sets.slave
        if home is None:
            return None
        template = home["spec"]["template"]
        text = (template["metadata"].get("annotations") or {}).get(RESOURCES_ANNOTATION, "")
        return _Goal(text, _resources_of(template)) if text else None

    def _pods(self, shard: int) -> list[Object]:
        """Return the pods of a shard, that of the master last."""
        master = self._objects.master_pod(shard)
        found = [self._objects.pod(shard, place.member) for place in self._objects.pod_places(shard)]
        return sorted(
            (pod for pod in found if pod is not None),
            key=lambda pod: (pod["metadata"]["name"] == master, pod["metadata"]["name"]),
        )


def _is_open(pod: Object, goal: _Goal) -> bool:
    """Return whether a pod was made for other resources, or is being resized."""
    annotations = annotations_of(pod)
    return annotations.get(RESOURCES_ANNOTATION, "") != goal.text or RESIZING_ANNOTATION in annotations


def _is_sent(pod: Object, goal: _Goal) -> bool:
    """Return whether a pod has the resources of the goal by its spec."""
    is_marked = annotations_of(pod).get(RESIZING_ANNOTATION) == goal.text
    return is_marked and _container_resources(pod) == _wanted(pod, goal)


def _is_kept(pod: Object) -> bool:
    """Return whether kubelet has the pod and keeps it: another one is created with the new resources."""
    is_ended = (pod.get("status") or {}).get("phase") in pods.ENDED
    has_machine = bool((pod.get("spec") or {}).get("nodeName"))
    return has_machine and not is_ended and not pod["metadata"].get("deletionTimestamp")


def _is_running(pod: Object) -> bool:
    """Return whether the broker of a pod runs, and its sidecar says that it is ready, if that is known."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    is_unready = any(one.get("type") == "Ready" and one.get("status") != "True" for one in conditions)
    return _is_kept(pod) and not is_unready and "running" in (pods.container_of(pod).get("state") or {})


def _memory(resources: Mapping[str, Any]) -> int | None:
    """Return a memory limit in bytes; None if there is none."""
    return quantity_bytes(str((resources.get("limits") or {}).get("memory", "")))


def _is_less_memory(pod: Object, wanted: Object) -> bool:
    """Return whether a broker would have less memory than now."""
    present = _memory(pods.container_of(pod).get("resources") or _container_resources(pod))
    after = _memory(wanted)
    return present is not None and after is not None and after < present


def _restarts_container(pod: Object) -> bool:
    """Return whether kubelet would restart the container for a resize, without a switchover."""
    policies = _container(pod).get("resizePolicy") or []
    return any(one.get("restartPolicy") == "RestartContainer" for one in policies)


def _has_taken_effect(pod: Object, goal: _Goal) -> bool:
    """Return whether kubelet has seen the pod as it is, has nothing left to do, and the container has its memory."""
    status = pod.get("status") or {}
    seen = status.get("observedGeneration")  # of Kubernetes 1.34
    is_seen = seen is None or seen >= (pod["metadata"].get("generation") or 0)
    is_done = _condition(pod, PENDING) is None and _condition(pod, IN_PROGRESS) is None
    actual = _memory(pods.container_of(pod).get("resources") or {})
    return is_seen and is_done and actual == _memory(goal.resources)


def _container(document: Object) -> Object:
    """Return the broker's container of a pod or a template."""
    containers = (document.get("spec") or {}).get("containers") or []
    return next((one for one in containers if one["name"] == BROKER_CONTAINER), {})


def _container_resources(document: Object) -> Object:
    return _container(document).get("resources") or {}


def _resources_of(document: Object) -> Object:
    """Return the CPU and memory of the broker's container of a pod or a template."""
    return resizable(_container_resources(document))


def _wanted(pod: Object, goal: _Goal) -> Object:
    """Return the resources that a pod should have: those of the goal, and what others have added."""
    present = _container_resources(pod)
    ours = [_parsed(annotations_of(pod).get(name, "")) for name in (RESOURCES_ANNOTATION, RESIZING_ANNOTATION)]
    wanted = {name: value for name, value in present.items() if name not in SECTIONS}
    for section in SECTIONS:
        set_by_us = {name for one in ours for name in one.get(section, {})} & RESIZABLE
        kept = {name: value for name, value in (present.get(section) or {}).items() if name not in set_by_us}
        amounts = kept | goal.resources.get(section, {})
        wanted |= {section: amounts} if amounts else {}
    return wanted


def _marks(pod: Object, goal: _Goal) -> dict[str, str | None]:
    """Return the annotations of a pod that is about to be resized: what we have set before stays known as ours."""
    marks: dict[str, str | None] = {RESIZING_ANNOTATION: goal.text}
    earlier = _parsed(annotations_of(pod).get(RESIZING_ANNOTATION, ""))
    if earlier:
        known = _parsed(annotations_of(pod).get(RESOURCES_ANNOTATION, ""))
        both = {section: known.get(section, {}) | earlier.get(section, {}) for section in SECTIONS}
        marks[RESOURCES_ANNOTATION] = json.dumps(both, sort_keys=True)
    return marks


def _parsed(text: str) -> dict[str, dict[str, Any]]:
    """Return the resources of an annotation; none for a text that is not ours."""
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except msgspec.MsgspecError:
        return {}


def _time(text: object) -> datetime | None:
    """Return a time of Kubernetes; None if there is none."""
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


def _condition(document: Object, kind: str) -> dict[str, Any] | None:
    """Return a condition that is true; None if it is not."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == "True"), None)


def _reason(pod: Object, kind: str) -> str | None:
    """Return the reason of a condition that is true; None if it is not."""
    found = _condition(pod, kind)
    return None if found is None else str(found.get("reason") or "")


def _message(pod: Object, kind: str) -> str:
    return str((_condition(pod, kind) or {}).get("message") or "kubelet gives no reason")


def _text(resources: Object) -> str:
    parts = (f"{kind} {name} {value}" for kind, amounts in resources.items() for name, value in sorted(amounts.items()))
    return ", ".join(parts)
