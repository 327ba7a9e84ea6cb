"""Where a Service for clients outside of the cluster is reached, read from what the API server says of it.

    LoadBalancer   the first address or name that the load balancer has, and the Service's port
    NodePort       an address of a machine, the outer one if it has one, and the machine's port

Every machine takes a NodePort for every pod, so one that is there is as good as another: the first by name is taken, so
that the address changes only when that machine goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ADDRESS_KINDS = ("ExternalIP", "ExternalDNS", "InternalIP")


def outside_address(service: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """host:port of a Service with one port; None while the cluster has not given it one."""
    spec = service.get("spec", {})
    [port] = spec.get("ports", [{}])
    if spec.get("type") == "LoadBalancer":
        points = service.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}]
        host, number = points[0].get("ip") or points[0].get("hostname"), port.get("port")
    else:
        host, number = _machine(nodes), port.get("nodePort")
    if not host or not number:
        return None
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _machine(nodes: Iterable[Mapping[str, Any]]) -> str | None:
    for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])):
        if node.get("metadata", {}).get("deletionTimestamp") or not _is_ready(node):
            continue
        addresses = {one["type"]: str(one["address"]) for one in node.get("status", {}).get("addresses", [])}
        for kind in ADDRESS_KINDS:
            if kind in addresses:
                return addresses[kind]
    return None


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
