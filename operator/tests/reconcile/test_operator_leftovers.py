"""Objects that an edit makes superfluous are deleted: external Services, name servers, Services of removed slaves.

Objects of other owners are kept.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import BUDGETS, CLAIMS, POLICIES, SERVICES, STATEFUL_SETS, Kind, annotations_of
from gantry_operator.cache import Cache
from gantry_operator.errors import Unavailable
from gantry_operator.execute.applier import REAPPLY_MS, RETRY_MS
from gantry_operator.execute.pruner import Pruner

OWN_NAME_SERVERS: dict[str, Any] = {"shards": 1, "slaves": 1}
OPEN = {"access": {"external": {"type": "NodePort"}}}


def named(simulation: Simulation, kind: Kind) -> set[str]:
    """Return the names of all objects of a kind."""
    return {one["metadata"]["name"] for one in simulation.cluster.api.of_kind(kind)}


async def run_rounds(simulation: Simulation, count: int = 60) -> None:
    """Run enough rounds for everything that happens without a change."""
    for _ in range(count):
        await simulation.step()


async def test_external_services_are_deleted_when_disabled() -> None:
    """Every external Service is deleted, also by a new operator; internal ones and all other objects stay."""
    simulation = await Simulation(SYNC | OPEN).run_until_healthy()
    inside = {name for name in named(simulation, SERVICES) if not name.endswith("-external")}
    before = {kind: named(simulation, kind) for kind in (BUDGETS, POLICIES, STATEFUL_SETS, CLAIMS)}
    assert named(simulation, SERVICES) - inside == {
        f"{name}-external" for name in ("g-0", "g-0-master-0", "g-0-slave-0")
    }

    simulation.cluster.edit(access={})
    simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation)

    assert named(simulation, SERVICES) == inside
    assert {kind: named(simulation, kind) for kind in before} == before


async def test_objects_of_an_edit_that_is_soon_reverted_are_deleted() -> None:
    """Also if it comes and goes between two checks, so that the objects of the last check are rendered again."""
    simulation = await Simulation(SYNC).run_until_healthy()
    await run_rounds(simulation)
    before = named(simulation, SERVICES)

    for _ in range(2):  # the second edit comes right after the check that the first one caused
        simulation.cluster.edit(**OPEN)
        await simulation.step()
        assert named(simulation, SERVICES) > before
        simulation.cluster.edit(access={})
        await simulation.run_until(lambda: named(simulation, SERVICES) == before, "the Services are deleted", 20)


async def replaced_name_servers() -> tuple[Simulation, list[tuple[bool, bool]]]:
    """Let the spec name other name servers; return for each round whether the old ones exist, and are still in use."""
    simulation = await Simulation(OWN_NAME_SERVERS).run_until_healthy()
    await run_rounds(simulation)
    seen = []
    old = {annotations_of(pod)["gantry.dev/template"] for pod in simulation.cluster.pods()}
    simulation.cluster.edit(nameServers={"addresses": ["ns.example:9876"]})
    for _ in range(200):
        await simulation.step()
        used = {annotations_of(pod)["gantry.dev/template"] for pod in simulation.cluster.pods()} & old
        seen.append(("g-nameserver" in named(simulation, STATEFUL_SETS), bool(used)))
    return simulation, seen


async def test_replaced_name_servers_are_deleted_after_the_roll() -> None:
    """Until the roll is over clients find the brokers there; then Service, budget and policy are deleted, too."""
    simulation, seen = await replaced_name_servers()

    assert all(is_there for is_there, is_used in seen if is_used)
    assert any(is_used for _, is_used in seen) and seen[-1] == (False, False)
    for kind in (STATEFUL_SETS, SERVICES, BUDGETS, POLICIES):
        assert "g-nameserver" not in named(simulation, kind), kind
    assert len(named(simulation, STATEFUL_SETS)) == 2


async def test_without_the_guard_name_servers_in_use_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the name servers are deleted while brokers still register there."""
    monkeypatch.setattr(Pruner, "_are_pods_current", lambda self, rendered: True)

    _, seen = await replaced_name_servers()

    assert (False, True) in seen


async def test_service_of_a_removed_slave_is_deleted() -> None:
    """It is not deleted before its pod, and the volume stays."""
    simulation = await Simulation(SYNC | {"slaves": 2}).run_until_healthy()

    simulation.cluster.edit(slaves=1)
    seen = []
    for _ in range(200):
        await simulation.step()
        seen.append((simulation.cluster.pod(0, 3) is not None, "g-0-slave-1" in named(simulation, SERVICES)))

    assert (True, False) not in seen
    assert seen[-1] == (False, False)
    assert "g-0-slave-0" in named(simulation, SERVICES)
    assert simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-1") is not None


async def test_objects_of_other_owners_are_kept() -> None:
    """An object with the group's label may belong to an earlier group of the same name, or to a user."""
    simulation = await Simulation(SYNC).run_until_healthy()
    strange = {"apiVersion": "v1", "kind": "Service", "spec": {}}
    head: dict[str, Any] = {"name": "by-hand", "namespace": NAMESPACE, "labels": {"gantry.dev/group": GROUP}}
    owner = {"uid": "another", "kind": "BrokerGroup", "name": GROUP}
    simulation.cluster.api.put(strange | {"metadata": head})
    simulation.cluster.api.put(strange | {"metadata": head | {"name": "another", "ownerReferences": [owner]}})

    simulation.cluster.edit(**OPEN)
    await run_rounds(simulation)
    simulation.cluster.edit(access={})
    await run_rounds(simulation)

    assert {"by-hand", "another"} <= named(simulation, SERVICES)
    assert not [name for name in named(simulation, SERVICES) if name.endswith("-external")]


@pytest.mark.parametrize(
    ("generation", "status", "is_checked"),
    [(1, {}, False), (2, {}, True), (1, {"phase": "Ready"}, True)],
    ids=["new", "edited", "known"],
)
async def test_new_group_is_not_checked_for_leftovers(
    monkeypatch: pytest.MonkeyPatch, generation: int, status: dict[str, Any], is_checked: bool
) -> None:
    """A group without an edit and without a status never had other objects; any other group may have had."""
    simulation = Simulation(SYNC)
    group = simulation.cluster.group
    group["metadata"]["generation"], group["status"] = generation, status
    simulation.loop._context.cache.put(group | {"metadata": group["metadata"] | {"resourceVersion": "1000000"}})
    listed, real = set[Kind](), simulation.cluster.api.list

    async def spied(kind: Kind, namespace: str = "", labels: str = "") -> list[dict[str, Any]]:
        listed.add(kind)
        return await real(kind, namespace, labels)

    monkeypatch.setattr(simulation.cluster.api, "list", spied)
    await simulation.loop.reconcile_once()

    assert (listed & {SERVICES, BUDGETS, POLICIES} != set()) is is_checked


@pytest.mark.parametrize("has_failed", [True, False], ids=["failed", "in use"])
async def test_incomplete_periodic_check_is_repeated_soon(*, has_failed: bool) -> None:
    """What it has left is deleted after `RETRY_MS`, and not half an hour later, although the same is rendered."""
    api, cache, clock = FakeKubernetes(), Cache(), ModelClock()
    pruner = Pruner((NAMESPACE, GROUP), cache, api, clock)
    head: dict[str, Any] = {"name": "kept", "namespace": NAMESPACE, "labels": {"gantry.dev/group": GROUP}}
    kept = {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": {}}
    await pruner.prune([kept], "uid-of-group")

    owner = {"uid": "uid-of-group", "kind": "BrokerGroup", "name": GROUP}
    api.put(kept | {"metadata": head | {"name": "left", "ownerReferences": [owner]}})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head | {"name": "left", "uid": "u", "resourceVersion": "7"}}
    if has_failed:
        api.fault_of = lambda verb, ref: Unavailable(f"{verb} {ref}", "timeout")
    else:
        cache.put(pod)
    clock.ms += REAPPLY_MS
    await pruner.prune([kept], "uid-of-group")
    assert api.found(SERVICES, NAMESPACE, "left") is not None

    api.fault_of = lambda verb, ref: None
    cache.apply_event("DELETED", pod)
    clock.ms += RETRY_MS
    await pruner.prune([kept], "uid-of-group")
    assert api.found(SERVICES, NAMESPACE, "left") is None
