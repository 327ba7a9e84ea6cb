"""Observation and its conclusions: pods, machines, volumes, Leases, last reports, and the identity of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelClock
from operator_world.fake_kubernetes import FakeKubernetes

from gantry_operator.api import CLAIMS, LEASES, PODS, Object, ObjectRef
from gantry_operator.cache import Cache
from gantry_operator.errors import SidecarUnavailable
from gantry_operator.objects.names import GROUP_LABEL, SHARD_LABEL, TEMPLATE_ANNOTATION, master_set, shard_name
from gantry_operator.observe import pods
from gantry_operator.observe.group_observer import GroupObserver, has_no_messages
from gantry_operator.observe.last_report import (
    LAST_REPORT,
    SKEW_MS,
    format_last_report,
    is_annotation_outdated,
    parse_last_report,
)
from gantry_operator.observe.machines import Machine, disk_of, hosts_of, machine_of, node_of_host
from gantry_operator.observe.memory import MemberMemory, ShardMemory
from gantry_operator.sidecars import Peer
from gantry_spec.cluster_objects import acks_needed
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord, Term
from gantry_spec.lease_annotations import lease_annotations
from gantry_spec.manifest.annotations import GroupRequests
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import CHECK_TOPIC, Disk, LastReport, Process, Report
from gantry_status.orders import AnyOrder, HaRole
from gantry_wire.names import HALF_TOPIC, SCHEDULE_TOPIC

HERE = Machine()
SILENT = Machine(is_reachable=False)
OFF = Machine(is_reachable=False, is_leaving=True, is_off=True)


def pod_with(state: str = "", *, node: str = "node-0", uid: str = "u1", restarts: int = 0, **status: Any) -> Object:
    """Return the pod of a broker whose container is in a state: `running`, `terminated`, `waiting` or none."""
    container = {"name": "broker", "restartCount": restarts, "state": {state: {}} if state else {}}
    if state:
        container["containerID"] = "containerd://c"
    labels = {GROUP_LABEL: GROUP, SHARD_LABEL: "0"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "g-0-master-0", "namespace": NAMESPACE, "uid": uid, "labels": labels,
                     "resourceVersion": "7"},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Running", "containerStatuses": [container]} | status,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "machine", "process"),
    [
        (pod_with("running"), HERE, Process.RUNNING),
        (pod_with("running"), SILENT, Process.UNKNOWN),
        (pod_with("running"), OFF, Process.STOPPED),
        (pod_with("terminated"), HERE, Process.STOPPED),
        (pod_with("terminated"), SILENT, Process.UNKNOWN),
        (pod_with("waiting"), HERE, Process.STOPPED),
        (pod_with(node=""), HERE, Process.STOPPED),
        (pod_with("running", phase="Failed"), HERE, Process.UNKNOWN),
        (pod_with("terminated", phase="Failed"), HERE, Process.STOPPED),
    ],
    ids=["runs", "cut off", "machine off", "ended", "ended and cut off", "waits", "nowhere yet", "given up", "failed"],
)
def test_process_counts_as_stopped_only_with_proof(pod: Object, machine: Machine, process: Process) -> None:
    """The proof comes from kubelet for a container, or from a user or the cloud provider for a machine."""
    assert pods.process_state_of(pod, machine).process is process


def node_with(ready: str | None = "True", **spec: Any) -> Object:
    """Return a machine whose condition Ready has this status; None for no condition."""
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("node", "machine"),
    [
        (None, SILENT), (node_with(), HERE), (node_with("Unknown"), SILENT), (node_with(None), SILENT),
        (node_with("False"), HERE), (node_with(unschedulable=True), Machine(is_leaving=True)),
        (node_with(taints=[{"key": "karpenter.sh/disrupted"}]), Machine(is_leaving=True)),
        (node_with(taints=[{"key": "mine"}]), HERE),
        (node_with("Unknown", taints=[{"key": "node.kubernetes.io/out-of-service"}]), OFF),
        (node_with(taints=[{"key": "node.kubernetes.io/unreachable"}]), SILENT),
    ],
    ids=["gone", "well", "silent", "new", "ill", "cordoned", "karpenter", "other taint", "off", "unreachable"],
)  # fmt: skip
def test_state_of_a_machine_follows_from_its_node(node: Object | None, machine: Machine) -> None:
    """It is reachable while kubelet reports, leaving when it is to be drained, and off by its out-of-service taint."""
    assert machine_of(node) == machine


def test_disk_is_lost_only_with_its_machine_or_volume() -> None:
    """A pending claim or an unreachable machine proves nothing; only a local volume is lost with its machine."""
    bound: Object = {"metadata": {}, "status": {"phase": "Bound"}}
    assert disk_of(bound, None) is Disk.PRESENT
    assert disk_of(bound, HERE) is Disk.PRESENT
    assert disk_of(bound, SILENT) is Disk.UNKNOWN
    assert disk_of(bound, OFF) is Disk.LOST
    assert disk_of({"metadata": {}, "status": {"phase": "Lost"}}, None) is Disk.LOST
    assert disk_of({"metadata": {}, "status": {"phase": "Pending"}}, None) is Disk.UNKNOWN
    assert disk_of(None, None) is Disk.UNKNOWN


def test_machine_of_a_volume_comes_from_its_affinity() -> None:
    """Only the host name counts; a volume that is available in a zone has no machine."""

    def volume(key: str) -> Object:
        terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": ["node-1"]}]}]
        return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}

    assert hosts_of(volume("kubernetes.io/hostname")) == ["node-1"]
    assert hosts_of(volume("topology.kubernetes.io/zone")) == []
    assert hosts_of({"spec": {}}) == []


def test_node_of_a_volume_is_found_by_its_host_name() -> None:
    """The host name of a machine need not be the name of its Node: its disk would seem lost with a deleted Node."""
    labelled = {"metadata": {"name": "worker-1.example", "labels": {"kubernetes.io/hostname": "worker-1"}}}
    plain = {"metadata": {"name": "worker-2"}}

    assert node_of_host([plain, labelled], "worker-1") is labelled
    assert node_of_host([plain, labelled], "worker-2") is plain
    assert node_of_host([plain, labelled], "worker-1.example") is None


def test_needed_acks_come_from_the_configuration_of_the_pod() -> None:
    """An edit of the spec does not change them."""
    pod = pod_with("running")
    pod["spec"]["containers"] = [
        {"name": "broker", "env": [{"name": "GANTRY_BROKER_CONF", "value": "a=1\ninSyncReplicas=3\n"}]}
    ]

    assert acks_needed(pod) == 2
    assert acks_needed(pod_with("running")) is None


# -- memory ------------------------------------------------------------------------------------------------------------


def test_renewal_does_not_change_when_a_record_was_first_seen() -> None:
    """The time is that of the first observation of the record; a recreated Lease is a new one."""
    memory, record = ShardMemory(), LeaseRecord(version="1", epoch=1000)

    assert memory.observe_lease("uid", record, 100).seen_ms == 100
    assert memory.observe_lease("uid", record, 200).seen_ms == 100
    assert memory.observe_lease("uid", LeaseRecord(version="2", epoch=1000), 300).seen_ms == 300
    assert memory.observe_lease("other", LeaseRecord(version="2", epoch=1000), 400).seen_ms == 400


def test_stop_time_is_that_of_the_last_run() -> None:
    """A container that ran and ended again between two observations has a later stop time."""
    memory = MemberMemory()
    memory.take_process(pods.ProcessState(Process.STOPPED, "u/0/a"), "u", 100)
    memory.take_process(pods.ProcessState(Process.STOPPED, "u/0/a"), "u", 200)
    assert memory.stopped_by_ms == 100
    memory.take_process(pods.ProcessState(Process.STOPPED, "u/1/b"), "u", 300)
    assert memory.stopped_by_ms == 300
    memory.take_process(pods.ProcessState(Process.RUNNING, "u/2/c"), "u", 400)
    assert memory == MemberMemory(boot_id="u", run="u/2/c", started_by_ms=400)
    memory.take_process(pods.ProcessState(Process.UNKNOWN, "u/2/c"), "u", 500)
    assert memory == MemberMemory(boot_id="u", run="u/2/c", started_by_ms=400)
    memory.take_process(pods.ProcessState(Process.RUNNING, "v/0/d"), "v", 600)
    assert memory.started_by_ms == 600


def test_broker_that_answers_does_not_count_as_stopped() -> None:
    """An outdated state of kubelet must not prove the end of a broker that has restarted meanwhile."""
    memory = MemberMemory()
    memory.take_process(pods.ProcessState(Process.STOPPED, "u/0/a"), "u", 100)
    assert memory.correct_process(Process.STOPPED) is Process.STOPPED

    for boot_id, asked_ms, corrected in (("u", 99, "Stopped"), ("v", 200, "Stopped"), ("u", 200, "Unknown")):
        memory.report = Report(role=HaRole.UNASSIGNED, asked_ms=asked_ms, answered_ms=asked_ms, boot_id=boot_id)
        assert memory.correct_process(Process.STOPPED) == corrected

    memory.take_process(pods.ProcessState(Process.STOPPED, "u/1/b"), "u", 300)
    assert memory.correct_process(Process.STOPPED) is Process.STOPPED, "expected the end of the next run to count"
    assert memory.correct_process(Process.RUNNING) is Process.RUNNING


def test_last_report_is_read_back_older_never_younger() -> None:
    """A report kept over a restart of the operator gets a margin for two clocks, and is never in the future."""
    clock = ModelClock()
    report = LastReport(epoch=3000, asked_ms=clock.now_ms() - 2_000, boot_id="b", wrote=7, peak_bytes_per_s=9)
    annotations = {LAST_REPORT: format_last_report(report, clock)}

    back = parse_last_report(annotations, clock)
    assert back is not None
    assert (back.epoch, back.wrote, back.peak_bytes_per_s, back.boot_id) == (3000, 7, 9, "b")
    assert back.asked_ms == report.asked_ms - SKEW_MS

    class SetBack:
        def now_ms(self) -> int:
            return clock.now_ms()

        def wall(self) -> datetime:
            return clock.wall() - timedelta(hours=1)

    later = parse_last_report(annotations, SetBack())
    assert later is not None and later.asked_ms == clock.now_ms() - SKEW_MS
    assert parse_last_report({LAST_REPORT: "nonsense"}, clock) is None
    assert not is_annotation_outdated(report, annotations)
    changes: list[dict[str, Any]] = [
        {"epoch": 4000},
        {"wrote": 8},
        {"peak_bytes_per_s": 8},
        {"boot_id": "c"},
        {"epoch_start": 5},
    ]
    for change in changes:
        assert is_annotation_outdated(msgspec.structs.replace(report, **change), annotations), change
    assert not is_annotation_outdated(msgspec.structs.replace(report, asked_ms=0), annotations)


def test_last_report_of_an_earlier_version_is_read_and_replaced() -> None:
    """The annotation's former name is read while the new one is missing, and the next write uses the new name."""
    clock = ModelClock()
    former = LastReport(epoch=3000, asked_ms=clock.now_ms(), wrote=7, peak_bytes_per_s=9)
    newer = LastReport(epoch=4000, asked_ms=clock.now_ms(), wrote=8, peak_bytes_per_s=9)
    annotations = {"gantry.dev/last-word": format_last_report(former, clock)}

    back = parse_last_report(annotations, clock)
    assert back is not None and (back.epoch, back.wrote) == (3000, 7)
    assert is_annotation_outdated(former, annotations), "expected a write under the new name"

    both = annotations | {LAST_REPORT: format_last_report(newer, clock)}
    back = parse_last_report(both, clock)
    assert back is not None and (back.epoch, back.wrote) == (4000, 8)


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_cache_keeps_the_newer_version() -> None:
    """A late watch event does not undo the result of a change."""
    cache, ref = Cache(), ObjectRef(PODS, NAMESPACE, "g-0-master-0")
    new, old = pod_with("running"), pod_with("waiting")
    new["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"] = "10", "9"

    cache.put(new)
    cache.apply_event("MODIFIED", old)

    found = cache.get(ref)
    assert found is not None and found["metadata"]["resourceVersion"] == "10"


def test_list_removes_objects_that_were_deleted_without_a_watch() -> None:
    """Objects that were created or changed after the request of the list stay."""
    cache = Cache()
    stays, changes, goes = (pod_with(uid=name) | {} for name in ("a", "b", "c"))
    for name, pod in (("a", stays), ("b", changes), ("c", goes)):
        pod["metadata"] = pod["metadata"] | {"name": name, "resourceVersion": "5"}
        cache.put(pod)
    before = cache.revisions(PODS)
    cache.put(changes | {"metadata": changes["metadata"] | {"resourceVersion": "8"}})

    cache.replace([stays], before)

    names = {one["metadata"]["name"] for one in cache.of_group(PODS, (NAMESPACE, GROUP))}
    assert names == {"a", "b"}
    assert cache.deleted_pod(ObjectRef(PODS, NAMESPACE, "c")) is not None


def test_late_deletion_event_does_not_remove_the_successor() -> None:
    """Uids are compared. A late event of a deleted pod does not bring it back."""
    cache, ref = Cache(), ObjectRef(PODS, NAMESPACE, "g-0-master-0")
    old, new = pod_with("running", uid="old"), pod_with(uid="new")
    new["metadata"]["resourceVersion"] = "9"
    cache.put(old)
    cache.put(new)

    cache.apply_event("DELETED", old)
    assert cache.get(ref) is not None
    cache.apply_event("DELETED", new)
    cache.apply_event("MODIFIED", new)

    assert cache.get(ref) is None


# -- an observation ----------------------------------------------------------------------------------------------------


class FakeSidecars:
    """Sidecars that report what a test sets, or do not answer for a while."""

    def __init__(self, **answers: Mapping[str, Any] | None) -> None:
        self.answers = answers
        self._hanging = 0
        self.hung_together = 0
        """The largest number of requests that hung at the same time."""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        answer = self.answers[peer.host.replace(".", "_")]
        if answer is None:
            self._hanging += 1
            self.hung_together = max(self.hung_together, self._hanging)
            await asyncio.sleep(0.3)
            self._hanging -= 1
            raise SidecarUnavailable("it hangs")
        return answer

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        raise SidecarUnavailable("no request is expected")

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        raise AssertionError("unexpected order during an observation")


def observer_with(fake_sidecars: FakeSidecars, *pods_there: Object) -> GroupObserver:
    cache = Cache()
    for pod in pods_there:
        cache.put(pod)
    return GroupObserver((NAMESPACE, GROUP), cache, FakeKubernetes(), fake_sidecars, ModelClock())


def status_of_member(number: int, **more: Any) -> dict[str, Any]:
    return {"role": "SLAVE", "broker_id": number, "broker_name": "g-0", "wrote": 5, "epoch": 1000} | more


GROUP_DOCUMENT = {
    "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup",
    "metadata": {"name": GROUP, "namespace": NAMESPACE, "uid": "g"}, "spec": {"shards": 1, "slaves": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "is_believed"),
    [
        (status_of_member(1), True),
        (status_of_member(2), False),
        (status_of_member(1, broker_name="g-1"), False),
        (status_of_member(1, role="KING"), False),
    ],
    ids=["itself", "another member", "another shard", "nonsense"],
)
async def test_report_counts_only_for_the_broker_that_it_names(answers: dict[str, Any], is_believed: bool) -> None:
    """The address may have been given to another pod since it was observed."""
    observer = observer_with(FakeSidecars(h1=answers), pod_with("running", podIP="h1"))

    observed = await observer.observe(group_of(GROUP_DOCUMENT), GroupRequests(), "token")

    member = observed.shards[0].members[0]
    assert (member.report is not None) is is_believed
    assert member.report is None or (member.report.boot_id, member.report.wrote) == ("u1", 5)


@pytest.mark.parametrize(
    ("is_there", "is_current"), [(False, True), (True, False)], ids=["recreated", "of another template"]
)
async def test_pod_is_outdated_only_by_its_stateful_set(is_there: bool, is_current: bool) -> None:
    """While StatefulSets are recreated, the present template is unknown, and no pod is restarted."""
    pod = pod_with("running", podIP="h1")
    pod["metadata"] = pod["metadata"] | {"annotations": {TEMPLATE_ANNOTATION: "what it runs with"}}
    observer = observer_with(FakeSidecars(h1=status_of_member(1)), pod)
    if is_there:
        made: Object = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicas": 1}}
        made["metadata"] = {"name": master_set(GROUP, 0), "namespace": NAMESPACE, "uid": "s", "resourceVersion": "2"}
        made["metadata"] |= {"labels": {GROUP_LABEL: GROUP, SHARD_LABEL: "0"}}
        made["spec"]["template"] = {"metadata": {"annotations": {TEMPLATE_ANNOTATION: "what is wanted"}}}
        observer._cache.put(made)

    observed = await observer.observe(group_of(GROUP_DOCUMENT), GroupRequests(), "token")

    assert (observed.shards[0].members[0].template == observed.template) is is_current


async def test_all_sidecars_are_requested_at_the_same_time() -> None:
    """Those that hang cost one deadline together, and keep their last reports."""
    documents = [pod_with("running", podIP=f"h{number}") for number in range(1, 6)]
    for number, pod in enumerate(documents, start=1):
        name = "g-0-master-0" if number == 1 else f"g-0-slave-{number - 2}"
        pod["metadata"] = pod["metadata"] | {"name": name, "uid": f"u{number}"}
    fake_sidecars = FakeSidecars(**{f"h{number}": status_of_member(number) for number in range(1, 6)})
    observer = observer_with(fake_sidecars, *documents)
    group = group_of(GROUP_DOCUMENT | {"spec": {"slaves": 4}})
    first = await observer.observe(group, GroupRequests(), "token")
    fake_sidecars.answers |= {f"h{number}": None for number in range(2, 6)}
    fake_sidecars.answers["h1"] = status_of_member(1, wrote=9)

    second = await observer.observe(group, GroupRequests(), "token")

    assert fake_sidecars.hung_together == 4
    assert [one.report.wrote for one in second.shards[0].members if one.report is not None] == [9, 5, 5, 5, 5]
    assert len(first.shards[0].members) == 5


async def test_stopped_master_is_checked_once_at_the_api_server() -> None:
    """The cache may be old: before an election rests on it, the pod is read, after the Lease was observed."""
    record = LeaseRecord(epoch=1000, terms=(Term(epoch=1000, master=1, identity="s"),))
    head: Object = {"name": shard_name(GROUP, 0), "namespace": NAMESPACE, "uid": "l", "resourceVersion": "3"}
    head |= {"annotations": lease_annotations(record), "labels": {GROUP_LABEL: GROUP, SHARD_LABEL: "0"}}
    observer = observer_with(FakeSidecars(), pod_with("terminated"))
    observer.objects.cache.put({"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": head})
    node = node_with()
    node["metadata"] = {"name": "node-0", "namespace": "", "resourceVersion": "1"}
    observer.objects.cache.put({"apiVersion": "v1", "kind": "Node"} | node)
    api = observer._api
    assert isinstance(api, FakeKubernetes)
    group = group_of(GROUP_DOCUMENT)
    api.put(pod_with("terminated") | {"status": pod_with("running")["status"]})

    seen = await observer.observe(group, GroupRequests(), "token")
    again = await observer.observe(group, GroupRequests(), "token")

    assert seen.shards[0].members[0].process is Process.RUNNING, (
        "expected the state from the API server, not from the old cache"
    )
    assert [verb for verb, _ in api.calls] == ["get"]
    assert again.shards[0].members[0].process is Process.RUNNING


def test_shard_is_empty_only_by_a_complete_report_of_its_broker() -> None:
    """All queues are empty; a table from the disk, or an incomplete one, proves nothing."""
    empty = {"name": "t", "kind": "user", "messages": 0}
    check = {"name": CHECK_TOPIC, "kind": "user", "messages": 4}
    answers = {"source": "broker", "left_out": 0, "topics": [empty, check], "system_messages": {SCHEDULE_TOPIC: 0}}

    assert has_no_messages(answers) is True
    assert has_no_messages(answers | {"system_messages": {SCHEDULE_TOPIC: 1}}) is False, "a delayed message"
    assert has_no_messages(answers | {"system_messages": {HALF_TOPIC: 1}}) is False, "an open transaction"
    assert has_no_messages(answers | {"system_messages": None}) is None, "an older sidecar"
    assert has_no_messages(answers | {"topics": [empty | {"messages": 1}]}) is False
    assert has_no_messages(answers | {"topics": [empty | {"kind": "retry", "messages": 1}]}) is False
    assert has_no_messages(answers | {"source": "disk"}) is None
    assert has_no_messages(answers | {"left_out": 3}) is None
    assert has_no_messages({}) is None


def test_claim_of_a_member_is_found_by_its_name() -> None:
    """The name of a claim follows from that of its pod, as a StatefulSet creates it."""
    observer = observer_with(FakeSidecars())
    claim = {"name": "data-g-0-slave-0", "namespace": NAMESPACE, "labels": {GROUP_LABEL: GROUP}, "uid": "c"}
    observer.objects.cache.put({"apiVersion": "v1", "kind": CLAIMS.name, "metadata": claim})

    assert observer.objects.claim(0, 2) is not None
    assert observer.objects.stateful_sets(0).master is None
