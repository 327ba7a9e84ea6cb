"""A sample of interruptions with real pods: the operator is killed or refused at one of its writes, under load.

`make interruptions` interrupts every operation at each of its effects, with a model of brokers. Here API server,
controllers, kubelets, brokers and sidecars are real. After each interruption the operation is completed, no
acknowledged message is lost, and the group has the same objects as after the operation without an interruption.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.groups import Group
from gantry_cluster.interrupted_operator import KILLING, Fault, InterruptedOperator, interrupted
from gantry_cluster.local_operator import scale_down_operators
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.reports import COLLECTIONS, NOT_FOUND
from gantry_cluster.specs import SMALL
from gantry_cluster.trial import run_fault_under_load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster_can(Capability.RUN_GROUPS),
    pytest.mark.cluster_can(Capability.CUT_NODES),
]

NAMESPACE: Final = "interrupted"
SAMPLE: Final = 4
"""How many interruptions of each operation are tried: two kills, and two other faults."""

DONE_SECONDS_MAX: Final = 180.0
"""The limit for an operation with its interruption."""

SETTLED_SECONDS: Final = 15.0
"""How long the objects of a group must be the same to be compared."""

PAUSE_SECONDS_MAX: Final = 120.0
"""The limit of the interruption of sends. The next operator has to wait for the Lease of a killed one."""

Operation = tuple[Callable[[Group, int], None], Callable[[Group, int], bool]]
"""What begins an operation, and whether it is done. Both get the number of the round, from 0 on."""


def roll(group: Group, number: int) -> None:
    """Change a label of the pods, which are made anew, the slave first."""
    group.apply(SMALL | {"template": {"labels": {"round": str(number)}}})


def is_rolled(group: Group, number: int) -> bool:
    """Return whether every broker's pod has the label."""
    pods = [group.namespace.read_pod(name) for name in group.brokers()]
    return [pod["metadata"]["labels"].get("round") for pod in pods if pod] == [str(number)] * 2


def switch_over(group: Group, number: int) -> None:
    """Move the role to the other member."""
    group.annotate("gantry.dev/promote", f"0={2 - number % 2}")


def is_switched(group: Group, number: int) -> bool:
    """Return whether the other member leads, and the request is removed."""
    pod = f"{group.name}-0-{'master' if number % 2 else 'slave'}-0"
    return group.masters() == [pod] and "gantry.dev/promote" not in annotations_of(group)


def scale(group: Group, number: int) -> None:
    """Add a second slave, or remove it again."""
    group.apply(SMALL | {"slaves": 2 - number % 2})


def is_scaled(group: Group, number: int) -> bool:
    """Return whether the slaves that there should be have votes, and no other one exists."""
    slaves = 2 - number % 2
    return len(group.lease_record()["terms"][-1]["electable"]) == slaves and len(group.brokers()) == 1 + slaves


OPERATIONS: Final[dict[str, Operation]] = {
    "roll": (roll, is_rolled),
    "switchover": (switch_over, is_switched),
    "scale": (scale, is_scaled),
}


def annotations_of(group: Group) -> Object:
    """Return the annotations of the group's resource."""
    found: Object = group.read()["metadata"].get("annotations") or {}
    return found


def objects(group: Group) -> set[str]:
    """Return kind and name of every object in the group's namespace, of the kinds that the cluster has."""
    namespace = group.namespace
    found: set[str] = set()
    for kind, (collection, version) in COLLECTIONS.items():
        try:
            items = namespace.cluster.api.items(namespace.path(collection, version))
        except ApiRefused as refusal:
            if refusal.status != NOT_FOUND:
                raise
            continue  # certificates, without cert-manager
        found |= {f"{kind} {one['metadata']['name']}" for one in items}
    return found


def settled_objects(group: Group) -> set[str]:
    """Return the objects when they have been the same for a while; some are deleted after the group is healthy."""
    found, since = objects(group), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        time.sleep(1)
        if (present := objects(group)) != found:
            found, since = present, time.monotonic()
    return found


@pytest.fixture
def operator(operator_cluster: Cluster, tmp_path: Path) -> Iterator[InterruptedOperator]:
    """An operator for one namespace that can be interrupted, with the installed operators scaled down."""
    with scale_down_operators(operator_cluster), InterruptedOperator(operator_cluster, NAMESPACE, tmp_path) as one:
        yield one


def run_operation(
    group: Group, operator: InterruptedOperator, name: str, number: int, fault: Fault | None, at: int
) -> int:
    """Run one round of an operation with a fault under load, and return how many writes the operator made."""
    begin, is_done = OPERATIONS[name]
    starts = operator.starts

    def act() -> None:
        begin(group, number)
        wait_until(f"the end of {name}", lambda: is_done(group, number), DONE_SECONDS_MAX)
        group.wait_healthy()

    with interrupted(operator, fault, at):
        outcome = run_fault_under_load(group, f"{name} {number}", act)
        writes = len(operator.proxy.writes)
    outcome.check_limits(PAUSE_SECONDS_MAX)
    assert operator.starts - starts == (1 if fault in KILLING else 0)
    print(f"RESULT {name} {number}: {fault or 'without a fault'} at write {at} of {writes}")
    return writes


@pytest.mark.parametrize("name", OPERATIONS)
def test_interrupted_operation_is_completed_without_loss(
    namespaces: NamespaceFactory, operator: InterruptedOperator, name: str
) -> None:
    """Each round is one fault at one write, chosen from a seed; the first two rounds have none."""
    group = namespaces.create_group(NAMESPACE, SMALL)
    chance = random.Random(f"{name} 1")
    faults = [*chance.sample(sorted(KILLING), 2), *chance.sample(sorted(set(Fault) - KILLING), SAMPLE - 2)]
    counts = [run_operation(group, operator, name, number, None, 0) for number in (0, 1)]
    assert min(counts) > 0, "the operation needs no write"
    after = settled_objects(group)

    for number, fault in enumerate(faults, start=2):
        at = chance.randint(1, min(counts))
        run_operation(group, operator, name, number, fault, at)
        if number % 2:
            operator.wait_for_leader()
            assert settled_objects(group) == after, "an object is left over, or missing"
