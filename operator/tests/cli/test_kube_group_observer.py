"""Conversion of the pods, Leases and sidecar answers of a group in a cluster: the same result as the operator's."""

from __future__ import annotations

from typing import Any

import pytest
from kubectl_scene import role_of
from spec_world.observations import lease_record_of

from gantry_cli.kube.documents import ClusterGroupStatus, ClusterProxyStatus
from gantry_cli.kube.group_observer import GroupObjects, check_answer, observed_group, proxies_of
from gantry_cli.kube.screen import render
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


def test_proxies_are_those_of_the_status() -> None:
    """A group without proxies has none, and neither has the status of an operator that knows no proxies."""
    written = {"desired": 2, "ready": 1, "updated": 2, "endpoint": "orders-proxy.shop.svc:8081"}

    assert proxies_of({"proxy": written | {"externalEndpoint": "203.0.113.7:8081"}}) == ClusterProxyStatus(
        desired=2, ready=1, updated=2, endpoint="orders-proxy.shop.svc:8081", external_endpoint="203.0.113.7:8081"
    )
    assert proxies_of({}) is None
    assert proxies_of({"proxy": {"desired": 0, "ready": 0, "updated": 0, "endpoint": ""}}) is None


@pytest.mark.parametrize("outside", ["", "203.0.113.7:443"])
def test_status_text_shows_proxies_and_their_addresses(outside: str) -> None:
    """The first line has the numbers, and another one the addresses; a group without proxies has neither."""
    proxies = ClusterProxyStatus(desired=2, ready=1, updated=2, endpoint="p:8081", external_endpoint=outside)

    text = status_text(proxies)

    assert "Ready, shards 1/1, name servers 2/2, proxies 1/2" in text
    assert f"gRPC clients: p:8081{', from outside 203.0.113.7:443' if outside else ''}\n" in text
    assert "prox" not in status_text(None) and "gRPC" not in status_text(None)


def status_text(proxies: ClusterProxyStatus | None) -> str:
    """Return the text of a group's status with these proxies."""
    status = ClusterGroupStatus(
        at_ms=0, context="c", namespace="shop", group="orders", phase="Ready", ready="1/1", generation=1,
        observed_generation=1, orders={}, shards=[], members=[], name_servers="2/2", proxies=proxies, ledgers=[],
        conditions=[], events=[], left_out=[],
    )  # fmt: skip
    return "".join(f"{part}\n" for part in render(status))


def test_report_of_another_broker_is_not_used() -> None:
    """The answer of a sidecar that reports another broker has no documents, and a fault."""
    own = Answer(0, 1, {ROLE: role_of(POD), STATUS: {"wrote": 7}}, "")

    assert check_answer("orders", POD, own) == own
    assert check_answer("orders", "orders-0-slave-0", own) == Answer(0, 1, {}, "its sidecar reports another broker")
