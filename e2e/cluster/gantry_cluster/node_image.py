"""The image of a node of kind, built on this machine from Debian packages and the programs of Kubernetes.

kind's own images come from a registry. This one has the interface that kind expects: an entrypoint that becomes
systemd, containerd with the images of the control plane, kubeadm, a unit for the kubelet, and two manifests. The files
of `e2e/cluster/node` are copied onto the root file system; the agent of `node_agent` makes networks and volumes.

The image is kept as an archive of its root file system, named after everything that determines it. Docker and podman
import it under `name`.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from gantry_cluster import images
from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.machine import Machine
from gantry_cluster.node_files import containerd_text
from gantry_cluster.paths import CLUSTER, Folder
from gantry_cluster.programs import Programs, ProgressReporter, kubernetes_version, wanted_folder
from gantry_cluster.sandbox import kind_cache, run_in_sandbox

RELEASE: Final = "bookworm"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack"),
    *("iproute2", "ca-certificates", "kmod", "procps", "python3"),
)
"""The Debian packages of a node."""

FILES: Final = CLUSTER / "node"
"""The files that are copied onto the root file system."""

PYTHON: Final = Path("usr/local/lib/gantry/gantry_cluster")
"""The folder for this package, whose agent runs in the node."""

AGENT_MODULES: Final = (
    *("__init__", "api", "commands", "errors", "journal", "kubeconfig", "machine", "network", "node_agent", "paths"),
    *("processes", "provisioner"),
)
"""The agent, and the modules of this package that it imports."""

ENABLED: Final = ("containerd.service", "gantry-node.service", "kubelet.service")
MASKED: Final = (
    *("getty.target", "console-getty.service", "systemd-udevd.service", "systemd-udev-trigger.service"),
    *("systemd-logind.service", "systemd-remount-fs.service", "systemd-networkd.service", "dev-hugepages.mount"),
    *("systemd-sysctl.service", "systemd-binfmt.service", "systemd-modules-load.service", "modprobe@.service"),
    *("proc-sys-fs-binfmt_misc.automount", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"),
)
"""Units that a node starts, and those that it does not need or that would change settings of the whole machine."""

LIBRARIES: Final = "usr/lib/{}-linux-gnu/xtables"
"""The folder of the extensions of iptables."""

RULE_PROGRAMS: Final = tuple(
    f"{family}{suffix}" for family in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore")
)
"""The names under which kube-proxy calls iptables."""

CHANGES: Final = (
    'ENTRYPOINT ["/usr/local/bin/node-entrypoint"]',
    "ENV container=docker",
    f"ENV PATH={images.SEARCH_PATH}",
)
"""The settings of the image, for `docker import`. systemd reads `container`."""

DEBOOTSTRAP_SECONDS_MAX: Final = 1200.0
IMPORT_SECONDS_MAX: Final = 300.0
RUNTIME_SECONDS_MAX: Final = 60.0


def name() -> str:
    """Return the name under which the image is imported."""
    return f"localhost/gantry-kind-node:{kubernetes_version()}"


def _sources() -> Iterator[Path]:
    yield from sorted(path for path in FILES.rglob("*") if path.is_file())
    yield from (module_path(one) for one in (*AGENT_MODULES, "node_image"))
    yield CLUSTER / "addons.yaml"


def module_path(module: str) -> Path:
    """Return the path of a module of this package."""
    return Path(__file__).with_name(f"{module}.py")


def archive() -> Path:
    """Return the path of the archive that the present sources determine, whether it exists or not."""
    digest = hashlib.sha256()
    for part in (wanted_folder().name, RELEASE, *PACKAGES, *ENABLED, *MASKED):
        digest.update(part.encode() + b"\0")
    for source in _sources():
        digest.update(str(source.relative_to(CLUSTER)).encode() + b"\0" + source.read_bytes() + b"\0")
    return kind_cache() / f"node-{kubernetes_version()}-{digest.hexdigest()[:16]}.tar"


def find_built() -> Path | None:
    """Return the archive if it was built from the present sources. Without Go, which its name depends on, none was."""
    if shutil.which("go") is None or not archive().exists():
        return None
    return archive()


def build(target: Path, machine: Machine, folder: Folder, programs: Programs, report: ProgressReporter) -> None:
    """Build the image in a sandbox, and write its archive. Archives of older sources are removed."""
    with (kind_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = folder.root / "node"
        _unpack_base(root, machine, report)
        names = image_names(programs)
        install_files(root, programs, pause=names["pause"])
        report("importing the images of the control plane")
        archives = _control_plane_archives(folder.root / "images", root, programs, names)
        _import(machine, folder, root, archives)
        report("writing the archive")
        draft = target.with_suffix(".draft")
        _pack(root, draft)
        for old in kind_cache().glob("node-*.tar"):
            old.unlink()
        draft.rename(target)


def _pack(root: Path, target: Path) -> None:
    words = ("--create", "--numeric-owner", "--sort=name", "--file", target, "--directory", root, ".")
    run("tar", *words, seconds_max=IMPORT_SECONDS_MAX)


def _unpack_base(root: Path, machine: Machine, report: ProgressReporter) -> None:
    """Make the root file system from Debian packages alone. An archive of it is kept, as the packages seldom change."""
    digest = hashlib.sha256(" ".join((RELEASE, *PACKAGES)).encode()).hexdigest()
    base = kind_cache() / f"base-{digest[:16]}.tar"
    if base.exists():
        root.mkdir()
        run("tar", "--extract", "--numeric-owner", "--file", base, "--directory", root, seconds_max=IMPORT_SECONDS_MAX)
        return
    report(f"installing {RELEASE} for the node image, once")
    packages = kind_cache() / "debian"  # so that a build that was interrupted does not download them again
    packages.mkdir(exist_ok=True)
    options = ("--variant=minbase", f"--cache-dir={packages}", f"--include={','.join(PACKAGES)}")
    run_in_sandbox(machine, "debootstrap", *options, RELEASE, root, seconds_max=DEBOOTSTRAP_SECONDS_MAX)
    shutil.rmtree(packages)
    for unused in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(root / unused, ignore_errors=True)
    draft = base.with_suffix(".draft")
    _pack(root, draft)
    draft.rename(base)


def image_names(programs: Programs) -> dict[str, str]:
    """Return the names of the images that kubeadm uses, by the names of their programs."""
    listed = run(programs["kubeadm"], "config", "images", "list", f"--kubernetes-version={kubernetes_version()}")
    return {one.rpartition("/")[2].partition(":")[0]: one for one in listed.split()}


def install_files(root: Path, programs: Programs, *, pause: str) -> None:
    """Copy the programs and our files onto the root file system of a node, and configure its services."""
    shutil.copytree(FILES, root, dirs_exist_ok=True)
    for program in ("kubelet", "kubeadm", "kubectl"):
        shutil.copy(programs[program], root / "usr/local/bin" / program)
    for path in (root / "usr/local/bin").iterdir():
        path.chmod(0o755)
    (root / PYTHON).mkdir(parents=True)
    for module in AGENT_MODULES:
        shutil.copy(module_path(module), root / PYTHON)
    for made in ("etc/cni/net.d", "etc/containerd", "etc/kubernetes/manifests"):
        (root / made).mkdir(parents=True, exist_ok=True)
    networks = "/etc/cni/net.d"
    (root / "etc/containerd/config.toml").write_text(containerd_text(pause, networks, is_systemd=True))
    (root / "kind/version").write_text(kubernetes_version())
    (root / "kind/manifests/default-storage.yaml").write_text(storage_class((CLUSTER / "addons.yaml").read_text()))
    units = root / "etc/systemd/system"
    for unit in MASKED:
        _link(units / unit, "/dev/null")
    for unit in ENABLED:
        place = "/etc/systemd/system" if (units / unit).exists() else "/lib/systemd/system"
        _link(units / "multi-user.target.wants" / unit, f"{place}/{unit}")
    _link(units / "default.target", "/lib/systemd/system/multi-user.target")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def storage_class(addons: str) -> str:
    """Return the storage class among the addons of our own nodes: kind applies it as the default class."""
    documents = [one for one in yaml.safe_load_all(addons) if one["kind"] == "StorageClass"]
    return yaml.safe_dump_all(documents)


def _control_plane_archives(folder: Path, root: Path, programs: Programs, names: Mapping[str, str]) -> list[Path]:
    """Write the images of the control plane, each of one program and what it needs."""
    folder.mkdir()
    found = []
    for key, full_name in names.items():
        program = {"coredns": "dns"}.get(key, key)
        place = {"coredns": "/coredns", "pause": "/pause"}.get(key, f"/usr/local/bin/{key}")
        files = {place: programs[program]}
        if key == "kube-proxy":
            files |= proxy_files(root)
        path = folder / f"{key}.tar"
        user = images.UNPRIVILEGED if key == "pause" else ""
        images.write_archive(path, full_name, files, [place], platform.machine(), user=user)
        found.append(path)
    return found


def proxy_files(root: Path) -> dict[str, Path]:
    """Return iptables, its extensions and all their libraries, by their paths in the image of kube-proxy."""
    extensions = sorted((root / LIBRARIES.format(platform.machine())).glob("*.so"))
    rules = root / "usr/sbin/xtables-nft-multi"
    files = {f"/usr/sbin/{one}": rules for one in RULE_PROGRAMS}
    files |= {f"/{one.relative_to(root)}": one for one in extensions}
    inside = [f"/{one.relative_to(root)}" for one in (rules, *extensions)]
    linked = run("chroot", root, "ldd", *inside)
    for word in linked.split():
        if word.startswith("/") and not word.endswith(":"):
            files[word] = root / word.lstrip("/")
    return files


def _import(machine: Machine, folder: Folder, root: Path, archives: Sequence[Path]) -> None:
    """Import images into the store of a node's containerd, which runs in the sandbox for it."""
    state = Path("/run/gantry-import")
    config = folder.root / "import.toml"
    config.write_text(
        f'version = 2\nroot = "{root}/var/lib/containerd"\nstate = "{state}"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{state}.sock"\n'
    )
    log = folder.logs / "import.log"
    process = machine.spawn("containerd", ["containerd", "--config", config], log)
    ctr = ("ctr", "--address", f"{state}.sock", "--namespace", "k8s.io")

    def is_answering() -> bool:
        try:
            machine.run(*ctr, "version")
        except CommandFailed:
            return False
        return True

    wait_until("containerd for the node image", is_answering, RUNTIME_SECONDS_MAX, log)
    for one in archives:
        run_in_sandbox(machine, *ctr, "images", "import", "--no-unpack", one, seconds_max=IMPORT_SECONDS_MAX)
    process.send(signal.SIGTERM)
    wait_until("the end of containerd", lambda: not process.is_alive(), RUNTIME_SECONDS_MAX, log)


def load(engine: str, target: Path) -> None:
    """Import the archive into docker or podman, unless its image of this archive is there already."""
    label = f"dev.gantry.archive={target.name}"
    found = run(engine, "images", "--quiet", "--filter", f"label={label}")
    if found.strip():
        return
    changes = [word for change in (*CHANGES, f"LABEL {label}") for word in ("--change", change)]
    run(engine, "import", *changes, target, name(), seconds_max=IMPORT_SECONDS_MAX)
