"""Backups by the operator: on a schedule, on request, across its end, and without a driver; and a restored group.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cronsim import CronSimError
from operator_world.cluster import NAMESPACE
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import CLAIMS, EVENTS, SNAPSHOTS, Object, ObjectRef, annotations_of
from gantry_operator.errors import ApiError, Conflict, NotFound, Unavailable
from gantry_operator.execute import backups
from gantry_operator.execute.backups import Due, due, scheduled_name
from gantry_spec.backups import CLAIM_UID_ANNOTATION, MANIFEST_ANNOTATION, POINT_ANNOTATION, backups_of, point_of

TWO = SYNC | {"shards": 2}
OFTEN: dict[str, Any] = {"backup": {"schedule": "*/2 * * * *", "keep": 2}}


def snapshots(simulation: Simulation) -> list[Object]:
    return simulation.cluster.api.of_kind(SNAPSHOTS)


def complete(simulation: Simulation) -> list[str]:
    """Return the names of the complete backups, the oldest first."""
    return [one.name for one in backups_of(snapshots(simulation)) if one.is_complete]


def status(simulation: Simulation) -> dict[str, Any]:
    found: dict[str, Any] = simulation.cluster.group["status"]["backup"]
    return found


def reasons(simulation: Simulation) -> list[str]:
    return [one["reason"] for one in simulation.cluster.api.of_kind(EVENTS)]


async def requested(spec: dict[str, Any] = TWO, name: str = "first") -> Simulation:
    """Return a healthy group of which a backup was just requested."""
    simulation = await Simulation(spec).run_until_healthy()
    simulation.cluster.annotate(backup=name)
    return simulation


async def test_requested_backup_has_every_shard_and_ends_its_request() -> None:
    """The snapshots are of slaves, with points that they have flushed, and the status names them in offsets."""
    simulation = await requested()
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    await simulation.run_until(
        lambda: "gantry.dev/backup" not in annotations_of(simulation.cluster.group), "the request is removed"
    )
    await simulation.run_until(lambda: status(simulation)["last"] == "first", "the status names it")

    claims = {one["spec"]["source"]["persistentVolumeClaimName"] for one in snapshots(simulation)}
    assert claims == {"data-g-0-slave-0", "data-g-1-slave-0"}
    made = {one["metadata"]["name"]: annotations_of(one) for one in snapshots(simulation)}
    assert json.loads(made["g-0-first"][MANIFEST_ANNOTATION]) == simulation.cluster.group["spec"]
    assert MANIFEST_ANNOTATION not in made["g-1-first"]
    points = status(simulation)["points"]
    assert [one["number"] for one in points] == [0, 1]
    assert all(one["flushed"] > 0 and one["member"] == 2 and one["epoch"] > 0 for one in points)
    assert simulation.condition("BackedUp")[:2] == ("True", "Complete")
    assert "BackupCompleted" in reasons(simulation)


async def test_schedule_makes_backups_and_keeps_the_newest() -> None:
    """Every two minutes one is made; the third removes the first."""
    simulation = await Simulation(TWO | OFTEN).run_until_healthy()
    await simulation.run_until(lambda: len(complete(simulation)) == 2, "two backups", 400)
    first, second = complete(simulation)
    began_ms = simulation.cluster.clock.ms
    await simulation.run_until(lambda: first not in complete(simulation), "the oldest is removed", 400)
    assert simulation.cluster.clock.ms - began_ms < 130_000, "a time was left out"
    assert complete(simulation)[0] == second
    assert len(snapshots(simulation)) == 4
    assert status(simulation)["nextAt"] > "2026"


async def test_another_operator_continues_a_backup() -> None:
    """It makes only what is missing: no snapshot is made twice."""
    simulation = await Simulation(TWO).run_until_healthy()

    def overloaded(verb: str, ref: ObjectRef) -> ApiError | None:
        return Unavailable("create", "overloaded", 429) if (verb, ref.name) == ("create", "g-1-first") else None

    simulation.cluster.api.fault_of = overloaded
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "False", "the second snapshot fails")
    assert "shard 1: " in simulation.condition("BackedUp")[2]
    await simulation.loop.reconciler.close()
    simulation.cluster.api.fault_of = lambda verb, ref: None
    simulation.loop = operator_of(simulation.cluster)
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    created = [ref.name for verb, ref in simulation.cluster.api.calls if verb == "create" and ref.kind == SNAPSHOTS]
    assert sorted(created) == ["g-0-first", "g-1-first"]


async def test_master_is_copied_where_no_slave_has_everything() -> None:
    """A slave on a machine that does not answer cannot mark a point that covers the master's log."""
    simulation = await Simulation(TWO).run_until_healthy()
    simulation.cluster.unresponsive.add("g-0-slave-0")
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    claims = {one["spec"]["source"]["persistentVolumeClaimName"] for one in snapshots(simulation)}
    assert claims == {"data-g-0-master-0", "data-g-1-slave-0"}


async def test_slave_that_lacks_data_is_not_copied() -> None:
    """It answers, and marks a point before the end that the master had."""
    simulation = await Simulation(TWO).run_until_healthy()
    shard = simulation.cluster.shards[0]
    flush = shard.flush
    shard.replicate = lambda number, records: None  # type: ignore[method-assign]
    shard.flush = lambda number: flush(number) if number == 1 else None  # type: ignore[method-assign]
    await simulation.step()
    report = simulation.loop.reconciler.observed.shards[0]
    assert {one.number for one in report.members if one.report is not None} == {1, 2}
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    claims = {one["spec"]["source"]["persistentVolumeClaimName"] for one in snapshots(simulation)}
    assert claims == {"data-g-0-master-0", "data-g-1-slave-0"}


async def test_volume_that_is_replaced_before_it_is_cut_is_marked_again() -> None:
    """The driver begins late, and the claim has another uid: a copy of it would lack what the point promises."""
    simulation = await Simulation(TWO | {"slaves": 2}, nodes=4).run_until_healthy()
    simulation.cluster.has_snapshotter = False
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: len(snapshots(simulation)) == 2, "the snapshots wait for the driver")
    first = next(one for one in snapshots(simulation) if one["metadata"]["name"] == "g-0-first")
    claim = simulation.cluster.api.found(CLAIMS, NAMESPACE, first["spec"]["source"]["persistentVolumeClaimName"])
    assert claim is not None
    first["metadata"]["annotations"][CLAIM_UID_ANNOTATION] = "the uid of the claim before"
    simulation.cluster.api.put(first)

    def is_made_again() -> bool:
        found = [one for one in snapshots(simulation) if one["metadata"]["name"] == "g-0-first"]
        return bool(found) and found[0]["metadata"]["uid"] != first["metadata"]["uid"]

    await simulation.run_until(is_made_again, "the snapshot is made again")
    simulation.cluster.has_snapshotter = True
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")


async def test_snapshot_of_others_with_the_same_name_is_not_taken() -> None:
    """It belongs to an earlier group, and is neither counted nor deleted."""
    simulation = await Simulation(TWO).run_until_healthy()
    other = {"name": "g-0-first", "namespace": NAMESPACE, "labels": {"gantry.dev/group-uid": "another"}}
    source = {"source": {"persistentVolumeClaimName": "data-g-0-master-0"}}
    simulation.cluster.api.put(
        {"apiVersion": SNAPSHOTS.api_version, "kind": SNAPSHOTS.name, "metadata": other, "spec": source}
    )
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "False", "the condition")
    assert "snapshot g-0-first exists already" in simulation.condition("BackedUp")[2]
    assert simulation.cluster.api.found(SNAPSHOTS, NAMESPACE, "g-0-first") is not None


async def test_name_can_be_requested_again_after_its_snapshots_are_gone() -> None:
    """The second request is not taken for the first one, which is done."""
    simulation = await requested()
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    await simulation.run_until(
        lambda: "gantry.dev/backup" not in annotations_of(simulation.cluster.group), "the request is removed"
    )
    await simulation.step()
    for one in snapshots(simulation):
        simulation.cluster.api.remove(ObjectRef(SNAPSHOTS, NAMESPACE, one["metadata"]["name"]))
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: complete(simulation) == ["first"], "it is made again")


async def test_another_operator_keeps_the_status_until_it_has_listed_the_snapshots() -> None:
    """Neither the last backup nor the condition vanishes, also while the API server refuses the list."""
    simulation = await requested()
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "True", "the backup is complete")
    await simulation.run_until(lambda: status(simulation)["count"] == 1, "the status is current")
    await simulation.loop.reconciler.close()
    simulation.loop = operator_of(simulation.cluster)

    def refuse(verb: str, ref: ObjectRef) -> ApiError | None:
        return Unavailable("list", "overloaded", 429) if ref.kind == SNAPSHOTS else None

    simulation.cluster.api.fault_of = refuse
    for _ in range(8):
        await simulation.step()
        assert status(simulation)["last"] == "first"
    simulation.cluster.api.fault_of = lambda verb, ref: None
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "True", "the list succeeds")
    assert status(simulation)["last"] == "first"


async def test_condition_goes_with_the_request_that_could_not_be_met() -> None:
    """In a cluster without the kind, the group needs no backup any more when its request is withdrawn."""
    simulation = await Simulation(TWO).run_until_healthy()

    def refuse(verb: str, ref: ObjectRef) -> ApiError | None:
        return NotFound("list volumesnapshots", "not found", 404) if ref.kind == SNAPSHOTS else None

    simulation.cluster.api.fault_of = refuse
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "False", "the condition")
    simulation.cluster.annotate(backup=None)
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "", "the condition goes", 60)


async def test_failure_after_an_idle_time_is_tried_again_soon() -> None:
    """The pause while nothing is due, ten minutes, does not hold for a backup that has become due and failed."""
    simulation = await requested()
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    await simulation.run_until(lambda: not annotations_of(simulation.cluster.group), "the request is removed")
    idle_ms = simulation.cluster.clock.ms + 10_000
    await simulation.run_until(lambda: simulation.cluster.clock.ms >= idle_ms, "nothing is due")

    def refuse(verb: str, ref: ObjectRef) -> ApiError | None:
        return Unavailable("create", "overloaded", 429) if (verb, ref.kind) == ("create", SNAPSHOTS) else None

    simulation.cluster.api.fault_of = refuse
    simulation.cluster.annotate(backup="second")
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "False", "it fails")
    simulation.cluster.api.fault_of = lambda verb, ref: None
    await simulation.run_until(lambda: "second" in complete(simulation), "it is made", 60)


async def test_request_is_met_also_with_an_invalid_schedule() -> None:
    """It is completed and removed, and the condition names the schedule."""
    simulation = await Simulation(TWO | {"backup": {"schedule": "61 3 * * *"}}).run_until_healthy()
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: not annotations_of(simulation.cluster.group), "the request is removed")
    assert complete(simulation) == ["first"]
    await simulation.run_until(lambda: "61 3" in simulation.condition("BackedUp")[2], "the schedule is named")


async def test_point_is_marked_again_if_another_master_comes_before_the_copy() -> None:
    """The new master may cut what the member had, and the driver has not begun."""
    simulation = await Simulation(TWO).run_until_healthy()
    simulation.cluster.has_snapshotter = False
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: len(snapshots(simulation)) == 2, "the snapshots wait for the driver")
    before = {one["metadata"]["uid"] for one in snapshots(simulation)}
    simulation.cluster.annotate(promote="0=2")
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "the role moves")

    def is_made_again() -> bool:
        found = {one["metadata"]["name"]: one["metadata"]["uid"] for one in snapshots(simulation)}
        return len(found) == 2 and found["g-0-first"] not in before and found["g-1-first"] in before

    await simulation.run_until(is_made_again, "the snapshot of this shard is made again")
    simulation.cluster.has_snapshotter = True
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")


async def test_refused_list_is_not_repeated_in_each_round() -> None:
    """A cluster without the kind, or without the right, costs a call in half a minute."""
    simulation = await Simulation(TWO).run_until_healthy()
    tries = 0

    def refuse(verb: str, ref: ObjectRef) -> ApiError | None:
        nonlocal tries
        if ref.kind != SNAPSHOTS:
            return None
        tries += 1
        return NotFound("list volumesnapshots", "not found", 404)

    simulation.cluster.api.fault_of = refuse
    simulation.cluster.annotate(backup="first")
    ended_ms = simulation.cluster.clock.ms + 60_000
    await simulation.run_until(lambda: simulation.cluster.clock.ms >= ended_ms, "a minute")
    assert tries <= 3
    assert reasons(simulation).count("BackupFailed") == 1


async def test_cluster_without_snapshots_is_named_in_the_status() -> None:
    """The group works on, and its condition says what to install."""
    simulation = await Simulation(TWO).run_until_healthy()

    def refuse(verb: str, ref: ObjectRef) -> ApiError | None:
        return NotFound("list volumesnapshots", "not found", 404) if ref.kind == SNAPSHOTS else None

    simulation.cluster.api.fault_of = refuse
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "False", "the condition")
    assert "install the CRDs" in simulation.condition("BackedUp")[2]
    assert simulation.is_healthy()

    simulation.cluster.api.fault_of = lambda verb, ref: None
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")


async def test_snapshot_whose_answer_was_lost_is_not_made_twice() -> None:
    """The API server has made it, and answers that it exists."""
    simulation = await Simulation(TWO).run_until_healthy()
    lost = [True]

    def fault(verb: str, ref: ObjectRef) -> ApiError | None:
        if verb == "create" and ref.kind == SNAPSHOTS and lost:
            lost.clear()
            return Conflict("create", "already exists", 409)
        return None

    simulation.cluster.api.fault_of = fault
    simulation.cluster.annotate(backup="first")
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")


async def test_slow_driver_delays_no_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup whose snapshots are not ready counts as failed after a while, and the group fails over meanwhile."""
    monkeypatch.setattr(backups, "STALLED_MS", 60_000)
    simulation = await requested()
    simulation.cluster.snapshot_ms = 10_000_000
    await simulation.run_until(lambda: len(snapshots(simulation)) == 2, "the snapshots are made")
    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "the slave is the master")
    await simulation.run_until(lambda: simulation.condition("BackedUp")[0] == "False", "the backup counts as failed")


async def test_group_that_is_deleted_comes_back_from_its_backup() -> None:
    """A new group with claims from the snapshots has everything up to their points, and says so."""
    simulation = await requested()
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    made = {one["metadata"]["labels"]["gantry.dev/shard"]: one for one in snapshots(simulation)}
    point = point_of(annotations_of(made["0"])[POINT_ANNOTATION])
    assert point is not None
    await simulation.loop.reconciler.close()
    restored = restored_from(simulation, made)
    await restored.run_until(lambda: restored.condition("Restored")[0] == "True", "the group is restored")
    await restored.run_until_healthy()
    assert "made from backup g/first" in restored.condition("Restored")[2]
    assert "gantry.dev/restore" not in annotations_of(restored.cluster.group)


async def test_snapshot_that_lacks_data_is_reported() -> None:
    """A log that ends before its point makes the condition false; the twin is the restore above."""
    simulation = await requested()
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    made = {one["metadata"]["labels"]["gantry.dev/shard"]: one for one in snapshots(simulation)}
    store = simulation.cluster.snapshots[made["1"]["metadata"]["uid"]]
    store.flushed = len(store.log) // 2
    simulation.cluster.load = 0.0
    await simulation.loop.reconciler.close()
    restored = restored_from(simulation, made)
    restored.cluster.load = 0.0
    await restored.run_until(lambda: restored.condition("Restored")[0] == "False", "the missing data is reported")
    assert "shard 1 ended at" in restored.condition("Restored")[2]
    restored.cluster.load = 1.0
    ended_ms = restored.cluster.clock.ms + 30_000
    await restored.run_until(lambda: restored.cluster.clock.ms >= ended_ms, "the group takes messages")
    assert restored.condition("Restored")[0] == "False", "new messages have filled the gap"


def restored_from(simulation: Simulation, made: dict[str, Object]) -> Simulation:
    """Return another cluster with a group that was made from these snapshots, as `gantry restore --from` makes it."""
    restored = Simulation(TWO)
    cluster = restored.cluster
    cluster.annotate(restore="0,1", restored_from="g/first")
    cluster.snapshots.update(simulation.cluster.snapshots)
    for shard, snapshot in made.items():
        cluster.api.put(snapshot)
        annotations = {
            "gantry.dev/restored-from": "g/first",
            POINT_ANNOTATION: annotations_of(snapshot)[POINT_ANNOTATION],
        }
        head = {"name": f"data-g-{shard}-master-0", "namespace": NAMESPACE, "annotations": annotations}
        source = {"kind": "VolumeSnapshot", "name": snapshot["metadata"]["name"]}
        cluster.api.put(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head, "spec": {"dataSource": source}}
        )
    return restored


# -- which backup is due -----------------------------------------------------------------------------------------------

NOON = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
LONG_AGO = NOON - timedelta(days=30)


def test_missed_time_is_made_up_once() -> None:
    """An operator that was away makes the last backup that is due, not each one."""
    found = due("0 3 * * *", [], LONG_AGO, NOON)
    assert found.name == "20261129-0300"
    assert found.next_at == datetime(2026, 11, 30, 3, 0, tzinfo=UTC)


def test_new_group_waits_for_its_first_time() -> None:
    """A time before the group was created is not made up."""
    assert due("0 3 * * *", [], NOON - timedelta(minutes=5), NOON).name == ""
    assert due("0 12 * * *", [], NOON - timedelta(minutes=5), NOON).name == "20261129-1200"


@pytest.mark.parametrize("microsecond", [0, 1, 999_999])
def test_backup_is_due_from_its_second_on(microsecond: int) -> None:
    """At the very second, and not a second before, when the last one is the day before."""
    at = datetime(2026, 11, 29, 3, 0, 0, microsecond, tzinfo=UTC)
    assert due("0 3 * * *", [], LONG_AGO, at).name == "20261129-0300"
    before = datetime(2026, 11, 29, 2, 59, 59, microsecond, tzinfo=UTC)
    assert due("0 3 * * *", [], LONG_AGO, before).name == "20261128-0300"


def test_request_comes_before_the_schedule() -> None:
    """A requested backup is due until it is complete; without schedule and request nothing is."""
    assert due("0 3 * * *", [], LONG_AGO, NOON, "before-upgrade").name == "before-upgrade"
    assert due("", [], LONG_AGO, NOON, "before-upgrade").name == "before-upgrade"
    assert due("", [], LONG_AGO, NOON) == Due()


def test_invalid_schedule_is_refused() -> None:
    """Five words that are no times."""
    with pytest.raises(CronSimError):
        due("61 3 * * *", [], LONG_AGO, NOON)
    assert scheduled_name(NOON) == "20261129-1200"
