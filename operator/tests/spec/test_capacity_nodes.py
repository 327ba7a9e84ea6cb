"""Where a pod may run: every rule of the scheduler that the operator or a manifest can set, and the nearest node."""

from __future__ import annotations

from typing import Any

import pytest
from capacity_scene import GIB, ZONE, anti_affinity, node, pod

from gantry_spec.capacity.nodes import Candidate, Nodes, VolumeNeed, best_node, copies, reservations, shortage_text
from gantry_spec.capacity.resources import requests_of

Object = dict[str, Any]
OURS = {"app": "orders"}


def nodes_with(nodes: list[Object], pods: list[Object], **more: Any) -> Nodes:
    """Return nodes with the reservations of these pods."""
    return Nodes(nodes, reservations(pods), **more)


def candidate(*, requests: Object | None = None, labels: Object | None = None, **spec: Any) -> Candidate:
    """Return a pod to place, with these requests."""
    document = pod("new", requests=requests or {}, **spec)
    return Candidate("new", "shop", OURS if labels is None else labels, document["spec"], requests_of(document))


def obstacles(nodes: Nodes, one: Candidate) -> dict[str, str]:
    """Return why each node excludes the pod."""
    return {verdict.node: verdict.obstacle for verdict in nodes.verdicts(one)}


# -- the node ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tolerations", "is_tolerated"),
    [
        ([], False),
        ([{"key": "dedicated", "operator": "Exists"}], True),
        ([{"operator": "Exists"}], True),
        ([{"key": "dedicated", "value": "brokers"}], True),
        ([{"key": "dedicated", "value": "others"}], False),
        ([{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "another", "operator": "Exists"}], False),
    ],
    ids=["none", "key", "everything", "value", "other value", "other effect", "other key"],
)
def test_taint_excludes_a_pod_without_a_toleration(tolerations: list[Object], is_tolerated: bool) -> None:
    """Key, value and effect are compared as in Kubernetes."""
    taint = {"key": "dedicated", "value": "brokers", "effect": "NoSchedule"}
    found = obstacles(nodes_with([node("n", taints=[taint])], []), candidate(tolerations=tolerations))

    assert found == {"n": "" if is_tolerated else "taint dedicated=brokers:NoSchedule is not tolerated"}


def test_soft_taint_excludes_no_pod() -> None:
    """The effect `PreferNoSchedule` is only a preference."""
    taint = {"key": "busy", "effect": "PreferNoSchedule"}

    assert obstacles(nodes_with([node("n", taints=[taint])], []), candidate()) == {"n": ""}


def test_cordoned_node_takes_no_pod() -> None:
    """Unless the pod tolerates the taint that the cordon stands for."""
    nodes = nodes_with([node("n", unschedulable=True)], [])
    tolerant = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]

    assert obstacles(nodes, candidate()) == {"n": "cordoned (unschedulable)"}
    assert obstacles(nodes, candidate(tolerations=tolerant)) == {"n": ""}


def required(*expressions: Object, fields: list[Object] | None = None) -> Object:
    term = {"matchExpressions": list(expressions)} | ({"matchFields": fields} if fields else {})
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("spec", "able"),
    [
        ({"nodeSelector": {ZONE: "a"}}, ["n1"]),
        ({"nodeSelector": {"disk": "fast"}}, []),
        ({"affinity": required({"key": ZONE, "operator": "In", "values": ["b", "c"]})}, ["n2"]),
        ({"affinity": required({"key": ZONE, "operator": "NotIn", "values": ["b"]})}, ["n1"]),
        ({"affinity": required({"key": "disk", "operator": "DoesNotExist"})}, ["n1", "n2"]),
        ({"affinity": required({"key": "disk", "operator": "Exists"})}, []),
        ({"affinity": required({"key": "cores", "operator": "Gt", "values": ["7"]})}, ["n2"]),
        ({"affinity": required({"key": "cores", "operator": "Lt", "values": ["7"]})}, []),
        ({"affinity": required(fields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}])}, ["n1"]),
        ({"affinity": required()}, []),
        ({"affinity": required({"key": ZONE, "operator": "Near", "values": ["a"]})}, []),
    ],
    ids=["selector", "missing", "In", "NotIn", "DoesNotExist", "Exists", "Gt", "Lt", "field", "empty", "unknown"],
)
def test_node_selection_is_compared_with_labels(spec: Object, able: list[str]) -> None:
    """An empty term, and an operator that is not known, match no node."""
    second = node("n2", zone="b")
    second["metadata"]["labels"]["cores"] = "8"

    found = obstacles(nodes_with([node("n1"), second], []), candidate(**spec))

    assert [name for name, text in found.items() if not text] == able


def test_existing_volume_binds_its_pod_to_its_node() -> None:
    """A local volume cannot be used anywhere else."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}
    one = candidate()._replace(volume_affinities=[{"nodeSelectorTerms": [term]}])

    found = obstacles(nodes_with([node("n1"), node("n2")], []), one)

    assert found == {"n1": "the pod's volume is bound to another node", "n2": ""}


# -- among pods --------------------------------------------------------------------------------------------------------


def test_anti_affinity_excludes_the_nodes_of_the_selected_pods() -> None:
    """Pods of another namespace, and such with other labels, do not matter."""
    pods = [pod("mine", "n1", labels=OURS), pod("theirs", "n2", labels=OURS, namespace="bank"), pod("other", "n3")]
    nodes = nodes_with([node("n1"), node("n2"), node("n3")], pods)

    assert obstacles(nodes, candidate(affinity=anti_affinity(OURS))) == {
        "n1": "anti-affinity to pod mine", "n2": "", "n3": ""
    }  # fmt: skip
    everywhere = candidate(affinity=anti_affinity(OURS, namespaceSelector={}))
    assert obstacles(nodes, everywhere)["n2"] == "anti-affinity to pod theirs"


def test_anti_affinity_of_a_placed_pod_counts_as_well() -> None:
    """It excludes the new pod, although the new pod has none."""
    pods = [pod("guard", "n1", labels={"app": "guard"}, affinity=anti_affinity(OURS, ZONE))]
    nodes = nodes_with([node("n1"), node("n2"), node("n3", zone="b")], pods)

    text = "anti-affinity to pod guard in topology.kubernetes.io/zone=a"
    assert obstacles(nodes, candidate()) == {"n1": text, "n2": text, "n3": ""}
    assert obstacles(nodes, candidate(labels={"app": "bills"})) == {"n1": "", "n2": "", "n3": ""}


def test_anti_affinity_matches_keys_of_the_own_labels() -> None:
    """With `matchLabelKeys`, only pods with the same value of a label are meant."""
    term = anti_affinity({}, matchLabelKeys=["app"])
    nodes = nodes_with([node("n1"), node("n2")], [pod("a", "n1", labels=OURS), pod("b", "n2", labels={"app": "bills"})])

    assert obstacles(nodes, candidate(affinity=term)) == {"n1": "anti-affinity to pod a", "n2": ""}


def test_pod_affinity_needs_a_selected_pod_in_the_domain() -> None:
    """The first of pods that want to be near each other may start anywhere."""

    def near(labels: Object) -> Object:
        return {"podAffinity": anti_affinity(labels, ZONE)["podAntiAffinity"]}

    nodes = nodes_with([node("n1"), node("n2", zone="b")], [pod("cache", "n2", labels={"app": "cache"})])

    missing = "no pod that the pod affinity requires is there"
    assert obstacles(nodes, candidate(affinity=near({"app": "cache"}))) == {"n1": missing, "n2": ""}
    assert obstacles(nodes, candidate(affinity=near(OURS))) == {"n1": "", "n2": ""}
    assert obstacles(nodes, candidate(affinity=near({"app": "absent"}))) == {"n1": missing, "n2": missing}


def spread(**more: Any) -> Object:
    return {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": OURS}} | more  # fmt: skip


@pytest.mark.parametrize(
    ("constraint", "able"),
    [
        (spread(), ["n2"]),
        (spread(maxSkew=2), ["n1", "n2"]),
        (spread(whenUnsatisfiable="ScheduleAnyway"), ["n1", "n2", "n3"]),
        (spread(labelSelector={"matchLabels": {"app": "bills"}}), ["n1", "n2"]),
    ],
    ids=["skew 1", "skew 2", "soft", "other pods"],
)
def test_hard_topology_spread_limits_the_skew(constraint: Object, able: list[str]) -> None:
    """A node without the label of the topology is excluded; a pod that is being deleted does not count."""
    leaving = pod("c", "n2", labels=OURS)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    third = node("n3")
    del third["metadata"]["labels"][ZONE]
    nodes = nodes_with([node("n1"), node("n2", zone="b"), third],
                  [pod("a", "n1", labels=OURS), leaving])  # fmt: skip

    found = obstacles(nodes, candidate(topologySpreadConstraints=[constraint]))

    assert [name for name, text in found.items() if not text] == able


@pytest.mark.parametrize(("least", "able"), [(2, ["n1", "n2"]), (3, [])])
def test_topology_spread_over_too_few_domains_counts_from_zero(least: int, able: list[str]) -> None:
    """With `minDomains`, every domain that is missing counts as an empty one."""
    pods = [pod("a", "n1", labels=OURS), pod("b", "n2", labels=OURS)]
    nodes = nodes_with([node("n1"), node("n2", zone="b")], pods)

    found = obstacles(nodes, candidate(topologySpreadConstraints=[spread(minDomains=least)]))

    assert [name for name, text in found.items() if not text] == able


def test_topology_spread_counts_only_the_nodes_that_the_pod_may_use() -> None:
    """A zone whose nodes the node selector excludes does not hold up the others."""
    nodes = nodes_with([node("n1"), node("n2", zone="b")], [pod("a", "n1", labels=OURS)])
    chosen = {"nodeSelector": {ZONE: "a"}}

    assert obstacles(nodes, candidate(topologySpreadConstraints=[spread()], **chosen))["n1"] == ""
    ignored = spread(nodeAffinityPolicy="Ignore")
    assert (
        "allows no more pods in a" in obstacles(nodes, candidate(topologySpreadConstraints=[ignored], **chosen))["n1"]
    )


# -- room --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "missing"),
    [
        ({"cpu": "3"}, {}),
        ({"cpu": "3001m"}, {"cpu": 1}),
        ({"memory": "15Gi"}, {}),
        ({"memory": "16Gi"}, {"memory": GIB}),
        ({"hugepages-2Mi": "1Gi"}, {"hugepages-2Mi": GIB // 2}),
        ({"hugepages-1Gi": "1Gi"}, {"hugepages-1Gi": GIB}),
        ({"example.com/disk": "1"}, {"example.com/disk": 1}),
    ],
    ids=["cpu fits", "cpu", "memory fits", "memory", "huge pages", "other pages", "unknown resource"],
)
def test_each_resource_can_bind(requests: Object, missing: Object) -> None:
    """A node has what is allocatable, less the requests of pods that have not ended."""
    used = {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "512Mi"}
    pods = [pod("a", "n", requests=used), pod("b", "n", phase="Succeeded", requests=used), pod("c", requests=used)]
    nodes = nodes_with([node("n", pages="1Gi")], pods)

    [verdict] = nodes.verdicts(candidate(requests=requests))

    assert verdict.missing == missing
    assert verdict.is_possible is not bool(missing)


def test_number_of_pods_of_a_node_can_bind() -> None:
    """A node takes a limited number of pods, also of pods without requests."""
    full = node("n")
    full["status"]["allocatable"]["pods"] = "1"
    nodes = nodes_with([full], [pod("a", "n")])
    one = candidate()

    assert "lacks pods 1 (0 of 1 are free)" in shortage_text(nodes, one, nodes.verdicts(one))


def test_removed_pod_frees_its_requests() -> None:
    """The successor of a pod gets its place."""
    nodes = nodes_with([node("n", cpu="1")], [pod("a", "n", requests={"cpu": "1"})])
    one = candidate(requests={"cpu": "1"})
    assert not nodes.verdicts(one)[0].is_possible

    nodes.remove(("shop", "a"))

    assert nodes.verdicts(one)[0].is_possible and nodes.free("n")["cpu"] == 1000


def test_published_storage_capacity_excludes_a_node() -> None:
    """A driver that publishes too little for the topology of a node cannot create the volume there."""

    def capacity(zone: str, **sizes: str) -> Object:
        return {"storageClassName": "fast", "nodeTopology": {"matchLabels": {ZONE: zone}}} | sizes

    published = [capacity("a", capacity="10Gi"), capacity("b", capacity="90Gi", maximumVolumeSize="20Gi")]
    nodes = nodes_with([node("n1"), node("n2", zone="b"), node("n3", zone="c")], [], storage_capacities=published)
    one = candidate()._replace(new_volumes=[VolumeNeed("fast", 20 * GIB)])

    assert obstacles(nodes, one) == {
        "n1": "storage class fast has 10Gi there for a volume, 20Gi are needed", "n2": "",
        "n3": "storage class fast has 0 there for a volume, 20Gi are needed",
    }  # fmt: skip
    assert set(obstacles(nodes, one._replace(new_volumes=[VolumeNeed("slow", GIB)])).values()) == {""}


# -- texts and choices -------------------------------------------------------------------------------------------------


def test_nearest_node_is_named_with_what_it_lacks() -> None:
    """A node that no rule excludes is nearer than one that is large enough, but excluded."""
    nodes = nodes_with([node("a", pages="0"), node("b", pages="512Mi"), node("c", pages="4Gi", unschedulable=True)], [])
    one = candidate(requests={"hugepages-2Mi": "768Mi"})

    text = shortage_text(nodes, one, nodes.verdicts(one))

    assert text == ("the nearest node, b, lacks hugepages-2Mi 256Mi (512Mi of 512Mi are free)")


def test_excluded_nodes_are_named_with_the_rule() -> None:
    """Where rules exclude all nodes, the text has the rule of the nearest one, and what it lacks besides."""
    nodes = nodes_with([node("a", unschedulable=True, cpu="1"), node("b", unschedulable=True, cpu="2")], [])
    one = candidate(requests={"cpu": "3"})

    text = shortage_text(nodes, one, nodes.verdicts(one))

    assert text == "none of 2 nodes may take it; the nearest, b: cordoned (unschedulable), and it lacks cpu 1"
    assert shortage_text(nodes_with([], []), one, []) == "the cluster has no nodes"


def test_pod_gets_the_node_with_the_most_left() -> None:
    """As the scheduler prefers by default; among equals, the first by name."""
    nodes = nodes_with([node("a", cpu="2", memory="4Gi"), node("b"), node("c")], [])
    one = candidate(requests={"cpu": "1", "memory": "1Gi"})

    assert best_node(nodes.verdicts(one), nodes, one.requests) == "b"
    nodes.place(one._replace(name="first"), "b")
    assert best_node(nodes.verdicts(one), nodes, one.requests) == "c"


def test_copies_name_the_resource_that_limits_them() -> None:
    """The scarcest resource limits how many equal pods there is room for."""
    assert copies({"cpu": 500, "memory": GIB, "pods": 1}, {"cpu": 4000, "memory": 3 * GIB, "pods": 9}) == (3, "memory")
    assert copies({"cpu": 500, "example.com/disk": 1}, {"cpu": 4000}) == (0, "example.com/disk")
