"""Which pods may connect to which port, computed from the policies as a network does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from objects_scene import broker_sets, containers, facts, group, is_selected, of_kind, pods_of, rendered

from gantry_operator.objects import names

Source = tuple[str, dict[str, str]]
BROKER: Source = ("shop", pods_of(rendered(group()))[-1][1])
OPERATOR: Source = ("gantry-system", {"app.kubernetes.io/name": "gantry-operator"})
IMPOSTOR: Source = ("shop", {"app.kubernetes.io/name": "gantry-operator"})
PROMETHEUS: Source = ("monitoring", {"app.kubernetes.io/name": "prometheus"})
CLIENT: Source = ("elsewhere", {"app": "shop"})
OTHER_GROUP: Source = ("shop", pods_of(rendered(group("orders-0")))[-1][1])


def may(source: Source, component: str, port: int, **spec: Any) -> bool:
    """Return whether a pod may connect to a port of a pod of the group, which is in the namespace `shop`."""
    objects = rendered(group(**spec), facts())
    templates = [one["spec"]["template"] for one in of_kind(objects, "Deployment").values()]
    every = [*(labels for _, labels, _ in pods_of(objects)), *(one["metadata"]["labels"] for one in templates)]
    labels = next(labels for labels in every if labels[names.COMPONENT_LABEL] == component)
    policies = [one["spec"] for one in of_kind(objects, "NetworkPolicy").values()]
    mine = [one for one in policies if is_selected(labels, one["podSelector"])]
    assert len(mine) == 1, f"expected one policy for the pod, found {len(mine)}"
    return any(
        port in [one["port"] for one in rule["ports"]]
        and (not rule.get("from") or any(_is(source, one) for one in rule["from"]))
        for rule in mine[0]["ingress"]
    )


def _is(source: Source, peer: dict[str, Any]) -> bool:
    namespace, labels = source
    if "namespaceSelector" in peer:
        if not is_selected({"kubernetes.io/metadata.name": namespace}, peer["namespaceSelector"]):
            return False
    elif namespace != "shop":
        return False
    return is_selected(labels, peer.get("podSelector", {}))


def test_all_servers_in_pods_listen_on_both_families() -> None:
    """Pods may have addresses of IPv4, of IPv6 or of both; no manifest says which."""
    objects = rendered(group(proxy={"replicas": 1}))
    master = containers(broker_sets(objects)["orders-0-master"]["spec"]["template"])
    name_server = containers(of_kind(objects, "StatefulSet")["orders-nameserver"]["spec"]["template"])["nameserver"]
    proxy = json.loads(of_kind(objects, "ConfigMap")["orders-proxy"]["data"]["proxy.yaml"])
    variables = [one["value"] for pod in (master["broker"], name_server) for one in pod["env"] if "CONF" in one["name"]]
    words = master["sidecar"]["args"]

    assert ["bindAddress=::" in text.splitlines() for text in variables] == [True, True]
    assert [words[words.index(option) + 1] for option in ("--listen", "--log-listen")] == ["[::]:8080", "[::]:8081"]
    assert [proxy["listen"][key] for key in ("address", "httpAddress")] == ["[::]:8081", "[::]:9081"]


@pytest.mark.parametrize(
    ("source", "ports"),
    [
        (CLIENT, {10911, 10909}),
        (BROKER, {10911, 10909, 10912, 8080, 8081}),
        (OPERATOR, {10911, 10909, 8080}),
        (PROMETHEUS, {10911, 10909, 8080}),
        (IMPOSTOR, {10911, 10909}),
        (OTHER_GROUP, {10911, 10909}),
    ],
    ids=["client", "broker", "operator", "prometheus", "pod with the operator's label", "another group"],
)
def test_ports_admit_only_their_clients(source: Source, ports: set[int]) -> None:
    """Clients reach the broker; replication is for the group, the sidecar for the group, operator and Prometheus."""
    asked = {10909, 10911, 10912, 10913, 10921, 8080, 8081, 9876}

    assert {port for port in asked if may(source, "broker", port)} == ports


def test_name_servers_admit_the_whole_cluster() -> None:
    """Only their own port is open."""
    assert may(CLIENT, "nameserver", 9876)
    assert not may(CLIENT, "nameserver", 10913)


def test_proxies_admit_clients_and_readers_of_metrics() -> None:
    """The port for clients is open; Prometheus and the group's sidecars reach that for metrics, which has no
    accounts."""
    proxy = {"proxy": {"replicas": 1}}

    assert {port for port in (8081, 9081, 8080, 10911) if may(CLIENT, "proxy", port, **proxy)} == {8081}
    assert {port for port in (8081, 9081, 8080, 10911) if may(PROMETHEUS, "proxy", port, **proxy)} == {8081, 9081}
    assert {port for port in (8081, 9081, 8080, 10911) if may(BROKER, "proxy", port, **proxy)} == {8081, 9081}
    assert not may(IMPOSTOR, "proxy", 9081, **proxy) and not may(OTHER_GROUP, "proxy", 9081, **proxy)


def test_external_listener_is_closed_by_default() -> None:
    """The external listener of name servers has a rule only with spec.access.external."""
    external = {"access": {"external": {"type": "LoadBalancer"}}}

    assert not may(CLIENT, "nameserver", names.EXTERNAL_NAME_SERVER_PORT)
    assert may(CLIENT, "nameserver", names.EXTERNAL_NAME_SERVER_PORT, **external)
