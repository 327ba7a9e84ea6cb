"""Objects that an edit makes superfluous are deleted: external Services, name servers, Services of removed slaves.

Objects of other owners are kept.
"""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.play import SYNC, Play, operator_of

from gantry_operator.api import BUDGETS, CLAIMS, POLICIES, SERVICES, STATEFUL_SETS, Kind, annotations_of
from gantry_operator.cache import Cache
from gantry_operator.errors import Unavailable
from gantry_operator.execute.applier import REAPPLY_MS, RETRY_MS
from gantry_operator.execute.pruner import Pruner

OWN_NAME_SERVERS: dict[str, Any] = {"shards": 1, "slaves": 1}
OPEN = {"access": {"external": {"type": "NodePort"}}}


def named(play: Play, kind: Kind) -> set[str]:
    """Return the names of all objects of a kind."""
    return {one["metadata"]["name"] for one in play.cluster.api.of_kind(kind)}


async def run_rounds(play: Play, count: int = 60) -> None:
    """Run enough rounds for everything that happens without a change."""
    for _ in range(count):
        await play.step()


async def test_external_services_are_deleted_when_disabled() -> None:
    """Every external Service is deleted, also by a new operator; internal ones and all other objects stay."""
    play = await Play(SYNC | OPEN).begun()
    inside = {name for name in named(play, SERVICES) if not name.endswith("-external")}
    before = {kind: named(play, kind) for kind in (BUDGETS, POLICIES, STATEFUL_SETS, CLAIMS)}
    assert named(play, SERVICES) - inside == {f"{name}-external" for name in ("g-0", "g-0-master-0", "g-0-slave-0")}

    play.cluster.edit(access={})
    play.loop = operator_of(play.cluster)
    await run_rounds(play)

    assert named(play, SERVICES) == inside
    assert {kind: named(play, kind) for kind in before} == before


async def replaced_name_servers() -> tuple[Play, list[tuple[bool, bool]]]:
    """Let the spec name other name servers; return for each round whether the old ones exist, and are still in use."""
    play = await Play(OWN_NAME_SERVERS).begun()
    await run_rounds(play)
    seen = []
    old = {annotations_of(pod)["gantry.dev/template"] for pod in play.cluster.pods()}
    play.cluster.edit(nameServers={"addresses": ["ns.example:9876"]})
    for _ in range(200):
        await play.step()
        used = {annotations_of(pod)["gantry.dev/template"] for pod in play.cluster.pods()} & old
        seen.append(("g-nameserver" in named(play, STATEFUL_SETS), bool(used)))
    return play, seen


async def test_replaced_name_servers_are_deleted_after_the_roll() -> None:
    """Until the roll is over clients find the brokers there; then Service, budget and policy are deleted, too."""
    play, seen = await replaced_name_servers()

    assert all(is_there for is_there, is_used in seen if is_used)
    assert any(is_used for _, is_used in seen) and seen[-1] == (False, False)
    for kind in (STATEFUL_SETS, SERVICES, BUDGETS, POLICIES):
        assert "g-nameserver" not in named(play, kind), kind
    assert len(named(play, STATEFUL_SETS)) == 2


async def test_without_the_guard_name_servers_in_use_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the name servers are deleted while brokers still register there."""
    monkeypatch.setattr(Pruner, "_are_pods_current", lambda self, rendered: True)

    _, seen = await replaced_name_servers()

    assert (False, True) in seen


async def test_service_of_a_removed_slave_is_deleted() -> None:
    """It is not deleted before its pod, and the volume stays."""
    play = await Play(SYNC | {"slaves": 2}).begun()

    play.cluster.edit(slaves=1)
    seen = []
    for _ in range(200):
        await play.step()
        seen.append((play.cluster.pod(0, 3) is not None, "g-0-slave-1" in named(play, SERVICES)))

    assert (True, False) not in seen
    assert seen[-1] == (False, False)
    assert "g-0-slave-0" in named(play, SERVICES)
    assert play.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-1") is not None


async def test_objects_of_other_owners_are_kept() -> None:
    """An object with the group's label may belong to an earlier group of the same name, or to a user."""
    play = await Play(SYNC).begun()
    strange = {"apiVersion": "v1", "kind": "Service", "spec": {}}
    head: dict[str, Any] = {"name": "by-hand", "namespace": NAMESPACE, "labels": {"gantry.dev/group": GROUP}}
    owner = {"uid": "another", "kind": "BrokerGroup", "name": GROUP}
    play.cluster.api.put(strange | {"metadata": head})
    play.cluster.api.put(strange | {"metadata": head | {"name": "another", "ownerReferences": [owner]}})

    play.cluster.edit(**OPEN)
    await run_rounds(play)
    play.cluster.edit(access={})
    await run_rounds(play)

    assert {"by-hand", "another"} <= named(play, SERVICES)
    assert not [name for name in named(play, SERVICES) if name.endswith("-external")]


@pytest.mark.parametrize(
    ("generation", "status", "is_checked"),
    [(1, {}, False), (2, {}, True), (1, {"phase": "Ready"}, True)],
    ids=["new", "edited", "known"],
)
async def test_new_group_is_not_checked_for_leftovers(
    monkeypatch: pytest.MonkeyPatch, generation: int, status: dict[str, Any], is_checked: bool
) -> None:
    """A group without an edit and without a status never had other objects; any other group may have had."""
    play = Play(SYNC)
    group = play.cluster.group
    group["metadata"]["generation"], group["status"] = generation, status
    play.loop._context.cache.put(group | {"metadata": group["metadata"] | {"resourceVersion": "1000000"}})
    listed, real = set[Kind](), play.cluster.api.list

    async def spied(kind: Kind, namespace: str = "", labels: str = "") -> list[dict[str, Any]]:
        listed.add(kind)
        return await real(kind, namespace, labels)

    monkeypatch.setattr(play.cluster.api, "list", spied)
    await play.loop.reconcile_once()

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
        api.refuse = lambda verb, ref: Unavailable(f"{verb} {ref}", "timeout")
    else:
        cache.put(pod)
    clock.ms += REAPPLY_MS
    await pruner.prune([kept], "uid-of-group")
    assert api.found(SERVICES, NAMESPACE, "left") is not None

    api.refuse = lambda verb, ref: None
    cache.apply_event("DELETED", pod)
    clock.ms += RETRY_MS
    await pruner.prune([kept], "uid-of-group")
    assert api.found(SERVICES, NAMESPACE, "left") is None
