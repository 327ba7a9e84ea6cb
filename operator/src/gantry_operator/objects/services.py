"""Services: one that follows the master's role, one for each broker whatever its role, and headless ones for names.

    g-0               the master of shard 0, whoever that is; brokerId 0 is registered under its address, which is
                      also in message ids: so both stay right when the role moves
    g-0-slave-0, ...  one broker each, named as its pod: how it is registered as a slave, and how others follow it
    g-0-master, ...   headless: names of pods
    g-nameserver      headless: where clients ask
    ...-external      the same for clients outside of the cluster, on request: one for each that clients talk to; name
                      servers are asked at a port of their own there, and answer with brokers' outer addresses

All publish addresses that are not ready. Readiness is for people and rolls; RocketMQ's clients see name servers, and a
master that takes no sends must still be reachable to say so.

The one that follows the role names a pod, and so it moves by one change. By the role's label there would be two, the
old master's and the new one's, and between them a Service without anybody: nodes then drop what comes for it, and take
the second change a while after the first. Before there was a master its label selects, and so nobody.
"""

from __future__ import annotations

from gantry_operator.objects import configuration, names
from gantry_operator.objects.base import Object, labels, made, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType

SERVICE = ("v1", "Service")
CLIENT_PORTS = (("broker", names.BROKER_PORT), ("fast", names.FAST_PORT))
MEMBER_PORTS = (*CLIENT_PORTS, ("replication", names.REPLICATION_PORT), ("http", names.SIDECAR_PORT))
NAME_SERVER_PORTS = ((names.NAME_SERVER, names.NAME_SERVER_PORT),)
OUTER_BROKER_PORT = {"name": "broker", "port": names.BROKER_PORT, "targetPort": names.BROKER_PORT}
OUTER_NAME_SERVER_PORT = {
    "name": names.NAME_SERVER,
    "port": names.NAME_SERVER_PORT,
    "targetPort": names.OUTER_NAME_SERVER_PORT,
}


def shard_services(group: BrokerGroup, facts: Facts, shard: int) -> list[Object]:
    """Of one shard."""
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
            found.append(_outside(group, pod, shard, chosen, OUTER_BROKER_PORT))
    if group.spec.access.external.type is not ExternalType.NONE:
        service = names.shard_name(name, shard)
        found.append(_outside(group, service, shard, role_selector(group, facts, shard), OUTER_BROKER_PORT))
    return found


def name_server_services(group: BrokerGroup) -> list[Object]:
    """Of the group's own name servers."""
    if not group.spec.name_servers.count:
        return []
    name, chosen = names.name_server_set(group.metadata.name), selector(group, names.NAME_SERVER)
    marked = labels(group, names.NAME_SERVER)
    body = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": chosen}
    found = [made(group, SERVICE, name, marked, {"spec": body | {"ports": _ports(NAME_SERVER_PORTS)}})]
    if group.spec.access.external.type is not ExternalType.NONE:
        found.append(_outside(group, name, None, chosen, OUTER_NAME_SERVER_PORT))
    return found


def role_selector(group: BrokerGroup, facts: Facts, shard: int) -> dict[str, str]:
    """Whoever is the master now, or was it last."""
    pod = facts.shard(shard).master_pod
    master = {names.POD_NAME_LABEL: pod} if pod else {names.ROLE_LABEL: names.MASTER_ROLE}
    return selector(group, names.BROKER, shard) | master


def _headless(group: BrokerGroup, name: str, shard: int) -> Object:
    chosen = selector(group, names.BROKER, shard) | {names.HOME_LABEL: name}
    body = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": chosen,
        "ports": _ports((*MEMBER_PORTS, ("log", names.LOG_PORT))),
    }
    return made(group, SERVICE, name, labels(group, names.BROKER, shard), {"spec": body})


def _service(
    group: BrokerGroup, name: str, shard: int, chosen: dict[str, str], ports: tuple[tuple[str, int], ...]
) -> Object:
    body = {"type": "ClusterIP", "publishNotReadyAddresses": True, "selector": chosen, "ports": _ports(ports)}
    return made(group, SERVICE, name, labels(group, names.BROKER, shard), {"spec": body})


def _outside(group: BrokerGroup, inner: str, shard: int | None, chosen: dict[str, str], port: Object) -> Object:
    """A way in for clients outside of the cluster, beside the Service ``inner``."""
    external = group.spec.access.external
    body = {
        "type": str(external.type),
        "publishNotReadyAddresses": True,
        "externalTrafficPolicy": "Cluster",
        "selector": chosen,
        "ports": [port | {"protocol": "TCP"}],
    }
    more = {"annotations": dict(external.annotations)} if external.annotations else {}
    marked = labels(group, chosen[names.COMPONENT_LABEL], shard)
    return made(group, SERVICE, names.external_name(inner), marked, {"spec": body}, **more)


def _ports(ports: tuple[tuple[str, int], ...]) -> list[Object]:
    return [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports]
