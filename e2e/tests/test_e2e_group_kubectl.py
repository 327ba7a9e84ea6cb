"""`kubectl gantry` against a real cluster: it queries real sidecars in real pods, and the operator executes its
orders."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

PLUGIN = Path(sys.executable).with_name("kubectl-gantry")
COMMAND_SECONDS_MAX = 180.0


def kubectl_gantry(group: Group, *words: str) -> str:
    """Run the plugin, which exits with 0; return its output."""
    cluster = group.namespace.cluster
    where = ["--kubeconfig", str(cluster.folder.kubeconfig), "-n", group.namespace.name]
    command = [str(PLUGIN), words[0], group.name, *words[1:], *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def document_of(group: Group, *words: str) -> dict[str, Any]:
    """Run the plugin with JSON output."""
    found: dict[str, Any] = json.loads(kubectl_gantry(group, *words, "--output", "json"))
    return found


def test_status_orders_and_bundle_work_on_a_real_cluster(namespaces: NamespaceFactory, tmp_path: Path) -> None:
    """Every sidecar answers inside its pod, the role moves as ordered, and a fence is set and lifted."""
    group = namespaces.create_group("person", SMALL)

    status = document_of(group, "status")
    assert [(one["role"], one["fault"]) for one in status["members"]] == [("master", None), ("slave", None)]
    assert status["left_out"] == [] and [one["is_fresh"] for one in status["ledgers"]] == [True]
    explained = document_of(group, "explain")
    assert (explained["source"], explained["outlook"][0]["winner"]) == ("sidecars", 2)

    moved = document_of(group, "promote", "0=2")
    assert (moved["before_master"], moved["master"]) == ("orders-0-master-0", "orders-0-slave-0")
    assert moved["epoch"] > moved["before_epoch"]
    group.wait_healthy()

    assert "takes no sends" in kubectl_gantry(group, "fence", "0")
    assert "not fenced any more" in kubectl_gantry(group, "fence", "0", "--lift")
    group.wait_healthy()

    file = tmp_path / "orders.tar.gz"
    kubectl_gantry(group, "bundle", "--to", str(file))
    with tarfile.open(file) as archive:
        names = {name.removeprefix("gantry-bundle/") for name in archive.getnames()}
    for pod in ("orders-0-master-0", "orders-0-slave-0"):
        assert {f"logs/{pod}/broker.log", f"logs/{pod}/sidecar.log", f"sidecars/{pod}.tar.gz"} <= names
