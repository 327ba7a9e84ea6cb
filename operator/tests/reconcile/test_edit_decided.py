"""Edits of a running group, in a model cluster: which decisions they change, and which pods they restart.

The edits are the rows of `edit_world.table`. For a decision, each edit is made on a group that runs, and then an event
happens on which the field has an effect. Brokers are models, and the operator is the real loop. A test of a
decision also causes the event without the edit, and the results must differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from edit_world.batches import Batch, batches
from edit_world.row import Effect, Fields, Row, Source, merged
from edit_world.rows_of_groups import THROUGH_GATEWAY
from edit_world.table import ROWS
from operator_world.cluster import NAMESPACE
from operator_world.gateways import accept_routes, external_addresses, put_gateway
from operator_world.simulation import ASYNC, SYNC, Simulation

from gantry_operator.api import CLAIMS, SNAPSHOTS, uid_of
from gantry_spec.backups import backups_of
from gantry_spec.manifest.reading import group_of

MODELLED = [row for row in ROWS if any(shown.source is Source.MODEL for shown in row.shown)]
SOON_S = 20.0
LONG_S = 60.0
"""A reaction within the first is called soon, within the second late; seconds of the model."""

TWO_SLAVES = SYNC | {"slaves": 2}

Event = Callable[[Simulation], Awaitable[str]]
"""Causes an event in a group, and returns what the group does about it."""


async def run_rounds(simulation: Simulation, seconds: float) -> None:
    """Run rounds for so many seconds of the model."""
    until_ms = simulation.cluster.clock.ms + seconds * 1000
    while simulation.cluster.clock.ms < until_ms:
        await simulation.step()


async def master_is_cut_off(simulation: Simulation) -> str:
    """Return whether another member is promoted automatically: soon, late or never."""
    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))
    began_ms = simulation.cluster.clock.ms
    await run_rounds(simulation, SOON_S)
    if simulation.cluster.master(0) not in (None, 1):
        return "soon"
    while simulation.cluster.clock.ms - began_ms < LONG_S * 1000:
        await simulation.step()
        if simulation.cluster.master(0) not in (None, 1):
            return "late"
    return "never"


async def role_is_moved(simulation: Simulation) -> str:
    """Return whether the role moves back automatically."""
    simulation.cluster.annotate(promote="0=2")
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "member 2 is the master")
    await run_rounds(simulation, SOON_S)
    return f"member {simulation.cluster.master(0)}"


async def volume_is_lost(simulation: Simulation) -> str:
    """Return whether the slave's volume is replaced automatically."""
    claim = simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0")
    assert claim is not None
    before = uid_of(claim)
    claim["status"] = {"phase": "Lost"}
    simulation.cluster.api.put(claim)
    await run_rounds(simulation, 2 * SOON_S)
    after = simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0")
    return "waited for" if after is not None and uid_of(after) == before else "replaced"


async def disks_and_copies_stop(simulation: Simulation) -> str:
    """Stop flushes and copies; return whether the group then reports that more is at risk than allowed."""
    for shard in simulation.cluster.shards.values():
        shard.flush = lambda number: None  # type: ignore[method-assign]
        shard.replicate = lambda number, records: None  # type: ignore[method-assign]
    await run_rounds(simulation, 3.0)
    conditions = {one["type"]: one["status"] for one in simulation.cluster.group["status"]["conditions"]}
    return f"DurabilityMet={conditions['DurabilityMet']}"


async def minutes_pass(simulation: Simulation) -> str:
    """Return how many complete backups there are after a few minutes."""
    await run_rounds(simulation, 250.0)
    made = [one for one in backups_of(simulation.cluster.api.of_kind(SNAPSHOTS)) if one.is_complete]
    return "several backups" if len(made) > 1 else f"{len(made)} backups"


async def backup_is_requested(simulation: Simulation) -> str:
    """Return the class of the snapshot."""
    simulation.cluster.annotate(backup="first")
    await run_rounds(simulation, SOON_S)
    (snapshot,) = simulation.cluster.api.of_kind(SNAPSHOTS)
    return f"class {snapshot['spec'].get('volumeSnapshotClassName', 'of the driver')}"


async def gateways_are_ready(simulation: Simulation) -> str:
    """Return the address of the master for external clients, after all Gateways have listeners and accept routes."""
    ports = range(9_876, 10_000)
    for name, namespace, address in (
        ("edge", NAMESPACE, "198.51.100.1"), ("other", NAMESPACE, "198.51.100.2"), ("edge", "infra", "198.51.100.3")
    ):  # fmt: skip
        put_gateway(simulation.cluster.api, name, namespace, address=address, ports=ports)
    await run_rounds(simulation, 1.0)
    accept_routes(simulation.cluster.api)
    await run_rounds(simulation, 1.0)
    return external_addresses(simulation.cluster.api)["master"]


def edit(simulation: Simulation, fields: Fields) -> None:
    """Edit the group; the checker of invariants and the brokers that start from now on use the new spec."""
    simulation.cluster.edit(**fields)
    spec = group_of({name: value for name, value in simulation.cluster.group.items() if name != "status"}).spec
    for shard in simulation.cluster.shards.values():
        shard.checker.spec, shard.acks_needed = spec, spec.replication.acks_needed


EVENTS_BY_FIELD: dict[str, tuple[dict[str, Any], Event, str, str]] = {
    "storage.replaceAfter": (TWO_SLAVES, volume_is_lost, "waited for", "replaced"),
    "durability.maxAtRiskBytes": (
        ASYNC | {"durability": {"maxAtRisk": "1h"}}, disks_and_copies_stop, "DurabilityMet=True", "DurabilityMet=False",
    ),
    "durability.maxAtRisk": (
        ASYNC | {"durability": {"maxAtRiskBytes": "1Gi", "maxAtRisk": "1h"}}, disks_and_copies_stop,
        "DurabilityMet=True", "DurabilityMet=False",
    ),
    "failover.mode": (TWO_SLAVES, master_is_cut_off, "soon", "never"),
    "failover.maxDataLossBytes": (ASYNC, master_is_cut_off, "never", "late"),
    "failover.after": (TWO_SLAVES, master_is_cut_off, "soon", "late"),
    "failover.switchback": (TWO_SLAVES, role_is_moved, "member 2", "member 1"),
    "backup.schedule": (SYNC, minutes_pass, "0 backups", "several backups"),
    "backup.keep": (SYNC | {"backup": {"schedule": "* * * * *"}}, minutes_pass, "several backups", "1 backups"),
    **{
        f"access.external.gateway.{field}": (merged(SYNC, THROUGH_GATEWAY), gateways_are_ready, before, after)
        for field, before, after in (
            ("name", "198.51.100.1:9886", "198.51.100.2:9886"),
            ("namespace", "198.51.100.1:9886", "198.51.100.3:9886"),
            ("firstPort", "198.51.100.1:9886", "198.51.100.1:9910"),
        )
    },
    "backup.snapshotClassName": (SYNC, backup_is_requested, "class of the driver", "class fast"),
}  # fmt: skip
"""By leaf: the group, the event, and the results with the value before and the value after."""


def test_every_edit_of_a_decision_has_an_event() -> None:
    """Each field whose row names a decision has an event here, and no other field has one."""
    assert {row.path for row in MODELLED} == EVENTS_BY_FIELD.keys()


def name(batch: Batch) -> str:
    """Return the name of a test."""
    return batch.name


LIVE_BATCHES = batches(row for row in ROWS if row.effect in (Effect.HOT, Effect.OBJECTS, Effect.DECIDED))
ROLLED_BATCHES = batches(row for row in ROWS if row.effect is Effect.ROLL)


async def edited(batch: Batch) -> tuple[dict[str, str], dict[str, str], Simulation]:
    """Return the first shard's pods before and after the edits of all rows, in a group in use, and the group."""
    simulation = await Simulation(merged({"shards": 1}, batch.before), nodes=4).run_until_healthy()
    before = pods_of(simulation)
    edit(simulation, merged({"shards": 1}, batch.after))
    await simulation.run_until(simulation.is_healthy, "the edit is applied", 300)
    await simulation.run_until(
        lambda: not simulation.loop.reconciler.decision.actions, "nothing is to be done any more", 300
    )
    return before, pods_of(simulation), simulation


def pods_of(simulation: Simulation) -> dict[str, str]:
    """Return the pods of the first shard, by name."""
    pods = {pod["metadata"]["name"]: uid_of(pod) for pod in simulation.cluster.pods()}
    return {name: uid for name, uid in pods.items() if name.startswith("g-0-")}


@pytest.mark.parametrize("batch", LIVE_BATCHES, ids=name)
async def test_live_edits_restart_no_pod(batch: Batch) -> None:
    """After all such edits together the pods are the same."""
    before, after, simulation = await edited(batch)

    assert before.items() <= after.items()
    assert simulation.cluster.shards[0].checker.lost == set()


@pytest.mark.parametrize("batch", ROLLED_BATCHES, ids=name)
async def test_rolled_edits_restart_every_pod(batch: Batch) -> None:
    """After all such edits together each pod was recreated, and no acknowledged message is lost."""
    before, after, simulation = await edited(batch)

    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert simulation.cluster.shards[0].checker.lost == set()


@pytest.mark.verify(quick=3)
@pytest.mark.parametrize("row", MODELLED, ids=str)
async def test_edit_changes_the_decision(row: Row) -> None:
    """Without the edit the group decides as before; with an edit of the running group the decision changes."""
    base, cause_event, before, after = EVENTS_BY_FIELD[row.path]
    untouched = await Simulation(merged(base, row.before)).run_until_healthy()
    assert await cause_event(untouched) == before

    edited = await Simulation(merged(base, row.before)).run_until_healthy()
    edit(edited, merged(base, row.after))
    await edited.run_until(edited.is_healthy, "the edit is applied")
    pods = {uid_of(pod) for pod in edited.cluster.pods()}
    await run_rounds(edited, 1.0)
    assert {uid_of(pod) for pod in edited.cluster.pods()} == pods, "a pod was recreated"
    assert await cause_event(edited) == after
