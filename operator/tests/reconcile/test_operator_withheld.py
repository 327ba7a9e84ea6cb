"""Groups that clients shall not send to, in a model cluster: fenced, asleep, and back from their volumes."""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.cluster import NAMESPACE
from operator_world.play import ASYNC, SYNC, Play, operator_of
from spec_world.brokers import Record

from gantry_operator.api import CLAIMS, LEASES, PODS, STATEFUL_SETS, Place, annotations_of
from gantry_operator.errors import Conflict
from gantry_operator.execute.pods import Pods
from gantry_operator.objects import names
from gantry_spec import actions as act
from gantry_spec.decide import beginning, group
from gantry_spec.decide.settled import settle


def safe(play: Play, shard: int = 0) -> set[Record]:
    """What clients were told is safe."""
    return play.cluster.shards[shard].judge.safe


def epoch(play: Play, shard: int = 0) -> int:
    record = play.cluster.lease(shard)
    return 0 if record is None else record.epoch


# -- a fence -----------------------------------------------------------------------------------------------------------


async def test_a_fenced_shard_takes_nothing_until_the_fence_is_lifted() -> None:
    """The other shard goes on; a master that dies behind the fence has no successor before it is lifted."""
    play = await Play(SYNC | {"shards": 2, "slaves": 2}, nodes=4).begun()

    play.cluster.annotate(fence="1")
    await play.until(lambda: play.condition("Fenced")[0] == "True", "it is fenced")
    assert play.condition("Fenced") == ("True", "ByAnnotation", "shards [1]")
    assert play.condition("Available")[:2] == ("False", "Fenced")
    before = [len(safe(play, shard)) for shard in (0, 1)]
    await turns(play, 40)
    assert len(safe(play, 0)) > before[0]
    assert len(safe(play, 1)) == before[1]

    play.cluster.cut(play.cluster.node_of(1, 1))
    was = epoch(play, 1)
    await turns(play, 160)
    assert (epoch(play, 1), set(play.cluster.shards[1].judge.masters)) == (was, {was})
    play.cluster.annotate(fence=None)
    await play.until(lambda: play.cluster.master(1) in (2, 3), "another master takes over")
    await play.until(lambda: len(safe(play, 1)) > before[1], "and takes messages")
    assert play.cluster.shards[1].judge.lost == set()


async def test_without_a_fence_the_shard_has_another_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a fenced shard is decided like any other."""
    monkeypatch.setattr(group, "fenced", settle)
    play = await Play(SYNC | {"slaves": 2}, nodes=4).begun()
    play.cluster.annotate(fence="0")
    was = epoch(play)

    play.cluster.cut(play.cluster.node_of(0, 1))

    await play.until(lambda: epoch(play) > was, "an election")


async def test_without_withdrawal_a_shard_that_goes_takes_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: what is emptied fills again."""
    monkeypatch.setattr(group, "withdrawn", lambda view, why, **_: [])
    play = await Play(SYNC | {"shards": 2}).begun()
    play.cluster.messages = 5
    play.cluster.edit(shards=1)
    await turns(play, 8)
    before = len(safe(play, 1))

    await turns(play, 40)

    assert len(safe(play, 1)) > before


async def test_a_typing_error_beside_a_fence_does_not_lift_it() -> None:
    """It is a condition, and the fence stands."""
    play = await Play(SYNC).begun()
    play.cluster.annotate(fence="0")
    await play.until(lambda: play.condition("Fenced")[0] == "True", "it is fenced")

    play.cluster.annotate(promote="somebody")
    await turns(play, 20)

    assert play.condition("Fenced")[0] == "True"
    assert play.condition("Orders")[:2] == ("False", "Refused")


async def turns(play: Play, count: int) -> None:
    for _ in range(count):
        await play.turn()


# -- sleep -------------------------------------------------------------------------------------------------------------


def is_asleep(play: Play) -> bool:
    return play.condition("Hibernated")[0] == "True"


def replicas(play: Play) -> dict[str, int]:
    return {home["metadata"]["name"]: home["spec"]["replicas"] for home in play.cluster.api.of_kind(STATEFUL_SETS)}


@pytest.mark.verify(quick=4)
@pytest.mark.parametrize("is_new_operator", [False, True], ids=["same-operator", "new-operator"])
@pytest.mark.parametrize(
    "spec",
    [SYNC | {"slaves": 2, "nameServers": {"replicas": 2}}, ASYNC, SYNC | {"storage": {"retain": "Never"}}],
    ids=["sync", "async", "retain-never"],
)
async def test_a_group_sleeps_without_pods_and_wakes_with_all_it_had(
    spec: dict[str, Any], is_new_operator: bool
) -> None:
    """Volumes stay whatever `retain` says; the same broker is the master again, in a newer epoch."""
    play = await Play(spec, nodes=4).begun()
    claims = {claim["metadata"]["uid"] for claim in play.cluster.api.of_kind(CLAIMS)}

    play.cluster.annotate(hibernate="true")
    await play.until(lambda: is_asleep(play), "it sleeps")
    logs = [broker.store.log for broker in play.cluster.shards[0].brokers.values()]
    assert play.cluster.api.of_kind(PODS) == []
    await turns(play, 8)
    assert set(replicas(play).values()) == {0}
    assert all(log == logs[0] for log in logs)
    assert play.cluster.group["status"]["phase"] == "Hibernated"
    was, before = epoch(play), set(safe(play))
    if is_new_operator:
        play.loop = operator_of(play.cluster)
    await turns(play, 400)
    assert is_asleep(play)
    assert {claim["metadata"]["uid"] for claim in play.cluster.api.of_kind(CLAIMS)} == claims

    play.cluster.annotate(hibernate=None)
    await play.until(play.is_well, "it is awake")
    assert epoch(play) == was, "the epoch was taken before it slept, and has its master now"
    assert play.cluster.master(0) == 1
    assert before <= safe(play)
    assert {claim["metadata"]["uid"] for claim in play.cluster.api.of_kind(CLAIMS)} == claims
    homes = play.cluster.api.of_kind(STATEFUL_SETS)
    assert not any(names.ASLEEP_ANNOTATION in annotations_of(home) for home in homes)


async def test_a_shard_that_is_scaled_away_sleeps_and_wakes_with_what_is_left_on_it() -> None:
    """It has no pods then, and is not taken for one that is gone."""
    play = await Play(SYNC | {"shards": 2}).begun()
    play.cluster.messages = 3
    play.cluster.edit(shards=1)
    await play.until(lambda: play.condition("ScalingIn")[1] == "Draining", "it goes")

    play.cluster.annotate(hibernate="true")
    await play.until(lambda: is_asleep(play), "both sleep")
    await turns(play, 40)
    play.cluster.annotate(hibernate=None)
    await play.until(lambda: play.cluster.master(1) == 1, "both are awake")

    assert safe(play, 1) <= set(play.cluster.shards[1].brokers[1].store.log)
    assert play.condition("ScalingIn")[1] == "Draining"


async def test_a_new_group_that_hibernates_makes_no_pod() -> None:
    """Everything but pods is there; taking the annotation off begins it."""
    play = Play(SYNC)
    play.cluster.annotate(hibernate="true")

    await turns(play, 40)
    assert is_asleep(play)
    assert set(replicas(play).values()) == {0}

    play.cluster.annotate(hibernate=None)
    await play.until(play.is_well, "it begins")


async def sleeping_with_volumes_that_go() -> set[str]:
    """Uids of claims, where a StatefulSet deletes volumes of pods that it makes no more."""
    play = await Play(SYNC | {"storage": {"retain": "Never"}}).begun()
    play.cluster.annotate(hibernate="true")
    await play.until(lambda: is_asleep(play), "it sleeps")
    for home in play.cluster.api.of_kind(STATEFUL_SETS):
        assert home["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    return {claim["metadata"]["uid"] for claim in play.cluster.api.of_kind(CLAIMS)}


async def slept_untold() -> tuple[str, int]:
    """A shard falls asleep though its StatefulSets were never told to keep volumes: what is said, and what is left."""
    play = await Play(SYNC | {"storage": {"retain": "Never"}}).begun()
    objects, refusal = play.loop.reconciler.observer.objects, ""
    try:
        await Pods(objects, play.cluster.api).do(act.Sleep(shard=0))
    except Conflict as error:
        refusal = str(error)
    for _ in range(8):
        play.cluster.advance(250)
    return refusal, len(play.cluster.api.of_kind(CLAIMS))


async def test_pods_do_not_go_before_their_volumes_outlive_that() -> None:
    """Also where `retain` is `Never`, and where the StatefulSet could not be told in time."""
    assert len(await sleeping_with_volumes_that_go()) == 2

    refusal, left = await slept_untold()

    assert "its volumes would go with its pods" in refusal
    assert left == 2


async def test_without_that_guard_a_sleep_takes_the_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: nobody looks at what becomes of volumes, and both go with their pods."""
    monkeypatch.setattr(Pods, "_refuse_without_volumes", lambda self, document: None)

    assert await slept_untold() == ("", 0)


# -- back from the volumes ---------------------------------------------------------------------------------------------


async def lost(spec: dict[str, Any], *without: str) -> Play:
    """A group that ran is deleted, with its Lease and some of its claims; then it is applied again."""
    play = await Play(spec, nodes=4).begun()
    await turns(play, 20)
    play.cluster.delete()
    for name in without:
        claim = play.cluster.api.found(CLAIMS, NAMESPACE, name)
        assert claim is not None
        play.cluster.api.remove(Place(CLAIMS, NAMESPACE, name))
    assert play.cluster.api.of_kind(LEASES) == []
    play.cluster.recreate(spec)
    play.loop = operator_of(play.cluster)
    return play


async def test_a_lost_group_comes_back_from_its_volumes() -> None:
    """Its claims are found by their names; the epoch is above all that any disk knows; nothing is lost."""
    play = await lost(SYNC | {"slaves": 2})
    shard = play.cluster.shards[0]
    highest, before = max(broker.store.epoch for broker in shard.brokers.values()), set(safe(play))

    await play.until(play.is_well, "it is back")

    assert epoch(play) > highest
    assert before and before <= safe(play)
    assert shard.judge.lost == set()


async def test_a_lost_group_comes_back_without_its_masters_volume() -> None:
    """One of two slaves whose acks were needed by one has everything only if both of them are heard."""
    play = await lost(SYNC | {"slaves": 2}, "data-g-0-master-0")
    before = set(safe(play))

    await play.until(play.is_well, "it is back")

    assert play.cluster.master(0) in (2, 3)
    assert before <= safe(play)


async def lost_without_proof() -> Play:
    """Master and one of two slaves are gone for good, and the slave that is left lacks what the other one had."""
    play = await Play(SYNC | {"slaves": 2}, nodes=4).begun()
    shard = play.cluster.shards[0]
    copy = shard.copy
    shard.copy = lambda number, records: None if number == 3 else copy(number, records)  # type: ignore[method-assign]
    await turns(play, 20)
    shard.copy = copy  # type: ignore[method-assign]
    play.cluster.delete()
    for name in ("data-g-0-master-0", "data-g-0-slave-0"):
        play.cluster.api.remove(Place(CLAIMS, NAMESPACE, name))
    play.cluster.recreate(SYNC | {"slaves": 2})
    play.loop = operator_of(play.cluster)
    await turns(play, 160)
    return play


async def test_a_person_is_asked_where_volumes_prove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is the master before somebody says that what is missing is given up; then the furthest is."""
    play = await lost_without_proof()
    blocked = play.cluster.group["status"]["eachShard"][0]["decision"]["blockedBy"]
    assert play.cluster.shards[0].masters() == []
    assert "were acknowledged" not in caplog.text
    assert 'gantry.dev/restore: "0" begins with the furthest that is here' in blocked[0]

    play.cluster.shards[0].judge.safe.clear()  # given up by that person
    play.cluster.annotate(restore="0")
    await play.until(lambda: play.cluster.master(0) == 3, "the furthest is the master")
    await play.until(lambda: not annotations_of(play.cluster.group), "the order is taken off")

    await play.until(play.is_well, "all is well")
    assert "were acknowledged" not in caplog.text


async def test_without_that_question_the_loss_goes_unannounced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The twin: an empty volume is taken for one that has nothing to say, and the judge sees the loss."""
    monkeypatch.setattr(beginning, "missing", lambda term, ballots: "")

    await lost_without_proof()

    assert "were acknowledged" in caplog.text
