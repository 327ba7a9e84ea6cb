"""What is seen, and what it may be taken for: pods, machines, volumes, Leases, last words, and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_world.cluster import GROUP, NAMESPACE, ModelClock
from operator_world.fake_kubernetes import FakeKubernetes

from gantry_operator.api import CLAIMS, LEASES, PODS, STATEFUL_SETS, Object, Place
from gantry_operator.cache import Cache
from gantry_operator.errors import SidecarSilent
from gantry_operator.objects.names import GROUP_LABEL, SHARD_LABEL, TEMPLATE_ANNOTATION, master_set, shard_name
from gantry_operator.observe import pods
from gantry_operator.observe.group_observer import GroupObserver, holds_nothing
from gantry_operator.observe.last_word import LAST_WORD, SKEW_MS, is_news, last_word_of, last_word_text
from gantry_operator.observe.machines import Machine, disk_of, machine_of, machines_of
from gantry_operator.observe.memory import MemberMemory, ShardMemory
from gantry_operator.sidecars import Peer
from gantry_spec.cluster_objects import acks_needed
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord, Term
from gantry_spec.lease_annotations import lease_annotations
from gantry_spec.manifest.annotations import Wanted
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import CHECK_TOPIC, Disk, LastWord, Process, Report
from gantry_status.orders import AnyOrder, HaRole
from gantry_wire.names import HALF_TOPIC, SCHEDULE_TOPIC

HERE = Machine()
SILENT = Machine(is_reachable=False)
OFF = Machine(is_reachable=False, is_leaving=True, is_off=True)


def pod_with(state: str = "", *, node: str = "node-0", uid: str = "u1", restarts: int = 0, **status: Any) -> Object:
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
def test_a_process_is_called_stopped_only_where_somebody_knows(pod: Object, machine: Machine, process: Process) -> None:
    """Kubelet of a container, or a person of a machine; what nobody can be asked about is unknown."""
    assert pods.life_of(pod, machine).process is process


@pytest.mark.parametrize(
    ("pod", "machine", "had_ended"),
    [
        (pod_with("running"), HERE, False), (pod_with("terminated"), HERE, True), (pod_with("running"), OFF, True),
        (pod_with(node=""), HERE, True), (pod_with("running"), SILENT, False),
    ],
    ids=["by force", "politely", "machine off", "never placed", "cut off"],
)  # fmt: skip
def test_a_pod_that_is_gone_says_how_it_went(pod: Object, machine: Machine, had_ended: bool) -> None:
    """One that was deleted while its container ran was deleted by force."""
    assert pods.has_ended(pod, machine) is had_ended


def node_with(ready: str | None = "True", **spec: Any) -> Object:
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
def test_a_machine_is_what_its_node_says(node: Object | None, machine: Machine) -> None:
    """Reachable while kubelet reports, leaving when it is to be emptied, off when that was said."""
    assert machine_of(node) == machine


def test_a_disk_is_lost_only_with_its_machine_or_its_volume() -> None:
    """A claim that waits, and a machine that is silent, say nothing; a volume that is anywhere is not lost with one."""
    bound: Object = {"metadata": {}, "status": {"phase": "Bound"}}
    assert disk_of(bound, None) is Disk.PRESENT
    assert disk_of(bound, HERE) is Disk.PRESENT
    assert disk_of(bound, SILENT) is Disk.UNKNOWN
    assert disk_of(bound, OFF) is Disk.LOST
    assert disk_of({"metadata": {}, "status": {"phase": "Lost"}}, None) is Disk.LOST
    assert disk_of({"metadata": {}, "status": {"phase": "Pending"}}, None) is Disk.UNKNOWN
    assert disk_of(None, None) is Disk.UNKNOWN


def test_a_volume_names_the_machine_that_it_is_bound_to() -> None:
    """By the host's name only; one that is spread over a zone names none."""

    def volume(key: str) -> Object:
        terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": ["node-1"]}]}]
        return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}

    assert machines_of(volume("kubernetes.io/hostname")) == ["node-1"]
    assert machines_of(volume("topology.kubernetes.io/zone")) == []
    assert machines_of({"spec": {}}) == []


def test_how_many_acks_a_broker_needs_is_what_its_pod_was_started_with() -> None:
    """From the pod's own configuration, which an edit of the spec does not change."""
    pod = pod_with("running")
    pod["spec"]["containers"] = [
        {"name": "broker", "env": [{"name": "GANTRY_BROKER_CONF", "value": "a=1\ninSyncReplicas=3\n"}]}
    ]

    assert acks_needed(pod) == 2
    assert acks_needed(pod_with("running")) is None


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_lease_is_seen_when_its_record_is_and_a_renewal_is_no_news() -> None:
    """The time is that of the record's first sight; another Lease of the same name is another one."""
    memory, record = ShardMemory(), LeaseRecord(version="1", epoch=1000)

    assert memory.lease("uid", record, 100).seen_ms == 100
    assert memory.lease("uid", record, 200).seen_ms == 100
    assert memory.lease("uid", LeaseRecord(version="2", epoch=1000), 300).seen_ms == 300
    assert memory.lease("other", LeaseRecord(version="2", epoch=1000), 400).seen_ms == 400


def test_an_end_is_counted_from_the_run_that_ended_last() -> None:
    """A container that ran again between two looks, and ended again, has ended later than the first time."""
    memory = MemberMemory()
    memory.take_process(pods.Life(Process.STOPPED, "u/0/a"), "u", 100)
    memory.take_process(pods.Life(Process.STOPPED, "u/0/a"), "u", 200)
    assert memory.stopped_by_ms == 100
    memory.take_process(pods.Life(Process.STOPPED, "u/1/b"), "u", 300)
    assert memory.stopped_by_ms == 300
    memory.take_process(pods.Life(Process.RUNNING, "u/2/c"), "u", 400)
    assert memory == MemberMemory(boot_id="u", run="u/2/c", started_by_ms=400)
    memory.take_process(pods.Life(Process.UNKNOWN, "u/2/c"), "u", 500)
    assert memory == MemberMemory(boot_id="u", run="u/2/c", started_by_ms=400)
    memory.take_process(pods.Life(Process.RUNNING, "v/0/d"), "v", 600)
    assert memory.started_by_ms == 600


def test_a_broker_that_answers_runs_whatever_kubelet_has_said() -> None:
    """A word that is seconds old must not end the keys of a broker that has begun again meanwhile."""
    memory = MemberMemory()
    memory.take_process(pods.Life(Process.STOPPED, "u/0/a"), "u", 100)
    assert memory.believed(Process.STOPPED) is Process.STOPPED

    for boot_id, asked_ms, believed in (("u", 99, "Stopped"), ("v", 200, "Stopped"), ("u", 200, "Unknown")):
        memory.report = Report(role=HaRole.UNASSIGNED, asked_ms=asked_ms, answered_ms=asked_ms, boot_id=boot_id)
        assert memory.believed(Process.STOPPED) == believed

    memory.take_process(pods.Life(Process.STOPPED, "u/1/b"), "u", 300)
    assert memory.believed(Process.STOPPED) is Process.STOPPED, "it has ended once more since"
    assert memory.believed(Process.RUNNING) is Process.RUNNING


def test_a_last_word_comes_back_older_and_never_younger() -> None:
    """Over a restart of the operator its time has a margin for two clocks; a clock that was set back makes it now."""
    clock = ModelClock()
    word = LastWord(epoch=3000, asked_ms=clock.now_ms() - 2_000, boot_id="b", wrote=7, peak_bytes_per_s=9)
    annotations = {LAST_WORD: last_word_text(word, clock)}

    back = last_word_of(annotations, clock)
    assert back is not None
    assert (back.epoch, back.wrote, back.peak_bytes_per_s, back.boot_id) == (3000, 7, 9, "b")
    assert back.asked_ms == word.asked_ms - SKEW_MS

    class SetBack:
        def now_ms(self) -> int:
            return clock.now_ms()

        def wall(self) -> datetime:
            return clock.wall() - timedelta(hours=1)

    later = last_word_of(annotations, SetBack())
    assert later is not None and later.asked_ms == clock.now_ms() - SKEW_MS
    assert last_word_of({LAST_WORD: "nonsense"}, clock) is None
    assert not is_news(word, annotations)
    assert is_news(LastWord(epoch=3000, asked_ms=0, wrote=8, peak_bytes_per_s=9), annotations)


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_the_cache_keeps_the_newer_of_two() -> None:
    """A watch that tells late does not undo what an answer has shown already."""
    cache, place = Cache(), Place(PODS, NAMESPACE, "g-0-master-0")
    new, old = pod_with("running"), pod_with("waiting")
    new["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"] = "10", "9"

    cache.put(new)
    cache.take("MODIFIED", old)

    found = cache.get(place)
    assert found is not None and found["metadata"]["resourceVersion"] == "10"


def test_a_list_takes_away_what_went_while_nobody_watched() -> None:
    """But not what has come or changed since it was asked for."""
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
    assert cache.departed(Place(PODS, NAMESPACE, "c")) is not None


def test_a_deletion_that_comes_late_does_not_take_the_successor() -> None:
    """By uid. And a pod that is told of after its deletion does not rise again."""
    cache, place = Cache(), Place(PODS, NAMESPACE, "g-0-master-0")
    old, new = pod_with("running", uid="old"), pod_with(uid="new")
    new["metadata"]["resourceVersion"] = "9"
    cache.put(old)
    cache.put(new)

    cache.take("DELETED", old)
    assert cache.get(place) is not None
    cache.take("DELETED", new)
    cache.take("MODIFIED", new)

    assert cache.get(place) is None


# -- a look ------------------------------------------------------------------------------------------------------------


class Voices:
    """Sidecars that say what a test wants, or nothing for a while."""

    def __init__(self, **said: Mapping[str, Any] | None) -> None:
        self.said = said
        self._hanging = 0
        self.hung_together = 0
        """How many hung at the same time, at most."""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        answer = self.said[peer.host.replace(".", "_")]
        if answer is None:
            self._hanging += 1
            self.hung_together = max(self.hung_together, self._hanging)
            await asyncio.sleep(0.3)
            self._hanging -= 1
            raise SidecarSilent("it hangs")
        return answer

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        raise SidecarSilent("nobody asks")

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> None:
        raise AssertionError("a look orders nothing")


def observer_with(voices: Voices, *pods_there: Object) -> GroupObserver:
    cache = Cache()
    for pod in pods_there:
        cache.put(pod)
    return GroupObserver((NAMESPACE, GROUP), cache, FakeKubernetes(), voices, ModelClock())


def said_by(number: int, **more: Any) -> dict[str, Any]:
    return {"role": "SLAVE", "broker_id": number, "broker_name": "g-0", "wrote": 5, "epoch": 1000} | more


GROUP_DOCUMENT = {
    "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup",
    "metadata": {"name": GROUP, "namespace": NAMESPACE, "uid": "g"}, "spec": {"shards": 1, "slaves": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "is_believed"),
    [(said_by(1), True), (said_by(2), False), (said_by(1, broker_name="g-1"), False), (said_by(1, role="KING"), False)],
    ids=["itself", "another member", "another shard", "nonsense"],
)
async def test_a_report_counts_for_whom_it_says_it_is(said: dict[str, Any], is_believed: bool) -> None:
    """An address may have been given to another pod since it was seen."""
    observer = observer_with(Voices(h1=said), pod_with("running", podIP="h1"))

    observed = await observer.observe(group_of(GROUP_DOCUMENT), Wanted(), "token")

    member = observed.shards[0].members[0]
    assert (member.report is not None) is is_believed
    assert member.report is None or (member.report.boot_id, member.report.wrote) == ("u1", 5)


@pytest.mark.parametrize(
    ("is_there", "is_current"), [(False, True), (True, False)], ids=["made anew", "of another template"]
)
async def test_a_pod_is_outdated_only_by_what_its_statefulset_says(is_there: bool, is_current: bool) -> None:
    """While StatefulSets are made anew nobody says what their pods should be, and none is restarted for it."""
    pod = pod_with("running", podIP="h1")
    pod["metadata"] = pod["metadata"] | {"annotations": {TEMPLATE_ANNOTATION: "what it runs with"}}
    observer = observer_with(Voices(h1=said_by(1)), pod)
    if is_there:
        made: Object = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicas": 1}}
        made["metadata"] = {"name": master_set(GROUP, 0), "namespace": NAMESPACE, "uid": "s", "resourceVersion": "2"}
        made["metadata"] |= {"labels": {GROUP_LABEL: GROUP, SHARD_LABEL: "0"}}
        made["spec"]["template"] = {"metadata": {"annotations": {TEMPLATE_ANNOTATION: "what is wanted"}}}
        observer._cache.put(made)

    observed = await observer.observe(group_of(GROUP_DOCUMENT), Wanted(), "token")

    assert (observed.shards[0].members[0].template == observed.template) is is_current


async def test_everybody_is_asked_at_the_same_time() -> None:
    """Those who hang cost one deadline together, and keep the last report that they gave."""
    looks = [pod_with("running", podIP=f"h{number}") for number in range(1, 6)]
    for number, pod in enumerate(looks, start=1):
        name = "g-0-master-0" if number == 1 else f"g-0-slave-{number - 2}"
        pod["metadata"] = pod["metadata"] | {"name": name, "uid": f"u{number}"}
    voices = Voices(**{f"h{number}": said_by(number) for number in range(1, 6)})
    observer = observer_with(voices, *looks)
    group = group_of(GROUP_DOCUMENT | {"spec": {"slaves": 4}})
    first = await observer.observe(group, Wanted(), "token")
    voices.said |= {f"h{number}": None for number in range(2, 6)}
    voices.said["h1"] = said_by(1, wrote=9)

    second = await observer.observe(group, Wanted(), "token")

    assert voices.hung_together == 4
    assert [one.report.wrote for one in second.shards[0].members if one.report is not None] == [9, 5, 5, 5, 5]
    assert len(first.shards[0].members) == 5


async def test_a_master_that_seems_stopped_is_confirmed_by_the_api_server_once() -> None:
    """A cache may be old: before an election rests on it, the API server is asked, after the Lease was seen."""
    record = LeaseRecord(epoch=1000, terms=(Term(epoch=1000, master=1, identity="s"),))
    head: Object = {"name": shard_name(GROUP, 0), "namespace": NAMESPACE, "uid": "l", "resourceVersion": "3"}
    head |= {"annotations": lease_annotations(record), "labels": {GROUP_LABEL: GROUP, SHARD_LABEL: "0"}}
    observer = observer_with(Voices(), pod_with("terminated"))
    observer.objects.cache.put({"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": head})
    node = node_with()
    node["metadata"] = {"name": "node-0", "namespace": "", "resourceVersion": "1"}
    observer.objects.cache.put({"apiVersion": "v1", "kind": "Node"} | node)
    api = observer._api
    assert isinstance(api, FakeKubernetes)
    group = group_of(GROUP_DOCUMENT)
    api.put(pod_with("terminated") | {"status": pod_with("running")["status"]})

    seen = await observer.observe(group, Wanted(), "token")
    again = await observer.observe(group, Wanted(), "token")

    assert seen.shards[0].members[0].process is Process.RUNNING, "the cache was old"
    assert [verb for verb, _ in api.calls] == ["get"]
    assert again.shards[0].members[0].process is Process.RUNNING


def test_a_shard_holds_nothing_only_by_its_brokers_own_word() -> None:
    """Every queue is empty; a table from a disk, or one that is not whole, says nothing."""
    empty = {"name": "t", "kind": "user", "messages": 0}
    check = {"name": CHECK_TOPIC, "kind": "user", "messages": 4}
    said = {"source": "broker", "left_out": 0, "topics": [empty, check], "system_messages": {SCHEDULE_TOPIC: 0}}

    assert holds_nothing(said) is True
    assert holds_nothing(said | {"system_messages": {SCHEDULE_TOPIC: 1}}) is False, "a delayed message"
    assert holds_nothing(said | {"system_messages": {HALF_TOPIC: 1}}) is False, "an open transaction"
    assert holds_nothing(said | {"system_messages": None}) is None, "an older sidecar"
    assert holds_nothing(said | {"topics": [empty | {"messages": 1}]}) is False
    assert holds_nothing(said | {"topics": [empty | {"kind": "retry", "messages": 1}]}) is False
    assert holds_nothing(said | {"source": "disk"}) is None
    assert holds_nothing(said | {"left_out": 3}) is None
    assert holds_nothing({}) is None


def test_kinds_that_are_looked_up_by_name_are_the_ones_that_are_rendered() -> None:
    """A claim's name is that of its pod, as a StatefulSet makes it."""
    observer = observer_with(Voices())
    claim = {"name": "data-g-0-slave-0", "namespace": NAMESPACE, "labels": {GROUP_LABEL: GROUP}, "uid": "c"}
    observer.objects.cache.put({"apiVersion": "v1", "kind": CLAIMS.name, "metadata": claim})

    assert observer.objects.claim(0, 2) is not None
    assert observer.objects.sets(0).master is None
    assert STATEFUL_SETS.plural == "statefulsets"
    assert datetime.now(UTC).tzinfo is UTC
