"""A cluster: made by `up`, found again by everybody else, ended by `down`.

The machine carries one at a time, because node names, addresses and control groups are the machine's. Who makes the
link `CLAIM` has it; the link leads everybody else to the folder, and the folder's files tell what runs.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gantry_cluster import control_plane, images, network
from gantry_cluster.api import Api, Object
from gantry_cluster.certificates import Authority
from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import ClusterError, ClusterIsUp, NoCluster
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine
from gantry_cluster.node import furnish, known_names, load_image, make_group, mount_groups, start_node
from gantry_cluster.node_files import PAUSE_IMAGE, NodeFiles
from gantry_cluster.places import CLAIM, Folder
from gantry_cluster.processes import Process
from gantry_cluster.programs import Programs, programs
from gantry_cluster.requirements import refuse_if_missing

HUB = "hub"
NODES_SECONDS_MAX = 120.0
HUGE_PAGES = "vm/nr_hugepages"
KUBELET_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""What a kubelet changes for the whole machine when it starts."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is asked of `up`."""

    nodes: int = 3
    huge_pages: int = 0


@dataclass
class Cluster:
    """The machines of a running cluster."""

    folder: Folder
    programs: Programs
    machines: dict[str, Machine]

    @property
    def hub(self) -> Machine:
        """Where the control plane runs."""
        return self.machines[HUB]

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [name for name in self.machines if name != HUB]

    @property
    def api(self) -> Api:
        """The API server, as administrator."""
        return Api.of(self.folder)

    def kubectl(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run kubectl from outside, as administrator."""
        return run(self.programs["kubectl"], f"--kubeconfig={self.folder.kubeconfig}", *words, stdin=stdin)

    def load_image(self, archive: Path) -> list[str]:
        """Give every node an image."""
        names: list[str] = []
        for name in self.nodes:
            names = load_image(self.machines[name], archive)
        return names

    def save(self) -> None:
        """Write down what runs."""
        content = {
            "programs": str(self.programs.folder),
            "machines": {
                machine.name: {
                    "init": [machine.init.pid, machine.init.started],
                    "programs": {name: [found.pid, found.started] for name, found in machine.programs.items()},
                }
                for machine in self.machines.values()
            },
        }
        draft = self.folder.state.with_suffix(".draft")
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(self.folder.state)


def claimed() -> Folder | None:
    """The folder of the cluster that has this machine."""
    return Folder(Path(os.readlink(CLAIM))) if CLAIM.is_symlink() else None


def find() -> Cluster:
    """The cluster of this machine."""
    folder = claimed()
    if folder is None:
        raise NoCluster("this machine carries no cluster; make one with: e2e/cluster/run.py up")
    if not folder.state.exists():
        raise NoCluster(f"the cluster in {folder.root} never came up; clear it away with: e2e/cluster/run.py down")
    content = json.loads(folder.state.read_text())
    machines = {
        name: Machine(
            name, Process(*kept["init"]), {program: Process(*found) for program, found in kept["programs"].items()}
        )
        for name, kept in content["machines"].items()
    }
    return Cluster(folder, Programs(Path(content["programs"])), machines)


def up(folder: Folder, plan: Plan, say: Say) -> Cluster:
    """Make a cluster; what was begun is undone when it does not come up, but its logs stay."""
    refuse_if_missing()
    found = programs(say)
    journal = _claim(folder)
    started = time.monotonic()
    try:
        cluster = _make(folder, plan, found, journal, say)
    except BaseException:
        for failure in journal.undo():
            say(f"left behind: {failure}")
        raise
    say(f"up in {time.monotonic() - started:.0f} s: {plan.nodes} nodes, {folder.root}")
    return cluster


def _claim(folder: Folder) -> Journal:
    """Take the machine and begin with an empty folder."""
    other = claimed()
    if other is not None:
        raise ClusterIsUp(
            f"this machine carries the cluster in {other.root}, and carries one at a time; "
            "end it with: e2e/cluster/run.py down"
        )
    if folder.root.exists() and any(folder.root.iterdir()) and not folder.logs.is_dir():
        raise ClusterError(f"{folder.root} holds something that is no cluster; name another folder")
    shutil.rmtree(folder.root, ignore_errors=True)
    folder.logs.mkdir(parents=True)
    journal = Journal(folder.journal)
    if not journal.claim(CLAIM, folder.root):
        raise ClusterIsUp("somebody else has just begun a cluster on this machine")
    return journal


def _make(folder: Folder, plan: Plan, found: Programs, journal: Journal, say: Say) -> Cluster:
    """Hub, control plane, nodes, and then patience."""
    for name in KUBELET_SETTINGS:
        journal.set(name, None)
    if plan.huge_pages:
        _reserve_huge_pages(plan.huge_pages, journal)
    mount_groups(journal)
    images.write_archive(
        folder.root / "pause.tar", PAUSE_IMAGE, {"pause": found["pause"]}, ["/pause"], platform.machine()
    )
    hub = Machine.start(HUB, found["pause"], journal)
    network.wire_hub(hub, journal)
    cluster = Cluster(folder, found, {HUB: hub})
    authority = Authority(folder.keys)
    plane = control_plane.ControlPlane(folder, found, authority, authority.signing_key("service-accounts"))
    control_plane.start(plane, hub)
    say("the control plane is ready")
    control_plane.start_addons(plane, hub, [found["kubectl"], f"--kubeconfig={folder.kubeconfig}"])
    for number in range(1, plan.nodes + 1):
        files = NodeFiles(number, folder.node(network.node_name(number)))
        make_group(files, journal)
        machine = Machine.start(files.name, found["pause"], journal)
        cluster.machines[files.name] = machine
        furnish(machine, files.folder, known_names(plan.nodes))
        network.wire_node(hub, machine, number, plan.nodes)
        start_node(machine, files, folder, found, authority)
        say(f"{files.name} has started")
    cluster.save()
    wait_until(f"{plan.nodes} ready nodes", lambda: ready_nodes(cluster.api) == set(cluster.nodes), NODES_SECONDS_MAX)
    return cluster


def _reserve_huge_pages(pages: int, journal: Journal) -> None:
    """Pages of 2 MiB, for all nodes together; the kernel gives fewer when memory is fragmented."""
    journal.set(HUGE_PAGES, str(pages))
    given = int(Path("/proc/sys", HUGE_PAGES).read_text())
    if given < pages:
        raise ClusterError(f"the kernel gave {given} of {pages} huge pages; free memory or ask for fewer")


def condition(thing: Object, kind: str) -> str:
    """What a condition of an object says: True, False, Unknown, or nothing."""
    conditions = thing.get("status", {}).get("conditions", [])
    return next((str(entry["status"]) for entry in conditions if entry["type"] == kind), "")


def ready_nodes(api: Api) -> set[str]:
    """The names of the nodes that are ready."""
    return {node["metadata"]["name"] for node in api.items("/api/v1/nodes") if condition(node, "Ready") == "True"}


def down(say: Say, keep: bool = False) -> None:
    """End the cluster of this machine and leave the machine as it was; logs and stores go unless they are kept."""
    folder = claimed()
    if folder is None:
        raise NoCluster("this machine carries no cluster")
    started = time.monotonic()
    journal = Journal(folder.journal)
    failures = journal.undo()
    if failures:
        raise ClusterError("not everything could be undone: " + "; ".join(failures))
    CLAIM.unlink(missing_ok=True)    # of an earlier boot, or of a folder that somebody removed
    if not keep:
        shutil.rmtree(folder.root, ignore_errors=True)
    say(f"down in {time.monotonic() - started:.0f} s")
