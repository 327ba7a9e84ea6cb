"""Clients outside of the cluster: their Services, and how brokers get their external addresses."""

from __future__ import annotations

from typing import Any

import pytest
from objects_scene import broker_sets, containers, facts, group, is_selected, of_kind, pods_of, rendered, template_hash

from gantry_broker.external_addresses import parse_external_addresses
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_operator.objects import external_address, names
from gantry_wire.properties_text import read_properties

OUTSIDE: dict[str, Any] = {"access": {"external": {"type": "LoadBalancer", "annotations": {"example.com/pool": "a"}}}}


def test_no_external_access_by_default() -> None:
    """There are only internal Services, and no second listener."""
    objects = rendered(group())

    kinds = {one["spec"].get("type", "ClusterIP") for one in of_kind(objects, "Service").values()}
    assert kinds == {"ClusterIP"}
    assert "externalListenPort" not in str(objects)


def test_every_internal_service_of_clients_has_an_external_one() -> None:
    """It selects the same pods: the master, each broker in any role, the name servers at their external listener."""
    objects = rendered(group(slaves=1, **OUTSIDE))
    services = of_kind(objects, "Service")
    outer = {name: one for name, one in services.items() if one["spec"].get("type") == "LoadBalancer"}
    pods = [labels for _, labels, _ in pods_of(objects)]

    inner = ("orders-0", "orders-0-master-0", "orders-0-slave-0", "orders-nameserver")
    assert set(outer) == {names.external_name(name) for name in inner}
    for name in inner:
        one = outer[names.external_name(name)]
        chosen = [{"matchLabels": each["spec"]["selector"]} for each in (services[name], one)]
        assert [is_selected(labels, chosen[0]) for labels in pods] == [
            is_selected(labels, chosen[1]) for labels in pods
        ]
        assert one["metadata"]["annotations"] == {"example.com/pool": "a"}
    [port] = outer["orders-nameserver-external"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (9876, 9886)


def test_name_server_listens_at_the_port_of_its_external_service() -> None:
    """Its settings are read by its own parser."""
    one = of_kind(rendered(group(**OUTSIDE)), "StatefulSet")["orders-nameserver"]
    [container] = containers(one["spec"]["template"]).values()
    [text] = [each["value"] for each in container["env"] if each["name"] == "GANTRY_NAMESERVER_CONF"]

    settings = with_entries(NameServerSettings(), read_properties(text))

    assert (settings.listen_port, settings.external_listen_port) == (9876, 9886)


def test_external_addresses_need_no_restart() -> None:
    """They are in the ConfigMap, as brokers read them, and in no template; unknown ones are left out."""
    one = group(slaves=1, **OUTSIDE)
    known = facts(
        external_addresses={"orders-0-external": "203.0.113.7:10911", "orders-0-slave-0-external": "lb.example:10911"}
    )

    text = of_kind(rendered(one, known), "ConfigMap")["orders-0"]["data"]["outside"]

    assert parse_external_addresses(text) == {"master": "203.0.113.7:10911", "2": "lb.example:10911"}
    assert template_hash(one, known) == template_hash(one) == template_hash(group(slaves=1))
    assert of_kind(rendered(group(), known), "ConfigMap")["orders-0"]["data"]["outside"] == ""
    for home in broker_sets(rendered(one)).values():
        assert "externalAddressPath=/etc/gantry/group/outside" in str(home)


def service(kind: str, **status: Any) -> dict[str, Any]:
    """Return a Service as the API server has it."""
    port = {"name": "broker", "port": 10911, "nodePort": 31000}
    return {"spec": {"type": kind, "ports": [port]}, "status": status}


def node(name: str, is_ready: str = "True", **addresses: str) -> dict[str, Any]:
    """Return a Node with these addresses."""
    listed = [{"type": kind, "address": address} for kind, address in addresses.items()]
    status = {"addresses": listed, "conditions": [{"type": "Ready", "status": is_ready}]}
    return {"metadata": {"name": name}, "status": status}


@pytest.mark.parametrize(
    ("one", "nodes", "address"),
    [
        (service("LoadBalancer"), [], None),
        (service("LoadBalancer", loadBalancer={"ingress": [{"ip": "203.0.113.7"}]}), [], "203.0.113.7:10911"),
        (service("LoadBalancer", loadBalancer={"ingress": [{"hostname": "lb.example"}]}), [], "lb.example:10911"),
        (service("LoadBalancer", loadBalancer={"ingress": [{"ip": "2001:db8::1"}]}), [], "[2001:db8::1]:10911"),
        (service("NodePort"), [], None),
        (service("NodePort"), [node("b", InternalIP="10.0.0.2"), node("a", InternalIP="10.0.0.1")], "10.0.0.1:31000"),
        (
            service("NodePort"),
            [node("a", "False", InternalIP="10.0.0.1"), node("b", InternalIP="10.0.0.2")],
            "10.0.0.2:31000",
        ),
        (service("NodePort"), [node("a", InternalIP="10.0.0.1", ExternalIP="203.0.113.9")], "203.0.113.9:31000"),
    ],
    ids=["pending", "address", "name", "IPv6", "no machine", "first", "first ready", "outer"],
)
def test_external_address_comes_from_the_cluster(one: Any, nodes: Any, address: str | None) -> None:
    """It is that of the load balancer, or of an existing Node; it is never guessed."""
    assert external_address(one, nodes) == address


@pytest.mark.parametrize(
    ("families", "addresses", "host"),
    [
        (["IPv4"], ["10.0.0.1", "fd00::1"], "10.0.0.1"),
        (["IPv6"], ["10.0.0.1", "fd00::1"], "[fd00::1]"),
        (["IPv6", "IPv4"], ["10.0.0.1", "fd00::1"], "[fd00::1]"),
        (["IPv6"], ["10.0.0.1"], None),
    ],
)
def test_node_port_is_at_an_address_of_the_services_family(families: Any, addresses: Any, host: str | None) -> None:
    """A Node of a cluster with both families has two addresses, and a Service with one family has node ports of it."""
    one, machine = service("NodePort"), node("a")
    one["spec"]["ipFamilies"] = families
    machine["status"]["addresses"] = [{"type": "InternalIP", "address": address} for address in addresses]

    assert external_address(one, [machine]) == (f"{host}:31000" if host else None)


OTHER_PORTS = ({"name": "metrics", "port": 9090, "nodePort": 31001}, {"port": 80, "nodePort": 31002})
BROKER = {"name": "broker", "port": 10911, "nodePort": 31000}
NAME_SERVER = {"name": "nameserver", "port": 9876, "nodePort": 31003}
BY_CLUSTER = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}


@pytest.mark.parametrize(
    ("ports", "balanced", "by_node"),
    [
        ([OTHER_PORTS[0], BROKER], "203.0.113.7:10911", "10.0.0.1:31000"),
        ([NAME_SERVER, *OTHER_PORTS], "203.0.113.7:9876", "10.0.0.1:31003"),
        (OTHER_PORTS, None, None),
        ([], None, None),
        (None, None, None),
    ],
    ids=["added", "name server", "foreign", "empty", "no ports"],
)
def test_external_address_has_the_port_that_the_operator_renders(ports: Any, balanced: Any, by_node: Any) -> None:
    """Ports that others have added are passed over; a Service of a user has no external address, and is no error."""
    nodes = [node("a", InternalIP="10.0.0.1")]
    spec = {} if ports is None else {"ports": list(ports)}

    assert external_address({"spec": spec | {"type": "LoadBalancer"}, "status": BY_CLUSTER}, nodes) == balanced
    assert external_address({"spec": spec | {"type": "NodePort"}}, nodes) == by_node
