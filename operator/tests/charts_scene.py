"""Charts as helm renders them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import manifests
import yaml

from gantry_testing.programs import helm_program

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "charts/gantry-operator"
GROUP = ROOT / "charts/broker-group"
MONITORING = (
    "--api-versions",
    "monitoring.coreos.com/v1/PodMonitor",
    "--api-versions",
    "monitoring.coreos.com/v1/PrometheusRule",
)
"""Options with which helm renders for a cluster with Prometheus' operator."""


def helm() -> Path:
    """Return the path of helm; tests that use it are marked with `needs_helm`."""
    found = helm_program()
    assert found is not None
    return found


def template(chart: Path, *options: str, release: str = "gantry-operator", namespace: str = "gantry-system") -> str:
    """Return the rendered chart as text. Raises CalledProcessError."""
    text: str = manifests.template(helm(), chart, release, namespace, *options)
    return text


def documents(chart: Path, *options: str, release: str = "gantry-operator") -> list[dict[str, Any]]:
    """Return the documents of the rendered chart."""
    return [one for one in yaml.safe_load_all(template(chart, *options, release=release)) if one]


def refusal(chart: Path, *options: str) -> str:
    """Return helm's error message about the values, or an empty string if it accepts them."""
    try:
        template(chart, *options)
    except subprocess.CalledProcessError as error:
        message: str = error.stderr
        return message
    return ""
