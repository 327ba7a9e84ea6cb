"""The operations that are interrupted: a group, what a user does to it or what fails, and when that is done.

Each operation has its own small group, so that thousands of runs take minutes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from operator_world.cluster import GROUP, NAMESPACE, ModelCluster, ResizeAnswer

from gantry_operator.api import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    NODES,
    SECRETS,
    SNAPSHOTS,
    STATEFUL_SETS,
    VOLUMES,
    Kind,
    ObjectRef,
    annotations_of,
    uid_of,
)
from gantry_operator.objects import names
from gantry_spec.backups import POINT_ANNOTATION, RESTORED_FROM, backups_of
from gantry_spec.manifest.annotations import RESTORE

IsDone = Callable[[], bool]

PAIR: Final = {"shards": 1, "slaves": 1, "nameServers": {"addresses": ["ns.example:9876"]}}
"""A master and a slave, whose ack is needed."""

THREE: Final = PAIR | {"slaves": 2}
KEPT_AFTER_DELETION: Final[tuple[Kind, ...]] = (CLAIMS, VOLUMES, NODES, EVENTS, SNAPSHOTS)


@dataclass(frozen=True)
class Operation:
    """What a user or a fault begins, and the operator has to complete."""

    begin: Callable[[ModelCluster], IsDone]
    """Begins the operation. Returns a function that returns whether it is done."""

    spec: Mapping[str, Any]
    nodes: int = 3
    is_new: bool = False
    """Whether the group does not exist before."""

    before: Callable[[ModelCluster], IsDone] | None = None
    """An operation that is done without interruptions before this one."""

    is_healthy_after: bool = True
    """Whether the group must be healthy in the end."""

    staying: tuple[int, ...] = ()
    """The members of the first shard whose brokers must run all the time."""

    is_rolling: bool = False
    """Whether brokers are restarted, which must be one at a time."""


OPERATIONS: Final[dict[str, Operation]] = {}
"""All operations by name."""


def operation(
    spec: Mapping[str, Any] = THREE, **options: Any
) -> Callable[[Callable[[ModelCluster], IsDone]], Callable[[ModelCluster], IsDone]]:
    """Register an operation under the name of its function."""

    def register(begin: Callable[[ModelCluster], IsDone]) -> Callable[[ModelCluster], IsDone]:
        OPERATIONS[begin.__name__.replace("_", " ")] = Operation(begin, spec, **options)
        return begin

    return register


# -- changes of the spec -----------------------------------------------------------------------------------------------


@operation(spec=PAIR, is_new=True)
def create(cluster: ModelCluster) -> IsDone:
    """Create a group: everything begins with the resource."""
    return lambda: cluster.master(0) == 1


@operation(spec=PAIR | {"access": {"certificates": {"issuer": "Operator"}}}, is_new=True)
def create_with_certificates(cluster: ModelCluster) -> IsDone:
    """Create a group with an authority of its own, which pods and clients must know alike."""

    def is_known_alike() -> bool:
        own, public = (cluster.api.found(kind, NAMESPACE, f"{GROUP}-authority") for kind in (SECRETS, CONFIG_MAPS))
        if own is None or public is None:
            return False
        certificate: str = public["data"]["ca.crt"]
        return base64.b64decode(own["data"]["ca.crt"]).decode() == certificate

    return lambda: cluster.master(0) == 1 and is_known_alike()


@operation(is_rolling=True)
def edit_that_rolls(cluster: ModelCluster) -> IsDone:
    """Change the template of the pods: each is made anew, slaves first."""
    before = {uid_of(pod) for pod in cluster.pods()}
    cluster.edit(template={"labels": {"team": "payments"}})
    return lambda: len(cluster.pods()) == len(before) and not before & {uid_of(pod) for pod in cluster.pods()}


@operation(spec=THREE | {"replication": {"mode": "Async"}, "failover": {"maxDataLossBytes": "1Gi"}}, is_rolling=True)
def image_upgrade(cluster: ModelCluster) -> IsDone:
    """Upgrade the image of an asynchronous group."""
    cluster.edit(image="gantry:next")

    def images() -> set[str]:
        return {one["image"] for pod in cluster.pods() for one in pod["spec"]["containers"]}

    return lambda: len(cluster.pods()) == 3 and images() == {"gantry:next"}


@operation(spec=PAIR, staying=(1, 2))
def scale_out(cluster: ModelCluster) -> IsDone:
    """Add a slave, which gets a vote."""
    cluster.edit(slaves=2)
    return lambda: electable(cluster) == {2, 3}


@operation(spec=PAIR, nodes=4, staying=(1, 2))
def add_a_shard(cluster: ModelCluster) -> IsDone:
    """A second shard is added, and gets a master."""
    cluster.edit(shards=2)
    return lambda: 1 in cluster.shards and cluster.master(1) is not None


@operation(staying=(1, 2))
def scale_in(cluster: ModelCluster) -> IsDone:
    """Remove a slave, which loses its vote first."""
    cluster.edit(slaves=1)
    return lambda: cluster.pod(0, 3) is None and electable(cluster) == {2}


@operation(spec=PAIR | {"shards": 2}, nodes=4, staying=(1, 2))
def remove_a_shard(cluster: ModelCluster) -> IsDone:
    """Remove a shard without messages: its pods, then all its objects but volumes."""
    cluster.edit(shards=1)
    return lambda: not [one for one in cluster.api.of_kind(STATEFUL_SETS) if "-1-" in one["metadata"]["name"]]


@operation(staying=(1, 2, 3))
def volume_growth(cluster: ModelCluster) -> IsDone:
    """The volumes of all members grow, one after another."""
    cluster.edit(storage={"size": "40Gi"})

    def sizes() -> set[str]:
        return {one["spec"]["resources"]["requests"]["storage"] for one in cluster.api.of_kind(CLAIMS)}

    return lambda: sizes() == {str(40 << 30)}


@operation(staying=(1, 2, 3))
def edit_that_resizes(cluster: ModelCluster) -> IsDone:
    """All members get more memory while they run, one after another."""
    cluster.edit(resources={"limits": {"memory": "2Gi"}})

    def is_marked() -> bool:
        return any(names.RESIZING_ANNOTATION in annotations_of(pod) for pod in cluster.pods())

    return lambda: memory_limits(cluster) == {"2064Mi"} and not is_marked()


@operation(is_rolling=True)
def edit_that_cannot_resize(cluster: ModelCluster) -> IsDone:
    """No machine can ever give its pod more memory: the pods are made anew."""
    cluster.resize_answer = ResizeAnswer.INFEASIBLE
    before = {uid_of(pod) for pod in cluster.pods()}
    cluster.edit(resources={"limits": {"memory": "2Gi"}})
    return lambda: (
        memory_limits(cluster) == {"2064Mi"}
        and len(cluster.pods()) == len(before)
        and not before & {uid_of(pod) for pod in cluster.pods()}
    )


# -- roles -------------------------------------------------------------------------------------------------------------


@operation(staying=(1, 2, 3))
def switchover(cluster: ModelCluster) -> IsDone:
    """Move the role to a slave that a person names."""
    cluster.annotate(promote="0=3")
    return lambda: cluster.master(0) == 3 and not annotations_of(cluster.group)


@operation(is_healthy_after=False)
def failover(cluster: ModelCluster) -> IsDone:
    """The node of the master loses its network, and another member has to lead."""
    cluster.disconnect_node(cluster.node_of(0, 1))
    return lambda: cluster.master(0) in (2, 3)


# -- disks and machines ------------------------------------------------------------------------------------------------


@operation(nodes=4, staying=(1, 3))
def lost_disk(cluster: ModelCluster) -> IsDone:
    """Let the volume of a slave be lost, and a person give it up."""
    cluster.shards[0].stop_broker(2)
    pod, claim = cluster.pod(0, 2), cluster.api.found(CLAIMS, NAMESPACE, f"data-{GROUP}-0-slave-0")
    assert pod is not None and claim is not None
    cluster.terminate(pod)
    cluster.api.put(claim | {"status": {"phase": "Lost"}})
    cluster.api.remove(ObjectRef(VOLUMES, "", f"pv-{uid_of(claim)}"))
    cluster.annotate(replace_disk="0/2")
    return lambda: claim_uid(cluster, "slave-0") not in ("", uid_of(claim)) and not annotations_of(cluster.group)


@operation(nodes=4, staying=(1, 3))
def lost_node(cluster: ModelCluster) -> IsDone:
    """Declare a slave's machine to be out of service: its volume is given up without an order."""
    node, before = cluster.node_of(0, 2), claim_uid(cluster, "slave-0")
    cluster.disconnect_node(node)
    cluster.switch_off_node(node)
    return lambda: claim_uid(cluster, "slave-0") not in ("", before)


# -- hibernation and deletion ------------------------------------------------------------------------------------------


@operation(is_healthy_after=False)
def hibernate(cluster: ModelCluster) -> IsDone:
    """Stop all pods; the volumes stay."""
    cluster.annotate(hibernate="true")

    def conditions() -> list[dict[str, str]]:
        return list((cluster.group.get("status") or {}).get("conditions", []))

    return lambda: (
        not cluster.pods() and any(one["type"] == "Hibernated" and one["status"] == "True" for one in conditions())
    )


@operation(before=hibernate)
def resume(cluster: ModelCluster) -> IsDone:
    """Start all pods of a group that hibernates."""
    cluster.annotate(hibernate=None)
    return lambda: len(cluster.pods()) == 3 and cluster.master(0) is not None


def delete_group(cluster: ModelCluster) -> IsDone:
    """Delete the group, with the controllers of Kubernetes that delete what it owns."""
    cluster.delete()
    return lambda: not [ref for ref in cluster.api.objects if ref.kind not in KEPT_AFTER_DELETION]


OPERATIONS["deletion, volumes kept"] = Operation(delete_group, THREE, is_healthy_after=False)
OPERATIONS["deletion, volumes deleted"] = Operation(
    delete_group, THREE | {"storage": {"retain": "Never"}}, is_healthy_after=False
)


# -- backups -----------------------------------------------------------------------------------------------------------


@operation(spec=PAIR | {"shards": 2}, nodes=4, staying=(1, 2))
def backup(cluster: ModelCluster) -> IsDone:
    """Make a backup that a person requests: one snapshot of each shard."""
    cluster.annotate(backup="nightly")
    return lambda: (
        [(one.name, one.is_complete) for one in backups_of(cluster.api.of_kind(SNAPSHOTS))] == [("nightly", True)]
        and not annotations_of(cluster.group)
    )


def lose_group_with_backup(cluster: ModelCluster) -> IsDone:
    """Make a backup. Then lose everything but the snapshot, and create the group from it, as the command does."""
    is_made = backup(cluster)

    def is_created() -> bool:
        if not is_made():
            return False
        cluster.delete(and_all_but=(SNAPSHOTS, NODES))
        cluster.shards.clear()
        (snapshot,) = cluster.api.of_kind(SNAPSHOTS)
        origin = {RESTORED_FROM: f"{GROUP}/nightly", POINT_ANNOTATION: annotations_of(snapshot)[POINT_ANNOTATION]}
        head = {"name": f"data-{GROUP}-0-master-0", "namespace": NAMESPACE, "annotations": origin}
        source = {"kind": SNAPSHOTS.name, "name": snapshot["metadata"]["name"]}
        cluster.api.put({"apiVersion": "v1", "kind": CLAIMS.name, "metadata": head, "spec": {"dataSource": source}})
        cluster.recreate(PAIR, annotations={RESTORE: "0"})
        return True

    return is_created


@operation(spec=PAIR, is_new=True, before=lose_group_with_backup)
def restore_of_a_backup(cluster: ModelCluster) -> IsDone:
    """The claim of the first member is made from a snapshot, and the shard starts with it."""
    return lambda: cluster.master(0) == 1 and RESTORE not in annotations_of(cluster.group)


def electable(cluster: ModelCluster) -> set[int]:
    """Return the electable slaves of the newest term of the first shard."""
    record = cluster.lease(0)
    return set() if record is None or record.newest is None else set(record.newest.numbers)


def memory_limits(cluster: ModelCluster) -> set[str]:
    """Return the memory limits that the containers of all brokers have now."""
    containers = [one for pod in cluster.pods() for one in pod["status"].get("containerStatuses", [])]
    return {one["resources"]["limits"]["memory"] for one in containers}


def claim_uid(cluster: ModelCluster, name: str) -> str:
    """Return the uid of a member's claim; empty if there is none."""
    claim = cluster.api.found(CLAIMS, NAMESPACE, f"data-{GROUP}-0-{name}")
    return "" if claim is None else uid_of(claim)
