"""What an edit no longer asks for is gone: a way in that was closed, name servers that were replaced, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.cluster import GROUP, NAMESPACE
from operator_world.play import SYNC, Play, operator_of

from gantry_operator.api import BUDGETS, CLAIMS, POLICIES, SERVICES, STATEFUL_SETS, Kind, annotations_of
from gantry_operator.execute.leftovers import Leftovers

OWN_NAME_SERVERS: dict[str, Any] = {"shards": 1, "slaves": 1}
OPEN = {"access": {"external": {"type": "NodePort"}}}


def named(play: Play, kind: Kind) -> set[str]:
    """What there is of a kind."""
    return {one["metadata"]["name"] for one in play.cluster.api.of_kind(kind)}


async def some_turns(play: Play, count: int = 60) -> None:
    """Enough for whatever comes by itself."""
    for _ in range(count):
        await play.turn()


async def test_a_way_in_that_is_closed_is_closed() -> None:
    """Every outer Service goes, whichever operator sees it; those inside stay, and so does everything else."""
    play = await Play(SYNC | OPEN).begun()
    inside = {name for name in named(play, SERVICES) if not name.endswith("-external")}
    before = {kind: named(play, kind) for kind in (BUDGETS, POLICIES, STATEFUL_SETS, CLAIMS)}
    assert named(play, SERVICES) - inside == {f"{name}-external" for name in ("g-0", "g-0-master-0", "g-0-slave-0")}

    play.cluster.edit(access={})
    play.loop = operator_of(play.cluster)
    await some_turns(play)

    assert named(play, SERVICES) == inside
    assert {kind: named(play, kind) for kind in before} == before


async def replaced_name_servers() -> tuple[Play, list[tuple[bool, bool]]]:
    """Others are named; at each turn whether the own ones are there, and whether a broker was started with them."""
    play = await Play(OWN_NAME_SERVERS).begun()
    await some_turns(play)
    seen = []
    old = {annotations_of(pod)["gantry.dev/template"] for pod in play.cluster.pods()}
    play.cluster.edit(nameServers={"addresses": ["ns.example:9876"]})
    for _ in range(200):
        await play.turn()
        used = {annotations_of(pod)["gantry.dev/template"] for pod in play.cluster.pods()} & old
        seen.append(("g-nameserver" in named(play, STATEFUL_SETS), bool(used)))
    return play, seen


async def test_name_servers_that_are_replaced_go_when_no_broker_registers_there() -> None:
    """Until the roll is over clients find the brokers where they were; then Service, budget and policy go, too."""
    play, seen = await replaced_name_servers()

    assert all(is_there for is_there, is_used in seen if is_used)
    assert any(is_used for _, is_used in seen) and seen[-1] == (False, False)
    for kind in (STATEFUL_SETS, SERVICES, BUDGETS, POLICIES):
        assert "g-nameserver" not in named(play, kind), kind
    assert len(named(play, STATEFUL_SETS)) == 2


async def test_without_that_guard_they_go_under_brokers_that_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    monkeypatch.setattr(Leftovers, "_are_started_with", lambda self, rendered: True)

    _, seen = await replaced_name_servers()

    assert (False, True) in seen


async def test_a_slave_that_went_takes_its_service_along() -> None:
    """Not before its pod is gone, and its volume stays."""
    play = await Play(SYNC | {"slaves": 2}).begun()

    play.cluster.edit(slaves=1)
    seen = []
    for _ in range(200):
        await play.turn()
        seen.append((play.cluster.pod(0, 3) is not None, "g-0-slave-1" in named(play, SERVICES)))

    assert (True, False) not in seen
    assert seen[-1] == (False, False)
    assert "g-0-slave-0" in named(play, SERVICES)
    assert play.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-1") is not None


async def test_what_others_made_beside_a_group_stays() -> None:
    """Its label is on it, and its owner is not this group: a group of the same name before it, or a person."""
    play = await Play(SYNC).begun()
    strange = {"apiVersion": "v1", "kind": "Service", "spec": {}}
    head: dict[str, Any] = {"name": "by-hand", "namespace": NAMESPACE, "labels": {"gantry.dev/group": GROUP}}
    owner = {"uid": "another", "kind": "BrokerGroup", "name": GROUP}
    play.cluster.api.put(strange | {"metadata": head})
    play.cluster.api.put(strange | {"metadata": head | {"name": "another", "ownerReferences": [owner]}})

    play.cluster.edit(**OPEN)
    await some_turns(play)
    play.cluster.edit(access={})
    await some_turns(play)

    assert {"by-hand", "another"} <= named(play, SERVICES)
    assert not [name for name in named(play, SERVICES) if name.endswith("-external")]


@pytest.mark.parametrize(
    ("generation", "status", "is_looked_for"),
    [(1, {}, False), (2, {}, True), (1, {"phase": "Ready"}, True)],
    ids=["new", "edited", "known"],
)
async def test_nothing_is_looked_for_where_nothing_can_be_left(
    monkeypatch: pytest.MonkeyPatch, generation: int, status: dict[str, Any], is_looked_for: bool
) -> None:
    """Of a group that nobody has edited or said anything of; any other may have had other objects."""
    play = Play(SYNC)
    group = play.cluster.group
    group["metadata"]["generation"], group["status"] = generation, status
    play.loop._context.cache.put(group | {"metadata": group["metadata"] | {"resourceVersion": "1000000"}})
    listed, real = set[Kind](), play.cluster.api.list

    async def spied(kind: Kind, namespace: str = "", labels: str = "") -> list[dict[str, Any]]:
        listed.add(kind)
        return await real(kind, namespace, labels)

    monkeypatch.setattr(play.cluster.api, "list", spied)
    await play.loop.step()

    assert (listed & {SERVICES, BUDGETS, POLICIES} != set()) is is_looked_for
