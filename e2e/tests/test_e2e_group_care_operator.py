"""Two operators, of which one leads: either may end, and both may be upgraded, while clients of groups work on."""

from __future__ import annotations

import time

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.faults import kill_container
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, OPERATOR_CONTAINER, find_leader
from gantry_cluster.group_life import pod_runs
from gantry_cluster.groups import CHART, OPERATOR, SYSTEM, Group
from gantry_cluster.image_names import parse_name
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pods import Namespace
from gantry_cluster.specs import SMALL
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

REPLICAS = 2
"""The number of operators that the chart starts."""

NEXT = "next"
"""The tag of the new version."""

UPGRADE_SECONDS_MAX = 5.0
"""The limit of the interruption while both operators are upgraded and rolled back, and the role is moved after each."""
GIVEN_BACK_SECONDS_MAX = 15.0
"""The limit from the deletion of the leading operator until the other one has moved a role."""
KILLED_SECONDS_MAX = 60.0
"""The limit if a master's pod is deleted after the leading operator was killed, whose Lease has to expire first."""


def operators(cluster: Cluster) -> list[Object]:
    """Return the operators' pods that are not being deleted."""
    label = f"app.kubernetes.io%2Fname%3D{OPERATOR}"
    found = cluster.api.items(f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector={label}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def leader_or_none(cluster: Cluster) -> str:
    """Return the pod of the leading operator, if there is one."""
    try:
        return find_leader(cluster)
    except (ApiRefused, KeyError):
        return ""


def wait_for_leader(cluster: Cluster, image: str) -> None:
    """Wait until only operators of this image exist, and one of them leads."""

    def is_so() -> bool:
        pods = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in operators(cluster)}
        return len(pods) == REPLICAS and set(pods.values()) == {image} and leader_or_none(cluster) in pods

    wait_until(f"operators of {image}", is_so, NOTICED_SECONDS_MAX)


def promote(group: Group, name: str) -> float:
    """Order a switchover, which only a leading operator executes; return how long it took."""
    [before], started = group.masters(), time.monotonic()
    group.annotate("gantry.dev/promote", f"0@{name}")
    wait_until("another master", lambda: group.masters() not in ([before], ["-"], [""]), NOTICED_SECONDS_MAX)
    return time.monotonic() - started


@pytest.mark.cluster_can(Capability.TAG_IMAGES)
def test_operators_are_upgraded_and_rolled_back_under_load_without_loss(
    namespaces: NamespaceFactory, operator_cluster: Cluster
) -> None:
    """`helm upgrade` to another tag, and `helm rollback`: no pod of a group is touched, and both operators work."""
    [old] = {pod["spec"]["containers"][0]["image"] for pod in operators(operator_cluster)}
    new = f"{parse_name(old)[0]}:{NEXT}"
    operator_cluster.tag_image(old, new)
    group = namespaces.create_group("upgraded", SMALL)
    before = pod_runs(group)
    words = ("--namespace", SYSTEM, "--wait", "--timeout", "110s")

    def upgrade() -> None:
        try:
            operator_cluster.helm(
                "upgrade", OPERATOR, CHART, "--reuse-values", "--set-string", f"image.tag={NEXT}", *words
            )
            wait_for_leader(operator_cluster, new)
            print(f"a role moved by the new operator in {promote(group, 'upgraded'):.1f} s")
            group.wait_healthy()
        finally:
            operator_cluster.helm("rollback", OPERATOR, *words)
        wait_for_leader(operator_cluster, old)
        print(f"a role moved by the old operator in {promote(group, 'back'):.1f} s")

    run_fault_under_load(group, "operators upgraded", upgrade).check_limits(UPGRADE_SECONDS_MAX)
    assert pod_runs(group) == before, "a pod was replaced, or a container restarted"


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS)
def test_group_survives_the_end_of_either_operator(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """The leading one is deleted, and releases its Lease; then one is killed, and its Lease expires."""
    group = namespaces.create_group("either", SMALL)
    system = Namespace(operator_cluster, SYSTEM)

    def lose_both() -> None:
        first, started = find_leader(operator_cluster), time.monotonic()
        operator_cluster.kubectl("delete", "pod", first, f"--namespace={SYSTEM}", "--wait=false")
        promote(group, "other")
        took = time.monotonic() - started
        print(f"RESULT another operator has moved a role {took:.1f} s after the deletion of the one that acted")
        assert took <= GIVEN_BACK_SECONDS_MAX
        group.wait_healthy()
        [master], second = group.masters(), find_leader(operator_cluster)
        assert second != first
        kill_container(system, second, OPERATOR_CONTAINER)
        group.replace_pod(master)  # after a clean stop it regains its role from its sidecar, without the operator
        group.wait_healthy()
        took = promote(group, "last")
        print(f"a role moved in {took:.1f} s; {second} led before, and {leader_or_none(operator_cluster)} leads now")

    run_fault_under_load(group, "either operator gone", lose_both).check_limits(KILLED_SECONDS_MAX)
    wait_until("both operators", lambda: len(operators(operator_cluster)) == REPLICAS, NOTICED_SECONDS_MAX)
