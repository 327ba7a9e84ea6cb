"""The programs of the cluster, built once from pinned Go modules and cached.

A set of programs has a folder named after everything that determines it: the module's files, the compiler
and the flags. So a newer pin is another folder, and no program is replaced under a running cluster. A program is
complete or absent: it is built elsewhere and renamed into place. Only the requested programs are built.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.commands import run
from gantry_cluster.errors import CommandFailed, MissingTool
from gantry_cluster.paths import MODULE, cache_folder

PACKAGES = {
    "pause": "./pause",
    "dns": "./dns",
    "etcd": "go.etcd.io/etcd/server/v3",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
    "kind": "sigs.k8s.io/kind",
}
"""The programs that are built here, and their Go packages."""

NODES = tuple(name for name in PACKAGES if name not in ("kubeadm", "kind"))
"""The programs of nodes in namespaces, and of the tests on them."""

ALONE = ("etcd", "kube-apiserver", "helm", "kubectl")
"""The programs that tests without a cluster need: an API server without nodes, helm for the charts, and kubectl."""
KIND = ("pause", "kind", "kubectl", "helm")
"""The programs with which a cluster of kind is made and tested."""

KIND_NODE = ("pause", "dns", "etcd", "kubectl", "kubelet", "kubeadm", "kube-proxy", "kube-apiserver",
             "kube-controller-manager", "kube-scheduler")  # fmt: skip
"""The programs in the image of a node of kind."""
BUILD_SECONDS_MAX = 3600.0
BUILD_ATTEMPTS = 3
ProgressReporter = Callable[[str], None]
"""Shows a line about the progress to the user."""


@dataclass(frozen=True)
class Programs:
    """A folder that holds every requested program."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        """Return the path of a program."""
        if name not in PACKAGES:
            raise KeyError(name)
        return self.folder / name


def kubernetes_version() -> str:
    """Return the version that go.mod pins."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert match, "go.mod does not require k8s.io/kubernetes"
    return match[1]


def _link_flags() -> str:
    """Return the linker flags of an official build; without them the programs report v0.0.0-master."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamps.items())


def _sources() -> list[Path]:
    return [MODULE / "go.mod", MODULE / "go.sum", *sorted(MODULE.glob("*/*.go"))]


def set_name(go_version: str) -> str:
    """Return the name of the folder for what would be built now."""
    digest = hashlib.sha256()
    for part in (go_version, _link_flags(), *PACKAGES):
        digest.update(part.encode() + b"\0")
    for source in _sources():
        digest.update(source.read_bytes() + b"\0")
    return f"{kubernetes_version()}-{digest.hexdigest()[:16]}"


def _go_environment() -> dict[str, str]:
    """Return an environment for static builds that never edit the pinned versions."""
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath"}


def _go_version() -> str:
    if shutil.which("go") is None:
        raise MissingTool("go is missing; on Debian 12: apt-get install -t bookworm-backports golang-go")
    return run("go", "-C", MODULE, "env", "GOVERSION", environment=_go_environment()).strip()


def wanted_folder() -> Path:
    """Return the folder of the programs that the present sources and compiler determine. Raises ``MissingTool``."""
    return cache_folder() / set_name(_go_version())


def programs(report: ProgressReporter, names: Sequence[str] = NODES) -> Programs:
    """Return these programs, each built first if it is missing."""
    go_version = _go_version()
    cache = cache_folder()
    wanted = cache / set_name(go_version)
    if _missing(wanted, names):
        wanted.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _build(wanted, _missing(wanted, names), go_version, report)  # another process may have built some meanwhile
    return Programs(wanted)


def _missing(folder: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def _build(wanted: Path, names: Sequence[str], go_version: str, report: ProgressReporter) -> None:
    """Build each program, and rename it into place."""
    report(f"building {', '.join(names)} of Kubernetes {kubernetes_version()} with {go_version}, once")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=wanted.parent, prefix="building-") as folder:
        for number, name in enumerate(names, start=1):
            since = time.monotonic()
            draft = Path(folder, name)
            _compile(PACKAGES[name], draft, report)
            draft.chmod(0o755)
            draft.rename(wanted / name)
            report(f"  {number:>2}/{len(names)} {name}: {time.monotonic() - since:.0f} s")
    report(f"built in {time.monotonic() - started:.0f} s; kept in {wanted}")


def _compile(package: str, target: Path, report: ProgressReporter) -> None:
    """Download the dependencies and compile. A failure, but no timeout, is retried, because most concern downloads."""
    words = ("nice", "-n", "19", "go", "-C", MODULE, "build", "-ldflags", _link_flags(), "-o", target, package)
    for attempt in range(1, BUILD_ATTEMPTS + 1):
        try:
            run(*words, seconds_max=BUILD_SECONDS_MAX, environment=_go_environment())
        except CommandFailed as error:
            if attempt == BUILD_ATTEMPTS:
                raise
            report(f"  building failed, trying again: {error}")
        else:
            return
