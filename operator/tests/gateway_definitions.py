"""The CustomResourceDefinitions of the Gateway API, as its project publishes them, fetched when a test needs them.

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
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

PINS: Final = Path(__file__).resolve().parent / "gateway_api"
MODULE: Final = "sigs.k8s.io/gateway-api"
KINDS: Final = ("gateways", "tcproutes")
"""The kinds that Gantry reads or creates."""

FETCH_S_MAX: Final = 300.0


class Release(NamedTuple):
    """A release of the Gateway API, and the served version of its TCPRoutes."""

    pins: Path
    """The folder with `go.mod` and `go.sum`, which pin the version."""

    channel: str
    """The channel of the CRDs, `standard` or `experimental`."""

    version: str


PRESENT: Final = Release(PINS, "standard", "v1")
FORMER: Final = Release(PINS / "former", "experimental", "v1alpha2")


def definitions(release: Release) -> list[dict[str, Any]]:
    """Return the CRDs of both kinds. Raises ``AssertionError`` without a network and a cached copy."""
    found = re.search(rf"{re.escape(MODULE)} (v\S+)", (release.pins / "go.mod").read_text())
    assert found is not None, "go.mod does not pin the module"
    words = ("go", "-C", str(release.pins), "mod", "download", "-json", f"{MODULE}@{found[1]}")
    environment = os.environ | {"GOFLAGS": "-mod=readonly"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=FETCH_S_MAX)
    answer = json.loads(done.stdout or "{}")
    assert "Zip" in answer, answer.get("Error") or done.stderr
    folder = f"{MODULE}@{found[1]}/config/crd/{release.channel}"
    with zipfile.ZipFile(answer["Zip"]) as archive:
        return [yaml.safe_load(archive.read(f"{folder}/gateway.networking.k8s.io_{kind}.yaml")) for kind in KINDS]
