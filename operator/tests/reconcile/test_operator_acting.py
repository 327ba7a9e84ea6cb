"""Execution of actions: by compare-and-swap, by uid, once, and without waiting for other brokers.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until
from spec_world.observations import NOW_MS, healthy_shard, lease_record_of, spec_with, with_record, with_report

from gantry_operator.api import (
    CLAIMS,
    CONFIG_MAPS,
    GROUPS,
    LEASES,
    PODS,
    STATEFUL_SETS,
    Object,
    ObjectRef,
    annotations_of,
    labels_of,
    uid_of,
)
from gantry_operator.cache import Cache
from gantry_operator.errors import (
    IMMUTABLE_SPEC,
    Cause,
    Conflict,
    InvalidObject,
    SidecarRefused,
    Unavailable,
)
from gantry_operator.execute.applier import Applier
from gantry_operator.execute.leases import LeaseWriter
from gantry_operator.execute.pods import PodExecutor
from gantry_operator.execute.role_labels import RoleLabelChange, plan_label_changes, relabel_shard
from gantry_operator.execute.scheduler import ActionScheduler, patch_requests
from gantry_operator.group_facts import facts_of
from gantry_operator.objects import Facts
from gantry_operator.objects.names import COMPONENT_LABEL, GROUP_LABEL, ROLE_LABEL, SHARD_LABEL
from gantry_operator.observe.group_objects import GroupObjects
from gantry_operator.sidecars import Peer
from gantry_spec import actions as act
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import record_of
from gantry_spec.ledger import ledger_of
from gantry_spec.manifest.annotations import without_disk_replacement, without_request
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Role
from gantry_status import orders

LABELS = {GROUP_LABEL: GROUP, SHARD_LABEL: "0", COMPONENT_LABEL: "broker"}
LEASE = ObjectRef(LEASES, NAMESPACE, "g-0")


def group() -> BrokerGroup:
    head = {"name": GROUP, "namespace": NAMESPACE, "uid": "group-uid"}
    return group_of({"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": head})


class Bench:
    """A fake API whose changes reach the cache at once."""

    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.cache = Cache()
        self.api.watchers.append(self.cache.apply_event)
        self.objects = GroupObjects((NAMESPACE, GROUP), self.cache)
        self.clock = ModelClock()

    def put(self, kind: Any, name: str, **body: Any) -> Object:
        labels = dict(LABELS) | body.pop("labels", {})
        head = {"name": name, "namespace": NAMESPACE, "labels": labels} | body.pop("metadata", {})
        return self.api.put({"apiVersion": kind.api_version, "kind": kind.name, "metadata": head} | body)

    def pod(self, name: str, state: str = "running", **metadata: Any) -> Object:
        status = {"podIP": name, "containerStatuses": [{"name": "broker", "state": {state: {}}}]}
        return self.put(PODS, name, metadata=metadata, spec={"nodeName": "n"}, status=status)

    def stateful_sets(self, slaves: int) -> None:
        template: Object = {"metadata": {"annotations": {}}}
        self.put(STATEFUL_SETS, "g-0-master", spec={"replicas": 1, "template": template})
        self.put(STATEFUL_SETS, "g-0-slave", spec={"replicas": slaves, "template": template})


def test_budget_counts_only_slaves_whose_acks_count() -> None:
    """A slave that is in sync, but not electable yet, does not allow the eviction of the only electable one."""
    bench = Bench()
    bench.stateful_sets(slaves=2)
    shard = with_record(healthy_shard(slaves=2), lease_record_of(1, (2,)))
    ledger = ledger_of(spec_with(slaves=2), shard, NOW_MS)

    facts = facts_of(Facts(image="gantry"), group(), bench.objects, {0: ledger})

    assert ledger.in_sync == (2, 3)
    assert facts.shard(0).slaves_acknowledging == 1


# -- the Lease ---------------------------------------------------------------------------------------------------------


def leases(bench: Bench) -> LeaseWriter:
    return LeaseWriter(bench.api, bench.clock, bench.cache.put)


def present_record(bench: Bench) -> LeaseRecord | None:
    found = bench.api.found(LEASES, NAMESPACE, "g-0")
    return None if found is None else record_of(annotations_of(found))


async def test_first_record_creates_the_lease_and_a_second_first_record_conflicts() -> None:
    """A first record is written only where there is no Lease; a second writer gets `Conflict`."""
    bench = Bench()
    await leases(bench).replace(group(), 0, None, LeaseRecord(epoch=1000))

    with pytest.raises(Conflict):
        await leases(bench).replace(group(), 0, None, LeaseRecord(epoch=2000))

    found, record = bench.api.found(LEASES, NAMESPACE, "g-0"), present_record(bench)
    assert found is not None and record is not None
    assert (record.epoch, record.version) == (1000, "1")
    assert found["metadata"]["ownerReferences"][0]["uid"] == "group-uid"


async def test_record_is_replaced_only_from_the_observed_version() -> None:
    """For another version `Conflict` is raised, and nothing is written."""
    bench = Bench()
    ours = leases(bench)
    await ours.replace(group(), 0, None, LeaseRecord(epoch=1000))
    await ours.replace(group(), 0, "1", LeaseRecord(epoch=2000))

    with pytest.raises(Conflict):
        await ours.replace(group(), 0, "1", LeaseRecord(epoch=3000))

    record = present_record(bench)
    assert record is not None and (record.epoch, record.version) == (2000, "2")


async def swapped_while_renewed(bench: Bench) -> int:
    """Let two writers replace the same version while a sidecar renews in between; return how many succeed."""
    await leases(bench).replace(group(), 0, None, LeaseRecord(epoch=1000))
    renewals = iter(range(3))
    real = bench.api.get

    async def renewed(ref: ObjectRef) -> Object:
        answer = await real(ref)
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


async def test_one_of_two_writers_succeeds_despite_renewals() -> None:
    """A renewal changes the revision, not the version: the swap starts again, and exactly one writer succeeds."""
    assert await swapped_while_renewed(Bench()) == 1


async def test_without_comparison_two_records_are_written() -> None:
    """The twin: an API that compares nothing accepts two records from one version."""
    bench = Bench()
    bench.api.is_precondition_checked = False

    assert await swapped_while_renewed(bench) == 2


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "removed", "added"),
    [
        ({1: "", 2: ""}, [], [RoleLabelChange(1, "master"), RoleLabelChange(2, "slave")]),
        ({1: "master", 2: "slave"}, [], []),
        ({1: "slave", 2: "master"}, [RoleLabelChange(2, "slave")], [RoleLabelChange(1, "master")]),
    ],
    ids=["new", "well", "moved"],
)
def test_role_label_is_removed_before_it_is_added(
    now: dict[int, str], removed: list[RoleLabelChange], added: list[RoleLabelChange]
) -> None:
    """The old master loses its label before the new one gets it."""
    assert plan_label_changes(healthy_shard(), now) == (removed, added)


def test_master_that_reports_no_role_keeps_its_label() -> None:
    """No other member has its role. A member that reports another role, or is in an election, is not labelled."""
    lost = with_report(healthy_shard(), 1, role=Role.UNASSIGNED)
    assert lost.lease is not None and lost.lease.record is not None
    electing = msgspec.structs.replace(
        lost,
        lease=msgspec.structs.replace(lost.lease, record=msgspec.structs.replace(lost.lease.record, epoch=9_000)),
    )

    assert plan_label_changes(lost, {1: "master", 2: "slave"}) == ([], [])
    assert plan_label_changes(lost, {1: "", 2: "slave"}) == ([], [])
    assert plan_label_changes(electing, {1: "master", 2: ""}) == ([], [])


async def test_second_master_gets_no_label_while_the_first_has_one() -> None:
    """If the old label cannot be removed, the new master waits for its own. The twin without the failure gets it."""
    bench = Bench()
    there = {1: bench.pod("g-0-master-0"), 2: bench.pod("g-0-slave-0", labels=LABELS | {ROLE_LABEL: "master"})}
    bench.api.fault_of = lambda verb, ref: Unavailable(str(ref), "down") if ref.name == "g-0-slave-0" else None

    await relabel_shard(bench.api, bench.cache, healthy_shard(), there)
    first = bench.api.found(PODS, NAMESPACE, "g-0-master-0")
    bench.api.fault_of = lambda verb, ref: None
    await relabel_shard(bench.api, bench.cache, healthy_shard(), there)
    second = bench.api.found(PODS, NAMESPACE, "g-0-master-0")

    assert first is not None and ROLE_LABEL not in labels_of(first)
    assert second is not None and labels_of(second)[ROLE_LABEL] == "master"


# -- pods --------------------------------------------------------------------------------------------------------------


def pod_executor(bench: Bench) -> PodExecutor:
    return PodExecutor(bench.objects, bench.api)


async def test_restart_deletes_only_the_pod_with_the_given_uid() -> None:
    """A newer pod of the same name is left alone."""
    bench = Bench()
    bench.stateful_sets(0)
    pod = bench.pod("g-0-master-0")

    with pytest.raises(Conflict):
        await pod_executor(bench).execute(act.Restart(shard=0, member=1, boot_id="of-another"))
    assert bench.api.found(PODS, NAMESPACE, "g-0-master-0") is not None
    await pod_executor(bench).execute(act.Restart(shard=0, member=1, boot_id=uid_of(pod)))

    assert bench.api.found(PODS, NAMESPACE, "g-0-master-0") is None


@pytest.mark.parametrize("problem", ["terminating", "starting", "absent"])
async def test_one_pod_of_a_shard_is_restarted_at_a_time(problem: str) -> None:
    """No pod is deleted while another one stops or starts, even if no report shows it yet; one that is down may be."""
    bench = Bench()
    bench.stateful_sets(1)
    master = bench.pod("g-0-master-0")
    if problem == "terminating":
        bench.pod("g-0-slave-0", deletionTimestamp="2026-01-01T00:00:00Z")
    if problem == "starting":
        bench.pod("g-0-slave-0", "waiting")

    with pytest.raises(Conflict, match="must be running first"):
        await pod_executor(bench).execute(act.Restart(shard=0, member=1, boot_id=uid_of(master)))
    broken = bench.pod("g-0-master-0", "waiting")
    await pod_executor(bench).execute(act.Restart(shard=0, member=1, boot_id=uid_of(broken)))

    assert bench.api.found(PODS, NAMESPACE, "g-0-master-0") is None


async def test_terminating_pod_is_not_deleted_again() -> None:
    """This holds however often the same restart is decided meanwhile."""
    bench = Bench()
    bench.stateful_sets(0)
    pod = bench.pod("g-0-master-0", deletionTimestamp="2026-01-01T00:00:00Z")

    await pod_executor(bench).execute(act.Restart(shard=0, member=1, boot_id=uid_of(pod)))

    assert bench.api.calls == []


async def test_stateful_set_shrinks_only_by_its_last_pod() -> None:
    """A member that is not the last one waits for those with higher numbers; a removed member changes nothing."""
    bench = Bench()
    bench.stateful_sets(3)
    pods = {member: bench.pod(f"g-0-slave-{member - 2}") for member in (2, 3, 4)}
    ours = pod_executor(bench)

    def replicas() -> int:
        found = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
        assert found is not None
        return int(found["spec"]["replicas"])

    await ours.execute(act.Remove(shard=0, member=3, boot_id=uid_of(pods[3])))
    assert replicas() == 3
    with pytest.raises(Conflict):
        await ours.execute(act.Remove(shard=0, member=4, boot_id="of-another"))
    await ours.execute(act.Remove(shard=0, member=4, boot_id=uid_of(pods[4])))
    await ours.execute(act.Remove(shard=0, member=4, boot_id=uid_of(pods[4])))

    assert replicas() == 2


async def test_disk_is_replaced_by_the_uid_of_its_claim() -> None:
    """The claim and the pod of just that volume are deleted; a volume that was already replaced is left alone."""
    bench = Bench()
    claim = bench.put(CLAIMS, "data-g-0-slave-0", spec={})
    bench.pod("g-0-slave-0")

    await pod_executor(bench).execute(act.ReplaceDisk(shard=0, member=2, disk_id="of-another"))
    assert bench.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0") is not None
    await pod_executor(bench).execute(act.ReplaceDisk(shard=0, member=2, disk_id=uid_of(claim)))

    assert bench.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-0") is None
    assert bench.api.found(PODS, NAMESPACE, "g-0-slave-0") is None


# -- promotion requests ------------------------------------------------------------------------------------------------


def test_accepted_loss_is_removed_with_the_last_promotion_request() -> None:
    """Other orders stay; an order that does not exist any more changes nothing."""
    two = {"gantry.dev/promote": "0=2,1=3", "gantry.dev/accept-loss": "any"}

    assert without_request(two, "0=2") == {"gantry.dev/promote": "1=3"}
    assert without_request({"gantry.dev/promote": "1=3"}, "1=3") == {
        "gantry.dev/promote": None,
        "gantry.dev/accept-loss": None,
    }
    assert without_request(two, "0=9") == {}
    assert without_disk_replacement({"gantry.dev/replace-disk": "0/2, 1/1"}, 0, 2) == {"gantry.dev/replace-disk": "1/1"}
    assert without_disk_replacement({"gantry.dev/replace-disk": "0/2"}, 0, 2) == {"gantry.dev/replace-disk": None}


async def test_order_that_was_changed_meanwhile_is_kept() -> None:
    """An order is removed only from the version in which it was read, so a write in between is not overwritten."""
    bench = Bench()
    seen = bench.put(GROUPS, GROUP, metadata={"annotations": {"gantry.dev/promote": "0=2"}})
    bench.put(GROUPS, GROUP, metadata={"annotations": {"gantry.dev/promote": "0=3"}})

    with pytest.raises(Conflict):
        await patch_requests(bench.api, seen, without_request(annotations_of(seen), "0=2"))


# -- applying ----------------------------------------------------------------------------------------------------------


def rendered(replicas: int = 1) -> list[Object]:
    head = {"namespace": NAMESPACE, "labels": dict(LABELS)}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head | {"name": "g-0"}, "data": {"a": str(replicas)}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": head | {"name": "g-0-slave"},
         "spec": {"replicas": replicas}},
    ]  # fmt: skip


async def test_changed_or_missing_object_is_applied_at_once() -> None:
    """Otherwise there are no calls for half an hour; then all are applied again, which reverts changes by others."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    for _ in range(5):
        await applier.apply(rendered())
    assert len(bench.api.calls) == 2
    await applier.apply([rendered()[0], rendered(2)[1]])
    assert [ref.kind for _, ref in bench.api.calls[2:]] == [STATEFUL_SETS]
    bench.api.remove(ObjectRef(STATEFUL_SETS, NAMESPACE, "g-0-slave"))
    await applier.apply([rendered()[0], rendered(2)[1]])

    assert bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave") is not None
    bench.clock.ms += 31 * 60_000
    bench.api.put(rendered()[0] | {"data": {"a": "of another writer"}})
    await applier.apply([rendered()[0], rendered(2)[1]])
    found = bench.api.found(CONFIG_MAPS, NAMESPACE, "g-0")
    assert found is not None and found["data"] == {"a": "1"}, "a change by another writer was not reverted"


async def test_stateful_set_with_changed_immutable_fields_is_recreated_around_its_pods() -> None:
    """After a rejection it is deleted without its pods, by its uid, and applied again. The pods keep running."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    await applier.apply(rendered())
    before = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
    pod = bench.pod("g-0-slave-0")
    assert before is not None
    bench.api.fault_of = lambda verb, ref: (
        InvalidObject(str(ref), "fixed", 422, [IMMUTABLE_SPEC])
        if verb == "apply" and bench.api.found(STATEFUL_SETS, NAMESPACE, ref.name) is not None
        else None
    )

    await applier.apply([rendered()[0], rendered(2)[1]])

    after = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
    assert after is not None and uid_of(after) != uid_of(before)
    assert bench.api.found(PODS, NAMESPACE, "g-0-slave-0") == pod
    assert applier.problems == {}


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        (400, []),
        (422, []),
        (422, [Cause("FieldValueInvalid", "spec.template.spec.tolerations[0].operator")]),
        (422, [Cause("FieldValueInvalid", "spec.template.spec.tolerations[0].operator"), IMMUTABLE_SPEC]),
        (422, [Cause("FieldValueForbidden", "spec.template.spec.restartPolicy")]),
    ],
    ids=["bad request", "no causes", "invalid", "invalid and immutable", "forbidden"],
)
async def test_stateful_set_that_is_invalid_is_not_deleted(status: int, causes: list[Cause]) -> None:
    """Another one would be rejected, too: the present one stays, and the reason is reported."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    await applier.apply(rendered())
    before = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave")
    is_invalid = "it is invalid"
    bench.api.fault_of = lambda verb, ref: (
        InvalidObject(str(ref), is_invalid, status, causes) if verb == "apply" else None
    )

    await applier.apply([rendered()[0], rendered(2)[1]])

    assert bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave") == before
    assert is_invalid in "".join(applier.problems.values())


async def test_rejected_object_is_reported_and_retried_later() -> None:
    """The other objects are applied all the same, and a rejected one is not retried at once."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    asked: list[str] = []

    def refuse(verb: str, ref: ObjectRef) -> InvalidObject | None:
        asked.append(ref.name)
        return InvalidObject(str(ref), "no such field", 422) if ref.kind == CONFIG_MAPS else None

    bench.api.fault_of = refuse
    for _ in range(5):
        await applier.apply(rendered())

    assert "no such field" in "".join(applier.problems.values())
    assert asked.count("g-0") == 1
    assert bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-slave") is not None
    bench.clock.ms += 6_000
    bench.api.fault_of = lambda verb, ref: None
    await applier.apply(rendered())
    assert applier.problems == {}


async def test_claims_grow_and_never_shrink() -> None:
    """Each claim of a broker gets the size of the spec; other claims, and larger ones, are left alone."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    for name, size, labels in (
        ("small", "1Gi", {}), ("large", "9Gi", {}), ("foreign", "1Gi", {COMPONENT_LABEL: "nameserver"}),
    ):  # fmt: skip
        bench.put(CLAIMS, name, labels=labels, spec={"resources": {"requests": {"storage": size}}})

    await applier.grow_claims(2 << 30)
    await applier.grow_claims(2 << 30)

    sizes = {
        one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"] for one in bench.api.of_kind(CLAIMS)
    }
    assert sizes == {"small": str(2 << 30), "large": "9Gi", "foreign": "1Gi"}
    assert len(bench.api.calls) == 1


@pytest.mark.parametrize("size", ["1P", "1Pi", "2e9", "1E", "3000000000000m", "nonsense"])
async def test_claims_of_any_quantity_do_not_stop_a_round(size: str) -> None:
    """A user's claim may have any quantity of Kubernetes; one that is not understood is left alone."""
    bench = Bench()
    applier = Applier((NAMESPACE, GROUP), bench.cache, bench.api, bench.clock)
    bench.put(CLAIMS, "of-a-user", labels={}, spec={"resources": {"requests": {"storage": size}}})
    bench.put(CLAIMS, "small", labels={}, spec={"resources": {"requests": {"storage": "1e9"}}})

    await applier.grow_claims(2_000_000_000)

    sizes = {
        one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"] for one in bench.api.of_kind(CLAIMS)
    }
    assert sizes == {"of-a-user": size, "small": "2000000000"}


# -- scheduler ---------------------------------------------------------------------------------------------------------


class SlowSidecars:
    """Sidecars that take their time, independently of one another."""

    def __init__(self) -> None:
        self.given_orders: list[int] = []
        """The members that got an order, in this sequence."""

        self.free: dict[int, asyncio.Event] = {}
        """Set by the test to let a member's sidecar answer."""

        self.refuses = ""
        """The reason with which every order is refused; empty if none is."""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        raise AssertionError("unexpected observation")

    topics = status

    async def order(self, peer: Peer, order: orders.AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        member = 1 if isinstance(order, orders.Drain) else 2
        self.given_orders.append(member)
        if self.refuses:
            raise SidecarRefused(self.refuses)
        if member in self.free:
            await self.free[member].wait()
        return {}


async def test_hanging_broker_delays_no_other_and_gets_no_second_order() -> None:
    """Each broker has one action at a time; actions that are decided meanwhile are dropped, and nothing raises."""
    bench, sidecars, refusals = Bench(), SlowSidecars(), []
    bench.pod("g-0-master-0")
    bench.pod("g-0-slave-0")
    sidecars.free[1] = asyncio.Event()
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        on_executed=lambda action, refusal: refusals.append((action, refusal)), wake=lambda: None,
        empty_log_end=lambda shard: None,
    )  # fmt: skip
    one = act.Drain(shard=0, member=1, timeout_ms=10_000)
    other = act.Follow(shard=0, member=2, epoch=1000, master="m:1")

    for number in range(3):
        scheduler.start([one, other, act.Wait(shard=0, why="nothing")], group(), "token")
        await until(lambda number=number: refusals.count((other, "")) == number + 1)  # type: ignore[misc]
        await asyncio.sleep(0)  # the task ends one iteration after its report
        assert scheduler.is_busy
    assert sidecars.given_orders.count(1) == 1
    assert sidecars.given_orders.count(2) == 3
    sidecars.refuses = "a newer epoch was promised"
    scheduler.start([other], group(), "token")
    sidecars.free[1].set()
    await scheduler.settle()

    assert (one, "") in refusals
    assert any("a newer epoch" in refusal for _, refusal in refusals)
    scheduler.start([act.Follow(shard=0, member=7, epoch=1000, master="m:1")], group(), "token")
    await scheduler.settle()
    assert "no address" in refusals[-1][1]


async def test_repeated_order_does_not_trigger_a_round_at_once() -> None:
    """A pod takes a while to terminate: the repeated decision must not start the next round at once."""
    bench, sidecars, hurried = Bench(), SlowSidecars(), []
    bench.pod("g-0-slave-0")
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        on_executed=lambda action, refusal: None, wake=lambda: hurried.append(True), empty_log_end=lambda shard: None,
    )  # fmt: skip
    for epoch in (1000, 1000, 1000, 1001):
        scheduler.start([act.Follow(shard=0, member=2, epoch=epoch, master="m:1")], group(), "token")
        await scheduler.settle()
        await asyncio.sleep(0)

    assert sidecars.given_orders == [2, 2, 2, 2]
    assert len(hurried) == 2


async def test_pending_actions_are_cancelled_with_the_group() -> None:
    """No task is left when the loop of the group is closed."""
    bench, sidecars = Bench(), SlowSidecars()
    bench.pod("g-0-master-0")
    sidecars.free[1] = asyncio.Event()
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        on_executed=lambda *_: None, wake=lambda: None, empty_log_end=lambda shard: None,
    )  # fmt: skip
    scheduler.start([act.Drain(shard=0, member=1, timeout_ms=10_000)], group(), "token")
    await until(lambda: bool(sidecars.given_orders))

    await scheduler.close()
    await asyncio.sleep(0)

    assert not scheduler.is_busy


class MasterOfRemovedShard(SlowSidecars):
    """The master of a shard that is scaled away; messages may arrive before it is drained."""

    def __init__(self, wrote: int) -> None:
        super().__init__()
        self.wrote = wrote
        self.comes = 0
        self.is_draining = False

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        return {"role": "MASTER", "wrote": self.wrote, "is_draining": self.is_draining}

    async def order(self, peer: Peer, order: orders.AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        assert isinstance(order, orders.Drain), f"expected a drain, got {order}"
        self.wrote += self.comes
        self.is_draining = True
        return {}


@pytest.mark.parametrize("comes", [0, 1_000], ids=["nothing came", "a message came at the last"])
async def test_shard_is_removed_only_if_no_message_arrived_meanwhile(comes: int) -> None:
    """Its master is drained first, and its log must end where it ended when it was found empty."""
    bench, sidecars = Bench(), MasterOfRemovedShard(7_000)
    bench.stateful_sets(0)
    pod = bench.pod("g-0-master-0")
    sidecars.comes = comes
    refusals: list[str] = []
    scheduler = ActionScheduler(
        bench.objects, bench.api, sidecars, leases(bench),
        on_executed=lambda action, refusal: refusals.append(refusal), wake=lambda: None,
        empty_log_end=lambda shard: 7_000,
    )  # fmt: skip

    scheduler.start([act.Remove(shard=0, member=1, boot_id=uid_of(pod), is_empty=True)], group(), "token")
    await scheduler.settle()

    found = bench.api.found(STATEFUL_SETS, NAMESPACE, "g-0-master")
    assert found is not None and found["spec"]["replicas"] == (1 if comes else 0)
    assert ("has new messages" in refusals[0]) is bool(comes)
