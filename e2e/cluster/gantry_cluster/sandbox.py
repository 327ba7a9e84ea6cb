"""A machine with more Debian packages than this one has, of which nothing stays.

    /usr  =  overlay ( .gantry/kind/overlay/usr  >  ~/.cache/gantry/kind/packages-.../usr  >  the real /usr )

The folders into which packages install are overlays in the mount namespace of a `Machine`: the packages are installed
once, into a layer of their own that is cached, and every sandbox writes into a further layer that ends with it. The
layer belongs to the packages of the real machine: if these change, a new one is made.

Programs run in the sandbox's own network, which has no way out, or in the network of the real machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gantry_cluster.commands import run
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine
from gantry_cluster.paths import Folder, cache_folder
from gantry_cluster.programs import Programs, ProgressReporter

PACKAGES: Final = ("buildah", "containerd", "debootstrap", "docker.io", "iptables", "runc")
"""The Debian packages with which images are built and containers run."""

OVERLAID: Final = ("usr", "etc", "var")
"""The folders into which packages install."""

INSTALL_SECONDS_MAX: Final = 1200.0
STATUS: Final = Path("/var/lib/dpkg/status")
"""The list of the machine's installed packages."""

NO_SERVICES: Final = "#!/bin/sh\nexit 101\n"
"""The answer of `policy-rc.d` that keeps packages from starting their services."""


def kind_cache() -> Path:
    """Return the folder where packages and node images are kept, beside the programs."""
    return cache_folder().parent / "kind"


def start_sandbox(name: str, folder: Folder, programs: Programs, journal: Journal, report: ProgressReporter) -> Machine:
    """Start a machine that has the packages."""
    layer = _installed_packages(folder, programs, journal, report)
    machine = Machine.start(name, programs["pause"], journal, folder.logs / f"{name}.log")
    _mount_layers(machine, folder.root / "overlay", [layer])
    return machine


def run_in_sandbox(machine: Machine, *words: str | Path, seconds_max: float, is_networked: bool = False) -> str:
    """Run a program in a sandbox to its end, by default in the network of the real machine; return its output."""
    return run(*machine.enter(words, is_networked=is_networked), seconds_max=seconds_max)


def _mount_layers(machine: Machine, upper: Path, lower: Sequence[Path]) -> None:
    """Mount an overlay over each folder into which packages install, and an empty /run."""
    for name in OVERLAID:
        for part in (upper / name, upper / f"{name}-work"):
            part.mkdir(parents=True, exist_ok=True)
        layers = ":".join(str(one) for one in (*(layer / name for layer in lower), Path("/", name)))
        options = f"lowerdir={layers},upperdir={upper / name},workdir={upper / f'{name}-work'}"
        machine.mount("-t", "overlay", "-o", options, "overlay", f"/{name}")
    machine.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    machine.run("mkdir", "-p", "/run/lock")
    resolver = Path("/etc/resolv.conf").resolve()
    if resolver.is_relative_to("/run") and resolver.exists():  # a link, where a local service resolves names
        machine.run("mkdir", "-p", resolver.parent)
        machine.run("tee", resolver, stdin=resolver.read_text())


def layer_name(status: bytes) -> str:
    """Return the name of the layer for the machine's present packages."""
    return f"packages-{hashlib.sha256(status + ' '.join(PACKAGES).encode()).hexdigest()[:16]}"


def _installed_packages(folder: Folder, programs: Programs, journal: Journal, report: ProgressReporter) -> Path:
    """Return the layer with the packages, installed first if it is missing."""
    cache = kind_cache()
    layer = cache / layer_name(STATUS.read_bytes())
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if layer.is_dir():
            return layer
        report(f"installing {', '.join(PACKAGES)} into a layer that only sandboxes use, once")
        with tempfile.TemporaryDirectory(dir=cache, prefix="installing-") as draft:
            machine = Machine.start("packages", programs["pause"], journal, folder.logs / "packages.log")
            try:
                _mount_layers(machine, Path(draft), [])
                _install(machine)
            finally:
                machine.stop()
            for name in OVERLAID:
                shutil.rmtree(Path(draft, f"{name}-work"))
            Path(draft).chmod(0o755)
            os.rename(draft, layer)
            Path(draft).mkdir()  # the context removes it
    return layer


def _install(machine: Machine) -> None:
    """Install the packages, without their services, and remove what only the installation needed."""
    machine.run("tee", "/usr/sbin/policy-rc.d", stdin=NO_SERVICES)
    machine.run("chmod", "755", "/usr/sbin/policy-rc.d")
    environment = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
    for words in (
        ("apt-get", "update", "-qq"),
        ("apt-get", "install", "-qq", "--no-install-recommends", *PACKAGES),
        ("apt-get", "clean"),
    ):
        run_in_sandbox(machine, *environment, *words, seconds_max=INSTALL_SECONDS_MAX)
    machine.run("sh", "-c", "rm -rf /var/lib/apt/lists/*")
