"""Observes the Gateway of a group: which routes can be made, which external addresses are in use, what is missing.

    listener     a listener with protocol TCP for the port of a target; the port is not used by another group's route
    address      the first address or host name of the Gateway's status
    accepted     the controller of the Gateway has accepted the TCPRoute of the target (`Accepted`)

A broker registers an external address once all three are there, and no longer than that: clients never get an address
to which they cannot connect. All objects come from the cache, which watches keep up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gantry_operator.api import GATEWAYS, ROUTE_KINDS, Object, ObjectRef, labels_of
from gantry_operator.cache import Cache
from gantry_operator.objects import Facts
from gantry_operator.objects.gateway import Target, gateway_namespace, gateway_targets, parent_reference
from gantry_operator.objects.names import GROUP_LABEL
from gantry_remoting import join_address
from gantry_spec.cluster_objects import GATEWAY_GROUP
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType

NAMED_MAX: Final = 12
"""The most ports or routes that a text names."""

ADDRESS_TYPES: Final = ("IPAddress", "Hostname")
"""The types of a Gateway's address to which clients can connect."""


class GatewayProblem(NamedTuple):
    """Something that external access waits for."""

    reason: str
    """The reason as one stable word in CamelCase."""

    text: str


NO_API: Final = GatewayProblem(
    "NoGatewayAPI",
    "the cluster has no Gateway API, or the operator may not list it: Gateways (v1) and TCPRoutes (v1 or v1alpha2)"
    f" of {GATEWAY_GROUP} are needed; install their CRDs, and update the chart of the operator",
)


class GatewayReport(NamedTuple):
    """The state of a group's external access through its Gateway."""

    problems: Sequence[GatewayProblem] = ()
    listeners: Mapping[int, str] = {}
    """The names of the listeners that routes of the group may use, by port."""

    addresses: Mapping[str, str] = {}
    """host:port for external clients, by the name of the external Service, where the Gateway forwards connections."""


def uses_gateway(document: Mapping[str, Any]) -> bool:
    """Return whether the external clients of a BrokerGroup, as the API server has it, connect through a Gateway."""
    access = (document.get("spec") or {}).get("access") or {}
    return (access.get("external") or {}).get("type") == ExternalType.GATEWAY


def observe_gateway(
    group: BrokerGroup, facts: Facts, cache: Cache, namespaces: Sequence[str] = ()
) -> GatewayReport | None:
    """Return the state of the Gateway; None if the group uses none.

    ``namespaces`` are those that the operator watches; empty for all of them.
    """
    external = group.spec.access.external
    if external.type is not ExternalType.GATEWAY:
        return None
    if not facts.route_api:
        return GatewayReport([NO_API])
    ref = ObjectRef(GATEWAYS, gateway_namespace(group), external.gateway.name)
    name = f"Gateway {ref.namespace}/{ref.name}"
    document = cache.get(ref)
    if document is None:
        return GatewayReport([_not_found(name, ref.namespace, namespaces)])
    targets = gateway_targets(group, facts)
    known = tcp_listeners(document)
    kind = next(one for one in ROUTE_KINDS if one.api_version == facts.route_api)
    key = (group.metadata.namespace, group.metadata.name)
    routes = {str(one["metadata"]["name"]): one for one in cache.of_group(kind, key)}
    taken = dict(_taken_ports(group, cache.of_kind(kind), routes, targets))
    listeners = {port: listener for port, listener in known.items() if port not in taken}
    host = address_of(document)
    problems = [] if host else [_no_address(name, document)]
    problems += _listener_problems(name, document, [one.port for one in targets if one.port not in known])
    problems += _conflicts(name, taken)
    routed = [one for one in targets if one.port in listeners]
    verdicts = {
        one: _verdict(routes.get(one.service), parent_reference(group, one.port, listeners[one.port])) for one in routed
    }
    problems += _route_problems(name, verdicts)
    addresses = {one.service: join_address(host, one.port) for one in routed if host and verdicts[one].is_accepted}
    return GatewayReport(problems, listeners, addresses)


def address_of(gateway: Mapping[str, Any]) -> str:
    """Return the first IP address or host name of a Gateway; empty while it has none."""
    addresses = (gateway.get("status") or {}).get("addresses") or []
    found = (one.get("value") for one in addresses if one.get("type", ADDRESS_TYPES[0]) in ADDRESS_TYPES)
    return str(next(found, None) or "")


def tcp_listeners(gateway: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of a Gateway's listeners with protocol TCP, by port."""
    listeners = (gateway.get("spec") or {}).get("listeners") or []
    return {int(one["port"]): str(one["name"]) for one in listeners if one.get("protocol") == "TCP"}


# -- what is missing ---------------------------------------------------------------------------------------------------


def _not_found(name: str, namespace: str, namespaces: Sequence[str]) -> GatewayProblem:
    if namespaces and namespace not in namespaces:
        text = f"{name} is in a namespace that the operator does not watch; add it to `namespaces` of its chart"
        return GatewayProblem("NamespaceNotWatched", text)
    return GatewayProblem(
        "GatewayNotFound", f"{name} does not exist; create it, or correct spec.access.external.gateway"
    )


def _no_address(name: str, gateway: Object) -> GatewayProblem:
    """Return that a Gateway has no address, with the reason that its controller reports."""
    failed = [
        one
        for one in (gateway.get("status") or {}).get("conditions") or []
        if one.get("type") in ("Accepted", "Programmed") and one.get("status") == "False"
    ]
    reports = "; ".join(f"{one['type']} is False: {_reason_of(one)}" for one in failed)
    text = f"{name} has no address yet" if reports else f"{name} has no address, and no controller reports why"
    return GatewayProblem("NoAddress", f"{text}: {reports}" if reports else text)


def _listener_problems(name: str, gateway: Object, missing: Sequence[int]) -> Iterator[GatewayProblem]:
    """Yield that listeners are missing, with those that have a port, but another protocol."""
    if not missing:
        return
    others = {
        int(one["port"]): f"{one['name']} has the protocol {one.get('protocol')}"
        for one in (gateway.get("spec") or {}).get("listeners") or []
    }
    wrong = "; ".join(f"listener {others[port]}" for port in missing if port in others)
    text = f"{name} has no listener with protocol TCP for {_ports_text(missing)}; add it to spec.listeners"
    yield GatewayProblem("NoListener", f"{text} ({wrong})" if wrong else text)


def _conflicts(name: str, taken: Mapping[int, str]) -> Iterator[GatewayProblem]:
    """Yield for each other group that it uses ports of this one."""
    for other in sorted(set(taken.values())):
        ports = [port for port, user in taken.items() if user == other]
        yield GatewayProblem(
            "PortTaken",
            f"group {other} uses {_ports_text(ports)} of {name}; set another spec.access.external.gateway.firstPort",
        )


def _ports_text(ports: Iterable[int]) -> str:
    found = sorted(ports)
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return f"port{'' if len(found) == 1 else 's'} {', '.join(map(str, found[:NAMED_MAX]))}{more}"


# -- routes ------------------------------------------------------------------------------------------------------------


class _Verdict(NamedTuple):
    """What the controller of a Gateway reports about a route."""

    is_accepted: bool
    problem: str = ""
    """Why the route does not work; empty if it does, or nothing is reported yet."""


def _verdict(route: Object | None, parent: Object) -> _Verdict:
    """Return what is reported about a route with this parent. A verdict on an earlier version is not final."""
    if route is None or route["spec"].get("parentRefs") != [parent]:
        return _Verdict(is_accepted=False)
    identity = ("name", "namespace", "sectionName", "port")
    reports = [
        one
        for one in (route.get("status") or {}).get("parents") or []
        if all(one.get("parentRef", {}).get(field, parent[field]) == parent[field] for field in identity)
    ]
    conditions = [one for report in reports for one in report.get("conditions") or []]
    is_accepted = any(one.get("type") == "Accepted" and one.get("status") == "True" for one in conditions)
    generation = route["metadata"].get("generation", 0)
    failed = [
        one
        for one in conditions
        if one.get("type") in ("Accepted", "ResolvedRefs")
        and one.get("status") == "False"
        and one.get("observedGeneration", generation) >= generation
    ]
    return _Verdict(is_accepted, "; ".join(dict.fromkeys(_reason_of(one) for one in failed)))


def _route_problems(name: str, verdicts: Mapping[Target, _Verdict]) -> Iterator[GatewayProblem]:
    """Yield why routes do not work, those with the same reason together, and then that others wait."""
    refused: dict[str, list[str]] = {}
    for target, verdict in verdicts.items():
        if verdict.problem:
            refused.setdefault(verdict.problem, []).append(target.service)
    for problem, services in refused.items():
        yield GatewayProblem("RouteNotAccepted", f"{name} does not accept {_routes_text(services)}: {problem}")
    waiting = [target.service for target, one in verdicts.items() if not one.is_accepted and not one.problem]
    if waiting:
        text = f"no controller of {name} has accepted or refused {_routes_text(waiting)} yet"
        yield GatewayProblem("RoutesPending", text)


def _routes_text(services: Sequence[str]) -> str:
    more = f" and {len(services) - NAMED_MAX} more" if len(services) > NAMED_MAX else ""
    return f"TCPRoute{'' if len(services) == 1 else 's'} {', '.join(services[:NAMED_MAX])}{more}"


def _reason_of(condition: Mapping[str, Any]) -> str:
    return ": ".join(str(condition[part]) for part in ("reason", "message") if condition.get(part)) or "no reason given"


# -- other groups ------------------------------------------------------------------------------------------------------


def _taken_ports(
    group: BrokerGroup, routes: Iterable[Object], own: Mapping[str, Object], targets: Sequence[Target]
) -> Iterator[tuple[int, str]]:
    """Yield the ports that another group's route used before this group's one, with that group.

    Two routes at one listener would lead clients of one group to brokers of the other. The older route keeps the port.
    """
    services = {one.port: one.service for one in targets}
    gateway = (gateway_namespace(group), group.spec.access.external.gateway.name)
    for route in routes:
        metadata, user = route["metadata"], labels_of(route).get(GROUP_LABEL, "")
        if (metadata["namespace"], user) == (group.metadata.namespace, group.metadata.name):
            continue
        for parent in route["spec"].get("parentRefs") or []:
            port, place = parent.get("port"), (parent.get("namespace") or metadata["namespace"], parent.get("name"))
            mine = own.get(services.get(port, ""))
            if place == gateway and port in services and (mine is None or _age_key(route) < _age_key(mine)):
                yield port, f"{metadata['namespace']}/{user}"


def _age_key(route: Object) -> tuple[str, str, str]:
    metadata = route["metadata"]
    return str(metadata.get("creationTimestamp", "")), metadata["namespace"], metadata["name"]
