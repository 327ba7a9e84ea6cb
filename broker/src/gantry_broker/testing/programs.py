"""Programs of others that tests run, where they are not simply on PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def helm_program() -> Path | None:
    """Helm 3, looked for where `scripts/helm` looks; None if it is nowhere."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("GANTRY_CLUSTER_CACHE") or home / "gantry" / "kubernetes")
    found = [os.environ.get("GANTRY_HELM"), shutil.which("helm"), *sorted(cache.glob("*/helm")), cache / "helm"]
    return next((Path(one) for one in found if one and os.access(one, os.X_OK) and Path(one).is_file()), None)
