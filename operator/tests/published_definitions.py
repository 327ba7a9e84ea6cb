"""The CustomResourceDefinitions of other projects, as they publish them, fetched when a test needs them.

They are fetched as a Go module with a pinned version (`go.mod`) and a checksum (`go.sum`), which Go keeps in its cache.
None of their text is in this repository. They are read from the archive of the module, which Go also fetches if the
module needs a newer compiler.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

FETCH_S_MAX: Final = 300.0
CERT_MANAGER: Final = Path(__file__).resolve().parent / "cert_manager"
"""The folder with the pinned version of cert-manager."""


def cert_manager_definitions() -> list[dict[str, Any]]:
    """Return the CRD of Certificates. Raises ``AssertionError`` without a network and a cached copy."""
    name = "deploy/crds/cert-manager.io_certificates.yaml"
    return published_definitions(CERT_MANAGER, "github.com/cert-manager/cert-manager", [name])


def published_definitions(pins: Path, module: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return files of a Go module, whose version and checksum are pinned in the folder ``pins``."""
    found = re.search(rf"{re.escape(module)} (v\S+)", (pins / "go.mod").read_text())
    assert found is not None, "go.mod does not pin the module"
    words = ("go", "-C", str(pins), "mod", "download", "-json", f"{module}@{found[1]}")
    environment = os.environ | {"GOFLAGS": "-mod=readonly"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=FETCH_S_MAX)
    answer = json.loads(done.stdout or "{}")
    assert "Zip" in answer, answer.get("Error") or done.stderr
    with zipfile.ZipFile(answer["Zip"]) as archive:
        return [yaml.safe_load(archive.read(f"{module}@{found[1]}/{name}")) for name in names]
