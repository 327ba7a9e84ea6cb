"""The cached objects of one group, by shard and member: their references, and what the absence of an object means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, final

from gantry_operator.api import (
    CLAIMS,
    LEASES,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Object,
    ObjectRef,
    annotations_of,
    labels_of,
    uid_of,
)
from gantry_operator.cache import Cache, DeletedPod, ResourceKey
from gantry_operator.objects import names
from gantry_operator.observe import pods
from gantry_operator.observe.machines import Machine, machine_of
from gantry_operator.sidecars import Peer
from gantry_spec.broker_conf import broker_name
from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import Process


class ShardStatefulSets(NamedTuple):
    """The present StatefulSets of a shard."""

    master: Object | None
    slave: Object | None

    @property
    def members(self) -> range:
        """Return the members for which the StatefulSets create pods."""
        masters, slaves = replicas_of(self.master), replicas_of(self.slave)
        return range(1 if masters else 2, slaves + 2)

    @property
    def template(self) -> str:
        """Return the hash of the template of their pods; empty if there is no StatefulSet."""
        for one in (self.master, self.slave):
            if one is not None:
                metadata = one["spec"]["template"]["metadata"]
                return str((metadata.get("annotations") or {}).get(names.TEMPLATE_ANNOTATION, ""))
        return ""


@final
class GroupObjects:
    """Access to the cached objects of one group."""

    def __init__(self, key: ResourceKey, cache: Cache) -> None:
        self.key: Final = key
        self.cache: Final = cache

    def __repr__(self) -> str:
        return f"<GroupObjects {'/'.join(self.key)}>"

    def stateful_sets(self, shard: int) -> ShardStatefulSets:
        """Return the StatefulSets of a shard."""
        namespace, name = self.key
        return ShardStatefulSets(
            self.cache.get(self.master_set_ref(shard)),
            self.cache.get(ObjectRef(STATEFUL_SETS, namespace, names.slave_set(name, shard))),
        )

    def master_set_ref(self, shard: int) -> ObjectRef:
        """Return the reference of the StatefulSet with a shard's first member."""
        namespace, name = self.key
        return ObjectRef(STATEFUL_SETS, namespace, names.master_set(name, shard))

    def shards(self) -> set[int]:
        """Return the numbers of all shards with a pod, or a StatefulSet that creates pods now or after hibernation."""
        found = set()
        for kind in (STATEFUL_SETS, PODS):
            for one in self.cache.of_group(kind, self.key):
                text = labels_of(one).get(names.SHARD_LABEL, "")
                if text.isdigit() and (kind is PODS or intended_replicas(one)):
                    found.add(int(text))
        return found

    def pod(self, shard: int, member: int) -> Object | None:
        """Return the pod of a member."""
        return self.cache.get(self.pod_ref(shard, member))

    def pod_ref(self, shard: int, member: int) -> ObjectRef:
        """Return the reference to the pod of a member."""
        return ObjectRef(PODS, self.key[0], names.member_pod(self.key[1], shard, member))

    def master_pod(self, shard: int) -> str:
        """Return the name of the pod with the master label, else of the pod that the shard's Service still selects."""
        for place in self.pod_places(shard):
            pod = self.pod(shard, place.member)
            if pod is not None and labels_of(pod).get(names.ROLE_LABEL) == names.MASTER_ROLE:
                return str(pod["metadata"]["name"])
        service = self.cache.get(ObjectRef(SERVICES, self.key[0], names.shard_name(self.key[1], shard)))
        chosen = {} if service is None else (service.get("spec") or {}).get("selector") or {}
        return str(chosen.get(names.POD_NAME_LABEL, ""))

    def pods_not_started(self) -> list[Object]:
        """Return the scheduled pods of all components in which no container has ever started, native sidecars aside.

        A pod that has ended is not among them.
        """
        found = (pod for pod in self.cache.of_group(PODS, self.key) if (pod.get("spec") or {}).get("nodeName"))
        return [pod for pod in found if not pods.has_started(pod) and not pods.is_final(pod)]

    def claim(self, shard: int, member: int) -> Object | None:
        """Return the claim of a member's volume."""
        return self._claim(names.member_pod(self.key[1], shard, member))

    def claim_of(self, pod: Object) -> Object | None:
        """Return the claim of a pod's volume."""
        return self._claim(pod["metadata"]["name"])

    def _claim(self, pod_name: str) -> Object | None:
        return self.cache.get(ObjectRef(CLAIMS, self.key[0], f"data-{pod_name}"))

    def lease(self, shard: int) -> Object | None:
        """Return the cached Lease of a shard."""
        return self.cache.get(ObjectRef(LEASES, self.key[0], names.shard_name(self.key[1], shard)))

    def peer(self, shard: int, member: int, token: str) -> Peer | None:
        """Return the address of a member's sidecar; None if its pod has no address."""
        pod = self.pod(shard, member)
        address = "" if pod is None else pods.address_of(pod)
        is_tls = pod is not None and pods.has_tls(pod)
        name = broker_name(self.key[1], shard)
        return Peer(address, names.SIDECAR_PORT, token, is_tls, name, member) if address else None

    def pod_places(self, shard: int) -> Iterable[names.PodPlace]:
        """Yield the members of a shard that have a pod."""
        for pod in self.cache.of_group(PODS, self.key):
            place = names.member_of(self.key[1], pod["metadata"]["name"])
            if place is not None and place.shard == shard:
                yield place

    def process_state(
        self,
        shard: int,
        number: int,
        pod: Object | None,
        machine: Machine,
        stateful_sets: ShardStatefulSets,
        record: LeaseRecord | None,
    ) -> pods.ProcessState:
        """Return the state of a member's process, from its pod, or from the last state of its deleted pod."""
        before = self.cache.deleted_pod(self.pod_ref(shard, number))
        had_ended = before is not None and self._had_ended(before)
        if pod is not None:
            process_state = pods.process_state_of(pod, machine)
            is_proven = pods.has_started(pod) or machine.is_off or had_ended
            return (
                process_state
                if process_state.process is not Process.STOPPED or is_proven
                else pods.ProcessState(Process.UNKNOWN, process_state.run)
            )
        run = "" if before is None else f"after {uid_of(before.pod)}"
        if number not in stateful_sets.members:
            is_master = record is not None and any(term.master == number for term in record.terms)
            if had_ended or not is_master:
                return pods.ProcessState(Process.ABSENT, run)
        return pods.ProcessState(Process.STOPPED if had_ended else Process.UNKNOWN, run)

    def machine(self, pod: Object) -> Machine:
        """Return the machine to which a pod is bound."""
        name = (pod.get("spec") or {}).get("nodeName")
        return (
            Machine()
            if not name or not self.cache.can_read_nodes
            else machine_of(self.cache.get(ObjectRef(NODES, "", name)))
        )

    def _had_ended(self, before: DeletedPod) -> bool:
        """Return whether the process of a deleted pod is known to have ended."""
        machine = machine_of(before.node) if self.cache.can_read_nodes else Machine()
        return pods.has_ended(before.pod, machine) or self.machine(before.pod).is_off


def intended_replicas(document: Object | None) -> int:
    """Return how many pods a StatefulSet creates, or will create when the hibernation of its group ends."""
    annotations = {} if document is None else annotations_of(document)
    former = annotations.get(names.FORMER_HIBERNATED_REPLICAS_ANNOTATION, "")
    text = annotations.get(names.HIBERNATED_REPLICAS_ANNOTATION, former)
    return replicas_of(document) or (int(text) if text.isdigit() else 0)


def replicas_of(document: Object | None) -> int:
    """Return how many pods a StatefulSet creates; 0 if it does not exist."""
    return 0 if document is None else int((document.get("spec") or {}).get("replicas") or 0)
