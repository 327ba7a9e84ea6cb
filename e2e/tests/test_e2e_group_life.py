"""Groups are edited while clients use them: every edit takes effect, and no message is lost.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import time

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL, TOPIC
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

ROLL_SECONDS_MAX = 60.0
"""The limit for the only shard of a synchronous group with one slave, which refuses sends while either broker
restarts."""
EDIT_SECONDS_MAX = 10.0
"""The limit of the interruption for an edit that restarts no broker."""

SCALE_SECONDS_MAX = 240.0
"""The limit for the removal of an empty shard."""

NEW_IMAGE = "localhost/gantry:next"
LARGER_CPU = "350m"
LARGER: Object = {"requests": {"cpu": LARGER_CPU}, "limits": {"memory": "768Mi"}}
"""More CPU and memory than the brokers of `SMALL` have."""


def images(group: Group) -> set[str]:
    """Return the images that the brokers of a group run."""
    pods = [group.namespace.read_pod(pod) for pod in group.brokers()]
    return {container["image"] for pod in pods if pod is not None for container in pod["spec"]["containers"]}


@pytest.mark.cluster_can(Capability.TAG_IMAGES)
def test_new_image_is_rolled_out_without_loss(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """All brokers run the new image in the end. The order in which they are replaced is not tested here."""
    operator_cluster.tag_image("localhost/gantry:latest", NEW_IMAGE)
    group = namespaces.create_group("rolled", SMALL)

    def roll() -> None:
        started = time.monotonic()
        group.apply(SMALL | {"image": NEW_IMAGE})
        wait_until("the new image everywhere", lambda: images(group) == {NEW_IMAGE}, NOTICED_SECONDS_MAX)
        print(f"rolled in {time.monotonic() - started:.1f} s")

    run_fault_under_load(group, "rolled", roll).check_limits(ROLL_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.RESIZE_VOLUMES)
def test_brokers_and_volumes_grow_under_load_without_a_restart(namespaces: NamespaceFactory) -> None:
    """CPU, memory and volumes grow in one edit: no pod is replaced, no container restarts, and no send fails.

    The existing claims ask for more, and so will new ones; the test acts as the storage driver that expands them.
    """
    group = namespaces.create_group("grown", SMALL)
    before = starts(group)

    def grow() -> None:
        group.apply(SMALL | {"storage": {"size": "2Gi"}, "resources": LARGER})
        wait_until("brokers with more CPU", lambda: set(cpu_requests(group)) == {LARGER_CPU}, NOTICED_SECONDS_MAX)
        wait_until(
            "claims that ask for 2Gi",
            lambda: all(requested_bytes(claim) == 2 << 30 for claim in group.claims().values()),
            NOTICED_SECONDS_MAX,
        )
        for name in group.claims():
            path = f"{group.namespace.path('persistentvolumeclaims')}/{name}/status"
            group.namespace.cluster.api.merge(path, {"status": {"capacity": {"storage": "2Gi"}}})

    outcome = run_fault_under_load(group, "grown", grow)
    outcome.check_limits(EDIT_SECONDS_MAX)
    assert outcome.verdict["failed"] == {}, "a send failed"
    assert starts(group) == before, "a pod was replaced, or a container was started again"


def starts(group: Group) -> dict[str, tuple[str, set[int]]]:
    """Return the UID of each broker's pod, and how often its containers were started again."""
    pods = {name: group.namespace.read_pod(name) for name in group.brokers()}
    return {
        name: (pod["metadata"]["uid"], {one["restartCount"] for one in pod["status"]["containerStatuses"]})
        for name, pod in pods.items()
        if pod is not None
    }


def cpu_requests(group: Group) -> list[str]:
    """Return the CPU that each broker's container has now, as its kubelet reports it."""
    pods = [group.namespace.read_pod(name) for name in group.brokers()]
    return [
        str(one.get("resources", {}).get("requests", {}).get("cpu"))
        for pod in pods
        if pod is not None
        for one in pod["status"]["containerStatuses"]
        if one["name"] == "broker"
    ]


def requested_bytes(claim: Object) -> int:
    """Return the requested bytes of a claim."""
    text = str(claim["spec"]["resources"]["requests"]["storage"])
    return int(text[:-2]) << 30 if text.endswith("Gi") else int(text)


def test_shrinking_a_volume_is_refused(namespaces: NamespaceFactory) -> None:
    """The API server refuses the edit, and names the field."""
    group = Group(namespaces.create("shrunk"), "orders")
    group.apply(SMALL)

    with pytest.raises(CommandFailed, match="size"):
        group.apply(SMALL | {"storage": {"size": "512Mi"}})

    assert group.read()["spec"]["storage"]["size"] == "1Gi"


def test_shards_are_added_and_removed_without_loss(namespaces: NamespaceFactory) -> None:
    """A second shard gets queues of the topic. It has no messages, and is removed after the next edit."""
    group = namespaces.create_group("scaled", SMALL)

    def out() -> None:
        group.apply(SMALL | {"shards": 2})
        wait_until("a second master", lambda: len(group.masters()) == 2 and "-" not in group.masters(), 120)

    run_fault_under_load(group, "scaled out", out).check_limits(EDIT_SECONDS_MAX)
    wait_until("queues of the second shard", lambda: "orders-1" in group.gantry("topic", "describe", TOPIC), 90)
    started = time.monotonic()
    group.apply(SMALL)
    wait_until("the end of the second shard", lambda: len(group.brokers()) == 2, SCALE_SECONDS_MAX)
    print(f"RESULT an empty shard is gone {time.monotonic() - started:.1f} s after the edit")
    assert group.wait_healthy() < NOTICED_SECONDS_MAX


def test_shard_that_holds_messages_stays(namespaces: NamespaceFactory) -> None:
    """The twin: a shard with unconsumed messages is not deleted within a minute of the edit."""
    group = namespaces.create_group("held", SMALL | {"shards": 2})
    group.gantry("produce", TOPIC, *(f"order {number}" for number in range(20)))

    group.apply(SMALL | {"shards": 1})
    wait_until("the edit observed", lambda: bool(group.conditions()), NOTICED_SECONDS_MAX)
    time.sleep(60)

    assert len(group.brokers()) == 4


def test_two_groups_in_two_namespaces_are_independent(namespaces: NamespaceFactory) -> None:
    """Same name, same operator: one loses its master, the other works on."""
    first, second = namespaces.create_group("left-one", SMALL), namespaces.create_group("right-one", SMALL)
    [master] = first.masters()
    second_before = second.lease_record()["epoch"]

    def lose() -> None:
        print(f"back in {first.replace_pod(master):.1f} s")
        first.wait_healthy()

    run_fault_under_load(second, "neighbour lost", lose).check_limits(EDIT_SECONDS_MAX)
    assert second.lease_record()["epoch"] == second_before
