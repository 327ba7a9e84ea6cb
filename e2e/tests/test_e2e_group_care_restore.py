"""Groups that are deleted, and come back from their volumes: epochs and logs are on the disks, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.group_life import claim_ids, delete, delete_to_the_end, owners
from gantry_cluster.groups import Group
from gantry_cluster.spaces import GROUP, Spaces
from gantry_cluster.specs import SMALL, TOPIC, TWO_SLAVES
from gantry_cluster.trial import under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

RESTORED_SECONDS_MAX = 120.0
"""From the deletion, pods' own time to end included, until a group that is applied again acknowledges."""
AT_ONCE_SECONDS_MAX = 150.0
"""The same where Kubernetes still deletes the first group while the second is made."""
REBOUND_SECONDS_MAX = 150.0
"""The same with claims that are made by hand in between."""
WATCHED_S = 20.0

RESTORE = "gantry.dev/restore"
VOLUMES = "/api/v1/persistentvolumes"
MESSAGES = [f"order {number}" for number in range(40)]


def test_a_deleted_group_comes_back_from_its_volumes(spaces: Spaces) -> None:
    """Its Lease is gone with it: epochs go on from what disks know, and nothing that was acknowledged is lost.

    The broker that was the master may have its role again from its sidecar, before anybody elects: in the old epoch.
    """
    group = spaces.group("restored", SMALL)
    claims = claim_ids(group)

    def restore() -> None:
        before = group.record()["epoch"]
        delete_to_the_end(group)
        assert claim_ids(group) == claims
        group.apply(SMALL)
        print(f"healthy {group.wait_healthy():.1f} s after it was applied again")
        print(f"epoch {before} before, {group.record()['epoch']} now")
        assert group.record()["epoch"] >= before

    under_load(group, "restored", restore).demand(RESTORED_SECONDS_MAX)
    assert claim_ids(group) == claims


def test_a_group_that_is_deleted_and_applied_at_once_comes_back(spaces: Spaces) -> None:
    """`kubectl delete` and `kubectl apply`: what Kubernetes deletes behind them is made again, the Secret, too."""
    group = spaces.group("replaced", SMALL)
    claims, first = claim_ids(group), str(group.read()["metadata"]["uid"])

    def replace() -> None:
        delete(group)
        group.apply(SMALL)
        second = str(group.read()["metadata"]["uid"])
        assert second != first
        wait_until("nothing that the first group owns", lambda: set(owners(group)) == {second}, NOTICED_SECONDS_MAX)
        print(f"healthy {group.wait_healthy():.1f} s after nothing was left of the first one")

    under_load(group, "replaced", replace).demand(AT_ONCE_SECONDS_MAX)
    assert claim_ids(group) == claims
    assert f"secrets/{GROUP}-sidecar" in owners(group)[str(group.read()["metadata"]["uid"])]


def set_policy(group: Group, volume: str, policy: str) -> None:
    """What becomes of a volume whose claim is gone."""
    change = {"spec": {"persistentVolumeReclaimPolicy": policy}}
    group.space.cluster.api.merge(f"{VOLUMES}/{volume}", change)


def phase_of(group: Group, path: str) -> str:
    """Of a claim or a volume."""
    return str(group.space.cluster.api.get(path).get("status", {}).get("phase", ""))


def rebind(group: Group, claim: Object) -> None:
    """As the page on recovery says it: free the volume, and make a claim of the same name that names it."""
    api, spec = group.space.cluster.api, claim["spec"]
    name, volume = claim["metadata"]["name"], f"{VOLUMES}/{spec['volumeName']}"
    wait_until(f"released {name}", lambda: phase_of(group, volume) == "Released", NOTICED_SECONDS_MAX)
    api.merge(volume, {"spec": {"claimRef": None}})
    path = group.space.path("persistentvolumeclaims")
    kept = ("accessModes", "resources", "storageClassName", "volumeMode", "volumeName")
    api.create(path, {"metadata": {"name": name}, "spec": {key: spec[key] for key in kept}})
    wait_until(f"bound {name}", lambda: phase_of(group, f"{path}/{name}") == "Bound", NOTICED_SECONDS_MAX)


def are_labelled(group: Group) -> bool:
    """Whether the operator sees these claims: it watches those that are labelled."""
    return all(
        claim["metadata"].get("labels", {}).get("gantry.dev/group") == group.name for claim in group.claims().values()
    )


def test_a_group_comes_back_from_volumes_that_were_released(spaces: Spaces) -> None:
    """Its claims are lost, too: people make others of the same names, and the operator takes them for its own."""
    group = spaces.group("rebound", SMALL)
    claims = group.claims()
    volumes = [str(claim["spec"]["volumeName"]) for claim in claims.values()]

    def lose_claims() -> None:
        delete_to_the_end(group)
        lose(group, *claims)
        for claim in claims.values():
            rebind(group, claim)
        assert not are_labelled(group)
        group.apply(SMALL)
        print(f"healthy {group.wait_healthy():.1f} s after it was applied again")

    try:
        for volume in volumes:
            set_policy(group, volume, "Retain")
        under_load(group, "rebound", lose_claims).demand(REBOUND_SECONDS_MAX)
    finally:
        for volume in volumes:
            set_policy(group, volume, "Delete")
    assert {str(claim["spec"]["volumeName"]) for claim in group.claims().values()} == set(volumes)
    wait_until("labels on claims", lambda: are_labelled(group), NOTICED_SECONDS_MAX)


def test_volumes_go_with_a_group_that_keeps_none(spaces: Spaces) -> None:
    """The twin: `retain: Never`, and there is nothing that it could come back from."""
    group = Group(spaces.make("unkept"), GROUP)
    group.apply(SMALL | {"storage": {"size": "1Gi", "retain": "Never"}})
    group.wait_healthy()
    assert len(group.claims()) == 2

    started = time.monotonic()
    delete_to_the_end(group)

    wait_until("the end of its claims", lambda: not group.claims(), NOTICED_SECONDS_MAX)
    print(f"RESULT claims gone {time.monotonic() - started:.1f} s after the deletion")


def lose(group: Group, *claims: str) -> None:
    """Claims and their volumes."""
    words = ("delete", "persistentvolumeclaims", *claims, f"--namespace={group.space.name}", "--timeout=60s")
    group.space.cluster.kubectl(*words)


@contextmanager
def cordoned(group: Group, node: str) -> Iterator[None]:
    """No new pod comes to a machine."""
    group.space.cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        group.space.cluster.kubectl("uncordon", node)


def is_placed(group: Group, pod: str) -> bool:
    """Whether it has a machine."""
    found = group.space.read_pod(pod)
    return found is not None and bool(found["spec"].get("nodeName"))


def decision(group: Group) -> tuple[list[str], str]:
    """What holds the first shard up, and its master."""
    shard: Object = next(iter(group.read().get("status", {}).get("eachShard", ())), {})
    return list(shard.get("decision", {}).get("blockedBy", [])), str(shard.get("master", ""))


def test_a_person_is_asked_where_volumes_may_lack_something(spaces: Spaces) -> None:
    """Two of three volumes are lost: the third may lack what was acknowledged, and begins only by order."""
    group = spaces.group("doubted", TWO_SLAVES)
    group.gantry("produce", TOPIC, *MESSAGES)
    group.wait_healthy()
    [master] = group.masters()
    gone = [master, next(one for one in group.brokers() if one != master)]
    [kept] = set(group.brokers()) - set(gone)
    node = group.node_of(kept)

    delete_to_the_end(group)
    lose(group, *(f"data-{pod}" for pod in gone))
    with cordoned(group, node):  # an empty volume can be made anywhere, and must not take the one place of the other
        group.apply(TWO_SLAVES)
        wait_until(
            "machines for empty volumes", lambda: all(is_placed(group, pod) for pod in gone), NOTICED_SECONDS_MAX
        )
    wait_until("a question", lambda: any(RESTORE in why for why in decision(group)[0]), NOTICED_SECONDS_MAX)
    time.sleep(WATCHED_S)
    blocked, named = decision(group)
    assert not named and any("something may lack" in why for why in blocked)

    started = time.monotonic()
    group.annotate(RESTORE, "0")
    group.wait_healthy()
    print(f"RESULT doubted: it waited for {blocked}; healthy {time.monotonic() - started:.1f} s after the order")
    wait_until("an order taken off", lambda: RESTORE not in orders(group), NOTICED_SECONDS_MAX)
    assert sorted(group.gantry("consume", TOPIC).splitlines()) == sorted(MESSAGES), "the third had them all"


def orders(group: Group) -> dict[str, str]:
    """Annotations of the group."""
    found: dict[str, str] = group.read()["metadata"].get("annotations", {})
    return found
