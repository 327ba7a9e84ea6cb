"""The Services and network policies of a group.

    g-0               the present master of shard 0; brokerId 0 is registered under its address, which is also in
                      message ids: so both stay valid when the role moves
    g-0-slave-0, ...  one broker each, named as its pod: the address as a registered slave, and for its own slaves
    g-0-master, ...   headless: the host names of pods
    g-nameserver      headless: the host names of the name servers
    ...-external      optional, for clients outside of the cluster: one for each Service that clients use; name servers
                      have another port for them, and return the brokers' external addresses there. With a Gateway
                      each has a TCPRoute of the same name: see ``gateway``
    g-proxy           the gRPC proxies, only those that are ready, and g-proxy-pods with all of them: see ``proxy``

All Services but g-proxy publish addresses that are not ready. Readiness is for users and rolls. RocketMQ
clients use name servers instead, and a master that refuses sends must still be reachable to answer.

The Service of the master selects a pod by name, so one change moves it. A selector by role label would need two
changes, those of the old and the new master's pod, and between them the Service would have no endpoint: nodes would
drop packets, and apply the second change some time after the first. Before the first master, it selects by role label,
and so no pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gantry_operator.objects import configuration, names
from gantry_operator.objects.base import Object, labels, make_object, selector
from gantry_operator.objects.facts import Facts
from gantry_remoting import join_address
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType

SERVICE = ("v1", "Service")
CLIENT_PORTS = (("broker", names.BROKER_PORT), ("fast", names.FAST_PORT))
MEMBER_PORTS = (*CLIENT_PORTS, ("replication", names.REPLICATION_PORT), ("http", names.SIDECAR_PORT))
NAME_SERVER_PORTS = ((names.NAME_SERVER, names.NAME_SERVER_PORT),)
EXTERNAL_BROKER_PORT = {"name": "broker", "port": names.BROKER_PORT, "targetPort": names.BROKER_PORT}
EXTERNAL_NAME_SERVER_PORT = {
    "name": names.NAME_SERVER,
    "port": names.NAME_SERVER_PORT,
    "targetPort": names.EXTERNAL_NAME_SERVER_PORT,
}

EXTERNAL_PORT_NAMES = (EXTERNAL_BROKER_PORT["name"], EXTERNAL_NAME_SERVER_PORT["name"], names.PROXY_PORT_NAME)


def shard_services(group: BrokerGroup, facts: Facts, shard: int) -> list[Object]:
    """Return the Services of one shard."""
    name = group.metadata.name
    found = [
        _headless(group, names.master_set(name, shard), shard),
        _headless(group, names.slave_set(name, shard), shard),
        _service(group, names.shard_name(name, shard), shard, role_selector(group, facts, shard), CLIENT_PORTS),
    ]
    for member in configuration.member_numbers(group, facts, shard):
        pod = names.member_pod(name, shard, member)
        chosen = selector(group, names.BROKER, shard) | {names.POD_NAME_LABEL: pod}
        found.append(_service(group, pod, shard, chosen, MEMBER_PORTS))
        if group.spec.access.external.type is not ExternalType.NONE:
            found.append(_external_service(group, pod, shard, chosen, EXTERNAL_BROKER_PORT))
    if group.spec.access.external.type is not ExternalType.NONE:
        service = names.shard_name(name, shard)
        found.append(_external_service(group, service, shard, role_selector(group, facts, shard), EXTERNAL_BROKER_PORT))
    return found


def name_server_services(group: BrokerGroup) -> list[Object]:
    """Return the Services of the group's own name servers."""
    if not group.spec.name_servers.count:
        return []
    name, chosen = names.name_server_set(group.metadata.name), selector(group, names.NAME_SERVER)
    own_labels = labels(group, names.NAME_SERVER)
    body = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": chosen}
    found = [make_object(group, SERVICE, name, own_labels, {"spec": body | {"ports": _ports(NAME_SERVER_PORTS)}})]
    if group.spec.access.external.type is not ExternalType.NONE:
        found.append(_external_service(group, name, None, chosen, EXTERNAL_NAME_SERVER_PORT))
    return found


def role_selector(group: BrokerGroup, facts: Facts, shard: int) -> dict[str, str]:
    """Return the selector of the present master's pod, or else of the last master's."""
    pod = facts.shard(shard).master_pod
    master = {names.POD_NAME_LABEL: pod} if pod else {names.ROLE_LABEL: names.MASTER_ROLE}
    return selector(group, names.BROKER, shard) | master


def _headless(group: BrokerGroup, name: str, shard: int) -> Object:
    """Return a Service without an IP address of its own: it gives pods their host names."""
    chosen = selector(group, names.BROKER, shard) | {names.HOME_LABEL: name}
    body = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": chosen,
        "ports": _ports((*MEMBER_PORTS, ("log", names.LOG_PORT))),
    }
    return make_object(group, SERVICE, name, labels(group, names.BROKER, shard), {"spec": body})


def _service(
    group: BrokerGroup, name: str, shard: int, chosen: dict[str, str], ports: tuple[tuple[str, int], ...]
) -> Object:
    """Return a Service that selects the pods with the labels ``chosen``."""
    body = {"type": "ClusterIP", "publishNotReadyAddresses": True, "selector": chosen, "ports": _ports(ports)}
    return make_object(group, SERVICE, name, labels(group, names.BROKER, shard), {"spec": body})


def _external_service(
    group: BrokerGroup, inner: str, shard: int | None, chosen: dict[str, str], port: Object
) -> Object:
    """Return a Service for clients outside of the cluster that corresponds to the Service ``inner``."""
    external = group.spec.access.external
    is_routed = external.type is ExternalType.GATEWAY
    body: Object = {
        "type": "ClusterIP" if is_routed else str(external.type),
        "publishNotReadyAddresses": True,
        "selector": chosen,
        "ports": [port | {"protocol": "TCP"}],
    }
    if not is_routed:
        body["externalTrafficPolicy"] = "Cluster"
    more = {"annotations": dict(external.annotations)} if external.annotations else {}
    own_labels = labels(group, chosen[names.COMPONENT_LABEL], shard)
    return make_object(group, SERVICE, names.external_name(inner), own_labels, {"spec": body}, **more)


def _ports(ports: tuple[tuple[str, int], ...]) -> list[Object]:
    return [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports]


# -- policies ----------------------------------------------------------------------------------------------------------

POLICY = ("networking.k8s.io/v1", "NetworkPolicy")


def policies(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return the network policies. They admit only these connections, if the cluster's network enforces policies.

        from                      broker 10911 10909   replication 10912   sidecar 8080   log 8081   name server 9876
        anywhere                  yes                  -                   -              -          yes
        brokers of the group      yes                  yes                 yes            yes        yes
        pipelines that read it    yes                  -                   yes            yes        yes
        the operator              yes                  -                   yes            -          yes
        Prometheus                yes                  -                   yes            -          yes

    With external access, the external listener of the name servers, 9886, is open to connections from anywhere, too.
    Pipelines are pods of the group's namespace with the label `reads.gantry.dev/GROUP`; they use the token for reading.
    Probes of kubelet come from the machine itself, to which policies do not apply. Egress is not limited: the addresses
    of other name servers, and of the cluster's DNS and API server, are not known here.
    """
    found = [_policy(group, names.BROKER, _to_brokers(group, facts))]
    if group.spec.name_servers.count:
        is_open = group.spec.access.external.type is not ExternalType.NONE
        ports = [names.NAME_SERVER_PORT, *([names.EXTERNAL_NAME_SERVER_PORT] if is_open else [])]
        found.append(_policy(group, names.NAME_SERVER, [_rule([], ports)]))
    return found


def _to_brokers(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return the rules for connections to broker pods; see ``policies``."""
    brokers = {"podSelector": {"matchLabels": selector(group, names.BROKER)}}
    readers = {"podSelector": {"matchLabels": {names.reads_label(group.metadata.name): "true"}}}
    operator = {
        "namespaceSelector": {"matchLabels": {names.NAMESPACE_LABEL: facts.operator_namespace}},
        "podSelector": {"matchLabels": dict(facts.operator_labels)},
    }
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(facts.prometheus_labels)}}
    return [
        _rule([], [names.BROKER_PORT, names.FAST_PORT]),
        _rule([brokers], [names.REPLICATION_PORT, names.SIDECAR_PORT, names.LOG_PORT]),
        _rule([readers], [names.SIDECAR_PORT, names.LOG_PORT]),
        _rule([operator, prometheus], [names.SIDECAR_PORT]),
    ]


def _rule(sources: list[Object], ports: list[int]) -> Object:
    """Return an ingress rule; without sources it admits connections from everywhere."""
    rule: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return rule | ({"from": sources} if sources else {})


def _policy(group: BrokerGroup, component: str, ingress: list[Object]) -> Object:
    body = {
        "podSelector": {"matchLabels": selector(group, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return make_object(group, POLICY, f"{group.metadata.name}-{component}", labels(group, component), {"spec": body})


# -- addresses outside of the cluster ----------------------------------------------------------------------------------

ADDRESS_KINDS = ("ExternalIP", "ExternalDNS", "InternalIP")
"""The types of a Node's addresses, the one to use first."""


def external_address(service: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """Return host:port of a Service for external clients; None while the cluster has assigned none.

        LoadBalancer   the first address or name of the load balancer, and the Service's port
        NodePort       an address of a Node of the Service's family, the external one if it has one, and the node port

    Every Node accepts connections to a node port for all pods. The first ready Node by name is used, so that the
    address changes seldom. The port is the one that the operator has rendered: others may have added more. A Service
    without it, which belongs to a user, has no such address. The addresses at a Gateway are those of its ports instead
    (``observe.gateways``).
    """
    spec = service.get("spec") or {}
    port: Mapping[str, Any] = next(
        (one for one in spec.get("ports") or () if one.get("name") in EXTERNAL_PORT_NAMES), {}
    )
    if spec.get("type") == "LoadBalancer":
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}]
        host, number = ingress[0].get("ip") or ingress[0].get("hostname"), port.get("port")
    else:
        families = spec.get("ipFamilies") or ()
        host, number = _node_address(nodes, str(families[0]) if families else ""), port.get("nodePort")
    if not host or not number:
        return None
    return join_address(host, number)


def _node_address(nodes: Iterable[Mapping[str, Any]], family: str) -> str | None:
    """Return an address of a Node of a family, or of any if that is unknown."""
    for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])):
        if node.get("metadata", {}).get("deletionTimestamp") or not _is_ready(node):
            continue
        addresses = [(one["type"], str(one["address"])) for one in node.get("status", {}).get("addresses", [])]
        for wanted in ADDRESS_KINDS:
            for kind, address in addresses:
                is_usable = not family or kind == "ExternalDNS" or family == ("IPv6" if ":" in address else "IPv4")
                if kind == wanted and is_usable:
                    return address
    return None


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
