"""What the command line makes of the pods, Leases and answers of a group in a cluster: the operator's view."""

from __future__ import annotations

from typing import Any

from kubectl_scene import role_of
from spec_world.looks import record_of

from gantry_cli.kube.inside import ROLE, STATUS, Answer
from gantry_cli.kube.look import Found, observed, own_answer
from gantry_spec.lease_annotations import lease_annotations
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Process

GROUP: dict[str, Any] = {
    "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}, "spec": {"slaves": 1},
}  # fmt: skip
POD = "orders-0-master-0"


def pod(name: str, **env: str) -> dict[str, Any]:
    """A broker's pod that runs with these variables."""
    status = {"containerStatuses": [{"name": "broker", "state": {"running": {}}}]}
    container = {"name": "broker", "env": [{"name": key, "value": value} for key, value in env.items()]}
    return {"metadata": {"name": name, "uid": f"uid of {name}"}, "spec": {"containers": [container]}, "status": status}


def test_a_shard_is_observed_as_the_operator_observes_it() -> None:
    """Members that only the Lease names count, and a pod's own settings say how many acks it needs."""
    lease = {"metadata": {"name": "orders-0", "annotations": lease_annotations(record_of(3, (1,)))}}
    pods = [pod(POD, GANTRY_BROKER_CONF="inSyncReplicas=3\n")]

    [shard] = observed(group_of(GROUP), Found(GROUP, pods, {"orders-0": lease}, {})).shards

    processes = {one.number: one.process for one in shard.members}
    assert processes == {1: Process.RUNNING, 2: Process.ABSENT, 3: Process.UNKNOWN}
    assert shard.members[0].acks_needed == 2, "as it was started, whatever the spec is now"


def test_a_report_of_another_broker_is_not_used() -> None:
    """The sidecar of a pod reports its own broker, or the answer has no documents and a fault."""
    own = Answer(0, 1, {ROLE: role_of(POD), STATUS: {"wrote": 7}}, "")

    assert own_answer("orders", POD, own) == own
    assert own_answer("orders", "orders-0-slave-0", own) == Answer(0, 1, {}, "its sidecar reports another broker")
