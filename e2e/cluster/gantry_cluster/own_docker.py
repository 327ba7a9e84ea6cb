"""A docker engine of our own for `scripts/e2e --kind`, on a machine on which none answers.

    real machine                        sandbox: mounts, network and processes of its own
    run.py groups --kind   ── nsenter ── dockerd ── nodes of kind (containers)
            │                                 │
            └────────────── nsenter ── run.py groups --kind --node-image ...: kind, pytest

dockerd is installed and runs in a sandbox (`sandbox`), and so do kind and the tests, which find an ordinary machine
with docker there. All processes end with the sandbox, and the journal restores what was changed outside of it: kernel
settings, huge pages, mounts of control groups, and the groups of the containers. So `run.py down` cleans up after a
killed run, as it does for nodes in namespaces.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Never

from gantry_cluster import kind, lifecycle, node_image
from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import BadChoice, CommandFailed, MissingTool
from gantry_cluster.image_builds import BUILD_SECONDS_MAX
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine
from gantry_cluster.node import CONTROLLERS, make_group, mount_groups
from gantry_cluster.paths import CLUSTER, ROOT, Folder
from gantry_cluster.programs import KIND, KIND_NODE, Programs, ProgressReporter, programs
from gantry_cluster.requirements import machine_reason
from gantry_cluster.sandbox import run_in_sandbox, start_sandbox

GROUP: Final = "gantry-kind"
"""The control group of all containers, below every controller."""

GROUPS_FILE: Final = Path("/proc/cgroups")
JOINED: Final = {"net_cls": "net_cls,net_prio", "net_prio": "net_cls,net_prio"}
"""Controllers that systemd mounts together."""

HUGE_PAGES_FOLDER: Final = Path("/dev/hugepages")
"""The folder that `e2e/kind.yaml` shows to the nodes."""

START_SECONDS_MAX: Final = 60.0
RUN_PY: Final = CLUSTER / "run.py"
RUNTIME: Final = '''\
"""runc without the capabilities that this machine lacks: docker gives all of them to a privileged container."""
import json, os, re, sys

NAMES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE"
    " NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN"
    " SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE"
    " MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()
bound = int(re.search(r"CapBnd:\\s*(\\w+)", open("/proc/self/status").read())[1], 16)
held = {f"CAP_{name}" for number, name in enumerate(NAMES) if bound >> number & 1}
words = sys.argv[1:]
for option, file in (("--bundle", "/config.json"), ("--process", "")):
    if option in words:
        path = words[words.index(option) + 1] + file
        with open(path) as source:
            content = json.load(source)
        sets = content.get("process", content).get("capabilities") or {}
        for key, value in sets.items():
            sets[key] = [one for one in value or () if one in held]
        with open(path, "w") as target:
            json.dump(content, target)
os.execvp("runc", ["runc", *words])
'''
"""The runtime of dockerd."""


def is_needed() -> bool:
    """Return whether no docker engine answers, so that one must be started; podman needs no engine."""
    if kind.provider() != "docker":
        return False
    try:
        run("docker", "info")
    except CommandFailed:
        return True
    return False


def absent_controllers(table: str) -> list[str]:
    """Return the controllers of /proc/cgroups that are enabled but not mounted, as systemd would mount them.

    The systemd of each node would otherwise mount them itself, at the root that all nodes share, where each kubelet
    removes the groups of the others.
    """
    found: dict[str, None] = {}
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        controller, hierarchy, _, is_enabled = line.split()
        if hierarchy == "0" and is_enabled == "1":
            found[JOINED.get(controller, controller)] = None
    return list(found)


@dataclass(frozen=True)
class Claim:
    """This machine while it is claimed: the sandbox on it, and what was made for it."""

    sandbox: Machine
    folder: Folder
    programs: Programs


@contextmanager
def claim_with_sandbox(names: Sequence[str], report: ProgressReporter, huge_pages: int = 0) -> Iterator[Claim]:
    """Claim this machine and start a sandbox for the duration of the context; afterwards only logs are left."""
    reason = machine_reason()
    if reason is not None:
        raise MissingTool(f"no sandbox can be started on this machine: {reason}")
    found = programs(report, names)
    folder = Folder.at(ROOT / ".gantry" / "kind")
    journal = lifecycle.claim_machine(folder)
    signal.signal(signal.SIGTERM, _exit)
    try:
        _prepare_machine(journal, huge_pages)
        yield Claim(start_sandbox("kind", folder, found, journal, report), folder, found)
    finally:
        lifecycle.release_machine(journal)
        for path in folder.root.iterdir():
            if path != folder.logs:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _prepare_machine(journal: Journal, huge_pages: int) -> None:
    """Record the settings that kubelets change, reserve huge pages, and make the control groups of the containers."""
    for name in lifecycle.KUBELET_SETTINGS:
        journal.set(name, None)
    if not HUGE_PAGES_FOLDER.exists():
        journal.folder(HUGE_PAGES_FOLDER)
    if huge_pages:
        lifecycle.reserve_huge_pages(huge_pages, journal)
    absent = absent_controllers(GROUPS_FILE.read_text())
    mount_groups(journal, absent)
    make_group(GROUP, journal, (*CONTROLLERS, *absent))


def _exit(number: int, frame: FrameType | None) -> Never:
    """End like after Ctrl-C, so that the machine is restored."""
    sys.exit(128 + number)


def build_node_image(report: ProgressReporter) -> Path:
    """Return the archive of the node image, built first if it is missing."""
    target = node_image.archive()
    if not target.exists():
        names = tuple(dict.fromkeys((*KIND, *KIND_NODE)))
        with claim_with_sandbox(names, report) as here:
            node_image.build(target, here.sandbox, here.folder, here.programs, report)
    return target


def run_tests(words: Sequence[str], node_image_name: str, report: ProgressReporter) -> int:
    """Start a docker engine, and run the tests on a cluster of kind there; return their exit code."""
    if node_image_name not in ("", node_image.name()):
        raise BadChoice(f"no docker engine answers that could have {node_image_name}; leave --node-image out")
    if node_image.find_built() is None:
        raise MissingTool(
            "no docker engine answers; start docker, or build nodes for one that is started here: make kind-node"
        )
    with claim_with_sandbox(KIND, report, kind.HUGE_PAGES_WANTED) as here:
        report("building Gantry's images, if their sources have changed")
        run_in_sandbox(here.sandbox, sys.executable, RUN_PY, "build-images", seconds_max=2 * BUILD_SECONDS_MAX)
        report("starting docker")
        _start_engine(here.sandbox, here.folder)
        path = f"PATH={here.programs.folder}:{os.environ['PATH']}"
        inner = ("groups", "--kind", "--node-image", node_image.name(), *words)
        inside = here.sandbox.enter(["env", f"--chdir={ROOT}", path, sys.executable, RUN_PY, *inner])
        return subprocess.run(inside, check=False).returncode


def write_runtime(path: Path) -> Path:
    """Write the runtime as a program. A `#!` line would not support a long path or one with spaces."""
    path.write_text(f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} -IS \"$0\" \"$@\"\n'''\n{RUNTIME}")
    path.chmod(0o755)
    return path


def _start_engine(machine: Machine, folder: Folder) -> None:
    """Start dockerd, and return when it answers."""
    runtime = write_runtime(folder.root / "runtime")
    log = folder.logs / "dockerd.log"
    words = (
        *("dockerd", "--data-root", folder.root / "docker", "--storage-driver", "overlay2"),
        *("--cgroup-parent", f"/{GROUP}", "--add-runtime", f"gantry={runtime}", "--default-runtime", "gantry"),
    )
    machine.set("net/ipv4/ip_forward", "1")
    machine.spawn("dockerd", words, log)

    def is_answering() -> bool:
        try:
            machine.run("docker", "info")
        except CommandFailed:
            return False
        return True

    wait_until("an answer of dockerd", is_answering, START_SECONDS_MAX, log)
