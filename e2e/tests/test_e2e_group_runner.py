"""The operator in Kopf's own runner, at the cluster's whole API server, with its controllers, kubelets and pods.

It is the operator of the chart with its Lease and its rights; the installed ones sleep meanwhile. It reaches sidecars
through `kubectl port-forward`, so it can do everything here that it does in a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.forwards import ForwardedSidecars
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.groups import SYSTEM, Group
from gantry_cluster.operator_here import chart_environment, chart_kubeconfig, lease_holder, operators_asleep
from gantry_cluster.pods import Namespace
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import SMALL, TOPIC, TWO_SLAVES
from operator_world.kopf_hosted import Run, kopf_runs

from gantry_operator.main import main, settings_of
from gantry_operator.settings import OperatorSettings

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

SPACE = "runner"
TOO_LITTLE = SMALL | {"resources": {"limits": {"memory": "64Mi"}}}
IMPOSSIBLE = SMALL | {"replication": {"inSyncReplicas": 5}}
KEPT_LONGER = TWO_SLAVES | {"storage": {"size": "1Gi", "reservedTime": "12h"}}


@pytest.fixture
def settings(operated: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorSettings]:
    """Those of the chart, for one namespace; the installed operators sleep."""
    for name, value in chart_environment(operated).items():
        monkeypatch.setenv(name, value)
    kubeconfig = chart_kubeconfig(operated, tmp_path / "operator.kubeconfig")
    words = ["--kubeconfig", str(kubeconfig), "--namespace", SYSTEM, "--namespaces", SPACE, "--listen", "127.0.0.1:0"]
    with operators_asleep(operated):
        yield settings_of(main.make_context("gantry-operator", words).params)


def items(space: Namespace, kind: str, group: str) -> dict[str, Object]:
    """What there is of a kind in the namespace, by name."""
    return {one["metadata"]["name"]: one for one in space.cluster.api.items(space.path(kind, group))}


def reasons(group: Group) -> set[str]:
    """Of the events of a group."""
    events = items(group.space, "events", "api/v1").values()
    return {one["reason"] for one in events if one["involvedObject"]["name"] == group.name}


def condition_of(group: Group, kind: str) -> str:
    """What one says; nothing if there is none."""
    found = group.read().get("status", {}).get("conditions", [])
    return next((str(one["status"]) for one in found if one["type"] == kind), "")


def refuse_bad_manifests(space: Namespace) -> None:
    """What the API server refuses never comes to be; what only the operator can judge is told, and nothing is made."""
    with pytest.raises(CommandFailed, match="inSyncReplicas"):
        Group(space, "impossible").apply(IMPOSSIBLE)
    little = Group(space, "little")
    little.apply(TOO_LITTLE)
    wait_until("an event that says why", lambda: "NotApplied" in reasons(little), NOTICED_SECONDS_MAX)
    assert condition_of(little, "Applied") == "False"
    assert not any(name.startswith("little") for name in items(space, "statefulsets", "apis/apps/v1"))
    space.cluster.kubectl("delete", "brokergroup", little.name, f"--namespace={space.name}")


def refuse_bad_order(group: Group) -> None:
    """An order that nobody understands is told, and changes nothing."""
    group.annotate("gantry.dev/fence", "everything")
    wait_until("an event that says so", lambda: "BadOrder" in reasons(group), NOTICED_SECONDS_MAX)
    assert condition_of(group, "Fenced") == "False"
    group.space.cluster.kubectl(
        "annotate", "brokergroup", group.name, f"--namespace={group.space.name}", "gantry.dev/fence-"
    )


def edited(group: Group, spec: Object, what: str, is_so: Callable[[], bool]) -> None:
    """An edit has its effect, and the group is healthy with it."""
    group.apply(spec)
    wait_until(what, is_so, NOTICED_SECONDS_MAX)
    group.wait_healthy()


def voices(group: Group) -> int:
    """How many slaves may be elected; another number begins another epoch."""
    return len(group.record()["reigns"][-1]["electable"])


def is_kept_longer(group: Group) -> bool:
    """Whether brokers are told to keep messages for twelve hours."""
    found = items(group.space, "configmaps", "api/v1")[f"{group.name}-0"]
    return "fileReservedTime=12" in str(found["data"])


def first_run(run: Run, spaces: Spaces) -> Group:
    """Made, healthy, used, refused and edited."""
    group = spaces.group(SPACE, SMALL)
    assert {"MasterNamed", "MasterPromoted"} <= reasons(group)
    owned = items(group.space, "statefulsets", "apis/apps/v1")
    assert set(owned) == {"orders-0-master", "orders-0-slave", "orders-nameserver"}
    group.gantry("produce", TOPIC, "first")
    refuse_bad_manifests(group.space)
    refuse_bad_order(group)
    edited(group, TWO_SLAVES, "a voice for each slave", lambda: voices(group) == 2)
    assert not run.hosted.is_lost
    return group


def second_run(run: Run, group: Group, before: tuple[list[str], int]) -> None:
    """It knows nothing but what is there, does what was asked for meanwhile, and lets go of what is deleted."""
    wait_until("what was edited meanwhile", lambda: is_kept_longer(group), NOTICED_SECONDS_MAX)
    group.wait_healthy()
    assert (group.masters(), group.record()["epoch"]) == before
    group.gantry("produce", TOPIC, "second")
    assert sorted(group.gantry("consume", TOPIC).split()) == ["alone", "first", "second"]
    group.space.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.space.name}")
    run.wait_said("stopped reconciling group")
    wait_until("the end of its pods", lambda: not group.brokers(), NOTICED_SECONDS_MAX)
    wait_until("nothing of it", lambda: not items(group.space, "statefulsets", "apis/apps/v1"), NOTICED_SECONDS_MAX)


def test_kopfs_runner_runs_the_operator(spaces: Spaces, operated: Cluster, settings: OperatorSettings) -> None:
    """Groups are made, refused, edited and deleted; it is run twice, and each run ends in order and without a bug."""

    def sidecars() -> ForwardedSidecars:
        return ForwardedSidecars(Namespace(operated, SPACE))

    with kopf_runs(settings, sidecars) as first:
        group = first_run(first, spaces)
    first.demand_order()
    assert lease_holder(operated) == ""
    before = group.masters(), group.record()["epoch"]
    group.gantry("produce", TOPIC, "alone")
    group.apply(KEPT_LONGER)

    with kopf_runs(settings, sidecars) as second:
        second_run(second, group, before)
    second.demand_order()
    print(f"RESULT kopf runner: {len(first.lines)} and {len(second.lines)} lines, exit codes 0 and 0")
