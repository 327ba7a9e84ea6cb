"""Processes and pods of a group die under load: nothing that was acknowledged is lost beyond what was announced."""

from __future__ import annotations

import re
import time

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.group_faults import BROKER, SIDECAR, kill_and_wait, kill_broker
from gantry_cluster.groups import Group
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import SMALL, UNCOMMITTED
from gantry_cluster.trial import under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

POD_SECONDS_MAX = 30.0
FORCED_SECONDS_MAX = 45.0
"""A pod that was deleted by force proves nothing about its process."""
CRASH_SECONDS_MAX = 20.0
CRASHES_APART_S = 15.0
SIDECAR_SECONDS_MAX = 20.0


def replayed(group: Group, pod: str) -> int:
    """How many records its broker says that it found in buffers when it started last."""
    said = group.space.cluster.kubectl("logs", pod, f"--container={BROKER}", f"--namespace={group.space.name}")
    found = [int(number) for number in re.findall(r"replayed_records=(\d+)", said)]
    print(f"RESULT records replayed from buffers: {found}")
    return found[-1] if found else 0


def test_a_deleted_master_pod_loses_nothing(spaces: Spaces) -> None:
    """Sync with one slave: the slave takes over, and acknowledges when the pod is back and in sync."""
    group = spaces.group("deleted", SMALL)
    [master] = group.masters()

    outcome = under_load(group, "pod deleted", lambda: print(f"back in {group.replace_pod(master):.1f} s"))

    outcome.demand(POD_SECONDS_MAX)


def test_a_master_pod_deleted_by_force_loses_nothing(spaces: Spaces) -> None:
    """Nobody waits for its process to end, and another pod may have its volume while it still runs."""
    group = spaces.group("forced", SMALL)
    [master] = group.masters()

    outcome = under_load(
        group,
        "pod deleted by force",
        lambda: print(f"back in {group.replace_pod(master, '--force', '--grace-period=0'):.1f} s"),
    )

    outcome.demand(FORCED_SECONDS_MAX)


def test_a_broker_killed_three_times_within_a_minute_loses_nothing(spaces: Spaces) -> None:
    """Kill -9 of the process: its supervisor starts it again at once, each time."""
    group = spaces.group("killed", SMALL)

    def thrice() -> None:
        started = time.monotonic()
        for number in range(3):
            time.sleep(max(0.0, started + number * CRASHES_APART_S - time.monotonic()))
            kill_broker(group, group.masters()[0])
            group.wait_healthy()
        assert time.monotonic() - started < 60

    under_load(group, "process killed", thrice).demand(CRASH_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS, Capability.HUGE_PAGES)
def test_a_killed_container_replays_its_buffer(spaces: Spaces) -> None:
    """Async with buffers in huge pages: what no file and no slave had is there again, since the pod keeps the pages."""
    group = spaces.group("buffered", UNCOMMITTED)
    [master] = group.masters()

    outcome = under_load(group, "container killed", lambda: kill_and_wait(group, master, BROKER), is_async=True)

    outcome.demand(CRASH_SECONDS_MAX)
    assert outcome.lost == 0
    assert group.masters() == [master], "it goes on, having all it had"
    assert replayed(group, master) > 0


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS)
def test_a_killed_sidecar_costs_nothing(spaces: Spaces) -> None:
    """Kill -9: the broker goes on, and its role stays or moves without loss."""
    group = spaces.group("watched", SMALL)
    [master] = group.masters()

    outcome = under_load(group, "sidecar killed", lambda: kill_and_wait(group, master, SIDECAR))

    outcome.demand(SIDECAR_SECONDS_MAX)
