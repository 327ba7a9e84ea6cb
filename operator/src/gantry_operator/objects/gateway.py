"""The routes of a group at a Gateway (`access.external.type: Gateway`): a TCPRoute for each external Service.

    target      the name servers, the master of a shard, or one member: a port of its own at the Gateway
    listener    the listener with the protocol TCP that the Gateway has for this port
    TCPRoute    named as the Service, from this listener to the Service, which has the type ClusterIP

A TCPRoute refers to its listener by name and by port. Every implementation supports names. Ports are optional in the
API, and an implementation that ignores them would attach a route without a name to every listener. Both together keep
the connections for one broker from another one while a listener gets another port. So a port without a listener has
no route. A route is in the namespace of its Service, which therefore needs no ReferenceGrant.
"""

from __future__ import annotations

from typing import NamedTuple

from gantry_operator.objects import configuration, names
from gantry_operator.objects.base import Object, labels, make_object
from gantry_operator.objects.facts import Facts
from gantry_spec.cluster_objects import GATEWAY_GROUP
from gantry_spec.gateway_ports import master_port, member_port, name_server_port
from gantry_spec.manifest.group import SHARDS_MAX, SLAVES_MAX, BrokerGroup
from gantry_spec.manifest.parts import ExternalType


class Target(NamedTuple):
    """What external clients connect to at one port of the Gateway."""

    service: str
    """The name of the Service for external clients, and of its TCPRoute."""

    port: int
    """The port at the Gateway."""

    service_port: int
    component: str
    shard: int | None = None


def gateway_targets(group: BrokerGroup, facts: Facts) -> list[Target]:
    """Return the targets at the Gateway, by their ports; none for another type of external access.

    A StatefulSet that was scaled by hand beyond the limits of the spec has members without a target.
    """
    external = group.spec.access.external
    if external.type is not ExternalType.GATEWAY:
        return []
    name, first = group.metadata.name, external.gateway.first_port
    found = []
    if group.spec.name_servers.count:
        service = names.external_name(names.name_server_set(name))
        found.append(Target(service, name_server_port(first), names.NAME_SERVER_PORT, names.NAME_SERVER))
    for shard in configuration.shard_numbers(group, facts):
        if shard >= SHARDS_MAX:
            continue
        ports = {names.shard_name(name, shard): master_port(first, shard)}
        for member in configuration.member_numbers(group, facts, shard)[: SLAVES_MAX + 1]:
            ports[names.member_pod(name, shard, member)] = member_port(first, shard, member)
        found += [
            Target(names.external_name(inner), port, names.BROKER_PORT, names.BROKER, shard)
            for inner, port in ports.items()
        ]
    return found


def gateway_namespace(group: BrokerGroup) -> str:
    """Return the namespace of the Gateway, which is that of the group by default."""
    return group.spec.access.external.gateway.namespace or group.metadata.namespace


def parent_reference(group: BrokerGroup, port: int, listener: str) -> Object:
    """Return the reference of a route to a listener of the Gateway."""
    return {
        "group": GATEWAY_GROUP,
        "kind": "Gateway",
        "name": group.spec.access.external.gateway.name,
        "namespace": gateway_namespace(group),
        "sectionName": listener,
        "port": port,
    }


def gateway_routes(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return the TCPRoutes: one for each target whose port has a listener; none where the cluster lacks the kind."""
    if not facts.route_api:
        return []
    return [
        _route(group, facts, target, facts.gateway_listeners[target.port])
        for target in gateway_targets(group, facts)
        if target.port in facts.gateway_listeners
    ]


def _route(group: BrokerGroup, facts: Facts, target: Target, listener: str) -> Object:
    annotations = group.spec.access.external.annotations
    backend = {"group": "", "kind": "Service", "name": target.service, "port": target.service_port, "weight": 1}
    body = {
        "parentRefs": [parent_reference(group, target.port, listener)],
        "rules": [{"backendRefs": [backend]}],
    }
    more = {"annotations": dict(annotations)} if annotations else {}
    own_labels = labels(group, target.component, target.shard)
    return make_object(group, (facts.route_api, "TCPRoute"), target.service, own_labels, {"spec": body}, **more)
