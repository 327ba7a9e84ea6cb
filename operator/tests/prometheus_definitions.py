"""The CustomResourceDefinitions of Prometheus' operator, as its project publishes them, fetched when a test needs them.

They are fetched as a Go module with a pinned version (`go.mod`) and a checksum (`go.sum`), which Go keeps in its cache.
None of their text is in this repository.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

PINS: Final = Path(__file__).resolve().parent / "prometheus"
"""The folder with `go.mod` and `go.sum`, which pin the version."""

MODULE: Final = "github.com/prometheus-operator/prometheus-operator"
KINDS: Final = ("podmonitors", "prometheusrules")
"""The kinds that Gantry creates."""

FETCH_S_MAX: Final = 300.0


def definitions() -> list[dict[str, Any]]:
    """Return those of the kinds that Gantry creates. Raises CalledProcessError without a network and cached copy."""
    version = re.search(rf"{re.escape(MODULE)} (v\S+)", (PINS / "go.mod").read_text())
    assert version is not None, "go.mod does not pin the module"
    words = ("go", "-C", str(PINS), "mod", "download", "-json", f"{MODULE}@{version[1]}")
    environment = os.environ | {"GOFLAGS": "-mod=readonly"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=FETCH_S_MAX)
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    return [yaml.safe_load((folder / f"monitoring.coreos.com_{kind}.yaml").read_text()) for kind in KINDS]
