"""The objects of a group in Kubernetes: their paths, names and labels, for the operator, the command line and pods.

    g-0-master-0    pod of member 1 of shard 0
    g-0-slave-1     pod of member 3; a member's own Service has the name of its pod
    g-0             objects that a shard has once: its Lease, the Service of its master
    g-proxy         objects of the gRPC proxies: their Deployment, Service, ConfigMap
    g-proxy-pods    the headless Service with the addresses of their pods

A pod's name states the initial role of its member, not the current one. This module imports no other module of the
project, since the first process of every pod uses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

GROUP_LABEL: Final = "gantry.dev/group"
ROLE_LABEL: Final = "gantry.dev/role"
"""The label of a pod with the role that its broker has at present."""

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
"""The label that separates pods of brokers, name servers and proxies."""

POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
"""The label with its own name that Kubernetes gives to each pod of a StatefulSet."""

BROKER: Final = "broker"
NAME_SERVER: Final = "nameserver"
PROXY: Final = "proxy"
PROXY_HTTP_PORT: Final = 9081
"""The port of a proxy for probes and metrics, without TLS."""

GATEWAY_GROUP: Final = "gateway.networking.k8s.io"
"""The API group of Gateways and TCPRoutes."""

BROKER_CONTAINER: Final = "broker"
"""The name of the broker's container in its pod."""

CONF_VARIABLE: Final = "GANTRY_BROKER_CONF"
"""The environment variable of a broker's container that has the settings of its start."""

_POD: Final = re.compile(r"(.+)-(0|[1-9][0-9]*)-(?:master-0|slave-(0|[1-9][0-9]*))")


class Kind(NamedTuple):
    """A kind of Kubernetes object, with its path on the API server."""

    api_version: str
    name: str
    """The name of the kind in a manifest, such as ``Pod``."""

    plural: str
    """The name in paths of the API server, such as ``pods``."""

    is_namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of all objects, of those of a namespace, of one object, or of its subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        place = [f"namespaces/{namespace}"] if self.is_namespaced and namespace else []
        return "/".join([root, *place, self.plural, *(word for word in (name, subresource) if word)])


class PodPlace(NamedTuple):
    """The shard and the member number of a broker's pod."""

    shard: int
    member: int
    """The member's own number, counted from 1."""


def shard_name(group: str, shard: int) -> str:
    """Return the name of the objects that a shard has once."""
    return f"{group}-{shard}"


def proxy_name(group: str) -> str:
    """Return the name of the objects of a group's gRPC proxies: its Deployment, Service, ConfigMap and others."""
    return f"{group}-{PROXY}"


def proxy_pods_name(group: str) -> str:
    """Return the name of the headless Service of the proxies' pods, by which sidecars find them."""
    return f"{proxy_name(group)}-pods"


def member_pod(group: str, shard: int, member: int) -> str:
    """Return the name of a member's pod, and of its own Service."""
    assert member >= 1, "members are counted from 1"
    return f"{shard_name(group, shard)}-{'master-0' if member == 1 else f'slave-{member - 2}'}"


def place_of_pod(pod: str) -> tuple[str, PodPlace] | None:
    """Return the group of a broker's pod and its place in it; None if it is not the name of a broker's pod."""
    match = _POD.fullmatch(pod)
    if match is None:
        return None
    return match[1], PodPlace(int(match[2]), 1 if match[3] is None else int(match[3]) + 2)


def member_of(group: str, pod: str) -> PodPlace | None:
    """Return which member of a group a pod is; None if it is not a broker of the group."""
    found = place_of_pod(pod)
    return found[1] if found is not None and found[0] == group else None


def acks_needed(pod: Mapping[str, Any]) -> int | None:
    """Return how many acks the broker needs as a master, by the pod's configuration; None if it is not set there."""
    containers = (pod.get("spec") or {}).get("containers") or []
    broker: Mapping[str, Any] = next((one for one in containers if one.get("name") == BROKER_CONTAINER), {})
    conf = next((one.get("value", "") for one in broker.get("env") or [] if one.get("name") == CONF_VARIABLE), "")
    for line in conf.splitlines():
        key, _, value = line.partition("=")
        if key == "inSyncReplicas" and value.isascii() and value.isdigit():
            return max(0, int(value) - 1)
    return None


def host_spellings(host: str) -> tuple[str, ...]:
    """Return the names by which clients reach a host: that of a Service also with the usual domain, and without any."""
    suffix = ".svc"
    return (host, f"{host}.cluster.local", host.removesuffix(suffix)) if host.endswith(suffix) else (host,)
