"""`kubectl gantry console` against a real cluster: a port forwarded by a real kubelet, TLS to a real sidecar, and
another pod after a deletion."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

PLUGIN = Path(sys.executable).with_name("kubectl-gantry")
ANSWER_S = 120.0


def request(url: str, *, session: str = "", document: object = None) -> Any:
    """Send a request to the console, and return the document of its answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {session}"} if session else {})
    data = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=ANSWER_S) as answer:
        return json.loads(answer.read())


def serving_pod(lines: list[str]) -> str:
    """Return the pod that answers by the newest line about it."""
    return [line for line in lines if ": served by " in line][-1].rpartition(" ")[2]


def test_console_is_served_by_another_pod_after_a_deletion(namespaces: NamespaceFactory, tmp_path: Path) -> None:
    """A login works over the forwarded port, and the same session after the pod that answered has been deleted."""
    group: Group = namespaces.create_group("console", SMALL)
    cluster, namespace = group.namespace.cluster, group.namespace.name
    where = ["--kubeconfig", str(cluster.folder.kubeconfig), "-n", namespace]
    log = tmp_path / "console.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(PLUGIN), "console", group.name, *where], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        with process.stdout as printed:
            address = printed.readline().strip()
        url, _, code = address.partition("/console/#code=")
        session = request(f"{url}/v1/console/sessions", document={"code": code})["session"]
        assert request(f"{url}/v1/status", session=session)["role"] in ("master", "slave")
        first = serving_pod(log.read_text().splitlines())

        cluster.kubectl("delete", "pod", first, "-n", namespace, "--wait=true")

        # The slave may have no role at this moment, because it is about to be promoted.
        assert request(f"{url}/v1/status", session=session)["role"] in ("master", "slave", "unassigned")
        lines = log.read_text().splitlines()
        assert any(f"{first} is not reachable any more" in line for line in lines)
        assert serving_pod(lines) != first or sum(": served by " in line for line in lines) > 1
    finally:
        process.terminate()
        assert process.wait(ANSWER_S) == 0
