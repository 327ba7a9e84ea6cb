"""The pods of a group on the nodes of a cluster: verdicts, reasons, and what stays where it is.

The group is rendered by the operator's own functions, so that the figures are those of its objects.
"""

from __future__ import annotations

from typing import Any

import pytest
from capacity_scene import GIB, HOST, node, pod
from objects_scene import EVERYTHING, containers, facts, group, of_kind, rendered

from gantry_operator.objects import memory
from gantry_spec.capacity.needs import Workload, totals_of, workloads_of
from gantry_spec.capacity.nodes import Nodes, reservations
from gantry_spec.capacity.plan import ANTI_AFFINITY, Plan, Volumes, make_plan
from gantry_spec.capacity.resources import amounts_of

Object = dict[str, Any]
PAGES: Object = {"writeBuffer": {"medium": "HugePages-2Mi", "buffers": 2, "segmentSize": "254Mi"}}
"""Each broker needs 512 MiB of huge pages."""
ONLY_BROKERS: Object = {"nameServers": {"addresses": ["ns.example:9876"]}}


def workloads(**spec: Any) -> list[Workload]:
    return workloads_of(rendered(group(**spec)))


def planned(nodes: list[Object], pods: list[Object] | None = None, volumes: Volumes | None = None, **spec: Any) -> Plan:
    """Return the plan for a group that has only brokers."""
    found = workloads(**(ONLY_BROKERS | spec))
    return make_plan("orders", found, Nodes(nodes, reservations(pods or [])), pods or [], volumes)


def places(plan: Plan) -> dict[str, str]:
    return {one.pod: one.node for one in plan.pods}


def running(name: str, on: str, **spec: Any) -> Object:
    """Return a broker of the group as its StatefulSet would have created it."""
    [home] = [one for one in workloads(**(ONLY_BROKERS | spec)) if name in one.pods]
    made = pod(name, on, labels={**home.labels_of(name)})
    made["spec"] = {**home.spec, "nodeName": on}
    return made


# -- needs -------------------------------------------------------------------------------------------------------------


def test_needs_are_those_of_the_rendered_objects() -> None:
    """Broker and sidecar together, every shard, name servers, and proxies with the pod that a roll adds."""
    found = workloads(**EVERYTHING)
    one = group(**EVERYTHING)
    brokers = [workload for workload in found if workload.component == "broker"]
    parts = [memory.broker_resources(one.spec)["requests"], memory.sidecar_resources()["requests"]]
    expected = {name: sum(amounts_of(part).get(name, 0) for part in parts) for name in parts[0]}

    assert [len(workload.pods) for workload in brokers] == [1, 2, 1, 2]
    for workload in brokers:
        assert workload.requests == {**expected, "pods": 1}
    assert {workload.component: workload.surge for workload in found} == {
        "broker": 0,
        "nameserver": 0,
        "proxy": 1,
        "archive-server": 1,
    }
    deployments = of_kind(rendered(one), "Deployment").values()
    added = [containers(each["spec"]["template"]).popitem()[1]["resources"]["requests"] for each in deployments]
    totals = totals_of(found)
    assert totals.pods == 6 + 2 + 2 + 2
    assert totals.surge["memory"] == max(amounts_of(each)["memory"] for each in added)
    assert (totals.volumes, totals.volume_bytes) == (6, 6 * 20 * GIB)


def test_figures_follow_the_rendered_template() -> None:
    """A twin: with another template the needs differ, so that nothing is calculated beside the objects."""
    objects = list(rendered(group(**ONLY_BROKERS), facts()))
    before = totals_of(workloads_of(objects)).requests
    for one in objects:
        if one["kind"] == "StatefulSet":
            one["spec"]["template"]["spec"]["overhead"] = {"memory": "1Gi"}

    assert totals_of(workloads_of(objects)).requests["memory"] == before["memory"] + 2 * GIB


@pytest.mark.parametrize(("count", "surge", "expected"), [(3, "25%", 1), (5, "25%", 2), (2, 2, 2), (2, None, 1)])
def test_surge_of_a_deployment_is_rounded_up(count: int, surge: object, expected: int) -> None:
    """As the Deployment controller does, which has 25% as its default."""
    [deployment] = of_kind(rendered(group(proxy={"replicas": count})), "Deployment").values()
    strategy = deployment["spec"]["strategy"]
    strategy["rollingUpdate"] = {} if surge is None else {"maxSurge": surge}

    assert workloads_of([deployment])[0].surge == expected
    strategy["type"] = "Recreate"
    assert workloads_of([deployment])[0].surge == 0


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_group_fits_on_nodes_of_their_own() -> None:
    """Brokers of one shard never share a node; those of different shards may."""
    plan = planned([node("n1"), node("n2")], shards=2)

    assert plan.fits
    found = places(plan)
    assert {found["orders-0-master-0"], found["orders-0-slave-0"]} == {"n1", "n2"}
    assert {found["orders-1-master-0"], found["orders-1-slave-0"]} == {"n1", "n2"}
    assert [(one.more, one.limit) for one in plan.rooms] == [(2, ANTI_AFFINITY)] * 2


def test_too_few_nodes_for_the_brokers_of_a_shard_are_counted() -> None:
    """The reason has the number of nodes that are needed, what each must have, and which nodes have it."""
    nodes = [node("n1", pages="1Gi"), node("n2", pages="512Mi"), node("n3", pages="256Mi")]

    plan = planned(nodes, slaves=2, **PAGES)

    assert plan.reasons[0] == (
        "the 3 brokers of a shard need 3 nodes, each with cpu 300m, memory 1.27Gi, hugepages-2Mi 512Mi:"
        " 2 of 3 nodes (n1, n2) can take one"
    )
    assert plan.reasons[1].startswith("pod orders-0-slave-1 needs cpu 300m, memory 1.27Gi, hugepages-2Mi 512Mi;")
    assert {one.node: one.limit for one in plan.rooms}["n3"] == "hugepages-2Mi"


def test_pods_that_lack_the_same_are_named_together() -> None:
    """The reason names all pods that no node can take, and the nearest node once."""
    plan = planned([node("n1", pages="256Mi"), node("n2", pages="256Mi")], **PAGES)

    assert not plan.fits
    assert "each of the pods orders-0-master-0, orders-0-slave-0 needs" in plan.reasons[1]
    assert "the nearest node, n1, lacks hugepages-2Mi 256Mi" in plan.reasons[1]


def test_pods_of_others_take_room() -> None:
    """What other pods request is not free, also in other namespaces."""
    other = pod("spark", "n2", namespace="bank", requests={"memory": "15Gi"})

    plan = planned([node("n1"), node("n2")], [other])

    assert places(plan) == {"orders-0-master-0": "n1", "orders-0-slave-0": ""}
    assert "the nearest node, n2, lacks memory 272Mi" in plan.reasons[1]


def test_running_pods_stay_and_leave_room_for_the_others() -> None:
    """A pod with the resources of the manifest stays on its node, and its node takes no other of its shard."""
    pods = [running("orders-0-master-0", "n2", slaves=2)]

    plan = planned([node("n1"), node("n2"), node("n3")], pods, slaves=2)

    found = places(plan)
    assert plan.fits and found["orders-0-master-0"] == "n2"
    assert {found["orders-0-slave-0"], found["orders-0-slave-1"]} == {"n1", "n3"}
    assert [one.pod for one in plan.pods if one.is_running] == ["orders-0-master-0"]
    assert [(one.running, one.more) for one in plan.rooms] == [(0, 1), (1, 0), (0, 1)]


def test_pods_with_former_resources_are_placed_anew() -> None:
    """Their place becomes free, and the successor needs what the manifest has now."""
    pods = [running("orders-0-master-0", "n1"), running("orders-0-slave-0", "n2")]
    small = [node("n1", memory="2Gi"), node("n2", memory="2Gi")]
    assert planned(small, pods).fits

    plan = planned(small, pods, resources={"limits": {"memory": "3Gi"}})

    assert not plan.fits
    assert planned([node("n1", memory="4Gi"), node("n2", memory="4Gi")], pods,
                   resources={"limits": {"memory": "3Gi"}}).fits  # fmt: skip


def test_volume_that_is_bound_to_a_node_keeps_its_pod_there() -> None:
    """A twin without the volume fits: the other node has room."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n1"]}]}
    volumes = Volumes({"data-orders-0-master-0": [{"nodeSelectorTerms": [term]}]})
    nodes = [node("n1", unschedulable=True), node("n2")]

    assert planned(nodes, slaves=0, replication={"mode": "Async"}).fits
    plan = planned(nodes, volumes=volumes, slaves=0, replication={"mode": "Async"})

    assert "cordoned" in plan.reasons[0] and places(plan) == {"orders-0-master-0": ""}


def test_template_of_the_manifest_is_honoured() -> None:
    """Node selector and tolerations come from the rendered pods."""
    taint = {"key": "dedicated", "effect": "NoSchedule"}
    nodes = [node("n1"), node("n2", taints=[taint]), node("n3", taints=[taint])]
    chosen = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n2", "n3"]}]}]}}}}  # fmt: skip

    assert "taint dedicated:NoSchedule is not tolerated" in str(planned(nodes, template=chosen).rooms)
    assert not planned(nodes, template=chosen).fits
    assert planned(nodes, template=chosen | {"tolerations": [{"operator": "Exists"}]}).fits


def test_present_proxies_are_recognized_by_their_labels() -> None:
    """The pods of a Deployment have names that cannot be known before."""
    spec = ONLY_BROKERS | {"proxy": {"replicas": 2}}
    [home] = [one for one in workloads(**spec) if one.component == "proxy"]
    present = pod("orders-proxy-7f-x", "n1", labels=dict(home.labels))
    present["spec"] = {**home.spec, "nodeName": "n1"}

    plan = planned([node("n1"), node("n2")], [present], proxy={"replicas": 2})

    proxies = [(one.pod, one.is_running) for one in plan.pods if one.component == "proxy"]
    assert proxies == [("orders-proxy-7f-x", True), ("orders-proxy-1", False)]
