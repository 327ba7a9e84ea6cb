"""Backups of a group under load, and a group that is restored after the first one and its volumes are gone.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.group_life import condition_of, delete_completely
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import GROUP, NamespaceFactory
from gantry_cluster.specs import SMALL, TOPIC

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster_can(Capability.RUN_GROUPS),
    pytest.mark.cluster_can(Capability.SNAPSHOT_VOLUMES),
]

PLUGIN = Path(sys.executable).with_name("kubectl-gantry")
COMMAND_SECONDS_MAX = 300.0
UNKEPT = SMALL | {"storage": {"size": "1Gi", "retain": "Never"}}
"""A group whose volumes are deleted with it."""

BEFORE = [f"before {number}" for number in range(200)]
AFTER = [f"after {number}" for number in range(20)]
LOADED = "loaded"
"""The topic of the load during the backup."""


def kubectl_gantry(group: Group, *words: str) -> dict[str, Any]:
    """Run the plugin, which exits with 0; return its document."""
    cluster = group.namespace.cluster
    where = ["--kubeconfig", str(cluster.folder.kubeconfig), "-n", group.namespace.name, "--output", "json"]
    command = [str(PLUGIN), words[0], group.name, *words[1:], *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_topic(group: Group) -> list[str]:
    """Return the messages of the topic, once the name server of a group that has just begun knows it."""
    found: list[str] = []

    def is_read() -> bool:
        try:
            found[:] = group.gantry("consume", TOPIC).splitlines()
        except CommandFailed:
            return False
        return True

    wait_until("the route of the topic", is_read, NOTICED_SECONDS_MAX)
    return found


def test_lost_group_is_restored_from_its_backup(namespaces: NamespaceFactory) -> None:
    """Every message that was acknowledged before the backup is read back; the status names the point in the log."""
    group = Group(namespaces.create("backed-up"), GROUP)
    group.apply(UNKEPT)
    group.wait_healthy()
    group.start_client()
    group.gantry("produce", TOPIC, *BEFORE)

    with group.start_application(LOADED) as application:
        made = kubectl_gantry(group, "backup", "--name", "nightly")
        outcome = application.finish()
    print(f"RESULT backup: {made['points']}; {outcome}")
    assert outcome["failures"] == 0, outcome
    [point] = made["points"]
    assert point["flushed"] > 0
    wait_until("the status", lambda: group.read()["status"]["backup"]["last"] == "nightly", NOTICED_SECONDS_MAX)

    group.gantry("produce", TOPIC, *AFTER)
    delete_completely(group)
    wait_until("the end of its claims", lambda: not group.claims(), NOTICED_SECONDS_MAX)

    restored = kubectl_gantry(group, "restore", "--from", f"{GROUP}/nightly")
    assert restored["is_done"]
    group.wait_healthy()
    wait_until("the condition", lambda: condition_of(group, "Restored") == ("True", "Complete"), NOTICED_SECONDS_MAX)
    found = read_topic(group)
    assert sorted(set(found) - set(AFTER)) == sorted(BEFORE)
    assert len(found) == len(set(found))
    group.gantry("produce", TOPIC, "again")
    assert "again" in read_topic(group)


def test_without_its_backup_a_lost_group_is_empty(namespaces: NamespaceFactory) -> None:
    """The twin: the manifest alone brings back no message."""
    group = Group(namespaces.create("forgotten"), GROUP)
    group.apply(UNKEPT)
    group.wait_healthy()
    group.start_client()
    group.gantry("produce", TOPIC, *BEFORE)
    delete_completely(group)
    wait_until("the end of its claims", lambda: not group.claims(), NOTICED_SECONDS_MAX)
    group.apply(UNKEPT)
    group.wait_healthy()
    assert read_topic(group) == []
