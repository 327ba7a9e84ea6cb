"""Groups to which clients cannot send, in a model cluster: fenced, hibernated, and restored from their volumes.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.cluster import NAMESPACE
from operator_world.simulation import ASYNC, SYNC, Simulation, operator_of
from spec_world.brokers import Record

from gantry_operator.api import CLAIMS, LEASES, PODS, STATEFUL_SETS, ObjectRef, annotations_of, ref_of
from gantry_operator.errors import Conflict
from gantry_operator.execute.applier import HIBERNATION_ANNOTATIONS
from gantry_operator.execute.pods import PodExecutor
from gantry_operator.objects import names
from gantry_spec import actions as act
from gantry_spec.decide import bootstrap, group
from gantry_spec.decide.term_maintenance import maintain_term


def safe(simulation: Simulation, shard: int = 0) -> set[Record]:
    """Return the messages that were acknowledged to clients."""
    return simulation.cluster.shards[shard].checker.acknowledged


def epoch(simulation: Simulation, shard: int = 0) -> int:
    record = simulation.cluster.lease(shard)
    return 0 if record is None else record.epoch


# -- a fence -----------------------------------------------------------------------------------------------------------


async def test_fenced_shard_refuses_sends_until_the_fence_is_lifted() -> None:
    """The other shard continues; a failed master of the fenced one is not replaced before the fence is lifted."""
    simulation = await Simulation(SYNC | {"shards": 2, "slaves": 2}, nodes=4).run_until_healthy()

    simulation.cluster.annotate(fence="1")
    await simulation.run_until(lambda: simulation.condition("Fenced")[0] == "True", "it is fenced")
    assert simulation.condition("Fenced") == ("True", "ByAnnotation", "shards [1]")
    assert [shard["fence"] for shard in simulation.cluster.group["status"]["eachShard"]] == ["", "Fenced"]
    assert simulation.condition("Available")[:2] == ("False", "Fenced")
    before = [len(safe(simulation, shard)) for shard in (0, 1)]
    await run_rounds(simulation, 40)
    assert len(safe(simulation, 0)) > before[0]
    assert len(safe(simulation, 1)) == before[1]

    simulation.cluster.disconnect_node(simulation.cluster.node_of(1, 1))
    was = epoch(simulation, 1)
    await run_rounds(simulation, 160)
    assert (epoch(simulation, 1), set(simulation.cluster.shards[1].checker.masters)) == (was, {was})
    simulation.cluster.annotate(fence=None)
    await simulation.run_until(lambda: simulation.cluster.master(1) in (2, 3), "another master takes over")
    await simulation.run_until(lambda: len(safe(simulation, 1)) > before[1], "and takes messages")
    assert simulation.cluster.shards[1].checker.lost == set()


async def test_without_a_fence_the_shard_gets_a_new_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a fenced shard is decided like any other."""
    monkeypatch.setattr(group, "keep_fenced", maintain_term)
    simulation = await Simulation(SYNC | {"slaves": 2}, nodes=4).run_until_healthy()
    simulation.cluster.annotate(fence="0")
    was = epoch(simulation)

    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))

    await simulation.run_until(lambda: epoch(simulation) > was, "an election")


async def test_without_withdrawal_a_removed_shard_accepts_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the shard fills again while it is emptied."""
    monkeypatch.setattr(group, "withdraw_masters", lambda view, why, **_: [])
    simulation = await Simulation(SYNC | {"shards": 2}).run_until_healthy()
    simulation.cluster.messages = 5
    simulation.cluster.edit(shards=1)
    await run_rounds(simulation, 8)
    before = len(safe(simulation, 1))

    await run_rounds(simulation, 40)

    assert len(safe(simulation, 1)) > before


async def test_typing_error_in_an_annotation_does_not_lift_a_fence() -> None:
    """The error becomes a condition, and the fence stays."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.annotate(fence="0")
    await simulation.run_until(lambda: simulation.condition("Fenced")[0] == "True", "it is fenced")

    simulation.cluster.annotate(promote="invalid")
    await run_rounds(simulation, 20)

    assert simulation.condition("Fenced")[0] == "True"
    assert simulation.condition("Requests")[:2] == ("False", "Refused")


async def run_rounds(simulation: Simulation, count: int) -> None:
    """Run so many rounds of the operator."""
    for _ in range(count):
        await simulation.step()


# -- hibernation -------------------------------------------------------------------------------------------------------


def is_hibernated(simulation: Simulation) -> bool:
    return simulation.condition("Hibernated")[0] == "True"


def replicas(simulation: Simulation) -> dict[str, int]:
    return {
        home["metadata"]["name"]: home["spec"]["replicas"] for home in simulation.cluster.api.of_kind(STATEFUL_SETS)
    }


@pytest.mark.verify(quick=4)
@pytest.mark.parametrize("is_new_operator", [False, True], ids=["same-operator", "new-operator"])
@pytest.mark.parametrize(
    "spec",
    [SYNC | {"slaves": 2, "nameServers": {"replicas": 2}}, ASYNC, SYNC | {"storage": {"retain": "Never"}}],
    ids=["sync", "async", "retain-never"],
)
async def test_hibernated_group_resumes_with_all_its_messages(spec: dict[str, Any], is_new_operator: bool) -> None:
    """Volumes stay with any value of `retain`; the same broker becomes the master again, in the hibernation's epoch."""
    simulation = await Simulation(spec, nodes=4).run_until_healthy()
    claims = {claim["metadata"]["uid"] for claim in simulation.cluster.api.of_kind(CLAIMS)}

    simulation.cluster.annotate(hibernate="true")
    await simulation.run_until(lambda: is_hibernated(simulation), "it is hibernated")
    logs = [broker.store.log for broker in simulation.cluster.shards[0].brokers.values()]
    assert simulation.cluster.api.of_kind(PODS) == []
    await run_rounds(simulation, 8)
    assert set(replicas(simulation).values()) == {0}
    assert all(log == logs[0] for log in logs)
    assert simulation.cluster.group["status"]["phase"] == "Hibernated"
    was, before = epoch(simulation), set(safe(simulation))
    if is_new_operator:
        simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation, 400)
    assert is_hibernated(simulation)
    assert {claim["metadata"]["uid"] for claim in simulation.cluster.api.of_kind(CLAIMS)} == claims

    simulation.cluster.annotate(hibernate=None)
    await simulation.run_until(simulation.is_healthy, "it is resumed")
    assert epoch(simulation) == was, "expected the epoch that was taken for the hibernation"
    assert simulation.cluster.master(0) == 1
    assert before <= safe(simulation)
    assert {claim["metadata"]["uid"] for claim in simulation.cluster.api.of_kind(CLAIMS)} == claims
    stateful_sets = simulation.cluster.api.of_kind(STATEFUL_SETS)
    assert not any(HIBERNATION_ANNOTATIONS & annotations_of(home).keys() for home in stateful_sets)


async def test_removed_shard_with_messages_survives_hibernation() -> None:
    """It has no pods then, and is not taken for a deleted one."""
    simulation = await Simulation(SYNC | {"shards": 2}).run_until_healthy()
    simulation.cluster.messages = 3
    simulation.cluster.edit(shards=1)
    await simulation.run_until(lambda: simulation.condition("ScalingIn")[1] == "Draining", "the shard is drained")

    simulation.cluster.annotate(hibernate="true")
    await simulation.run_until(lambda: is_hibernated(simulation), "both are hibernated")
    await run_rounds(simulation, 40)
    simulation.cluster.annotate(hibernate=None)
    await simulation.run_until(lambda: simulation.cluster.master(1) == 1, "both are resumed")

    assert safe(simulation, 1) <= set(simulation.cluster.shards[1].brokers[1].store.log)
    assert simulation.condition("ScalingIn")[1] == "Draining"


async def test_group_that_an_earlier_operator_hibernated_is_resumed() -> None:
    """The former name of the annotation is read, so that a removed shard comes back, and it is removed then."""
    simulation = await Simulation(SYNC | {"shards": 2}).run_until_healthy()
    simulation.cluster.messages = 3
    simulation.cluster.edit(shards=1)
    await simulation.run_until(lambda: simulation.condition("ScalingIn")[1] == "Draining", "the shard is drained")
    simulation.cluster.annotate(hibernate="true")
    await simulation.run_until(lambda: is_hibernated(simulation), "both are hibernated")
    for home in simulation.cluster.api.of_kind(STATEFUL_SETS):
        replicas_text = annotations_of(home).get(names.HIBERNATED_REPLICAS_ANNOTATION)
        if replicas_text is not None:
            former = {names.HIBERNATED_REPLICAS_ANNOTATION: None, "gantry.dev/asleep": replicas_text}
            await simulation.cluster.api.patch(ref_of(home), {"metadata": {"annotations": former}})
    simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation, 40)

    simulation.cluster.annotate(hibernate=None)
    await simulation.run_until(lambda: simulation.cluster.master(1) == 1, "both are resumed")

    assert safe(simulation, 1) <= set(simulation.cluster.shards[1].brokers[1].store.log)
    stateful_sets = simulation.cluster.api.of_kind(STATEFUL_SETS)
    assert not any(HIBERNATION_ANNOTATIONS & annotations_of(home).keys() for home in stateful_sets)


async def test_new_hibernated_group_creates_no_pods() -> None:
    """Its StatefulSets exist without replicas; removing the annotation starts the pods."""
    simulation = Simulation(SYNC)
    simulation.cluster.annotate(hibernate="true")

    await run_rounds(simulation, 40)
    assert is_hibernated(simulation)
    assert set(replicas(simulation).values()) == {0}
    assert simulation.cluster.api.of_kind(PODS) == []

    simulation.cluster.annotate(hibernate=None)
    await simulation.run_until(simulation.is_healthy, "it starts")


async def claims_while_hibernated() -> set[str]:
    """Return the uids of claims of a hibernated group with `retain: Never`."""
    simulation = await Simulation(SYNC | {"storage": {"retain": "Never"}}).run_until_healthy()
    simulation.cluster.annotate(hibernate="true")
    await simulation.run_until(lambda: is_hibernated(simulation), "it is hibernated")
    for home in simulation.cluster.api.of_kind(STATEFUL_SETS):
        assert home["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    return {claim["metadata"]["uid"] for claim in simulation.cluster.api.of_kind(CLAIMS)}


async def hibernated_without_retention() -> tuple[str, int]:
    """Hibernate a shard whose StatefulSets were not changed to keep volumes; return the refusal and the volumes."""
    simulation = await Simulation(SYNC | {"storage": {"retain": "Never"}}).run_until_healthy()
    objects, refusal = simulation.loop.reconciler.observer.objects, ""
    try:
        await PodExecutor(objects, simulation.cluster.api).execute(act.Hibernate(shard=0))
    except Conflict as error:
        refusal = str(error)
    for _ in range(8):
        simulation.cluster.advance(250)
    return refusal, len(simulation.cluster.api.of_kind(CLAIMS))


async def test_pods_are_kept_until_their_volumes_are_retained() -> None:
    """This holds with `retain: Never`, and where the StatefulSet could not be changed in time."""
    assert len(await claims_while_hibernated()) == 2

    refusal, left = await hibernated_without_retention()

    assert "its volumes would be deleted with its pods" in refusal
    assert left == 2


async def test_without_the_guard_hibernation_deletes_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the retention policy is not checked, and volumes are deleted with their pods."""
    monkeypatch.setattr(PodExecutor, "_refuse_to_delete_volumes", lambda self, document: None)

    assert await hibernated_without_retention() == ("", 0)


# -- back from the volumes ---------------------------------------------------------------------------------------------


async def lost(spec: dict[str, Any], *without: str) -> Simulation:
    """Delete a group that ran, with its Lease and some of its claims, and create it again."""
    simulation = await Simulation(spec, nodes=4).run_until_healthy()
    await run_rounds(simulation, 20)
    simulation.cluster.delete()
    for name in without:
        claim = simulation.cluster.api.found(CLAIMS, NAMESPACE, name)
        assert claim is not None
        simulation.cluster.api.remove(ObjectRef(CLAIMS, NAMESPACE, name))
    assert simulation.cluster.api.of_kind(LEASES) == []
    simulation.cluster.recreate(spec)
    simulation.loop = operator_of(simulation.cluster)
    return simulation


async def test_deleted_group_is_restored_from_its_volumes() -> None:
    """Its claims are found by their names; the epoch is greater than all on its disks; no message is lost."""
    simulation = await lost(SYNC | {"slaves": 2})
    shard = simulation.cluster.shards[0]
    highest, before = max(broker.store.epoch for broker in shard.brokers.values()), set(safe(simulation))

    await simulation.run_until(simulation.is_healthy, "it is back")

    assert epoch(simulation) > highest
    assert before and before <= safe(simulation)
    assert shard.checker.lost == set()


async def test_deleted_group_is_restored_without_its_masters_volume() -> None:
    """A send needed the ack of one of the two slaves: which one has all messages is known only if both report."""
    simulation = await lost(SYNC | {"slaves": 2}, "data-g-0-master-0")
    before = set(safe(simulation))

    await simulation.run_until(simulation.is_healthy, "it is back")

    assert simulation.cluster.master(0) in (2, 3)
    assert before <= safe(simulation)


async def lost_without_proof() -> Simulation:
    """Lose the master and one of two slaves, while the remaining slave lacks messages of the other one."""
    simulation = await Simulation(SYNC | {"slaves": 2}, nodes=4).run_until_healthy()
    shard = simulation.cluster.shards[0]
    replicate = shard.replicate
    shard.replicate = lambda number, records: None if number == 3 else replicate(number, records)  # type: ignore[method-assign]
    await run_rounds(simulation, 20)
    shard.replicate = replicate  # type: ignore[method-assign]
    simulation.cluster.delete()
    for name in ("data-g-0-master-0", "data-g-0-slave-0"):
        simulation.cluster.api.remove(ObjectRef(CLAIMS, NAMESPACE, name))
    simulation.cluster.recreate(SYNC | {"slaves": 2})
    simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation, 160)
    return simulation


async def test_restore_with_possible_loss_needs_an_order(caplog: pytest.LogCaptureFixture) -> None:
    """No member becomes the master before a user accepts the loss; then the most advanced one does."""
    simulation = await lost_without_proof()
    blocked = simulation.cluster.group["status"]["eachShard"][0]["decision"]["blockedBy"]
    assert simulation.cluster.shards[0].masters() == []
    assert "were acknowledged" not in caplog.text
    assert 'gantry.dev/restore: "0" starts with the longest log that is present' in blocked[0]

    simulation.cluster.shards[0].checker.acknowledged.clear()  # the user has accepted this loss
    simulation.cluster.annotate(restore="0")
    await simulation.run_until(lambda: simulation.cluster.master(0) == 3, "the furthest is the master")
    await simulation.run_until(lambda: not annotations_of(simulation.cluster.group), "the order is removed")

    await simulation.run_until(simulation.is_healthy, "the group is ready")
    assert "were acknowledged" not in caplog.text


async def test_without_the_check_the_loss_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The twin: an empty volume is taken for a complete one, and the checker of invariants reports the loss."""
    monkeypatch.setattr(bootstrap, "missing_votes", lambda term, ballots: "")

    await lost_without_proof()

    assert "were acknowledged" in caplog.text
