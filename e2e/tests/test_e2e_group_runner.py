"""The operator in Kopf's own runner, against the cluster's complete API server, with controllers, kubelets and pods.

It has the settings, Lease and permissions of the chart; the installed operators are scaled down. It reaches sidecars
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
from gantry_cluster.groups import OPERATOR, SYSTEM, Group
from gantry_cluster.local_operator import chart_environment, chart_kubeconfig, lease_holder, scale_down_operators
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pods import Namespace
from gantry_cluster.specs import SMALL, TOPIC, TWO_SLAVES
from operator_world.kopf_hosted import KopfRun, run_in_kopf

from gantry_operator.main import main, settings_of
from gantry_operator.settings import OperatorSettings

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

NAMESPACE = "runner"
TOO_LITTLE = SMALL | {"resources": {"limits": {"memory": "64Mi"}}}
IMPOSSIBLE = SMALL | {"replication": {"inSyncReplicas": 5}}
KEPT_LONGER = TWO_SLAVES | {"storage": {"size": "1Gi", "reservedTime": "12h"}}


@pytest.fixture
def settings(operator_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorSettings]:
    """The settings of the chart for one namespace, with the installed operators scaled down."""
    for name, value in chart_environment(operator_cluster).items():
        monkeypatch.setenv(name, value)
    kubeconfig = chart_kubeconfig(operator_cluster, tmp_path / "operator.kubeconfig")
    words = [
        "--kubeconfig",
        str(kubeconfig),
        "--namespace",
        SYSTEM,
        "--namespaces",
        NAMESPACE,
        "--listen",
        "127.0.0.1:0",
    ]
    with scale_down_operators(operator_cluster):
        yield settings_of(main.make_context("gantry-operator", words).params)


def items(namespace: Namespace, kind: str, group: str) -> dict[str, Object]:
    """Return the objects of a kind in the namespace, by name."""
    return {one["metadata"]["name"]: one for one in namespace.cluster.api.items(namespace.path(kind, group))}


def reasons(group: Group) -> set[str]:
    """Return the reasons of a group's events."""
    events = items(group.namespace, "events", "api/v1").values()
    return {one["reason"] for one in events if one["involvedObject"]["name"] == group.name}


def condition_of(group: Group, kind: str) -> str:
    """Return the status of a condition; empty if it does not exist."""
    found = group.read().get("status", {}).get("conditions", [])
    return next((str(one["status"]) for one in found if one["type"] == kind), "")


def refuse_bad_manifests(namespace: Namespace) -> None:
    """Apply bad manifests: the API server refuses some, the operator reports the others, and nothing is created."""
    with pytest.raises(CommandFailed, match="inSyncReplicas"):
        Group(namespace, "impossible").apply(IMPOSSIBLE)
    little = Group(namespace, "little")
    little.apply(TOO_LITTLE)
    wait_until("the event NotApplied", lambda: "NotApplied" in reasons(little), NOTICED_SECONDS_MAX)
    assert condition_of(little, "Applied") == "False"
    assert not any(name.startswith("little") for name in items(namespace, "statefulsets", "apis/apps/v1"))
    namespace.cluster.kubectl("delete", "brokergroup", little.name, f"--namespace={namespace.name}")


def refuse_invalid_request(group: Group) -> None:
    """The API server refuses an invalid request. If a user whom the policies exempt makes it, the operator reports it,
    and changes nothing."""
    words = ("annotate", "brokergroup", group.name, f"--namespace={group.namespace.name}")
    with pytest.raises(CommandFailed, match="is not a shard"):
        group.namespace.cluster.kubectl(*words, "gantry.dev/fence=everything")
    exempt = f"--as=system:serviceaccount:{SYSTEM}:{OPERATOR}"
    group.namespace.cluster.kubectl(*words, "gantry.dev/fence=everything", exempt)
    wait_until("the event InvalidRequest", lambda: "InvalidRequest" in reasons(group), NOTICED_SECONDS_MAX)
    assert condition_of(group, "Fenced") == "False"
    group.namespace.cluster.kubectl(*words, "gantry.dev/fence-")


def apply_edit(group: Group, spec: Object, what: str, is_so: Callable[[], bool]) -> None:
    """Apply an edit; it takes effect, and the group is healthy."""
    group.apply(spec)
    wait_until(what, is_so, NOTICED_SECONDS_MAX)
    group.wait_healthy()


def electable_slaves(group: Group) -> int:
    """Return how many slaves may be elected; another number begins another epoch."""
    return len(group.lease_record()["terms"][-1]["electable"])


def is_kept_longer(group: Group) -> bool:
    """Return whether brokers are configured to keep messages for twelve hours."""
    found = items(group.namespace, "configmaps", "api/v1")[f"{group.name}-0"]
    return "fileReservedTime=12" in str(found["data"])


def first_run(run: KopfRun, namespaces: NamespaceFactory) -> Group:
    """Create a group, use it, refuse bad input and edit it."""
    group = namespaces.create_group(NAMESPACE, SMALL)
    assert {"MasterNamed", "MasterPromoted"} <= reasons(group)
    owned = items(group.namespace, "statefulsets", "apis/apps/v1")
    assert set(owned) == {"orders-0-master", "orders-0-slave", "orders-nameserver"}
    group.gantry("produce", TOPIC, "first")
    refuse_bad_manifests(group.namespace)
    refuse_invalid_request(group)
    apply_edit(group, TWO_SLAVES, "a vote for each slave", lambda: electable_slaves(group) == 2)
    assert not run.hosted.is_lost
    return group


def second_run(run: KopfRun, group: Group, before: tuple[list[str], int]) -> None:
    """Start with only the existing objects, apply edits made meanwhile, and stop reconciling deleted groups."""
    wait_until("what was edited meanwhile", lambda: is_kept_longer(group), NOTICED_SECONDS_MAX)
    group.wait_healthy()
    assert (group.masters(), group.lease_record()["epoch"]) == before
    group.gantry("produce", TOPIC, "second")
    assert sorted(group.gantry("consume", TOPIC).split()) == ["alone", "first", "second"]
    group.namespace.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.namespace.name}")
    run.wait_for_log("stopped reconciling group")
    wait_until("the end of its pods", lambda: not group.brokers(), NOTICED_SECONDS_MAX)
    wait_until("nothing of it", lambda: not items(group.namespace, "statefulsets", "apis/apps/v1"), NOTICED_SECONDS_MAX)


def test_operator_runs_in_the_runner_of_kopf(
    namespaces: NamespaceFactory, operator_cluster: Cluster, settings: OperatorSettings
) -> None:
    """Groups are made, refused, edited and deleted; it runs twice, and each run ends cleanly and without an error."""

    def sidecars() -> ForwardedSidecars:
        return ForwardedSidecars(Namespace(operator_cluster, NAMESPACE))

    with run_in_kopf(settings, sidecars) as first:
        group = first_run(first, namespaces)
    first.check_orderly_end()
    assert lease_holder(operator_cluster) == ""
    before = group.masters(), group.lease_record()["epoch"]
    group.gantry("produce", TOPIC, "alone")
    group.apply(KEPT_LONGER)

    with run_in_kopf(settings, sidecars) as second:
        second_run(second, group, before)
    second.check_orderly_end()
    print(f"RESULT kopf runner: {len(first.lines)} and {len(second.lines)} lines, exit codes 0 and 0")
