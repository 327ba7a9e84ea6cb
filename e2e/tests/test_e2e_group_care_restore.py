"""Deleted groups are restored from their volumes: only the disks hold their epochs and logs.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.group_life import ALLOW_DELETION, claim_ids, delete, delete_completely, objects_by_owner
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import GROUP, NamespaceFactory
from gantry_cluster.specs import SMALL, TOPIC, TWO_SLAVES
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

RESTORED_SECONDS_MAX = 120.0
"""The limit from the deletion, including the pods' termination, until the restored group acknowledges."""
AT_ONCE_SECONDS_MAX = 150.0
"""The limit if Kubernetes still deletes the first group while the second is created."""
REBOUND_SECONDS_MAX = 150.0
"""The limit with claims that are created by hand in between."""
WATCHED_S = 20.0
"""How long no master must be promoted without an order."""


RESTORE = "gantry.dev/restore"
"""The annotation with which an administrator orders a restore that may lose data."""

VOLUMES = "/api/v1/persistentvolumes"
MESSAGES = [f"order {number}" for number in range(40)]


def test_deleted_group_is_restored_from_its_volumes(namespaces: NamespaceFactory) -> None:
    """The Lease is deleted too: epochs continue from the disks, and no acknowledged message is lost.

    The broker that was the master may regain its role from its sidecar before an election, in the old epoch.
    """
    group = namespaces.create_group("restored", SMALL)
    claims = claim_ids(group)

    def restore() -> None:
        before = group.lease_record()["epoch"]
        delete_completely(group)
        assert claim_ids(group) == claims
        group.apply(SMALL)
        print(f"healthy {group.wait_healthy():.1f} s after it was applied again")
        print(f"epoch {before} before, {group.lease_record()['epoch']} now")
        assert group.lease_record()["epoch"] >= before

    run_fault_under_load(group, "restored", restore).check_limits(RESTORED_SECONDS_MAX)
    assert claim_ids(group) == claims


def test_group_that_is_deleted_and_applied_at_once_is_restored(namespaces: NamespaceFactory) -> None:
    """`kubectl delete` and `kubectl apply`: objects that the garbage collector deletes are created again, also the
    Secret.
    """
    group = namespaces.create_group("replaced", SMALL)
    claims, first = claim_ids(group), str(group.read()["metadata"]["uid"])

    def replace() -> None:
        delete(group)
        group.apply(SMALL)
        second = str(group.read()["metadata"]["uid"])
        assert second != first
        wait_until(
            "nothing that the first group owns", lambda: set(objects_by_owner(group)) == {second}, NOTICED_SECONDS_MAX
        )
        print(f"healthy {group.wait_healthy():.1f} s after nothing was left of the first one")

    run_fault_under_load(group, "replaced", replace).check_limits(AT_ONCE_SECONDS_MAX)
    assert claim_ids(group) == claims
    assert f"secrets/{GROUP}-sidecar" in objects_by_owner(group)[str(group.read()["metadata"]["uid"])]


def set_policy(group: Group, volume: str, policy: str) -> None:
    """Set the reclaim policy of a volume."""
    change = {"spec": {"persistentVolumeReclaimPolicy": policy}}
    group.namespace.cluster.api.merge(f"{VOLUMES}/{volume}", change)


def phase_of(group: Group, path: str) -> str:
    """Return the phase of a claim or a volume."""
    return str(group.namespace.cluster.api.get(path).get("status", {}).get("phase", ""))


def rebind(group: Group, claim: Object) -> None:
    """Rebind a volume as the page on recovery describes: release it, and create a claim of the same name for it."""
    api, spec = group.namespace.cluster.api, claim["spec"]
    name, volume = claim["metadata"]["name"], f"{VOLUMES}/{spec['volumeName']}"
    wait_until(f"released {name}", lambda: phase_of(group, volume) == "Released", NOTICED_SECONDS_MAX)
    api.merge(volume, {"spec": {"claimRef": None}})
    path = group.namespace.path("persistentvolumeclaims")
    kept = ("accessModes", "resources", "storageClassName", "volumeMode", "volumeName")
    api.create(path, {"metadata": {"name": name}, "spec": {key: spec[key] for key in kept}})
    wait_until(f"bound {name}", lambda: phase_of(group, f"{path}/{name}") == "Bound", NOTICED_SECONDS_MAX)


def are_labelled(group: Group) -> bool:
    """Return whether the claims have labels, which the operator's watch needs."""
    return all(
        claim["metadata"].get("labels", {}).get("gantry.dev/group") == group.name for claim in group.claims().values()
    )


def test_group_is_restored_from_released_volumes(namespaces: NamespaceFactory) -> None:
    """Its claims are lost too: an administrator creates claims of the same names, and the operator adopts them."""
    group = namespaces.create_group("rebound", SMALL)
    claims = group.claims()
    volumes = [str(claim["spec"]["volumeName"]) for claim in claims.values()]

    def lose_claims() -> None:
        delete_completely(group)
        lose(group, *claims)
        for claim in claims.values():
            rebind(group, claim)
        assert not are_labelled(group)
        group.apply(SMALL)
        print(f"healthy {group.wait_healthy():.1f} s after it was applied again")

    try:
        for volume in volumes:
            set_policy(group, volume, "Retain")
        run_fault_under_load(group, "rebound", lose_claims).check_limits(REBOUND_SECONDS_MAX)
    finally:
        for volume in volumes:
            set_policy(group, volume, "Delete")
    assert {str(claim["spec"]["volumeName"]) for claim in group.claims().values()} == set(volumes)
    wait_until("labels on claims", lambda: are_labelled(group), NOTICED_SECONDS_MAX)


def test_group_that_retains_no_volumes_deletes_them(namespaces: NamespaceFactory) -> None:
    """The twin: with `retain: Never` there is nothing to restore from."""
    group = Group(namespaces.create("unkept"), GROUP)
    group.apply(SMALL | {"storage": {"size": "1Gi", "retain": "Never"}})
    group.wait_healthy()
    assert len(group.claims()) == 2
    with pytest.raises(CommandFailed, match="volumes of the group would be deleted"):
        group.namespace.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.namespace.name}")

    started = time.monotonic()
    delete_completely(group)

    wait_until("the end of its claims", lambda: not group.claims(), NOTICED_SECONDS_MAX)
    print(f"RESULT claims gone {time.monotonic() - started:.1f} s after the deletion")


def lose(group: Group, *claims: str) -> None:
    """Delete claims, which a person allows first. Volumes are deleted too, unless they have the policy Retain."""
    kubectl, place = group.namespace.cluster.kubectl, f"--namespace={group.namespace.name}"
    with pytest.raises(CommandFailed, match="the only copy"):
        kubectl("delete", "persistentvolumeclaims", *claims, place, "--timeout=60s")
    kubectl("annotate", "persistentvolumeclaims", *claims, place, f"{ALLOW_DELETION}=true")
    kubectl("delete", "persistentvolumeclaims", *claims, place, "--timeout=60s")


@contextmanager
def cordoned(group: Group, node: str) -> Iterator[None]:
    """Cordon a machine, so that it accepts no new pod."""
    group.namespace.cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        group.namespace.cluster.kubectl("uncordon", node)


def is_placed(group: Group, pod: str) -> bool:
    """Return whether the pod was scheduled."""
    found = group.namespace.read_pod(pod)
    return found is not None and bool(found["spec"].get("nodeName"))


def decision(group: Group) -> tuple[list[str], str]:
    """Return the reasons that block the first shard, and its master."""
    shard: Object = next(iter(group.read().get("status", {}).get("eachShard", ())), {})
    return list(shard.get("decision", {}).get("blockedBy", [])), str(shard.get("master", ""))


def test_restore_with_possible_loss_waits_for_an_order(namespaces: NamespaceFactory) -> None:
    """Two of three volumes are lost: the third may lack acknowledged messages, and is promoted only by order."""
    group = namespaces.create_group("doubted", TWO_SLAVES)
    group.gantry("produce", TOPIC, *MESSAGES)
    group.wait_healthy()
    [master] = group.masters()
    gone = [master, next(one for one in group.brokers() if one != master)]
    [kept] = set(group.brokers()) - set(gone)
    node = group.node_of(kept)

    delete_completely(group)
    lose(group, *(f"data-{pod}" for pod in gone))
    with cordoned(group, node):  # an empty volume can be anywhere, and must not take the only place of the other pod
        group.apply(TWO_SLAVES)
        wait_until(
            "machines for empty volumes", lambda: all(is_placed(group, pod) for pod in gone), NOTICED_SECONDS_MAX
        )
    wait_until(
        "the request for an order", lambda: any(RESTORE in why for why in decision(group)[0]), NOTICED_SECONDS_MAX
    )
    time.sleep(WATCHED_S)
    blocked, named = decision(group)
    assert not named and any("data may be missing" in why for why in blocked)

    started = time.monotonic()
    group.annotate(RESTORE, "0")
    group.wait_healthy()
    print(f"RESULT doubted: it waited for {blocked}; healthy {time.monotonic() - started:.1f} s after the order")
    wait_until("the order removed", lambda: RESTORE not in annotations_of(group), NOTICED_SECONDS_MAX)
    assert sorted(group.gantry("consume", TOPIC).splitlines()) == sorted(MESSAGES), (
        "expected all messages from the third"
    )


def annotations_of(group: Group) -> dict[str, str]:
    """Return the annotations of the group."""
    found: dict[str, str] = group.read()["metadata"].get("annotations", {})
    return found
