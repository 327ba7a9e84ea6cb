"""A model cluster: StatefulSets create claims and pods, pods run model brokers, machines fail, and time is a number.

It models the behaviour of Kubernetes that an operator can observe: names and uids, graceful and forced deletion, states
of containers as kubelet reports them, unreachable machines whose processes continue to run, and Leases that sidecars
renew. The checker of invariants of each shard (`spec_world.invariant_checker`) gets every acknowledgement and
promotion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, final

from operator_world.fake_kubernetes import FakeKubernetes, copied
from operator_world.pod_shard import PodShard
from spec_world.brokers import Refused, Store

from gantry_operator.api import (
    CLAIMS,
    GROUPS,
    LEASES,
    NODES,
    PODS,
    SNAPSHOTS,
    STATEFUL_SETS,
    VOLUMES,
    Kind,
    Object,
    ObjectRef,
    annotations_of,
    labels_of,
    ref_of,
    uid_of,
)
from gantry_operator.clock import format_time
from gantry_operator.errors import SidecarRefused, SidecarUnavailable
from gantry_operator.objects import names
from gantry_operator.sidecars import Peer
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import record_of
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Role
from gantry_status.orders import AnyOrder
from gantry_wire.names import SCHEDULE_TOPIC

SLOW_MS: Final = 3_000
"""How long a slow resize takes."""

GROUP: Final = "g"
"""The name of the only group."""

NAMESPACE: Final = "shop"
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The wall clock time at 0 ms of the cluster."""


class ResizeAnswer(Enum):
    """What kubelet does with a pod whose resources were changed."""

    DONE = "the container gets the resources"
    DEFERRED = "there is no room now"
    INFEASIBLE = "there can never be room"
    SLOW = "it takes a few seconds"
    NOTHING = "kubelet is too old"


@final
class ModelClock:
    """The clock of the cluster and of all its operators, which the cluster advances."""

    def __init__(self) -> None:
        self.ms = 100_000

    def now_ms(self) -> int:
        return self.ms

    def wall(self) -> datetime:
        return START + timedelta(milliseconds=self.ms)


@final
class ModelCluster:
    """A model cluster, which is also the port to its sidecars. Owned by one test."""

    def __init__(self, spec: Mapping[str, Any], nodes: int = 3) -> None:
        self.api: Final = FakeKubernetes()
        self.api.on_delete.update({PODS: self._delete_pod, CLAIMS: self._delete_claim})
        self.clock: Final = ModelClock()
        self.shards: Final[dict[int, PodShard]] = {}
        """The brokers of each shard, from the first pod of it on."""

        self.unreachable: Final[set[str]] = set()
        """The unreachable machines, whose processes continue to run."""

        self.orphaned_brokers: Final[set[tuple[int, int]]] = set()
        """Shard and member of unreachable processes that continue to run after the forced deletion of their pods."""

        self.unresponsive: Final[set[str]] = set()
        """The pods whose sidecar does not answer."""

        self.load = 1.0
        """The share of their greatest load that masters take."""

        self.is_scheduling = True
        """Whether new pods are scheduled."""

        self.full_nodes: Final[set[str]] = set()
        """The machines that have no room for a new broker."""

        self.local_disks = True
        """Whether a volume can be mounted only on the machine on which it was created."""

        self.resize_answer = ResizeAnswer.DONE
        self.cpu_default = ""
        """The CPU limit that the namespace gives to pods without one."""

        self._slow_since_ms: Final[dict[str, int]] = {}
        self.grace_ms = 0
        """How long a deleted pod continues to run."""

        self.reports: Final[dict[str, dict[str, Any]]] = {}
        """The reports of archive servers, by address."""

        self.messages = 0
        """The messages that every master reports as left in its queues."""

        self.delayed_messages = 0
        """The delayed messages that every master reports as left."""

        self.has_snapshotter = True
        """Whether a driver copies the volumes of new snapshots."""

        self.snapshot_ms = 2_000
        """How long the driver takes for a snapshot."""

        self.snapshots: Final[dict[str, Store]] = {}
        """The copies of stores, by the uid of the snapshot."""

        self._addresses = 0
        self._claims_to_delete: Final[set[tuple[str, str]]] = set()
        """The pods whose claims are deleted after them."""

        for number in range(nodes):
            self._node(f"node-{number}")
        self.recreate(spec)

    # -- actions of users ----------------------------------------------------------------------------------------------

    @property
    def group(self) -> Object:
        found = self.api.found(GROUPS, NAMESPACE, GROUP)
        assert found is not None, "the group does not exist"
        return found

    def edit(self, **fields: Any) -> None:
        """Edit the spec of the group."""
        group = self.group
        group["spec"] = group["spec"] | fields
        self.api.put(group)

    def annotate(self, **values: str | None) -> None:
        """Set annotations with the prefix of this project; dashes are written as underscores."""
        group = self.group
        annotations = dict(annotations_of(group))
        for name, value in values.items():
            key = f"gantry.dev/{name.replace('_', '-')}"
            if value is None:
                annotations.pop(key, None)
            else:
                annotations[key] = value
        group["metadata"]["annotations"] = annotations
        self.api.put(group)

    def delete(self, and_all_but: Sequence[Kind] = (CLAIMS, VOLUMES, NODES, SNAPSHOTS)) -> None:
        """Delete the group: its objects are deleted, pods gracefully, and volumes and snapshots stay."""
        for pod in self.pods():
            shard, member = self.place(pod)
            self.shards[shard].stop_broker(member)
        for place in [place for place in self.api.objects if place.kind not in and_all_but]:
            self.api.remove(place)

    def recreate(self, spec: Mapping[str, Any], annotations: Mapping[str, str] | None = None) -> None:
        """Create a group of the same name again, which is another one to Kubernetes."""
        head = {"creationTimestamp": format_time(self.clock.wall()), "name": GROUP, "namespace": NAMESPACE} | (
            {"annotations": dict(annotations)} if annotations else {}
        )
        self.api.put({"apiVersion": GROUPS.api_version, "kind": GROUPS.name, "metadata": head, "spec": dict(spec)})

    # -- machines ------------------------------------------------------------------------------------------------------

    def _node(self, name: str, *, is_ready: str = "True", **spec: Any) -> None:
        status = {
            "conditions": [{"type": "Ready", "status": is_ready}],
            "allocatable": {"cpu": "4", "memory": "16Gi", "hugepages-2Mi": "4Gi", "pods": "110"},
        }
        head = {"name": name, "namespace": "", "labels": {"kubernetes.io/hostname": name}}
        self.api.put({"apiVersion": "v1", "kind": "Node", "metadata": head, "spec": spec, "status": status})

    def disconnect_node(self, node: str) -> None:
        """Partition a machine from all others; Kubernetes notices it."""
        self.unreachable.add(node)
        self._node(node, is_ready="Unknown")

    def reconnect_node(self, node: str) -> None:
        self.unreachable.discard(node)
        self._node(node)

    def cordon_node(self, node: str) -> None:
        self._node(node, unschedulable=True)

    def switch_off_node(self, node: str) -> None:
        """Switch a machine off, and declare it out of service."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                shard, member = self.place(pod)
                self.shards[shard].stop_broker(member)
        self._node(node, is_ready="Unknown", taints=[{"key": "node.kubernetes.io/out-of-service"}])

    # -- present state -------------------------------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        return [pod for pod in self.api.of_kind(PODS) if labels_of(pod).get(names.COMPONENT_LABEL) == names.BROKER]

    def pod(self, shard: int, member: int) -> Object | None:
        return self.api.found(PODS, NAMESPACE, names.member_pod(GROUP, shard, member))

    def place(self, pod: Object) -> names.PodPlace:
        found = names.member_of(GROUP, pod["metadata"]["name"])
        assert found is not None, f"{pod['metadata']['name']} is not the pod of a broker"
        return found

    def node_of(self, shard: int, member: int) -> str:
        pod = self.pod(shard, member)
        assert pod is not None, f"member {member} of shard {shard} has no pod"
        return str(pod["spec"]["nodeName"])

    def lease(self, shard: int) -> LeaseRecord | None:
        document = self.api.found(LEASES, NAMESPACE, names.shard_name(GROUP, shard))
        return None if document is None else record_of(annotations_of(document))

    def master(self, shard: int) -> int | None:
        """Return the master according to both its own report and the Lease."""
        record = self.lease(shard)
        for broker in self.shards[shard].masters() if shard in self.shards else ():
            term = None if record is None or not record.is_settled else record.newest
            if term is not None and (broker.store.epoch, broker.number) == (term.epoch, term.master):
                return broker.number
        return None

    def labels(self, shard: int) -> dict[int, str]:
        """Return the role labels by member."""
        return {
            self.place(pod).member: labels_of(pod).get(names.ROLE_LABEL, "")
            for pod in self.pods()
            if self.place(pod).shard == shard
        }

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, by_ms: int) -> None:
        """Let controllers and kubelets act, and brokers send, replicate and renew."""
        self.clock.ms += by_ms
        self._run_controllers()
        for pod in self.pods():
            self._run_kubelet(pod)
        for shard in self.shards.values():
            shard.now_ms = self.clock.ms - by_ms
            shard.partitions = self._partitions(shard)
            shard.advance(by_ms, self.load)
            for number, broker in list(shard.brokers.items()):
                if broker.role is Role.SLAVE:
                    shard.replicate(number, 100)
            shard.renew_lease()
            self._renew_lease_object(shard)
            for number in list(shard.brokers):
                shard.flush(number)

    def _partitions(self, shard: PodShard) -> set[frozenset[int | str]]:
        """Return the partitions: brokers on unreachable machines reach only each other, and not the API server."""
        away = {
            self.place(pod).member
            for pod in self.pods()
            if self.place(pod).shard == shard.number and pod["spec"].get("nodeName") in self.unreachable
        }
        away |= {member for number, member in self.orphaned_brokers if number == shard.number}
        others = set(shard.brokers) - away
        reached: list[int | str] = [*others, "api"]
        return {frozenset({one, other}) for one in away for other in reached}

    def _renew_lease_object(self, shard: PodShard) -> None:
        """Renew a Lease as a sidecar does: only `renewTime` and the revision change."""
        document = self.api.found(LEASES, NAMESPACE, names.shard_name(GROUP, shard.number))
        if document is not None and shard.masters() and self.clock.ms % 3_000 < 250:
            document["spec"]["renewTime"] = self.clock.wall().isoformat()
            self.api.put(document)

    # -- controllers, kubelets -----------------------------------------------------------------------------------------

    def _run_controllers(self) -> None:
        for home in self.api.of_kind(STATEFUL_SETS):
            if labels_of(home).get(names.COMPONENT_LABEL) != names.BROKER:
                continue
            name, replicas = home["metadata"]["name"], home["spec"]["replicas"]
            for ordinal in range(replicas):
                self._create_pod(home, f"{name}-{ordinal}", ordinal)
            for pod in self.pods():
                prefix, _, ordinal_text = pod["metadata"]["name"].rpartition("-")
                if prefix == name and int(ordinal_text) >= replicas:
                    self._delete_surplus_pod(home, pod)
        self._run_snapshotter()
        for place in [place for place in self._claims_to_delete if self.api.found(PODS, *place) is None]:
            self._claims_to_delete.discard(place)
            self.api.remove(ObjectRef(CLAIMS, place[0], f"data-{place[1]}"))

    def _restore_volume(self, fleet: PodShard, claim: Object) -> None:
        """Fill the volume of a claim that is made from a snapshot, as it would be after a power loss."""
        source = claim["spec"].get("dataSource")
        if source is None or uid_of(claim) in fleet.stores:
            return
        snapshot = self.api.found(SNAPSHOTS, NAMESPACE, source["name"])
        assert snapshot is not None, f"{source} does not exist"
        store = fleet.stores[uid_of(claim)] = copied(self.snapshots[uid_of(snapshot)])
        del store.log[store.flushed :]

    def _run_snapshotter(self) -> None:
        """Copy the volume of a new snapshot, and report it as ready after a while."""
        for snapshot in self.api.of_kind(SNAPSHOTS):
            uid, source = uid_of(snapshot), snapshot["spec"]["source"]["persistentVolumeClaimName"]
            if "creationTimestamp" not in snapshot["metadata"]:
                snapshot["metadata"]["creationTimestamp"] = format_time(self.clock.wall())
                self.api.put(snapshot)
            elif not self.has_snapshotter:
                continue
            elif uid not in self.snapshots:
                claim = self.api.found(CLAIMS, NAMESPACE, source)
                assert claim is not None, f"{source} does not exist"
                stores = next(one.stores for one in self.shards.values() if uid_of(claim) in one.stores)
                self.snapshots[uid] = copied(stores[uid_of(claim)])
                created_at = snapshot["metadata"]["creationTimestamp"]
                snapshot["status"] = {"readyToUse": False, "restoreSize": "20Gi", "creationTime": created_at}
                snapshot["status"]["begunMs"] = self.clock.ms
                self.api.put(snapshot)
            state = snapshot.get("status") or {}
            if state and not state["readyToUse"] and self.clock.ms - state["begunMs"] >= self.snapshot_ms:
                self.api.put(snapshot | {"status": state | {"readyToUse": True}})

    def _delete_surplus_pod(self, home: Object, pod: Object) -> None:
        """Delete a pod that its StatefulSet no longer creates, and its claim if the present policy says so."""
        policy = home["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        if policy.get("whenScaled") == "Delete":
            self._claims_to_delete.add((NAMESPACE, pod["metadata"]["name"]))
        self.terminate(pod)

    def _create_pod(self, home: Object, name: str, ordinal: int) -> None:
        claim = ObjectRef(CLAIMS, NAMESPACE, f"data-{name}")
        known = self.api.found(CLAIMS, NAMESPACE, claim.name)
        if known is not None and known["metadata"].get("deletionTimestamp"):
            return
        if known is None:
            template = home["spec"]["volumeClaimTemplates"][0]
            head = {"name": claim.name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
            known = self.api.put(
                {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head, "spec": template["spec"]}
            )
        if self.api.found(PODS, NAMESPACE, name) is not None:
            return
        template = home["spec"]["template"]
        head = {"name": name, "namespace": NAMESPACE}
        head |= {key: dict(template["metadata"].get(key) or {}) for key in ("labels", "annotations")}
        parts = ("containers", "initContainers", "affinity", "nodeSelector", "tolerations")
        spec = {name: copied(template["spec"][name]) for name in parts if name in template["spec"]}
        self.add_default(spec)
        status = {"phase": "Pending"}
        self.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec, "status": status})

    def _run_kubelet(self, pod: Object) -> None:
        """Advance the life of a pod by one step."""
        shard, member = self.place(pod)
        if shard not in self.shards:
            spec = group_of({key: value for key, value in self.group.items() if key != "status"}).spec
            fresh = PodShard(GROUP, shard, spec, partial(self.lease, shard))
            fresh.now_ms = self.clock.ms
            self.shards[shard] = fresh
        node = pod["spec"].get("nodeName")
        if node is None:
            if not (self.is_scheduling and self._schedule(pod, shard, member)):
                self._report_unschedulable(pod)
            return
        if node in self.unreachable:
            return
        fleet = self.shards[shard]
        deleted = pod["metadata"].get("deletionTimestamp")
        if deleted and self.clock.wall() - datetime.fromisoformat(deleted) >= timedelta(milliseconds=self.grace_ms):
            fleet.stop_broker(member)
            pod["status"] |= {"phase": "Succeeded"}
            pod["status"]["containerStatuses"] = [_container(pod, "terminated")]
            self.api.put(pod)
            self.api.remove(ref_of(pod))
        elif not deleted and not pod["status"].get("podIP"):
            claim = self._claim_of(pod)
            self.orphaned_brokers.discard((shard, member))
            self._restore_volume(fleet, claim)
            fleet.start_broker(member, uid_of(claim))
            self._addresses += 1
            pod["status"] = {"phase": "Running", "podIP": f"10.0.{self._addresses // 250}.{self._addresses % 250}"}
            pod["status"]["containerStatuses"] = [_container(pod, "running")]
            self.api.put(pod)
        elif not deleted:
            self._resize(pod)

    def add_default(self, spec: Object) -> None:
        """Give a container without a CPU limit that of the namespace."""
        if self.cpu_default:
            spec["containers"][0]["resources"].setdefault("limits", {}).setdefault("cpu", self.cpu_default)

    def _resize(self, pod: Object) -> None:
        """Give the container of a running pod the resources of its spec, or say why not."""
        [container], status = pod["status"]["containerStatuses"], pod["status"]
        wanted, answer = pod["spec"]["containers"][0]["resources"], self.resize_answer
        others = [one for one in status.get("conditions", []) if not one["type"].startswith("PodResize")]
        is_settled = container["resources"] == wanted and others == status.get("conditions", [])
        if answer is ResizeAnswer.NOTHING or is_settled:
            return
        since_ms = self._slow_since_ms.setdefault(uid_of(pod), self.clock.ms)
        more: list[Object] = []
        if container["resources"] == wanted or answer is ResizeAnswer.DONE:
            container["resources"] = wanted
        elif answer is ResizeAnswer.SLOW and self.clock.ms - since_ms < SLOW_MS:
            more = [{"type": "PodResizeInProgress", "status": "True"}]
        elif answer is ResizeAnswer.SLOW:
            container["resources"] = wanted
        else:
            reason, message = answer.name.capitalize(), answer.value
            more = [{"type": "PodResizePending", "status": "True", "reason": reason, "message": message}]
        if answer is not ResizeAnswer.SLOW or not more:
            self._slow_since_ms.pop(uid_of(pod), None)
        status["conditions"] = others + more
        self.api.put(pod)

    def _report_unschedulable(self, pod: Object) -> None:
        """Report that no machine can take a pod, as the scheduler does."""
        count = len(self.api.of_kind(NODES))
        message = f"0/{count} nodes are available: {count} Insufficient hugepages-2Mi."
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.api.put(pod | {"status": pod["status"] | {"conditions": [unscheduled]}})

    def _schedule(self, pod: Object, shard: int, member: int) -> bool:
        """Schedule a pod on a machine of its own, or on that of its local disk; return whether one takes it."""
        claim = self._claim_of(pod)
        volume = claim["spec"].get("volumeName")
        known = None if not volume or not self.local_disks else self.api.found(VOLUMES, "", volume)
        nodes = self.api.of_kind(NODES)
        homes = [known["spec"]["node"]] if known is not None else [node["metadata"]["name"] for node in nodes]
        taken = {
            other["spec"].get("nodeName")
            for other in self.pods()
            if self.place(other).shard == shard and self.place(other).member != member
        }
        able = {node["metadata"]["name"] for node in nodes if not node["spec"].get("unschedulable")} - self.unreachable
        off = {node["metadata"]["name"] for node in nodes if node["spec"].get("taints")}
        for home in sorted(homes):
            if home in able - taken - off - self.full_nodes:
                pod["spec"]["nodeName"] = home
                self.api.put(pod)
                self._bind(claim, home)
                return True
        return False

    def _bind(self, claim: Object, node: str) -> None:
        if claim["spec"].get("volumeName"):
            return
        name = f"pv-{uid_of(claim)}"
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        spec = {"node": node, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        head = {"name": name, "namespace": ""}
        self.api.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": head, "spec": spec})
        claim["spec"]["volumeName"] = name
        claim["status"] = {"phase": "Bound"}
        self.api.put(claim)

    def _claim_of(self, pod: Object) -> Object:
        claim = self.api.found(CLAIMS, NAMESPACE, f"data-{pod['metadata']['name']}")
        assert claim is not None, f"{pod['metadata']['name']} has no claim"
        return claim

    def _delete_claim(self, claim: Object, _grace_s: int | None) -> bool:
        """Delete a claim. A pod that has a machine uses it, and Kubernetes keeps it until that pod is gone."""
        name = claim["metadata"]["name"].removeprefix("data-")
        pod = self.api.found(PODS, NAMESPACE, name)
        if pod is None or "nodeName" not in pod["spec"]:
            return True
        self._claims_to_delete.add((NAMESPACE, name))
        if not claim["metadata"].get("deletionTimestamp"):
            self.api.put(claim | {"metadata": claim["metadata"] | {"deletionTimestamp": self.clock.wall().isoformat()}})
        return False

    def _delete_pod(self, pod: Object, grace_s: int | None) -> bool:
        """Delete a pod; return whether it is gone at once. So is a forced deletion, and that of an unscheduled pod."""
        if "nodeName" not in pod["spec"]:
            return True
        if grace_s != 0:
            self.terminate(pod)
            return False
        shard, member = self.place(pod)
        if pod["spec"].get("nodeName") in self.unreachable:
            self.orphaned_brokers.add((shard, member))
        elif shard in self.shards:
            self.shards[shard].crash(member)
        return True

    def terminate(self, pod: Object) -> None:
        """Let kubelet terminate a pod."""
        pod = self.api.found(PODS, NAMESPACE, pod["metadata"]["name"]) or pod
        if not pod["metadata"].get("deletionTimestamp"):
            pod["metadata"]["deletionTimestamp"] = self.clock.wall().isoformat()
            self.api.put(pod)

    # -- sidecars ------------------------------------------------------------------------------------------------------

    async def fetch(self, address: str) -> Mapping[str, Any] | None:
        """Return the report of the archive server at an address; None without one."""
        return self.reports.get(address)

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        shard, member = self._reach(peer)
        return self.shards[shard].status(member)

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        self._reach(peer)
        topics = [{"name": "orders", "kind": "user", "messages": self.messages}]
        system = {SCHEDULE_TOPIC: self.delayed_messages}
        return {"source": "broker", "left_out": 0, "topics": topics, "system_messages": system}

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        shard, member = self._reach(peer)
        try:
            self.shards[shard].execute_order(member, order, expected)
        except Refused as error:
            raise SidecarRefused(str(error)) from error
        return self.shards[shard].status(member)

    def _reach(self, peer: Peer) -> names.PodPlace:
        for pod in self.pods():
            if (pod.get("status") or {}).get("podIP") == peer.host:
                name = pod["metadata"]["name"]
                place = self.place(pod)
                broker = self.shards[place.shard].brokers.get(place.member)
                if (
                    pod["spec"]["nodeName"] in self.unreachable
                    or name in self.unresponsive
                    or broker is None
                    or not broker.is_up
                ):
                    break
                return place
        raise SidecarUnavailable(f"{peer.host} does not answer")


def _container(pod: Object, state: str) -> Object:
    return {
        "name": "broker",
        "restartCount": 0,
        "containerID": f"containerd://{uid_of(pod)}",
        "resources": pod["spec"]["containers"][0].get("resources") or {},
        "state": {state: {}},
    }
