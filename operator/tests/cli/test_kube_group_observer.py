"""Conversion of the pods, Leases and sidecar answers of a group in a cluster: the same result as the operator's."""

from __future__ import annotations

from typing import Any

from kubectl_scene import role_of
from spec_world.observations import lease_record_of

from gantry_cli.kube.group_observer import GroupObjects, check_answer, observed_group
from gantry_cli.kube.sidecars import ROLE, STATUS, Answer
from gantry_spec.lease_annotations import lease_annotations
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Process

GROUP: dict[str, Any] = {
    "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}, "spec": {"slaves": 1},
}  # fmt: skip
POD = "orders-0-master-0"


def pod(name: str, **env: str) -> dict[str, Any]:
    """Return a running pod of a broker with these environment variables."""
    status = {"containerStatuses": [{"name": "broker", "state": {"running": {}}}]}
    container = {"name": "broker", "env": [{"name": key, "value": value} for key, value in env.items()]}
    return {"metadata": {"name": name, "uid": f"uid of {name}"}, "spec": {"containers": [container]}, "status": status}


def test_shard_is_observed_as_the_operator_observes_it() -> None:
    """Members that only the Lease names count, and the number of acks is that of a pod's own settings."""
    lease = {"metadata": {"name": "orders-0", "annotations": lease_annotations(lease_record_of(3, (1,)))}}
    pods = [pod(POD, GANTRY_BROKER_CONF="inSyncReplicas=3\n")]

    [shard] = observed_group(group_of(GROUP), GroupObjects(GROUP, pods, {"orders-0": lease}, {})).shards

    processes = {one.number: one.process for one in shard.members}
    assert processes == {1: Process.RUNNING, 2: Process.ABSENT, 3: Process.UNKNOWN}
    assert shard.members[0].acks_needed == 2, "expected the settings of its start, not those of the spec"


def test_report_of_another_broker_is_not_used() -> None:
    """The answer of a sidecar that reports another broker has no documents, and a fault."""
    own = Answer(0, 1, {ROLE: role_of(POD), STATUS: {"wrote": 7}}, "")

    assert check_answer("orders", POD, own) == own
    assert check_answer("orders", "orders-0-slave-0", own) == Answer(0, 1, {}, "its sidecar reports another broker")
