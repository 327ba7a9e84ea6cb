"""What a pod says of the process in it: whether that runs, does not, or nobody can say.

    no machine yet                                      does not run
    the machine does not answer                         nobody can say, whatever stands in the pod
    the machine is off (out-of-service)                 does not run
    the broker's container runs                         runs
    it has run, and waits or has ended                  does not run
    it never ran, or there is no pod, and the pod before it had ended    does not run
    it never ran, or there is no pod, and the pod before it had not      nobody can say: it was deleted by force

"Does not run" is what an election may rest on, so it is said only where somebody who knows has said it: kubelet, about
a container, or a person, about a machine. That there is no pod any more says nothing by itself.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gantry_operator.api import Object, annotations_of, uid_of
from gantry_operator.objects.broker_pod import SIDECAR_CONTAINER
from gantry_operator.objects.names import TEMPLATE_ANNOTATION
from gantry_operator.observe.machines import Machine
from gantry_spec.cluster_objects import BROKER_CONTAINER
from gantry_spec.observed import Process

ENDED: Final = ("Succeeded", "Failed")


class Life(NamedTuple):
    """Of the process in a pod."""

    process: Process
    run: str
    """A name of the container's run, so that one that ended and began again between two looks is noticed."""


def life_of(pod: Object, machine: Machine) -> Life:
    """Of a pod that is there."""
    status, node = pod.get("status") or {}, (pod.get("spec") or {}).get("nodeName")
    container = container_of(pod)
    run = f"{uid_of(pod)}/{container.get('restartCount', 0)}/{container.get('containerID', '')}"
    if not node or machine.is_off:
        return Life(Process.STOPPED, run)
    state = container.get("state") or {}
    if not machine.is_reachable:
        return Life(Process.UNKNOWN, run)
    if "running" in state:
        is_over = status.get("phase") in ENDED
        return Life(Process.UNKNOWN if is_over else Process.RUNNING, run)
    return Life(Process.STOPPED, run)


def has_begun(pod: Object) -> bool:
    """Whether the broker's container has ever run in this pod: then none of a pod before it runs any more."""
    container = container_of(pod)
    return bool(container.get("containerID") or container.get("restartCount") or container.get("lastState"))


def has_ended(departed: Object, machine: Machine) -> bool:
    """Whether the process of a pod that is gone had ended when it went, by the last word of it."""
    node = (departed.get("spec") or {}).get("nodeName")
    state = container_of(departed).get("state") or {}
    return not node or machine.is_off or "running" not in state


def container_of(pod: Object) -> dict[str, Any]:
    """What kubelet said last of the broker's container."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == BROKER_CONTAINER), {})


def is_leaving(pod: Object, machine: Machine) -> bool:
    """Whether the pod is to go from where it is."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    is_disrupted = any(one.get("type") == "DisruptionTarget" and one.get("status") == "True" for one in conditions)
    return machine.is_leaving or is_disrupted or bool(pod["metadata"].get("deletionTimestamp"))


def template_of(pod: Object) -> str:
    """The hash of what it was started with."""
    return annotations_of(pod).get(TEMPLATE_ANNOTATION, "")


def speaks_tls(pod: Object) -> bool:
    """Whether its sidecar was started with a certificate: then it answers nobody who does not speak TLS."""
    containers = (pod.get("spec") or {}).get("initContainers") or []
    return any("--tls-cert" in (one.get("args") or []) for one in containers if one.get("name") == SIDECAR_CONTAINER)


def address_of(pod: Object) -> str:
    """Where it is reached; empty if nowhere."""
    return str((pod.get("status") or {}).get("podIP") or "")
