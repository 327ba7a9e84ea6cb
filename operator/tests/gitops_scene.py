"""Resources as GitOps tools judge them: Argo CD by the health checks that we ship, Flux and Helm 4 by kstatus."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gantry_testing.programs import gitops_judge_program

ROOT = Path(__file__).resolve().parents[2]
HEALTH = ROOT / "manifests/argocd/health.yaml"
KEY_PREFIX = "resource.customizations.health.gantry.dev_"


class Health(NamedTuple):
    """The judgement about one resource."""

    argo: str
    kstatus: str
    message: str = ""
    """The message that Argo CD shows."""


def scripts() -> dict[str, str]:
    """Return the health check of each kind, as Argo CD reads it from its ConfigMap."""
    data = yaml.safe_load(HEALTH.read_text())["data"]
    return {key.removeprefix(KEY_PREFIX): script for key, script in data.items()}


def judge(resources: Sequence[dict[str, Any]], script: str = "") -> list[Health]:
    """Return the health of each resource, by the shipped check of its kind or by this script."""
    program, shipped = gitops_judge_program(), scripts()
    assert program is not None, "expected the marker needs_gitops_judge"
    lines = [json.dumps({"script": script or shipped[one["kind"]], "resource": one}) for one in resources]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [Health(one["argo"]["status"], one["kstatus"]["status"], one["argo"]["message"]) for one in found]
