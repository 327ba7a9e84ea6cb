"""What is done: by compare-and-swap, by uid, once, and without anybody waiting for anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until
from spec_world.looks import healthy, with_report

from gantry_operator.api import (
    CLAIMS,
    CONFIG_MAPS,
    GROUPS,
    LEASES,
    PODS,
    STATEFUL_SETS,
    Object,
    Place,
    annotations_of,
    labels_of,
    uid_of,
)
from gantry_operator.cache import Cache
from gantry_operator.errors import Conflict, Refused, SidecarRefused, Unavailable
from gantry_operator.execute.applier import Applier
from gantry_operator.execute.leases import Leases
from gantry_operator.execute.pods import Pods
from gantry_operator.execute.role_labels import Relabel, relabel, relabels
from gantry_operator.execute.scheduler import ActionScheduler, remove_order
from gantry_operator.objects.names import COMPONENT_LABEL, GROUP_LABEL, ROLE_LABEL, SHARD_LABEL
from gantry_operator.observe.group_objects import GroupObjects
from gantry_operator.sidecars import Peer
from gantry_spec import actions as act
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import record_of
from gantry_spec.manifest.annotations import without_disk_replacement, without_request
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Role
from gantry_status import orders

LABELS = {GROUP_LABEL: GROUP, SHARD_LABEL: "0", COMPONENT_LABEL: "broker"}
LEASE = Place(LEASES, NAMESPACE, "g-0")


def group() -> BrokerGroup:
    head = {"name": GROUP, "namespace": NAMESPACE, "uid": "group-uid"}
    return group_of({"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": head})


class Bench:
    """A fake API whose every change the cache hears of at once."""

    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.cache = Cache()
        self.api.watchers.append(self.cache.take)
        self.objects = GroupObjects((NAMESPACE, GROUP), self.cache)
        self.clock = ModelClock()

    def put(self, kind: Any, name: str, **body: Any) -> Object:
        labels = dict(LABELS) | body.pop("labels", {})
        head = {"name": name, "namespace": NAMESPACE, "labels": labels} | body.pop("metadata", {})
        return self.api.put({"apiVersion": kind.api_version, "kind": kind.name, "metadata": head} | body)

    def pod(self, name: str, state: str = "running", **metadata: Any) -> Object:
        status = {"podIP": name, "containerStatuses": [{"name": "broker", "state": {state: {}}}]}
        return self.put(PODS, name, metadata=metadata, spec={"nodeName": "n"}, status=status)

    def homes(self, slaves: int) -> None:
        template: Object = {"metadata": {"annotations": {}}}
        self.put(STATEFUL_SETS, "g-0-master", spec={"replicas": 1, "template": template})
        self.put(STATEFUL_SETS, "g-0-slave", spec={"replicas": slaves, "template": template})


# -- the Lease ---------------------------------------------------------------------------------------------------------


def leases(bench: Bench) -> Leases:
    return Leases(bench.api, bench.clock, bench.cache.put)


def standing(bench: Bench) -> LeaseRecord | None:
    found = bench.api.found(LEASES, NAMESPACE, "g-0")
    return None if found is None else record_of(annotations_of(found))


async def test_the_first_record_makes_the_lease_and_the_second_first_one_fails() -> None:
    """Expected is that there is none; whoever comes second finds one."""
    bench = Bench()
    await leases(bench).replace(group(), 0, None, LeaseRecord(epoch=1000))

    with pytest.raises(Conflict):
        await leases(bench).replace(group(), 0, None, LeaseRecord(epoch=2000))

    found, record = bench.api.found(LEASES, NAMESPACE, "g-0"), standing(bench)
    assert found is not None and record is not None
    assert (record.epoch, record.version) == (1000, "1")
    assert found["metadata"]["ownerReferences"][0]["uid"] == "group-uid"


async def test_a_record_is_replaced_only_from_the_version_that_was_seen() -> None:
    """Another version: `Conflict`, and nothing is written."""
    bench = Bench()
    ours = leases(bench)
    await ours.replace(group(), 0, None, LeaseRecord(epoch=1000))
    await ours.replace(group(), 0, "1", LeaseRecord(epoch=2000))

    with pytest.raises(Conflict):
        await ours.replace(group(), 0, "1", LeaseRecord(epoch=3000))

    record = standing(bench)
    assert record is not None and (record.epoch, record.version) == (2000, "2")


async def swapped_while_renewed(bench: Bench) -> int:
    """Two who replace the same version while a sidecar renews between their reads and writes: how many succeed."""
    await leases(bench).replace(group(), 0, None, LeaseRecord(epoch=1000))
    renewals = iter(range(3))
    real = bench.api.get

    async def renewed(place: Place) -> Object:
        answer = await real(place)
        await asyncio.sleep(0)
        if next(renewals, None) is not None:
            lease = bench.api.found(LEASES, NAMESPACE, "g-0")
            assert lease is not None
            lease["spec"]["renewTime"] = str(lease["metadata"]["resourceVersion"])
            bench.api.put(lease)
        return answer

    bench.api.get = renewed  # type: ignore[method-assign]
    done = await asyncio.gather(
        *(leases(bench).replace(group(), 0, "1", LeaseRecord(epoch=epoch)) for epoch in (2000, 3000)),
        return_exceptions=True,
    )
    assert all(one is None or isinstance(one, Conflict) for one in done), done
    return done.count(None)


async def test_of_two_who_decide_one_writes_and_renewals_are_no_obstacle() -> None:
    """A renewal changes the revision and not the version: the swap begins anew, and one of both succeeds."""
    assert await swapped_while_renewed(Bench()) == 1


async def test_without_the_comparison_both_write() -> None:
    """The twin: an API that compares nothing lets two records be written from one version."""
    bench = Bench()
    bench.api.is_compared = False

    assert await swapped_while_renewed(bench) == 2


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "taken", "given"),
    [
        ({1: "", 2: ""}, [], [Relabel(1, "master"), Relabel(2, "slave")]),
        ({1: "master", 2: "slave"}, [], []),
        ({1: "slave", 2: "master"}, [Relabel(2, "slave")], [Relabel(1, "master")]),
    ],
    ids=["new", "well", "moved"],
)
def test_a_role_is_taken_away_before_it_is_given(
    now: dict[int, str], taken: list[Relabel], given: list[Relabel]
) -> None:
    """Whoever was found as the master is not any more before another one is."""
    assert relabels(healthy(), now) == (taken, given)


def test_a_master_that_is_merely_silent_keeps_its_label() -> None:
    """Nobody else has its role. One that has lost it, as it says, is not labelled; nor anybody in an election."""
    silent = healthy()
    lost = with_report(silent, 1, role=Role.UNASSIGNED)
    assert lost.lease is not None and lost.lease.record is not None
    electing = msgspec.structs.replace(
        lost,
        lease=msgspec.structs.replace(lost.lease, record=msgspec.structs.replace(lost.lease.record, epoch=9_000)),
    )

    assert relabels(lost, {1: "master", 2: "slave"}) == ([], [])
    assert relabels(lost, {1: "", 2: "slave"}) == ([], [])
    assert relabels(electing, {1: "master", 2: ""}) == ([], [])


async def test_no_second_master_is_labelled_while_the_first_still_is() -> None:
    """Its label could not be taken away: the new one waits for its own. The twin, without the failure, gets it."""
    bench = Bench()
    there = {1: bench.pod("g-0-master-0"), 2: bench.pod("g-0-slave-0", labels=LABELS | {ROLE_LABEL: "master"})}
    bench.api.refuse = lambda verb, place: Unavailable(str(place), "down") if place.name == "g-0-slave-0" else None

    await relabel(bench.api, bench.cache, healthy(), there)
    first = bench.api.found(PODS, NAMESPACE, "g-0-master-0")
    bench.api.refuse = lambda verb, place: None
    await relabel(bench.api, bench.cache, healthy(), there)
    second = bench.api.found(PODS, NAMESPACE, "g-0-master-0")

    assert first is not None and ROLE_LABEL not in labels_of(first)
    assert second is not None and labels_of(second)[ROLE_LABEL] == "master"


# -- pods --------------------------------------------------------------------------------------------------------------


def hands_of_pods(bench: Bench) -> Pods:
    return Pods(bench.objects, bench.api)


async def test_a_restart_is_of_the_pod_that_was_meant() -> None:
    """By its uid: a namesake that came since is left alone."""
    bench = Bench()
    bench.homes(0)
    pod = bench.pod("g-0-master-0")

    with pytest.raises(Conflict):
        await hands_of_pods(bench).do(act.Restart(shard=0, member=1, boot_id="of-another"))
    assert bench.api.found(PODS, NAMESPACE, "g-0-master-0") is not None
    await hands_of_pods(bench).do(act.Restart(shard=0, member=1, boot_id=uid_of(pod)))

    assert bench.api.found(PODS, NAMESPACE, "g-0-master-0") is None


@pytest.mark.parametrize("trouble", ["terminating", "starting", "absent"])
async def test_one_pod_of_a_shard_goes_at_a_time(trouble: str) -> None:
    """While another one is on its way out or in, whatever reports said a moment ago; one that is down itself may go."""
    bench = Bench()
    bench.homes(1)
    master = bench.pod("g-0-master-0")
    if trouble == "terminating":
        bench.pod("g-0-slave-0", deletionTimestamp="2026-01-01T00:00:00Z")
    if trouble == "starting":
        bench.pod("g-0-slave-0", "waiting")

    with pytest.raises(Conflict, match="comes first"):
        await hands_of_pods(bench).do(act.Restart(shard=0, member=1, boot_id=uid_of(master)))
    broken = bench.pod("g-0-master-0", "waiting")
    await hands_of_pods(bench).do(act.Restart(shard=0, member=1, boot_id=uid_of(broken)))

    assert bench.api.found(PODS, NAMESPACE, "g-0-master-0") is None


async def test_a_pod_that_is_going_is_not_told_again() -> None:
    """However often the same restart is decided meanwhile."""
    bench = Bench()
    bench.homes(0)
    pod = bench.pod("g-0-master-0", deletionTimestamp="2026-01-01T00:00:00Z")

    await hands_of_pods(bench).do(act.Restart(shard=0, member=1, boot_id=uid_of(pod)))

    assert bench.api.calls == []


async def test_a_set_shrinks_by_its_last_pod_only() -> None:
    """A member that is not the last one waits for those behind it; one that is gone already changes nothing."""
    bench = Bench()
    bench.homes(3)
    pods = {member: bench.pod(f"g-0-slave-{member - 2}") for member in (2, 3, 4)}
    ours = hands_of_pods(bench)

    def replicas() -> int:
        found = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
        assert found is not None
        return int(found["spec"]["replicas"])

    await ours.do(act.Remove(shard=0, member=3, boot_id=uid_of(pods[3])))
    assert replicas() == 3
    with pytest.raises(Conflict):
        await ours.do(act.Remove(shard=0, member=4, boot_id="of-another"))
    await ours.do(act.Remove(shard=0, member=4, boot_id=uid_of(pods[4])))
    await ours.do(act.Remove(shard=0, member=4, boot_id=uid_of(pods[4])))

    assert replicas() == 2


async def test_a_disk_is_given_up_by_its_own_id() -> None:
    """Claim and pod of just that volume; one that was replaced already is left alone."""
    bench = Bench()
    claim = bench.put(CLAIMS, "data-g-0-slave-0", spec={})
    bench.pod("g-0-slave-0")

    await hands_of_pods(bench).do(act.ReplaceDisk(shard=0, member=2, disk_id="of-another"))
    assert bench.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0") is not None
    await hands_of_pods(bench).do(act.ReplaceDisk(shard=0, member=2, disk_id=uid_of(claim)))

    assert bench.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0") is None
    assert bench.api.found(PODS, NAMESPACE, "g-0-slave-0") is None


# -- wishes ------------------------------------------------------------------------------------------------------------


def test_an_order_goes_and_with_the_last_one_what_it_was_allowed_to_lose() -> None:
    """Others stay; what is not there any more changes nothing."""
    two = {"gantry.dev/promote": "0=2,1=3", "gantry.dev/accept-loss": "any"}

    assert without_request(two, "0=2") == {"gantry.dev/promote": "1=3"}
    assert without_request({"gantry.dev/promote": "1=3"}, "1=3") == {
        "gantry.dev/promote": None,
        "gantry.dev/accept-loss": None,
    }
    assert without_request(two, "0=9") == {}
    assert without_disk_replacement({"gantry.dev/replace-disk": "0/2, 1/1"}, 0, 2) == {"gantry.dev/replace-disk": "1/1"}
    assert without_disk_replacement({"gantry.dev/replace-disk": "0/2"}, 0, 2) == {"gantry.dev/replace-disk": None}


async def test_an_order_that_was_given_anew_meanwhile_is_not_taken_off() -> None:
    """From the version in which it stood: somebody who writes in between is not overwritten."""
    bench = Bench()
    seen = bench.put(GROUPS, GROUP, metadata={"annotations": {"gantry.dev/promote": "0=2"}})
    bench.put(GROUPS, GROUP, metadata={"annotations": {"gantry.dev/promote": "0=3"}})

    with pytest.raises(Conflict):
        await remove_order(bench.api, seen, without_request(annotations_of(seen), "0=2"))


# -- applying ----------------------------------------------------------------------------------------------------------


def rendered(replicas: int = 1) -> list[Object]:
    head = {"namespace": NAMESPACE, "labels": dict(LABELS)}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head | {"name": "g-0"}, "data": {"a": str(replicas)}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": head | {"name": "g-0-slave"},
         "spec": {"replicas": replicas}},
    ]  # fmt: skip


async def test_what_is_applied_is_not_applied_again_until_it_changes_or_is_gone() -> None:
    """At rest no call; a change is applied alone; a StatefulSet that somebody deleted is made again."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    for _ in range(5):
        await applier.apply(rendered())
    assert len(bench.api.calls) == 2
    await applier.apply([rendered()[0], rendered(2)[1]])
    assert [place.kind for _, place in bench.api.calls[2:]] == [STATEFUL_SETS]
    bench.api.remove(Place(STATEFUL_SETS, NAMESPACE, "g-0-slave"))
    await applier.apply([rendered()[0], rendered(2)[1]])

    assert bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave") is not None
    bench.clock.ms += 31 * 60_000
    bench.api.put(rendered()[0] | {"data": {"a": "somebody's"}})
    await applier.apply([rendered()[0], rendered(2)[1]])
    found = bench.api.found(CONFIG_MAPS, NAMESPACE, "g-0")
    assert found is not None and found["data"] == {"a": "1"}, "what somebody has changed is put right after a while"


async def test_a_set_whose_fixed_fields_change_is_made_anew_around_its_pods() -> None:
    """Refused once: deleted without its pods, by its uid, and applied again. The pods never hear of it."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    await applier.apply(rendered())
    before = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
    pod = bench.pod("g-0-slave-0")
    assert before is not None
    bench.api.refuse = lambda verb, place: (
        Refused(str(place), "fixed", 422)
        if verb == "apply" and bench.api.found(STATEFUL_SETS, NAMESPACE, place.name) is not None
        else None
    )

    await applier.apply([rendered()[0], rendered(2)[1]])

    after = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
    assert after is not None and uid_of(after) != uid_of(before)
    assert bench.api.found(PODS, NAMESPACE, "g-0-slave-0") == pod
    assert applier.problems == {}


async def test_what_cannot_be_applied_is_named_and_tried_again_later() -> None:
    """The others are applied all the same, and nobody hammers on what was refused."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    asked: list[str] = []

    def refuse(verb: str, place: Place) -> Refused | None:
        asked.append(place.name)
        return Refused(str(place), "no such field", 422) if place.kind == CONFIG_MAPS else None

    bench.api.refuse = refuse
    for _ in range(5):
        await applier.apply(rendered())

    assert "no such field" in "".join(applier.problems.values())
    assert asked.count("g-0") == 1
    assert bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave") is not None
    bench.clock.ms += 6_000
    bench.api.refuse = lambda verb, place: None
    await applier.apply(rendered())
    assert applier.problems == {}


async def test_claims_grow_and_never_shrink() -> None:
    """Each claim of a broker asks for what the spec says now; others, and larger ones, are left alone."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    for name, size, labels in (
        ("small", "1Gi", {}), ("large", "9Gi", {}), ("foreign", "1Gi", {COMPONENT_LABEL: "nameserver"}),
    ):  # fmt: skip
        bench.put(CLAIMS, name, labels=labels, spec={"resources": {"requests": {"storage": size}}})

    await applier.grow(2 << 30)
    await applier.grow(2 << 30)

    sizes = {
        one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"] for one in bench.api.of_kind(CLAIMS)
    }
    assert sizes == {"small": str(2 << 30), "large": "9Gi", "foreign": "1Gi"}
    assert len(bench.api.calls) == 1


# -- scheduler ---------------------------------------------------------------------------------------------------------


class Orders:
    """Sidecars that take their time, each its own."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.free: dict[int, asyncio.Event] = {}
        self.refuses = ""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        raise AssertionError("nothing is observed here")

    topics = status

    async def order(self, peer: Peer, order: orders.AnyOrder, expected: Expected | None = None) -> None:
        member = 1 if isinstance(order, orders.Drain) else 2
        self.given.append(member)
        if self.refuses:
            raise SidecarRefused(self.refuses)
        if member in self.free:
            await self.free[member].wait()


async def test_a_broker_that_hangs_holds_nobody_up_and_is_not_told_twice() -> None:
    """Each broker has one action at a time; what is decided again meanwhile is dropped, and nothing raises."""
    bench, sidecars, told = Bench(), Orders(), []
    bench.pod("g-0-master-0")
    bench.pod("g-0-slave-0")
    sidecars.free[1] = asyncio.Event()
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        executed=lambda action, refusal: told.append((action, refusal)), wake=lambda: None,
        empty_end=lambda shard: None,
    )  # fmt: skip
    one = act.Drain(shard=0, member=1, timeout_ms=10_000)
    other = act.Follow(shard=0, member=2, epoch=1000, master="m:1")

    for number in range(3):
        scheduler.do([one, other, act.Wait(shard=0, why="nothing")], group(), "token")
        await until(lambda number=number: told.count((other, "")) == number + 1)  # type: ignore[misc]
        await asyncio.sleep(0)  # the task ends in the turn after it has reported
        assert scheduler.is_busy
    assert sidecars.given.count(1) == 1
    assert sidecars.given.count(2) == 3
    sidecars.refuses = "a newer epoch was promised"
    scheduler.do([other], group(), "token")
    sidecars.free[1].set()
    await scheduler.settle()

    assert (one, "") in told
    assert any("a newer epoch" in refusal for _, refusal in told)
    scheduler.do([act.Follow(shard=0, member=7, epoch=1000, master="m:1")], group(), "token")
    await scheduler.settle()
    assert "no address" in told[-1][1]


async def test_the_same_order_again_is_no_reason_to_hurry() -> None:
    """Whoever is told to go takes its time: deciding the same again must not make the group come round at once."""
    bench, sidecars, hurried = Bench(), Orders(), []
    bench.pod("g-0-slave-0")
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        executed=lambda action, refusal: None, wake=lambda: hurried.append(True), empty_end=lambda shard: None,
    )  # fmt: skip
    for epoch in (1000, 1000, 1000, 1001):
        scheduler.do([act.Follow(shard=0, member=2, epoch=epoch, master="m:1")], group(), "token")
        await scheduler.settle()
        await asyncio.sleep(0)

    assert sidecars.given == [2, 2, 2, 2]
    assert len(hurried) == 2


async def test_what_is_under_way_ends_with_the_group() -> None:
    """Nothing is left behind when the group's task is closed."""
    bench, sidecars = Bench(), Orders()
    bench.pod("g-0-master-0")
    sidecars.free[1] = asyncio.Event()
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        executed=lambda *_: None, wake=lambda: None, empty_end=lambda shard: None,
    )  # fmt: skip
    scheduler.do([act.Drain(shard=0, member=1, timeout_ms=10_000)], group(), "token")
    await until(lambda: bool(sidecars.given))

    await scheduler.close()
    await asyncio.sleep(0)

    assert not scheduler.is_busy


class Emptied(Orders):
    """The master of a shard that is scaled away; something may come before it is drained."""

    def __init__(self, wrote: int) -> None:
        super().__init__()
        self.wrote = wrote
        self.comes = 0
        self.is_draining = False

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        return {"role": "MASTER", "wrote": self.wrote, "is_draining": self.is_draining}

    async def order(self, peer: Peer, order: orders.AnyOrder, expected: Expected | None = None) -> None:
        assert isinstance(order, orders.Drain), "nothing else is ordered"
        self.wrote += self.comes
        self.is_draining = True


@pytest.mark.parametrize("comes", [0, 1_000], ids=["nothing came", "a message came at the last"])
async def test_a_shard_goes_only_if_nothing_came_while_it_was_closed(comes: int) -> None:
    """Its master is drained first, and its log must end where it did when nothing was found on it."""
    bench, sidecars = Bench(), Emptied(7_000)
    bench.homes(0)
    pod = bench.pod("g-0-master-0")
    sidecars.comes = comes
    told: list[str] = []
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        executed=lambda action, refusal: told.append(refusal), wake=lambda: None, empty_end=lambda shard: 7_000,
    )  # fmt: skip

    scheduler.do([act.Remove(shard=0, member=1, boot_id=uid_of(pod), holds_nothing=True)], group(), "token")
    await scheduler.settle()

    found = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-master")
    assert found is not None and found["spec"]["replicas"] == (1 if comes else 0)
    assert ("a message has come" in told[0]) is bool(comes)
