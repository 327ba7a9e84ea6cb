"""What a deleted pod proves about its process: only what kubelet or an out-of-service taint has confirmed."""

from __future__ import annotations

from typing import Any

import pytest

from gantry_operator.api import NODES, Object, ObjectRef
from gantry_operator.cache import Cache
from gantry_operator.observe import pods
from gantry_operator.observe.group_objects import GroupObjects, ShardStatefulSets
from gantry_operator.observe.machines import Machine
from gantry_spec.observed import Process

HERE = Machine()
SILENT = Machine(is_reachable=False)
OFF = Machine(is_reachable=False, is_leaving=True, is_off=True)
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service"}
STATEFUL_SETS = ShardStatefulSets({"spec": {"replicas": 1}}, None)


def pod_with(state: str = "", *, node: str = "node-0", phase: str = "Running") -> Object:
    container: dict[str, Any] = {"name": "broker", "state": {state: {}} if state else {}, "containerID": "c"}
    metadata = {"name": "g-0-master-0", "namespace": "prod", "uid": "u1", "resourceVersion": "7"}
    status = {"phase": phase, "containerStatuses": [container]}
    spec = {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


class World:
    """The cache of an operator with one pod and its machine."""

    def __init__(self, state: str, ready: str) -> None:
        self.cache = Cache()
        self.version = 7
        self.report("True")
        self.pod = pod_with(state)
        self.cache.put(self.pod)
        self.report(ready)

    def report(self, ready: str, *taints: dict[str, str]) -> None:
        """Change the status of the machine."""
        self.version += 1
        metadata = {"name": "node-0", "resourceVersion": str(self.version)}
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [*taints]}}
        self.cache.put(node | {"status": status})

    def delete_pod(self) -> None:
        self.cache.apply_event("DELETED", self.pod)

    def delete_node(self) -> None:
        node = self.cache.get(ObjectRef(NODES, "", "node-0"))
        assert node is not None
        self.cache.apply_event("DELETED", node)

    def process(self) -> Process:
        objects = GroupObjects(("prod", "g"), self.cache)
        pod = objects.pod(0, 1)
        machine = objects.machine(pod) if pod else Machine()
        return objects.process_state(0, 1, pod, machine, STATEFUL_SETS, None).process


@pytest.mark.parametrize(
    ("pod", "machine", "had_ended"),
    [
        (pod_with("running"), HERE, False),
        (pod_with("terminated"), HERE, True),
        (pod_with("running"), OFF, True),
        (pod_with(node=""), HERE, True),
        (pod_with("running"), SILENT, False),
        (pod_with("waiting"), SILENT, False),
        (pod_with("terminated"), SILENT, False),
        (pod_with("waiting", phase="Failed"), SILENT, False),
    ],
    ids=["by force", "politely", "machine off", "never placed", "cut off", "restarting", "between runs", "given up"],
)
def test_last_state_of_a_deleted_pod_shows_how_it_ended(pod: Object, machine: Machine, had_ended: bool) -> None:
    """It was deleted by force if its container ran, or its machine could have started it again; not if that was off.

    The phase proves nothing: the control plane sets it to Failed for a pod of a machine that does not answer.
    """
    assert pods.has_ended(pod, machine) is had_ended


@pytest.mark.parametrize("state", ["waiting", "terminated", "running"])
def test_forced_deletion_on_an_unreachable_machine_proves_nothing(state: str) -> None:
    """Its kubelet may restart the container, also after the deletion, and stops it only some time after its return."""
    world = World(state, ready="Unknown")
    assert world.process() is Process.UNKNOWN
    world.delete_pod()
    assert world.process() is Process.UNKNOWN
    world.report("True")
    assert world.process() is Process.UNKNOWN

    world.report("Unknown", OUT_OF_SERVICE)
    assert world.process() is Process.STOPPED


def test_confirmed_end_of_a_process_holds_after_its_machine_is_gone() -> None:
    """A machine that was drained is turned off, and its Node deleted."""
    world = World("terminated", ready="True")
    world.delete_pod()
    world.report("Unknown")
    assert world.process() is Process.STOPPED
    world.delete_node()
    assert world.process() is Process.STOPPED


def test_machine_that_was_off_is_deleted() -> None:
    """The processes on it have ended, although its Node does not say so any more."""
    world = World("running", ready="Unknown")
    world.report("Unknown", OUT_OF_SERVICE)
    world.delete_pod()
    world.delete_node()
    assert world.process() is Process.STOPPED
