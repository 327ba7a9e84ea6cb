"""One node: a machine with containerd, a kubelet and kube-proxy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gantry_cluster.certificates import Authority
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ClusterError, CommandFailed
from gantry_cluster.journal import Journal
from gantry_cluster.kubeconfig import write_kubeconfig
from gantry_cluster.machine import Machine
from gantry_cluster.network import Network, mount_name_files, node_name
from gantry_cluster.node_files import SOCKET, NodeFiles
from gantry_cluster.paths import Folder
from gantry_cluster.programs import Programs

GROUPS = Path("/sys/fs/cgroup")
"""The root of the control groups of version 1."""

CONTROLLERS = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "hugetlb",
    "systemd",
    "unified",
)
"""The hierarchies in which a runtime makes groups; the last two are not controllers, but get groups too."""

HUGE_PAGES_FILE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
"""The file from which a kubelet reads the number of huge pages."""

RUNTIME_SECONDS_MAX = 30.0
"""The limit for an answer of containerd."""

CONTAINERD = "containerd"
"""The name of the program of containerd."""


def mount_groups(journal: Journal, controllers: Iterable[str] = ("hugetlb",)) -> None:
    """Mount controllers that are compiled in but not mounted: hugetlb, which a kubelet needs, or others."""
    for controller in controllers:
        folder = GROUPS / controller
        if not folder.is_dir():
            journal.folder(folder)
        if not folder.is_mount():
            journal.mount(folder, "cgroup", controller)


def make_group(name: str, journal: Journal, controllers: Iterable[str] = CONTROLLERS) -> None:
    """Make a group below every controller. A new cpuset accepts no process until its CPUs are set."""
    for controller in controllers:
        if (GROUPS / controller).is_dir():
            journal.group(GROUPS / controller / name)
    cpuset = GROUPS / "cpuset"
    for file in ("cpuset.cpus", "cpuset.mems"):
        (cpuset / name / file).write_text((cpuset / file).read_text())


def mount_private_folders(
    machine: Machine, folder: Path, names: dict[str, str], resolver_address: str, huge_pages: int
) -> None:
    """Give the machine its own folders for what must not be shared: sockets, locks, state, logs and huge pages.

    The host has one pool of huge pages. A node sees its share as the size of the pool, so it offers no more than that.
    """
    for own, hidden in (("lib", "/var/lib"), ("log", "/var/log")):
        (folder / own).mkdir(parents=True, exist_ok=True)
        machine.mount("--bind", folder / own, hidden)
    mount_name_files(machine, folder, names, resolver_address)
    share = folder / "huge_pages"
    share.write_text(f"{huge_pages}\n")
    if HUGE_PAGES_FILE.exists():
        machine.mount("--bind", share, HUGE_PAGES_FILE)
    machine.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    # Volumes that the kubelet mounts must be visible in containers.
    machine.mount("--make-rshared", "/")


def start_node(machine: Machine, files: NodeFiles, folder: Folder, programs: Programs, authority: Authority) -> None:
    """Start the three programs of a node. The node becomes ready later."""
    name, logs = files.name, folder.logs
    config = files.containerd()
    files.pod_network()
    machine.spawn(CONTAINERD, ["containerd", "--config", config], logs / f"{name}-containerd.log")
    wait_for_containerd(machine)
    user = authority.issue(name, f"system:node:{name}", ["system:nodes"])
    kubeconfig = write_kubeconfig(folder.keys / f"{name}.kubeconfig", authority, user)
    labels = f"topology.kubernetes.io/zone=zone{files.number}"
    kubelet: list[str | Path] = [
        *(programs["kubelet"], f"--config={files.kubelet(authority)}", f"--kubeconfig={kubeconfig}"),
        *(f"--hostname-override={name}", f"--node-ip={files.address}", f"--node-labels={labels}"),
    ]
    proxy_user = authority.issue(f"{name}-proxy", "system:kube-proxy", ["system:node-proxier"])
    proxy_kubeconfig = write_kubeconfig(folder.keys / f"{name}-proxy.kubeconfig", authority, proxy_user)
    proxy: list[str | Path] = [programs["kube-proxy"], f"--config={files.proxy(proxy_kubeconfig)}"]
    load_image(machine, folder.root / "pause.tar")
    machine.spawn("kubelet", kubelet, logs / f"{name}-kubelet.log")
    machine.spawn("kube-proxy", proxy, logs / f"{name}-kube-proxy.log")


def wait_for_containerd(machine: Machine) -> None:
    """Wait for containerd, because a kubelet exits at once if it finds no runtime."""

    def is_answering() -> bool:
        try:
            machine.run("ctr", "--address", SOCKET, "version")
        except CommandFailed:
            return False
        return True

    wait_until(f"containerd of {machine.name}", is_answering, RUNTIME_SECONDS_MAX, machine.programs[CONTAINERD].log)


def load_image(machine: Machine, archive: Path) -> list[str]:
    """Load an image from a file into a node; return its names."""
    visible = archive.resolve()
    if not visible.is_file():
        raise ClusterError(f"image archive {archive} not found")
    output = machine.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", visible)
    return [line.split()[1] for line in output.splitlines() if line.startswith("unpacking ")]


def tag_image(machine: Machine, known: str, name: str) -> None:
    """Give an image of a node another name. An image that had this name before loses it."""
    machine.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "tag", "--force", known, name)


def known_names(network: Network, nodes: int) -> dict[str, str]:
    """Return the addresses and names of all machines of a cluster."""
    return {network.hub: "hub", **{network.address(number): node_name(number) for number in range(1, nodes + 1)}}
