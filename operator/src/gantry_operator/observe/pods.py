"""The state of a broker's process, derived from its pod: running, stopped, absent or unknown.

The first row that matches counts. A container has never run, too, if its pod has no machine yet:

    the machine is off (out-of-service)                                    stopped
    the machine is unreachable                                             unknown, regardless of the pod's status
    the broker's container runs                                            running; unknown if its pod has ended
    the container has run, and waits or has ended                          stopped
    no pod exists, and none is to be created; the last pod had ended,
    or the member is the master of no recorded term                        absent
    the container never ran, or no pod exists; the last pod had ended      stopped
    the same, and the last pod had not ended, or its end is not known      unknown: it may have been deleted by force

Elections rest on the state "stopped", so it needs a reliable source: kubelet for a container; for a machine a user
or the cloud provider. The absence of a pod alone proves nothing. A pod had ended if kubelet had reported so, and its
machine was reachable when the pod was deleted; or if it had no machine, or its machine was off then or is off now.
``process_state_of`` returns "stopped" also where the container never ran; ``GroupObjects.process_state`` applies the
last three rows.
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
"""The phases of a pod whose containers have ended for good."""


class ProcessState(NamedTuple):
    """The state of the process in a pod."""

    process: Process
    run: str
    """Identifies the container's run, so that a restart between two observations is noticed."""


def process_state_of(pod: Object, machine: Machine) -> ProcessState:
    """Return the state of the process in an existing pod, without regard to an earlier pod of the same name."""
    status, node = pod.get("status") or {}, (pod.get("spec") or {}).get("nodeName")
    container = container_of(pod)
    run = f"{uid_of(pod)}/{container.get('restartCount', 0)}/{container.get('containerID', '')}"
    if not node or machine.is_off:
        return ProcessState(Process.STOPPED, run)
    state = container.get("state") or {}
    if not machine.is_reachable:
        return ProcessState(Process.UNKNOWN, run)
    if "running" in state:
        is_over = status.get("phase") in ENDED
        return ProcessState(Process.UNKNOWN if is_over else Process.RUNNING, run)
    return ProcessState(Process.STOPPED, run)


def has_started(pod: Object) -> bool:
    """Return whether a container has ever run in this pod, in a broker's pod the broker: then an earlier pod's has
    ended."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return any(one.get("containerID") or one.get("restartCount") or one.get("lastState") for one in containers)


def is_final(pod: Object) -> bool:
    """Return whether the pod has ended, and will not run again."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def has_ended(deleted_pod: Object, machine: Machine) -> bool:
    """Return whether a deleted pod's process had ended, by the last states of the pod and its machine before that.

    The kubelet of an unreachable machine may start the container again, before it learns of the deletion.
    """
    node = (deleted_pod.get("spec") or {}).get("nodeName")
    state = container_of(deleted_pod).get("state") or {}
    return not node or machine.is_off or (machine.is_reachable and "running" not in state)


def container_of(pod: Object) -> dict[str, Any]:
    """Return the last status of the broker's container that kubelet has reported."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == BROKER_CONTAINER), {})


def is_leaving(pod: Object, machine: Machine) -> bool:
    """Return whether the pod is about to be removed from its machine."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    is_disrupted = any(one.get("type") == "DisruptionTarget" and one.get("status") == "True" for one in conditions)
    return machine.is_leaving or is_disrupted or bool(pod["metadata"].get("deletionTimestamp"))


def template_hash_of(pod: Object) -> str:
    """Return the hash of the template from which the pod was created."""
    return annotations_of(pod).get(TEMPLATE_ANNOTATION, "")


def has_tls(pod: Object) -> bool:
    """Return whether the pod's sidecar was started with a certificate: then it accepts only TLS connections."""
    containers = (pod.get("spec") or {}).get("initContainers") or []
    return any("--tls-cert" in (one.get("args") or []) for one in containers if one.get("name") == SIDECAR_CONTAINER)


def address_of(pod: Object) -> str:
    """Return the IP address of the pod; empty if it has none."""
    return str((pod.get("status") or {}).get("podIP") or "")
