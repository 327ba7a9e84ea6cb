"""External access through a Gateway: Services, routes and policies of a group."""

from __future__ import annotations

from typing import Any

import pytest
from objects_scene import everywhere, facts, group, of_kind, rendered, template_hash

from gantry_operator.objects import ShardFacts, names
from gantry_operator.objects.gateway import gateway_targets

GATEWAY: dict[str, Any] = {"type": "Gateway", "gateway": {"name": "edge"}}
V1, V1ALPHA2 = "gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2"
INNER = ("orders-0", "orders-0-master-0", "orders-0-slave-0", "orders-nameserver")


def outside(**more: Any) -> dict[str, Any]:
    """Return a spec whose external clients connect through a Gateway."""
    return {"access": {"external": GATEWAY | more}}


def test_every_external_service_has_a_route_from_its_own_port() -> None:
    """The route names the listener of its port, and leads to the port of the Service, in the same namespace."""
    objects = rendered(group(slaves=1, **outside()))
    services, routes = of_kind(objects, "Service"), of_kind(objects, "TCPRoute")

    assert set(routes) == {names.external_name(name) for name in INNER}
    ports = {}
    for name, route in routes.items():
        [parent], [rule] = route["spec"]["parentRefs"], route["spec"]["rules"]
        [backend] = rule["backendRefs"]
        [port] = services[name]["spec"]["ports"]
        assert (parent["kind"], parent["name"], parent["namespace"]) == ("Gateway", "edge", "shop")
        assert parent["sectionName"] == f"tcp-{parent['port']}"
        assert (backend["kind"], backend["name"], backend["port"]) == ("Service", name, port["port"])
        assert route["metadata"]["namespace"] == services[name]["metadata"]["namespace"] == "shop"
        assert route["metadata"]["labels"] == services[name]["metadata"]["labels"]
        ports[name] = parent["port"]
    assert ports == {
        "orders-nameserver-external": 9876,
        "orders-0-external": 9886,
        "orders-0-master-0-external": 9887,
        "orders-0-slave-0-external": 9888,
    }


def test_services_behind_a_gateway_have_no_address_of_their_own() -> None:
    """They have the type ClusterIP, which allows no traffic policy, and select the same pods as with node ports."""
    routed, by_node = (
        of_kind(rendered(group(slaves=1, access={"external": external})), "Service")
        for external in (GATEWAY, {"type": "NodePort"})
    )

    for name in map(names.external_name, INNER):
        spec = routed[name]["spec"]
        assert spec["type"] == "ClusterIP" and "externalTrafficPolicy" not in spec
        for part in ("selector", "ports", "publishNotReadyAddresses"):
            assert spec[part] == by_node[name]["spec"][part]


def test_route_has_the_version_that_the_cluster_serves() -> None:
    """A cluster without the kind gets no route, and one without a listener for a port none for this port."""
    one = group(slaves=0, replication={"mode": "Async"}, **outside())
    served = [
        {route["apiVersion"] for route in of_kind(rendered(one, known), "TCPRoute").values()}
        for known in (everywhere(), facts(route_api=V1ALPHA2, gateway_listeners={9886: "a"}), facts())
    ]

    assert served == [{V1}, {V1ALPHA2}, set()]
    few = of_kind(rendered(one, facts(route_api=V1, gateway_listeners={9886: "master"})), "TCPRoute")
    assert list(few) == ["orders-0-external"]
    assert few["orders-0-external"]["spec"]["parentRefs"][0]["sectionName"] == "master"


def test_gateway_may_be_in_another_namespace() -> None:
    """The route stays with its Service, and refers to the Gateway's namespace; annotations are those of the group."""
    gateway = {"name": "edge", "namespace": "infra", "firstPort": 9900}
    objects = rendered(group(**outside(gateway=gateway, annotations={"example.com/pool": "a"})))

    for route in of_kind(objects, "TCPRoute").values():
        [parent] = route["spec"]["parentRefs"]
        assert (parent["namespace"], route["metadata"]["namespace"]) == ("infra", "shop")
        assert parent["port"] >= 9900
        assert route["metadata"]["annotations"] == {"example.com/pool": "a"}


def test_group_with_other_name_servers_has_no_port_for_them() -> None:
    """Their port stays unused, so that the ports of brokers do not depend on it."""
    spec = outside() | {"nameServers": {"addresses": ["ns.example:9876"]}}

    assert min(one.port for one in gateway_targets(group(**spec), facts())) == 9886


def test_no_target_is_beyond_the_limits_of_the_spec() -> None:
    """Someone may scale a StatefulSet by hand; its surplus members would get the ports of the next shard."""
    known = facts(shards=(ShardFacts(number=0, slaves=30), ShardFacts(number=70, slaves=1)))

    targets = gateway_targets(group(shards=2, **outside()), known)

    assert len({one.port for one in targets}) == len(targets) == 1 + 10 + 3
    assert {one.shard for one in targets} == {None, 0, 1}


@pytest.mark.parametrize("external", [{}, {"type": "NodePort"}, {"type": "LoadBalancer"}])
def test_type_of_external_access_changes_no_broker_template(external: dict[str, Any]) -> None:
    """So no broker restarts when the type is switched; without a Gateway there is no route."""
    one = group(access={"external": external | {"gateway": {"name": "edge"}}})

    assert template_hash(one) == template_hash(group(**outside()))
    assert of_kind(rendered(one), "TCPRoute") == {}


def test_name_servers_and_policies_are_open_as_with_other_types() -> None:
    """The external listener of the name servers exists, and may be reached from the Gateway's pods."""
    routed, balanced = (
        rendered(group(access={"external": external})) for external in (GATEWAY, {"type": "LoadBalancer"})
    )

    for kind in ("NetworkPolicy", "StatefulSet"):
        assert of_kind(routed, kind) == of_kind(balanced, kind)
