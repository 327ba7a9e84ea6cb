"""Programs that tests run: other programs that are not simply on PATH, and stand-ins for them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def helm_program() -> Path | None:
    """Return the path of Helm 3 from the places that `scripts/helm` searches; None if it is missing."""
    found = [os.environ.get("GANTRY_HELM"), shutil.which("helm"), *_built("helm")]
    return next((Path(one) for one in found if one and _is_program(Path(one))), None)


def kubernetes_program(name: str) -> Path | None:
    """Return the newest program of `scripts/kubernetes` or of a cluster's build; None if there is none."""
    return next(filter(_is_program, _built(name)), None)


def object_store_program() -> Path | None:
    """Return the newest S3 server of `scripts/object-store`; None if there is none."""
    return next(filter(_is_program, _newest(_home() / "object-store", "*/versitygw")), None)


def porcupine_program() -> Path | None:
    """Return the newest program of `scripts/porcupine`, the second judge of histories; None if there is none."""
    return next(filter(_is_program, _newest(_home() / "porcupine", "*/porcupine")), None)


def bundle_validator_program() -> Path | None:
    """Return the newest program of `scripts/bundle-validator`, the validator of OLM bundles; None if there is none."""
    return next(filter(_is_program, _newest(_home() / "bundle-validator", "*/bundle-validator")), None)


def chart_registry_program() -> Path | None:
    """Return the newest OCI registry of `scripts/chart-registry`; None if there is none."""
    return next(filter(_is_program, _newest(_home() / "chart-registry", "*/registry")), None)


def gitops_judge_program() -> Path | None:
    """Return the newest program of `scripts/gitops-judge`, which runs health checks; None if there is none."""
    return next(filter(_is_program, _newest(_home() / "gitops-judge", "*/gitops-judge")), None)


def write_program(path: Path, source: str) -> None:
    """Write an executable Python program for this interpreter. A `#!` line would not support a long path or one with
    spaces.
    """
    path.write_text(f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} \"$0\" \"$@\"\n'''\n{source}")
    path.chmod(0o755)


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gantry"


def _built(name: str) -> list[Path]:
    return _newest(Path(os.environ.get("GANTRY_CLUSTER_CACHE") or _home() / "kubernetes"), f"v*/{name}")


def _newest(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
