"""Gateways of a model cluster, and the controller that gives them addresses and accepts routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from operator_world.cluster import GROUP, NAMESPACE
from operator_world.fake_kubernetes import FakeKubernetes

from gantry_broker.external_addresses import parse_external_addresses
from gantry_operator.api import CONFIG_MAPS, GATEWAYS, ROUTE_KINDS, Object

CONTROLLER = "example.com/gateway-controller"


def gateway(
    name: str = "edge",
    namespace: str = NAMESPACE,
    *,
    address: str = "198.51.100.1",
    ports: Iterable[int] = (),
    listeners: Iterable[Mapping[str, Any]] = (),
    **status: Any,
) -> Object:
    """Return a Gateway with TCP listeners for these ports, other listeners, and an address unless it is empty."""
    tcp = [{"name": f"tcp-{port}", "port": port, "protocol": "TCP"} for port in ports]
    kind = "Hostname" if address and not address[-1].isdigit() else "IPAddress"
    addresses = [{"type": kind, "value": address}] if address else []
    return {
        "apiVersion": GATEWAYS.api_version,
        "kind": GATEWAYS.name,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": "example", "listeners": [*tcp, *listeners]},
        "status": {"addresses": addresses} | status,
    }


def put_gateway(api: FakeKubernetes, name: str = "edge", namespace: str = NAMESPACE, **more: Any) -> None:
    """Create or replace a Gateway; see ``gateway``."""
    api.put(gateway(name, namespace, **more))


def accept_routes(api: FakeKubernetes, status: str = "True", reason: str = "Accepted", message: str = "") -> None:
    """Let the controller report about all routes that they are accepted, or another value of this condition."""
    for kind in ROUTE_KINDS:
        for route in api.of_kind(kind):
            condition = {"type": "Accepted", "status": status, "reason": reason, "message": message}
            condition |= {"observedGeneration": route["metadata"]["generation"]}
            [parent] = route["spec"]["parentRefs"]
            report = {"parentRef": parent, "controllerName": CONTROLLER, "conditions": [condition]}
            api.put(route | {"status": {"parents": [report]}})


def external_addresses(api: FakeKubernetes, group: str = GROUP) -> dict[str, str]:
    """Return the external addresses of the first shard, as its brokers read them: of the master, and by member."""
    found = api.found(CONFIG_MAPS, NAMESPACE, f"{group}-0")
    assert found is not None, "the shard has no ConfigMap"
    return dict(parse_external_addresses(found["data"]["outside"]))
