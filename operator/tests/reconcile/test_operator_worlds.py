"""Groups in a model cluster, with checks of invariants: the real loop creates, moves, rolls and scales them.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import pytest
from operator_world.cluster import GROUP, NAMESPACE
from operator_world.simulation import ASYNC, SYNC, Simulation, operator_of
from spec_world.invariant_checker import InvariantViolation

from gantry_operator.api import (
    CLAIMS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    ObjectRef,
    annotations_of,
    labels_of,
    ref_of,
    uid_of,
)
from gantry_operator.execute.pods import PodExecutor
from gantry_operator.objects import names
from gantry_operator.observe import pods
from gantry_wire.names import SCHEDULE_TOPIC


async def test_new_group_becomes_ready() -> None:
    """From one custom resource follow masters by the Lease, slaves in sync, labels, and a complete status."""
    simulation = Simulation(SYNC | {"shards": 2, "slaves": 2}, nodes=4)

    seconds = await simulation.run_until(simulation.is_healthy, "the group begins")
    await simulation.step()

    status = simulation.cluster.group["status"]
    assert seconds < 20
    assert [simulation.cluster.labels(shard) for shard in (0, 1)] == [{1: "master", 2: "slave", 3: "slave"}] * 2
    assert (status["master"], status["ready"], status["shards"]) == ("g-0-master-0,g-1-master-0", "2/2", 2)
    assert status["epoch"] % 1000 == 0 and status["epoch"] > 0
    assert all(shard.checker.acknowledged for shard in simulation.cluster.shards.values()), (
        "a shard has acknowledged no send"
    )


async def test_no_api_calls_at_rest() -> None:
    """A healthy group without traffic makes no calls."""
    simulation = await Simulation(SYNC | {"shards": 2}).run_until_healthy()
    simulation.cluster.load = 0.0
    for _ in range(80):
        await simulation.step()
    before = len(simulation.cluster.api.calls)

    for _ in range(240):
        await simulation.step()

    assert simulation.cluster.api.calls[before:] == []


async def test_partitioned_master_is_replaced_and_returns_as_a_slave() -> None:
    """The label of the old master is removed first; no acknowledged message is lost; it returns as a slave."""
    simulation = await Simulation(SYNC | {"slaves": 2}).run_until_healthy()
    order: list[tuple[str, str]] = []
    simulation.cluster.api.watchers.append(
        lambda what, one: (
            order.append((one["metadata"]["name"], labels_of(one).get(names.ROLE_LABEL, "")))
            if one["kind"] == "Pod"
            else None
        )
    )
    node = simulation.cluster.node_of(0, 1)
    simulation.cluster.disconnect_node(node)

    seconds = await simulation.run_until(lambda: simulation.cluster.master(0) not in (None, 1), "another master")
    await simulation.run_until(
        lambda: "master" in [simulation.cluster.labels(0)[one] for one in (2, 3)], "it is labelled"
    )
    master = simulation.cluster.master(0)
    assert master is not None
    simulation.cluster.reconnect_node(node)
    await simulation.run_until(simulation.is_healthy, "all is well again")

    assert seconds < 30
    taken = order.index(("g-0-master-0", ""))
    given = order.index((names.member_pod(GROUP, 0, master), "master"))
    assert taken < given
    assert simulation.cluster.labels(0)[1] == "slave"
    assert simulation.cluster.shards[0].checker.lost == set()


async def test_master_with_a_deleted_pod_is_replaced_within_seconds() -> None:
    """Kubelet reports the end of its process, so the expiry of the Lease need not be awaited, also without acks."""
    simulation = await Simulation(ASYNC).run_until_healthy()
    pod = simulation.cluster.pod(0, 1)
    assert pod is not None
    simulation.cluster.is_scheduling = False

    simulation.cluster.terminate(pod)
    seconds = await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "member 2 is the master")
    simulation.cluster.is_scheduling = True
    await simulation.run_until(simulation.is_healthy, "all is well again")

    assert seconds < 10


async def cut_and_force_deleted() -> Simulation:
    """Cut off an async master that continues to acknowledge, delete its pod by force, and let it be created again."""
    simulation = await Simulation(ASYNC).run_until_healthy()
    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))
    pod = simulation.cluster.pod(0, 1)
    assert pod is not None
    await simulation.cluster.api.delete(ref_of(pod), uid=uid_of(pod), grace_s=0)
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "another master")
    for _ in range(100):
        await simulation.step()
    return simulation


async def test_forced_deletion_of_a_pod_does_not_prove_that_its_process_ended() -> None:
    """The old master may still run unreachably: its lease must expire before another member is promoted."""
    simulation = await cut_and_force_deleted()

    losses = simulation.cluster.shards[0].checker.losses
    assert all(lost <= announced for lost, announced in losses)


async def test_without_the_guard_two_masters_acknowledge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a deleted pod counts as an ended process, and the checker reports a late acknowledgement."""
    monkeypatch.setattr(pods, "has_ended", lambda departed, machine: True)

    with pytest.raises(InvariantViolation, match="after epoch"):
        await cut_and_force_deleted()


async def test_service_moves_to_the_new_master_by_one_change() -> None:
    """The Service of the shard always selects a pod, that of the old or the new master."""
    simulation = await Simulation(SYNC | {"slaves": 2}).run_until_healthy()
    chosen: list[dict[str, str]] = []
    simulation.cluster.api.watchers.append(
        lambda what, one: (
            chosen.append(one["spec"]["selector"])
            if (one["kind"], one["metadata"]["name"]) == ("Service", names.shard_name(GROUP, 0))
            else None
        )
    )

    simulation.cluster.annotate(promote="0=3")
    await simulation.run_until(lambda: simulation.cluster.master(0) == 3, "member 3 is the master")
    await simulation.run_until(simulation.is_healthy, "the group is ready")
    await simulation.step()

    assert [one[names.POD_NAME_LABEL] for one in chosen] == ["g-0-slave-1"]


async def test_switchover_happens_once_and_removes_its_order() -> None:
    """`promote: 0=3`: drained, moved without loss, and the annotation is removed with its accepted loss."""
    simulation = await Simulation(SYNC | {"slaves": 2}).run_until_healthy()

    simulation.cluster.annotate(promote="0=3", accept_loss="64Ki")
    seconds = await simulation.run_until(lambda: simulation.cluster.master(0) == 3, "member 3 is the master")
    await simulation.run_until(lambda: not annotations_of(simulation.cluster.group), "the order is removed")
    await simulation.run_until(simulation.is_healthy, "the group is ready")

    assert seconds < 10
    assert simulation.cluster.shards[0].checker.lost == set()
    assert simulation.cluster.labels(0) == {1: "slave", 2: "slave", 3: "master"}


@pytest.mark.parametrize("mode", ["Manual", "Automatic"])
@pytest.mark.parametrize("accept_loss", [None, "64Ki", "any"])
async def test_requested_promotion_replaces_a_failed_master(mode: str, accept_loss: str | None) -> None:
    """The request is recorded in the Lease with any accepted loss, and it does not block the automatic failover."""
    simulation = await Simulation(SYNC | {"slaves": 2, "failover": {"mode": mode}}).run_until_healthy()

    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))
    simulation.cluster.annotate(promote="0=2", accept_loss=accept_loss)
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "member 2 is the master")
    await simulation.run_until(lambda: not annotations_of(simulation.cluster.group), "the request is removed")

    assert simulation.cluster.shards[0].checker.lost == set()


async def test_services_of_users_do_not_stop_a_failover() -> None:
    """A Service with the labels of the group and any number of ports is left alone, and rounds continue."""
    simulation = await Simulation(SYNC | {"slaves": 2}).run_until_healthy()
    ports = [{"name": name, "port": port, "nodePort": 30_000 + port} for name, port in (("broker", 10911), ("a", 1))]
    own = simulation.cluster.api.found(SERVICES, NAMESPACE, names.shard_name(GROUP, 0))
    assert own is not None
    for kind, listed in (("LoadBalancer", ports), ("NodePort", [])):
        head = {"name": kind.lower(), "namespace": NAMESPACE, "labels": labels_of(own)}
        spec = {"type": kind, "ports": listed}
        simulation.cluster.api.put({"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": spec})

    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))
    await simulation.run_until(lambda: simulation.cluster.master(0) not in (None, 1), "another master")


async def test_edit_rolls_slaves_first_and_then_switches_over() -> None:
    """Every pod is recreated from the new template, one at a time, and no acknowledged message is lost."""
    simulation = await Simulation(SYNC | {"shards": 2, "slaves": 2}, nodes=4).run_until_healthy()
    old = {pod["metadata"]["name"]: uid_of(pod) for pod in simulation.cluster.pods()}
    gone: list[str] = []
    simulation.cluster.api.watchers.append(
        lambda what, one: gone.append(one["metadata"]["name"]) if what == "DELETED" and one["kind"] == "Pod" else None
    )

    simulation.cluster.edit(image="gantry:next")
    while set(old.values()) & {uid_of(pod) for pod in simulation.cluster.pods()}:
        await simulation.step()
        away = {name for name in old if not is_broker_running(simulation, name)}
        assert all(shard.masters() for shard in simulation.cluster.shards.values()) or not away
        assert len({name[:3] for name in away}) <= 1, f"two shards at once: {away}"
        assert len(away) <= 1, f"two brokers at once: {away}"
    await simulation.run_until(simulation.is_healthy, "the group is ready")

    first = [name for name in gone if name.startswith("g-0-")]
    assert sorted(gone) == sorted(old), "expected each pod to be deleted once"
    assert first[-1] == "g-0-master-0", "the master was not restarted last"
    images = {container["image"] for pod in simulation.cluster.pods() for container in pod["spec"]["containers"]}
    assert images == {"gantry:next"}
    assert all(shard.checker.lost == set() for shard in simulation.cluster.shards.values())


async def rolled_with_slow_pods() -> None:
    """Roll a group whose pods terminate slowly and acknowledge until then, while the other slave falls behind."""
    simulation = await Simulation(SYNC | {"slaves": 2}, nodes=4).run_until_healthy()
    shard, replicate = simulation.cluster.shards[0], simulation.cluster.shards[0].replicate

    def terminating_members() -> set[int]:
        return {
            simulation.cluster.place(one).member
            for one in simulation.cluster.pods()
            if one["metadata"].get("deletionTimestamp")
        }

    def replicate_slowly(number: int, records: int) -> None:
        replicate(number, records if number in terminating_members() or not terminating_members() else 1)

    shard.replicate = replicate_slowly  # type: ignore[method-assign]
    simulation.cluster.grace_ms = 3_000
    old = {uid_of(pod) for pod in simulation.cluster.pods()}
    simulation.cluster.edit(image="gantry:next")
    while old & {uid_of(pod) for pod in simulation.cluster.pods()}:
        await simulation.step()
        away = {
            number
            for number in (1, 2, 3)
            if number in terminating_members() or simulation.cluster.pod(0, number) is None
        }
        assert len(away) <= 1, f"two at once: {away}"
    await simulation.run_until(simulation.is_healthy, "the group is ready")
    assert shard.checker.lost == set()


async def test_roll_waits_for_a_terminating_pod() -> None:
    """Its broker still counts as in sync; even so, the next pod is not restarted."""
    await rolled_with_slow_pods()


async def test_without_the_guard_both_slaves_restart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a restart does not check the other pods of the shard."""
    monkeypatch.setattr(PodExecutor, "_refuse_second_restart", lambda self, action: None)

    with pytest.raises(AssertionError, match="two at once"):
        await rolled_with_slow_pods()


def is_broker_running(simulation: Simulation, name: str) -> bool:
    """Return whether the broker of a pod runs."""
    place = names.member_of(GROUP, name)
    assert place is not None
    broker = simulation.cluster.shards[place.shard].brokers.get(place.member)
    return broker is not None and broker.is_up


async def test_slaves_are_scaled_out_and_in() -> None:
    """A new slave becomes electable; a removed one loses its vote first, and its volume stays."""
    simulation = await Simulation(SYNC).run_until_healthy()

    simulation.cluster.edit(slaves=2)
    await simulation.run_until(simulation.is_healthy, "three members")
    record = simulation.cluster.lease(0)
    assert record is not None and record.newest is not None
    await simulation.run_until(lambda: electable_members(simulation) == {2, 3}, "member 3 has a vote")
    simulation.cluster.edit(slaves=1)
    await simulation.run_until(lambda: simulation.cluster.pod(0, 3) is None, "member 3 is removed")
    await simulation.run_until(simulation.is_healthy, "two members")

    assert electable_members(simulation) == {2}
    assert simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-1") is not None


def electable_members(simulation: Simulation) -> set[int]:
    """Return the electable members of the newest term in the Lease of the first shard."""
    record = simulation.cluster.lease(0)
    assert record is not None and record.newest is not None
    return set(record.newest.numbers)


async def test_shards_are_scaled_out_and_an_empty_one_is_removed() -> None:
    """A shard without messages is removed: pods, then all objects except volumes. One with messages stays."""
    simulation = await Simulation(SYNC).run_until_healthy()

    simulation.cluster.edit(shards=2)
    await simulation.run_until(simulation.is_healthy, "two shards")
    simulation.cluster.messages = 5
    simulation.cluster.edit(shards=1)
    for _ in range(60):
        await simulation.step()
    assert simulation.cluster.master(1) == 1, "the shard was removed with messages on it"
    assert simulation.cluster.shards[1].brokers[1].is_withdrawn, "the shard still takes messages"
    assert simulation.condition("ScalingIn") == ("True", "Draining", "shard 1: 5 messages of 1 topics: orders")
    simulation.cluster.messages, simulation.cluster.delayed_messages = 0, 1
    for _ in range(60):
        await simulation.step()
    assert simulation.cluster.master(1) == 1, "the shard was removed with a delayed message on it"
    assert simulation.condition("ScalingIn") == (
        "True",
        "Draining",
        f"shard 1: 1 messages of 1 topics: {SCHEDULE_TOPIC}",
    )
    simulation.cluster.delayed_messages = 0
    await simulation.run_until(
        lambda: not [one for one in simulation.cluster.api.of_kind(STATEFUL_SETS) if "-1-" in one["metadata"]["name"]],
        "the objects of the second shard are deleted",
    )
    await simulation.run_until(simulation.is_healthy, "one shard")

    left = [
        place for place, one in simulation.cluster.api.objects.items() if labels_of(one).get(names.SHARD_LABEL) == "1"
    ]
    assert {place.kind for place in left} == {CLAIMS}


async def test_drained_machine_loses_the_master_role_before_its_pods() -> None:
    """After a cordon the role moves, so that the pod may be evicted."""
    simulation = await Simulation(SYNC).run_until_healthy()

    simulation.cluster.cordon_node(simulation.cluster.node_of(0, 1))
    await simulation.run_until(lambda: simulation.cluster.master(0) == 2, "the role has moved")

    assert simulation.cluster.shards[0].checker.lost == set()


@pytest.mark.parametrize("is_collected", [False, True], ids=["pod of the machine", "pod that Kubernetes made again"])
async def test_member_of_an_out_of_service_machine_gets_a_new_disk(is_collected: bool) -> None:
    """Its local volume is given up, its pod deleted by force, and the member is rebuilt elsewhere from nothing.

    Kubernetes deletes the pods of such a machine, too. If it is faster, the new pod is on no machine: it waits for the
    volume of the one that is off.
    """
    simulation = await Simulation(SYNC | {"slaves": 2}, nodes=4).run_until_healthy()
    node = simulation.cluster.node_of(0, 2)
    claim = simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0")
    assert claim is not None

    simulation.cluster.disconnect_node(node)
    simulation.cluster.switch_off_node(node)
    if is_collected:
        simulation.cluster.api.remove(ObjectRef(PODS, NAMESPACE, "g-0-slave-0"))
    await simulation.run_until(lambda: not has_claim(simulation, uid_of(claim)), "the claim is given up")
    await simulation.run_until(lambda: simulation.cluster.pod(0, 2) is not None, "the pod is made again")
    await simulation.run_until(simulation.is_healthy, "all is well on other machines", 300)

    assert simulation.cluster.node_of(0, 2) != node
    assert simulation.cluster.shards[0].checker.lost == set()


def has_claim(simulation: Simulation, uid: str) -> bool:
    """Return whether the claim with this uid exists."""
    return any(uid_of(claim) == uid for claim in simulation.cluster.api.of_kind(CLAIMS))


async def test_paused_group_is_not_changed() -> None:
    """Only the status is written until the pause ends; afterwards the group is repaired."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.annotate(paused="true")
    await simulation.step()
    node = simulation.cluster.node_of(0, 1)
    simulation.cluster.disconnect_node(node)
    before = len(simulation.cluster.api.calls)

    for _ in range(120):
        await simulation.step()

    assert {verb for verb, _ in simulation.cluster.api.calls[before:]} <= {"status", "get"}
    assert simulation.cluster.group["status"]["phase"] == "Paused"
    simulation.cluster.annotate(paused=None)
    simulation.cluster.reconnect_node(node)
    await simulation.run_until(simulation.is_healthy, "the group is ready")


async def test_invalid_spec_changes_nothing_and_is_reported() -> None:
    """There is a condition and one event; pods stay as they are, and a corrected spec is applied."""
    simulation = await Simulation(SYNC).run_until_healthy()
    pods_before = {uid_of(pod) for pod in simulation.cluster.pods()}

    simulation.cluster.edit(slave=3)
    for _ in range(20):
        await simulation.step()

    conditions = {one["type"]: one for one in simulation.cluster.group["status"]["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "InvalidSpec")
    assert "did you mean slaves" in conditions["Ready"]["message"]
    events = [place for place, one in simulation.cluster.api.objects.items() if one.get("reason") == "InvalidSpec"]
    assert len(events) == 1
    assert {uid_of(pod) for pod in simulation.cluster.pods()} == pods_before
    group = simulation.cluster.group
    del group["spec"]["slave"]
    simulation.cluster.api.put(group)
    await simulation.run_until(simulation.is_healthy, "it is mended")


async def test_restarted_operator_continues_a_failover() -> None:
    """This holds after several numbers of rounds: the process keeps no state that matters."""
    for rounds in range(20, 44, 3):
        await failed_over_by_two(rounds)


async def failed_over_by_two(rounds: int) -> None:
    """Fail over with two operators, of which the first runs this many rounds."""
    simulation = await Simulation(SYNC | {"slaves": 2}).run_until_healthy()
    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 1))
    for _ in range(rounds):
        await simulation.step()
    simulation.loop = operator_of(simulation.cluster)
    await simulation.run_until(lambda: simulation.cluster.master(0) in (2, 3), "another master")
    assert simulation.cluster.shards[0].checker.lost == set()


async def test_loop_ends_for_a_group_that_is_being_deleted() -> None:
    """It does not wait until the group is gone, so no object is created again meanwhile."""
    simulation = await Simulation(SYNC).run_until_healthy()
    group = simulation.cluster.group
    group["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    simulation.cluster.api.put(group)
    before = len(simulation.cluster.api.calls)

    assert await simulation.loop.reconcile_once() is None
    assert simulation.cluster.api.calls[before:] == []
