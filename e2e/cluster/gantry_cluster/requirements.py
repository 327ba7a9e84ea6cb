"""The requirements of this machine, checked before anything is changed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from gantry_cluster.commands import run
from gantry_cluster.errors import CommandFailed, MissingTool
from gantry_cluster.node_files import PLUGINS_FOLDER

PACKAGES = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}
"""Each program that is not built here, and the Debian package that contains it; `programs` checks for Go itself."""

NETWORK_PLUGINS = ("bridge", "host-local", "loopback", "portmap")


def missing_reason() -> str | None:
    """Return what is missing, with the remedy; None if a cluster can be made here."""
    if os.geteuid() != 0:
        return "root is needed; run again with: sudo"
    absent = {package for program, package in PACKAGES.items() if shutil.which(program) is None}
    if not all((PLUGINS_FOLDER / plugin).exists() for plugin in NETWORK_PLUGINS):
        absent.add("containernetworking-plugins")
    if absent:
        return f"on Debian: apt-get install {' '.join(sorted(absent))}"
    if importlib.util.find_spec("cryptography") is None:
        return "the Python package cryptography is missing; run: scripts/setup dev"
    return machine_reason()


def machine_reason() -> str | None:
    """Return why this machine cannot have machines within it; None if it can."""
    if os.geteuid() != 0:
        return "root is needed; run again with: sudo"
    if not Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists():
        return "control groups are not of version 1; use docker and scripts/e2e --kind, or --kubeconfig FILE"
    try:
        run("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true")
    except CommandFailed:
        return "namespaces cannot be made here; run on a machine, not in a container"
    return None


def refuse_if_missing() -> None:
    """Raise ``MissingTool`` if a requirement is missing."""
    reason = missing_reason()
    if reason is not None:
        raise MissingTool(f"no cluster can be made on this machine: {reason}")
