"""The names of a group's objects in Kubernetes, and which member a pod is by its name."""

from __future__ import annotations

import pytest

from gantry_spec.cluster_objects import (
    GROUP_LABEL,
    ROLE_LABEL,
    Kind,
    member_of,
    member_pod,
    place_of_pod,
    shard_name,
)
from gantry_spec.manifest.group import API_GROUP


@pytest.mark.parametrize(("shard", "member"), [(0, 1), (12, 2), (3, 10)])
def test_a_pod_is_the_member_that_it_was_named_for(shard: int, member: int) -> None:
    """Both ways, also for a group whose name ends in a number, and for a pod that does not know its group."""
    pod = member_pod("orders-1", shard, member)

    assert pod.startswith(f"{shard_name('orders-1', shard)}-")
    assert member_of("orders-1", pod) == (shard, member)
    assert place_of_pod(pod) == ("orders-1", (shard, member))
    assert member_of("orders", pod) is None


def test_labels_are_of_our_api_group() -> None:
    """Pods read them without reading manifests, so the group's name is written out there."""
    assert (f"{API_GROUP}/group", f"{API_GROUP}/role") == (GROUP_LABEL, ROLE_LABEL)


@pytest.mark.parametrize(
    "pod", ["orders-0-master-1", "orders-nameserver-0", "other-0-master-0", "orders-0-slave-x", "orders-00-master-0"]
)
def test_other_pods_are_no_members(pod: str) -> None:
    """Pods of name servers, of other groups, and names that are never given."""
    assert member_of("orders", pod) is None


def test_a_kind_has_a_path_for_all_for_one_and_for_a_part() -> None:
    """Objects of a cluster have no namespace in their path."""
    pods, nodes = Kind("v1", "Pod", "pods"), Kind("v1", "Node", "nodes", is_namespaced=False)
    leases = Kind("coordination.k8s.io/v1", "Lease", "leases")

    assert pods.path() == "/api/v1/pods"
    assert pods.path("shop", "orders-0-master-0", "log") == "/api/v1/namespaces/shop/pods/orders-0-master-0/log"
    assert leases.path("shop") == "/apis/coordination.k8s.io/v1/namespaces/shop/leases"
    assert nodes.path("shop", "a") == "/api/v1/nodes/a"
