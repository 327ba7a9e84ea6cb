"""Clients outside of the cluster: Services for each that they talk to, and how brokers learn their outer addresses."""

from __future__ import annotations

from typing import Any

import pytest
from objects_scene import broker_sets, containers, facts, group, is_selected, of_kind, pods_of, rendered, template_hash

from gantry_broker.registration import parse_addresses
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_operator.objects import names, outside_address
from gantry_wire.properties_text import read_properties

OUTSIDE: dict[str, Any] = {"access": {"external": {"type": "LoadBalancer", "annotations": {"example.com/pool": "a"}}}}


def test_nothing_is_open_to_the_outside_by_default() -> None:
    """No Service but those of the cluster, and no second listener."""
    objects = rendered(group())

    kinds = {one["spec"].get("type", "ClusterIP") for one in of_kind(objects, "Service").values()}
    assert kinds == {"ClusterIP"}
    assert "externalListenPort" not in str(objects)


def test_every_inner_service_that_clients_use_has_an_outer_one() -> None:
    """It takes the same pods: the master in every role, each broker, the name servers at their outer listener."""
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


def test_a_name_server_listens_where_its_outer_service_leads() -> None:
    """Its own settings, read by itself."""
    one = of_kind(rendered(group(**OUTSIDE)), "StatefulSet")["orders-nameserver"]
    [container] = containers(one["spec"]["template"]).values()
    [text] = [each["value"] for each in container["env"] if each["name"] == "GANTRY_NAMESERVER_CONF"]

    settings = with_entries(NameServerSettings(), read_properties(text))

    assert (settings.listen_port, settings.external_listen_port) == (9876, 9886)


def test_outer_addresses_reach_brokers_without_a_restart() -> None:
    """They are in the ConfigMap, as brokers read them, and in no template; what is not known is left out."""
    one = group(slaves=1, **OUTSIDE)
    known = facts(outside={"orders-0-external": "203.0.113.7:10911", "orders-0-slave-0-external": "lb.example:10911"})

    text = of_kind(rendered(one, known), "ConfigMap")["orders-0"]["data"]["outside"]

    assert parse_addresses(text) == {"master": "203.0.113.7:10911", "2": "lb.example:10911"}
    assert template_hash(one, known) == template_hash(one) == template_hash(group(slaves=1))
    assert of_kind(rendered(group(), known), "ConfigMap")["orders-0"]["data"]["outside"] == ""
    for home in broker_sets(rendered(one)).values():
        assert "externalAddressPath=/etc/gantry/group/outside" in str(home)


def service(kind: str, **status: Any) -> dict[str, Any]:
    """As the API server has it."""
    return {"spec": {"type": kind, "ports": [{"port": 10911, "nodePort": 31000}]}, "status": status}


def node(name: str, is_ready: str = "True", **addresses: str) -> dict[str, Any]:
    """A machine."""
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
def test_an_outer_address_is_read_from_what_the_cluster_says(one: Any, nodes: Any, address: str | None) -> None:
    """A load balancer's own, or a machine's that is there; nothing is guessed."""
    assert outside_address(one, nodes) == address
