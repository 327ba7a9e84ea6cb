"""What the caches have of one group, by shard and member: where to find each thing, and what its absence means."""

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
    Place,
    annotations_of,
    labels_of,
    uid_of,
)
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.objects import names
from gantry_operator.observe import pods
from gantry_operator.observe.machines import Machine, machine_of
from gantry_operator.sidecars import Peer
from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import Process


class Sets(NamedTuple):
    """The StatefulSets of a shard as they are."""

    master: Object | None
    slave: Object | None

    @property
    def wanted(self) -> range:
        """The members that they make pods of."""
        masters, slaves = replicas_of(self.master), replicas_of(self.slave)
        return range(1 if masters else 2, slaves + 2)

    @property
    def template(self) -> str:
        """The hash of what they make pods of; empty if there is none."""
        for one in (self.master, self.slave):
            if one is not None:
                metadata = one["spec"]["template"]["metadata"]
                return str((metadata.get("annotations") or {}).get(names.TEMPLATE_ANNOTATION, ""))
        return ""


@final
class GroupObjects:
    """Of one group."""

    def __init__(self, key: ResourceKey, cache: Cache) -> None:
        self.key: Final = key
        self.cache: Final = cache

    def __repr__(self) -> str:
        return f"<GroupObjects {'/'.join(self.key)}>"

    def sets(self, shard: int) -> Sets:
        """The StatefulSets of a shard."""
        namespace, name = self.key
        return Sets(
            self.cache.get(Place(STATEFUL_SETS, namespace, names.master_set(name, shard))),
            self.cache.get(Place(STATEFUL_SETS, namespace, names.slave_set(name, shard))),
        )

    def shards(self) -> set[int]:
        """Every shard of which something runs, or may."""
        found = set()
        for kind in (STATEFUL_SETS, PODS):
            for one in self.cache.of_group(kind, self.key):
                text = labels_of(one).get(names.SHARD_LABEL, "")
                if text.isdigit() and (kind is PODS or replicas_meant(one)):
                    found.add(int(text))
        return found

    def pod(self, shard: int, member: int) -> Object | None:
        """Of a member."""
        return self.cache.get(self.pod_place(shard, member))

    def pod_place(self, shard: int, member: int) -> Place:
        """Where it is."""
        return Place(PODS, self.key[0], names.member_pod(self.key[1], shard, member))

    def master_pod(self, shard: int) -> str:
        """The name of the one that is labelled as the master; if none is, of the one that clients are led to still."""
        for place in self.places(shard):
            pod = self.pod(shard, place.member)
            if pod is not None and labels_of(pod).get(names.ROLE_LABEL) == names.MASTER_ROLE:
                return str(pod["metadata"]["name"])
        service = self.cache.get(Place(SERVICES, self.key[0], names.shard_name(self.key[1], shard)))
        chosen = {} if service is None else (service.get("spec") or {}).get("selector") or {}
        return str(chosen.get(names.POD_NAME_LABEL, ""))

    def held_up(self) -> list[Object]:
        """Brokers' pods that have a machine, and in which no broker has ever begun."""
        found = self.cache.of_group(PODS, self.key)
        brokers = (pod for pod in found if labels_of(pod).get(names.COMPONENT_LABEL) == names.BROKER)
        return [pod for pod in brokers if (pod.get("spec") or {}).get("nodeName") and not pods.has_begun(pod)]

    def claim(self, shard: int, member: int) -> Object | None:
        """Of a member's volume."""
        name = f"data-{names.member_pod(self.key[1], shard, member)}"
        return self.cache.get(Place(CLAIMS, self.key[0], name))

    def lease(self, shard: int) -> Object | None:
        """A shard's, as it was seen last."""
        return self.cache.get(Place(LEASES, self.key[0], names.shard_name(self.key[1], shard)))

    def peer(self, shard: int, member: int, token: str) -> Peer | None:
        """The sidecar of a member, if it can be reached."""
        pod = self.pod(shard, member)
        address = "" if pod is None else pods.address_of(pod)
        is_tls = pod is not None and pods.speaks_tls(pod)
        return Peer(address, names.SIDECAR_PORT, token, is_tls) if address else None

    def places(self, shard: int) -> Iterable[names.PodPlace]:
        """Whose pods are there."""
        for pod in self.cache.of_group(PODS, self.key):
            place = names.member_of(self.key[1], pod["metadata"]["name"])
            if place is not None and place.shard == shard:
                yield place

    def life(
        self, shard: int, number: int, pod: Object | None, machine: Machine, sets: Sets, record: LeaseRecord | None
    ) -> pods.Life:
        """Of a member's process, by its pod, or by how the last one went."""
        before = self.cache.departed(self.pod_place(shard, number))
        had_ended = before is not None and pods.has_ended(before, self.machine(before))
        if pod is not None:
            life = pods.life_of(pod, machine)
            is_proven = pods.has_begun(pod) or machine.is_off or had_ended
            return life if life.process is not Process.STOPPED or is_proven else pods.Life(Process.UNKNOWN, life.run)
        run = "" if before is None else f"after {uid_of(before)}"
        if number not in sets.wanted:
            is_master = record is not None and any(term.master == number for term in record.terms)
            if had_ended or not is_master:
                return pods.Life(Process.ABSENT, run)
        return pods.Life(Process.STOPPED if had_ended else Process.UNKNOWN, run)

    def machine(self, pod: Object) -> Machine:
        """Where a pod was put."""
        name = (pod.get("spec") or {}).get("nodeName")
        return (
            Machine()
            if not name or not self.cache.knows_machines
            else machine_of(self.cache.get(Place(NODES, "", name)))
        )


def replicas_meant(document: Object | None) -> int:
    """How many pods a StatefulSet makes, or will make when its group hibernates no more."""
    text = "" if document is None else annotations_of(document).get(names.ASLEEP_ANNOTATION, "")
    return replicas_of(document) or (int(text) if text.isdigit() else 0)


def replicas_of(document: Object | None) -> int:
    """How many pods a StatefulSet makes; none if it is not there."""
    return 0 if document is None else int((document.get("spec") or {}).get("replicas") or 0)
