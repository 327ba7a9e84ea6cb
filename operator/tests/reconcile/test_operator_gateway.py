"""External clients through a Gateway: registered addresses, what a group waits for, switching, pruning, and calls.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from charts_scene import ROOT
from operator_world.cluster import GROUP, NAMESPACE
from operator_world.gateways import accept_routes, external_addresses, gateway, put_gateway
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import EVENTS, GATEWAYS, SERVICES, TCP_ROUTES, Object, ObjectRef, uid_of
from gantry_operator.cache import Cache
from gantry_operator.gateway_report import gateway_condition, gateway_event
from gantry_operator.objects import Facts
from gantry_operator.observe import gateways
from gantry_operator.observe.gateways import GatewayReport, address_of, observe_gateway
from gantry_operator.watched_resources import OPTIONAL_KINDS, WATCHED_KINDS
from gantry_spec.manifest.reading import group_of

PORTS = (9886, 9887, 9888)
"""The ports of the only shard: its master, and its two members."""

EDGE: dict[str, Any] = {"type": "Gateway", "gateway": {"name": "edge"}}
ROUTED = SYNC | {"access": {"external": EDGE}}
SERVICE_NAMES = ("g-0-external", "g-0-master-0-external", "g-0-slave-0-external")
ADDRESSES = {"master": "198.51.100.1:9886", "1": "198.51.100.1:9887", "2": "198.51.100.1:9888"}


async def run_rounds(simulation: Simulation, count: int = 20) -> None:
    """Run some rounds, which are enough for all that happens without a change."""
    for _ in range(count):
        await simulation.step()


async def routed(spec: dict[str, Any] = ROUTED, **given: Any) -> Simulation:
    """Return a group in use, at a Gateway that has accepted its routes."""
    simulation = await Simulation(spec).run_until_healthy()
    put_gateway(simulation.cluster.api, **({"ports": PORTS} | given))
    await run_rounds(simulation)
    accept_routes(simulation.cluster.api)
    await run_rounds(simulation)
    return simulation


def routes(simulation: Simulation) -> list[str]:
    """Return the names of all routes."""
    return sorted(one["metadata"]["name"] for one in simulation.cluster.api.of_kind(TCP_ROUTES))


def waiting(simulation: Simulation) -> tuple[str, str]:
    """Return reason and message of the condition; the reason is empty while there is none or it is true."""
    status, reason, message = simulation.condition("GatewayReady")
    return (reason, message) if status == "False" else ("", "")


def events(simulation: Simulation) -> list[tuple[str, str]]:
    """Return type and reason of the events about the Gateway."""
    found = simulation.cluster.api.of_kind(EVENTS)
    return [(one["type"], one["reason"]) for one in found if one["reason"].startswith("Gateway")]


# -- addresses ---------------------------------------------------------------------------------------------------------


async def test_brokers_register_the_gateways_address_and_their_port() -> None:
    """Once its routes are accepted; the condition is true, and there is an event."""
    simulation = await routed()

    assert external_addresses(simulation.cluster.api) == ADDRESSES
    assert simulation.condition("GatewayReady")[:2] == ("True", "AllRoutesAccepted")
    assert events(simulation)[-1] == ("Normal", "GatewayReady")
    assert routes(simulation) == sorted(SERVICE_NAMES)


async def test_changed_address_of_the_gateway_is_registered() -> None:
    """Also a host name, and an address of IPv6; no broker restarts, and no address means none is registered."""
    simulation = await routed()
    pods = {uid_of(pod) for pod in simulation.cluster.pods()}

    for address, host in (("gw.example.com", "gw.example.com"), ("2001:db8::1", "[2001:db8::1]")):
        put_gateway(simulation.cluster.api, address=address, ports=PORTS)
        await run_rounds(simulation)
        assert external_addresses(simulation.cluster.api)["master"] == f"{host}:9886"
    put_gateway(simulation.cluster.api, address="", ports=PORTS)
    await run_rounds(simulation)
    assert external_addresses(simulation.cluster.api) == {}
    assert {uid_of(pod) for pod in simulation.cluster.pods()} == pods


async def test_scale_out_moves_no_address() -> None:
    """The new slave waits for its listener, and all others keep their addresses meanwhile."""
    simulation = await routed()
    simulation.cluster.edit(slaves=2)
    await run_rounds(simulation, 60)

    assert external_addresses(simulation.cluster.api) == ADDRESSES
    assert waiting(simulation)[0] == "NoListener" and "port 9889" in waiting(simulation)[1]
    put_gateway(simulation.cluster.api, ports=(*PORTS, 9889))
    await run_rounds(simulation)
    accept_routes(simulation.cluster.api)
    await run_rounds(simulation)
    assert external_addresses(simulation.cluster.api) == ADDRESSES | {"3": "198.51.100.1:9889"}


async def test_address_of_the_master_stays_when_the_role_moves() -> None:
    """The port is that of the shard's master, and its Service selects the new one."""
    simulation = await routed()
    simulation.cluster.annotate(promote="0=2")
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "member 2 is the master")
    await run_rounds(simulation)

    assert external_addresses(simulation.cluster.api) == ADDRESSES
    service = simulation.cluster.api.found(SERVICES, NAMESPACE, "g-0-external")
    assert service is not None
    assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "g-0-slave-0"


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        ([], ""),
        ([{"value": "198.51.100.7"}], "198.51.100.7"),
        ([{"type": "Hostname", "value": "a.example"}, {"type": "IPAddress", "value": "198.51.100.7"}], "a.example"),
        ([{"type": "example.com/pool", "value": "blue"}, {"type": "IPAddress", "value": "198.51.100.7"}],
         "198.51.100.7"),
        (None, ""),
    ],
    ids=["none", "default type", "first", "foreign type", "no list"],
)  # fmt: skip
def test_first_address_of_a_known_type_is_used(addresses: Any, host: str) -> None:
    """A controller may have types of its own, to which no client can connect."""
    assert address_of({"status": {"addresses": addresses}}) == host


# -- what a group waits for --------------------------------------------------------------------------------------------


async def test_status_reports_each_step_until_the_group_is_reachable() -> None:
    """A missing Gateway, a missing address, missing listeners, an unanswered route; each change is one event."""
    simulation = await Simulation(ROUTED).run_until_healthy()
    api, found = simulation.cluster.api, []
    listeners: dict[str, Any] = {"listeners": [{"name": "web", "port": 9886, "protocol": "HTTP"}]}
    for change in (
        None,
        {"address": "", "ports": PORTS},
        listeners | {"ports": PORTS[1:2]},
        {"ports": PORTS},
    ):
        if change is not None:
            put_gateway(api, **change)
        await run_rounds(simulation)
        found.append(waiting(simulation))

    assert found[0] == (
        "GatewayNotFound", "Gateway shop/edge does not exist; create it, or correct spec.access.external.gateway"
    )  # fmt: skip
    assert found[1][0] == "NoAddress" and "Gateway shop/edge has no address" in found[1][1]
    assert found[2][0] == "NoListener"
    assert (
        "Gateway shop/edge has no listener with protocol TCP for ports 9886, 9888; add it to spec.listeners"
        " (listener web has the protocol HTTP)" in found[2][1]
    )
    assert found[3] == (
        "RoutesPending",
        "no controller of Gateway shop/edge has accepted or refused TCPRoutes g-0-external, g-0-master-0-external,"
        " g-0-slave-0-external yet",
    )
    assert events(simulation) == [("Warning", "GatewayNotReady")] * 3 + [("Normal", "GatewayNotReady")]
    assert simulation.is_healthy(), "clients inside the cluster are served meanwhile"


async def test_refused_routes_have_the_reason_of_the_controller() -> None:
    """A Gateway may admit no routes of the group's namespace; then no address is registered."""
    simulation = await routed()
    accept_routes(simulation.cluster.api, "False", "NotAllowedByListeners", "allowedRoutes of the listener: Same")
    await run_rounds(simulation)

    assert external_addresses(simulation.cluster.api) == {}
    assert waiting(simulation) == (
        "RouteNotAccepted",
        "Gateway shop/edge does not accept TCPRoutes g-0-external, g-0-master-0-external, g-0-slave-0-external:"
        " NotAllowedByListeners: allowedRoutes of the listener: Same",
    )
    accept_routes(simulation.cluster.api)
    await run_rounds(simulation)
    assert external_addresses(simulation.cluster.api) == ADDRESSES


async def test_report_about_another_version_or_listener_of_a_route_does_not_count() -> None:
    """A controller may be late: its report is about the listener that the route had before."""
    simulation = await routed()
    put_gateway(simulation.cluster.api, listeners=[
        {"name": f"renamed-{port}", "port": port, "protocol": "TCP"} for port in PORTS
    ])  # fmt: skip
    await run_rounds(simulation)

    assert external_addresses(simulation.cluster.api) == {}
    assert waiting(simulation)[0] == "RoutesPending"


async def test_conditions_of_the_gateway_explain_a_missing_address() -> None:
    """Its controller knows why, for example that it has no free address."""
    reports = [
        {"type": "Programmed", "status": "False", "reason": "AddressNotAssigned", "message": "the pool is empty"}
    ]
    simulation = await routed(address="", conditions=reports)

    assert waiting(simulation)[1].startswith(
        "Gateway shop/edge has no address yet: Programmed is False: AddressNotAssigned: the pool is empty"
    )


async def test_cluster_without_the_gateway_api_is_reported() -> None:
    """Nothing is listed or applied of a kind that the cluster lacks."""
    simulation = await Simulation(ROUTED).run_until_healthy()
    simulation.loop = operator_of(simulation.cluster, Facts(image="gantry:test"))
    before = len(simulation.cluster.api.calls)
    await run_rounds(simulation, 60)

    assert waiting(simulation)[0] == "NoGatewayAPI" and "install their CRDs" in waiting(simulation)[1]
    kinds = {ref.kind for _, ref in simulation.cluster.api.calls[before:]}
    assert not kinds & OPTIONAL_KINDS.keys()


def routed_group(name: str = GROUP, **changes: Any) -> Any:
    """Return a group whose external clients connect through a Gateway."""
    gateway_fields = EDGE["gateway"] | changes
    head = {"name": name, "namespace": NAMESPACE, "uid": f"uid-of-{name}", "generation": 1}
    spec = SYNC | {"access": {"external": EDGE | {"gateway": gateway_fields}}}
    return group_of({"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": head, "spec": spec})


SERVING = Facts(image="gantry:test", route_api=TCP_ROUTES.api_version)


def test_namespace_that_the_operator_does_not_watch_is_named() -> None:
    """Its Gateways cannot be read, so that they would seem to be missing."""
    report = observe_gateway(routed_group(namespace="infra"), SERVING, Cache(), ("shop",))

    assert report is not None
    assert [one.reason for one in report.problems] == ["NamespaceNotWatched"]
    assert "Gateway infra/edge is in a namespace that the operator does not watch" in report.problems[0].text


def test_many_ports_are_counted_in_one_message() -> None:
    """A group of many shards lacks many listeners; a message of the status is short."""
    cache = Cache()
    cache.put(gateway())
    head = {"name": GROUP, "namespace": NAMESPACE, "uid": "u"}
    spec = SYNC | {"shards": 64, "access": {"external": EDGE}}
    large = group_of({"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": head, "spec": spec})

    report = observe_gateway(large, SERVING, cache)

    assert report is not None
    [problem] = report.problems
    assert "ports 9886, 9887, 9888, 9896" in problem.text and "and 180 more" in problem.text
    assert len(problem.text) < 300


# -- two groups at one Gateway -----------------------------------------------------------------------------------------


def route_of(group: str, port: int, created: str, namespace: str = NAMESPACE) -> Object:
    """Return the route of a group's master at a port."""
    parent = {"name": "edge", "namespace": NAMESPACE, "sectionName": f"tcp-{port}", "port": port}
    head = {"name": f"{group}-0-external", "namespace": namespace, "labels": {"gantry.dev/group": group}}
    return {
        "apiVersion": TCP_ROUTES.api_version, "kind": "TCPRoute",
        "metadata": head | {"uid": f"{namespace}-{group}", "resourceVersion": "1", "creationTimestamp": created},
        "spec": {"parentRefs": [parent]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("own", "other", "is_taken"),
    [("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", True), ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", False),
     ("", "2026-01-01T00:00:00Z", True)],
    ids=["later", "earlier", "no route yet"],
)  # fmt: skip
def test_port_of_another_group_is_not_taken_over(own: str, other: str, is_taken: bool) -> None:
    """Two routes at one listener would lead clients of one group to the brokers of another; the older one stays."""
    cache = Cache()
    cache.put(gateway(ports=PORTS))
    cache.put(route_of("bills", 9886, other, "bank"))
    if own:
        cache.put(route_of(GROUP, 9886, own))

    report = observe_gateway(routed_group(), SERVING, cache)

    assert report is not None
    taken = [one.text for one in report.problems if one.reason == "PortTaken"]
    assert bool(taken) is is_taken and (9886 not in report.listeners) is is_taken
    if is_taken:
        assert taken == ["group bank/bills uses port 9886 of Gateway shop/edge;"
                         " set another spec.access.external.gateway.firstPort"]  # fmt: skip


def test_without_the_rule_two_groups_share_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the second group would attach a route to the same listener."""
    monkeypatch.setattr(gateways, "_taken_ports", lambda *_: ())
    cache = Cache()
    cache.put(gateway(ports=PORTS))
    cache.put(route_of("bills", 9886, "2026-01-01T00:00:00Z", "bank"))

    report = observe_gateway(routed_group(), SERVING, cache)

    assert report is not None and 9886 in report.listeners


# -- switching and pruning ---------------------------------------------------------------------------------------------


async def test_type_is_switched_in_a_running_group() -> None:
    """No broker restarts, no route and no address of the former type is left, and the routes come back."""
    simulation = await routed()
    pods = {uid_of(pod) for pod in simulation.cluster.pods()}

    for external in ({"type": "NodePort"}, {"type": "LoadBalancer", "gateway": EDGE["gateway"]}, {}):
        simulation.cluster.edit(access={"external": external})
        await run_rounds(simulation, 60)
        assert routes(simulation) == []
        assert external_addresses(simulation.cluster.api) == {}
        assert simulation.condition("GatewayReady") == ("", "", "")
        services = {name: simulation.cluster.api.found(SERVICES, NAMESPACE, name) for name in SERVICE_NAMES}
        kinds = {one["spec"]["type"] for one in services.values() if one is not None}
        assert kinds == ({external["type"]} if external else set())
    simulation.cluster.edit(access={"external": EDGE})
    await run_rounds(simulation, 60)
    accept_routes(simulation.cluster.api)
    await run_rounds(simulation)

    assert external_addresses(simulation.cluster.api) == ADDRESSES
    assert {uid_of(pod) for pod in simulation.cluster.pods()} == pods


async def test_new_operator_deletes_routes_that_are_not_wanted_any_more() -> None:
    """Also those of a removed slave; a route of another owner stays."""
    simulation = await routed(ROUTED | {"slaves": 2}, ports=(*PORTS, 9889))
    assert "g-0-slave-1-external" in routes(simulation)
    foreign = route_of(GROUP, 1234, "2026-01-01T00:00:00Z") | {"status": {}}
    foreign["metadata"]["name"] = "by-hand"
    simulation.cluster.api.put(foreign)

    simulation.cluster.edit(slaves=1)
    await run_rounds(simulation, 120)
    assert routes(simulation) == sorted((*SERVICE_NAMES, "by-hand"))
    simulation.cluster.edit(access={})
    simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation, 60)
    assert routes(simulation) == ["by-hand"]


async def test_removed_shard_has_no_routes() -> None:
    """They are deleted with its Services, when it is empty."""
    ports = (*PORTS, 9896, 9897, 9898)
    simulation = await routed(ROUTED | {"shards": 2}, ports=ports)
    assert "g-1-external" in routes(simulation)

    simulation.cluster.load = 0.0
    simulation.cluster.edit(shards=1)
    await simulation.run_until(lambda: "g-1-external" not in routes(simulation), "the routes are deleted", 600)
    await run_rounds(simulation, 60)

    assert routes(simulation) == sorted(SERVICE_NAMES)


async def test_deleted_route_is_created_again() -> None:
    """It is watched, so this happens in the next round."""
    simulation = await routed()
    simulation.cluster.api.remove(ObjectRef(TCP_ROUTES, NAMESPACE, "g-0-external"))
    await simulation.step()

    assert "g-0-external" in routes(simulation)


async def test_route_ends_with_its_listener() -> None:
    """Without the listener, an implementation could attach the route to others."""
    simulation = await routed()
    put_gateway(simulation.cluster.api, ports=PORTS[:1])
    await run_rounds(simulation, 60)

    assert routes(simulation) == ["g-0-external"]
    assert external_addresses(simulation.cluster.api) == {"master": "198.51.100.1:9886"}


# -- calls and rights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SYNC, ROUTED], ids=["no external access", "through a Gateway"])
async def test_group_at_rest_calls_nothing_for_routes(spec: dict[str, Any]) -> None:
    """Gateways and routes come from the shared watches, whether a group uses them or not."""
    simulation = await routed(spec)
    await run_rounds(simulation, 60)
    before = len(simulation.cluster.api.calls)
    await run_rounds(simulation, 80)

    calls = simulation.cluster.api.calls[before:]
    assert [one for one in calls if one[1].kind in OPTIONAL_KINDS] == []
    assert [one for one in calls if one[0] in ("list", "get", "apply", "delete")] == []


VERBS = {"apply": {"create", "patch"}, "delete": {"delete"}, "list": {"list"}, "get": {"get"}, "patch": {"patch"}}
"""The verbs of Kubernetes that a call of the operator needs."""


async def test_role_of_the_operator_has_exactly_the_verbs_that_routes_need() -> None:
    """It lists and watches Gateways and TCPRoutes, reads none by name, and changes only routes."""
    simulation = await routed()
    simulation.cluster.edit(access={})
    await run_rounds(simulation, 60)
    used = {
        kind: {"list", "watch"}.union(*(VERBS[verb] for verb, ref in simulation.cluster.api.calls if ref.kind == kind))
        for kind in (GATEWAYS, TCP_ROUTES)
    }
    manifests = yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text())
    rules = [rule for one in manifests if one and "rules" in one for rule in one["rules"]]
    granted = {
        resource: set(rule["verbs"])
        for rule in rules
        if rule.get("apiGroups") == ["gateway.networking.k8s.io"]
        for resource in rule["resources"]
    }

    assert granted == {kind.plural: verbs for kind, verbs in used.items()}
    assert granted["tcproutes"] == {"list", "watch", "create", "patch", "delete"}
    assert not OPTIONAL_KINDS.keys() & WATCHED_KINDS.keys()


# -- pure --------------------------------------------------------------------------------------------------------------


def test_event_is_recorded_only_for_a_change() -> None:
    """Another missing thing is a change; the same message is none, also if it was shortened for the status."""
    problem = gateways.GatewayProblem("NoListener", "a" * 2_000)
    condition = gateway_condition(GatewayReport([problem]))
    assert condition is not None
    known = {"type": "GatewayReady", "status": "False", "reason": "NoListener", "message": "a" * 1_000}

    assert gateway_event(condition, {"conditions": [known]}) is None
    changed = gateway_event(condition, {"conditions": [known | {"message": "b"}]})
    assert changed is not None and changed.is_warning
    ready = gateway_condition(GatewayReport())
    assert gateway_event(ready, {"conditions": [known | {"status": "True"}]}) is None
    assert (event := gateway_event(ready, {})) is not None and not event.is_warning
    assert gateway_event(None, {"conditions": [known]}) is None and gateway_condition(None) is None
