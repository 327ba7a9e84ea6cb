"""The names and paths of a group's objects in Kubernetes."""

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
def test_pod_names_and_members_correspond(shard: int, member: int) -> None:
    """This holds in both directions, also for groups whose names end in a number, and without knowing the group."""
    pod = member_pod("orders-1", shard, member)

    assert pod.startswith(f"{shard_name('orders-1', shard)}-")
    assert member_of("orders-1", pod) == (shard, member)
    assert place_of_pod(pod) == ("orders-1", (shard, member))
    assert member_of("orders", pod) is None


def test_labels_start_with_the_api_group() -> None:
    """The first process of a pod reads no manifest, so its module repeats the name."""
    assert (f"{API_GROUP}/group", f"{API_GROUP}/role") == (GROUP_LABEL, ROLE_LABEL)


@pytest.mark.parametrize(
    "pod", ["orders-0-master-1", "orders-nameserver-0", "other-0-master-0", "orders-0-slave-x", "orders-00-master-0"]
)
def test_other_pod_names_are_not_members(pod: str) -> None:
    """Examples are name servers, pods of other groups, and names that are never used."""
    assert member_of("orders", pod) is None


def test_a_kind_has_paths_of_a_list_an_object_and_a_subresource() -> None:
    """Paths of cluster-wide objects have no namespace."""
    pods, nodes = Kind("v1", "Pod", "pods"), Kind("v1", "Node", "nodes", is_namespaced=False)
    leases = Kind("coordination.k8s.io/v1", "Lease", "leases")

    assert pods.path() == "/api/v1/pods"
    assert pods.path("shop", "orders-0-master-0", "log") == "/api/v1/namespaces/shop/pods/orders-0-master-0/log"
    assert leases.path("shop") == "/apis/coordination.k8s.io/v1/namespaces/shop/leases"
    assert nodes.path("shop", "a") == "/api/v1/nodes/a"
