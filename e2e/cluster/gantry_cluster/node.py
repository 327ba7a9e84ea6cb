"""One node: a machine with containerd, a kubelet and kube-proxy."""

from __future__ import annotations

from pathlib import Path

from gantry_cluster.certificates import Authority
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ClusterError, CommandFailed
from gantry_cluster.journal import Journal
from gantry_cluster.kubeconfig import write_kubeconfig
from gantry_cluster.machine import Machine
from gantry_cluster.network import HUB_ADDRESS, name_files, node_address, node_name
from gantry_cluster.node_files import SOCKET, NodeFiles
from gantry_cluster.places import Folder
from gantry_cluster.programs import Programs

GROUPS = Path("/sys/fs/cgroup")
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
"""What a runtime makes groups in; the last two are no controllers and get groups all the same."""

HUGE_PAGES_FILE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
RUNTIME_SECONDS_MAX = 30.0
CONTAINERD = "containerd"


def mount_groups(journal: Journal) -> None:
    """Every controller that a kubelet needs; hugetlb is compiled in on many machines and mounted on few."""
    hugetlb = GROUPS / "hugetlb"
    if not hugetlb.is_dir():
        journal.folder(hugetlb)
    if not hugetlb.is_mount():
        journal.mount(hugetlb, "cgroup", "hugetlb")


def make_group(files: NodeFiles, journal: Journal) -> None:
    """The node's own place below every controller; a new cpuset is empty and holds nobody until it is filled."""
    for controller in CONTROLLERS:
        if (GROUPS / controller).is_dir():
            journal.group(GROUPS / controller / files.group)
    cpuset = GROUPS / "cpuset"
    for name in ("cpuset.cpus", "cpuset.mems"):
        (cpuset / files.group / name).write_text((cpuset / name).read_text())


def furnish(machine: Machine, folder: Path, names: dict[str, str], huge_pages: int) -> None:
    """Places of its own for what must not be shared: sockets and locks, state, logs of containers, and huge pages.

    Of those the machine has one pool; a node that is told its share in place of the pool's size offers no more.
    """
    for own, hidden in (("lib", "/var/lib"), ("log", "/var/log")):
        (folder / own).mkdir(parents=True, exist_ok=True)
        machine.mount("--bind", folder / own, hidden)
    name_files(machine, folder, names)
    share = folder / "huge_pages"
    share.write_text(f"{huge_pages}\n")
    if HUGE_PAGES_FILE.exists():
        machine.mount("--bind", share, HUGE_PAGES_FILE)
    machine.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    # Volumes that the kubelet mounts are to be seen in containers.
    machine.mount("--make-rshared", "/")


def start_node(machine: Machine, files: NodeFiles, folder: Folder, programs: Programs, authority: Authority) -> None:
    """Start the three programs of a node; the node becomes ready in its own time."""
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
        *(f"--hostname-override={name}", f"--node-ip={node_address(files.number)}", f"--node-labels={labels}"),
    ]
    proxy_user = authority.issue(f"{name}-proxy", "system:kube-proxy", ["system:node-proxier"])
    proxy_way_in = write_kubeconfig(folder.keys / f"{name}-proxy.kubeconfig", authority, proxy_user)
    proxy: list[str | Path] = [programs["kube-proxy"], f"--config={files.proxy(proxy_way_in)}"]
    load_image(machine, folder.root / "pause.tar")
    machine.spawn("kubelet", kubelet, logs / f"{name}-kubelet.log")
    machine.spawn("kube-proxy", proxy, logs / f"{name}-kube-proxy.log")


def wait_for_containerd(machine: Machine) -> None:
    """A kubelet that finds no runtime gives up at once."""

    def answers() -> bool:
        try:
            machine.run("ctr", "--address", SOCKET, "version")
        except CommandFailed:
            return False
        return True

    wait_until(f"containerd of {machine.name}", answers, RUNTIME_SECONDS_MAX, machine.programs[CONTAINERD].log)


def load_image(machine: Machine, archive: Path) -> list[str]:
    """Give a node an image from a file; the names it now knows it by."""
    visible = archive.resolve()
    if not visible.is_file():
        raise ClusterError(f"there is no image archive {archive}")
    said = machine.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", visible)
    return [line.split()[1] for line in said.splitlines() if line.startswith("unpacking ")]


def name_image(machine: Machine, known: str, name: str) -> None:
    """Give an image of a node another name; who had that name before loses it."""
    machine.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "tag", "--force", known, name)


def known_names(nodes: int) -> dict[str, str]:
    """Addresses and names of all machines of a cluster."""
    return {HUB_ADDRESS: "hub", **{node_address(number): node_name(number) for number in range(1, nodes + 1)}}
