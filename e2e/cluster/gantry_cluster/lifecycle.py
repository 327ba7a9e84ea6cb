"""Making a cluster and ending it.

If the cluster does not start, `up` undoes its changes of the machine. `down` needs only the journal, so it also
removes what a killed `up` left behind.
"""

from __future__ import annotations

import platform
import shutil
import time
from pathlib import Path

from gantry_cluster import control_plane, images, network
from gantry_cluster.certificates import Authority
from gantry_cluster.cluster import HUB, LINK, Cluster, Plan, find_machine_claim, ready_nodes
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ClusterError, ClusterIsUp, NoCluster
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine
from gantry_cluster.node import (
    CONTAINERD,
    known_names,
    make_group,
    mount_groups,
    mount_private_folders,
    start_node,
    wait_for_containerd,
)
from gantry_cluster.node_files import PAUSE_IMAGE, NodeFiles
from gantry_cluster.paths import MACHINE_CLAIM, Folder
from gantry_cluster.programs import Programs, ProgressReporter, programs
from gantry_cluster.requirements import refuse_if_missing

NODES_SECONDS_MAX = 120.0
"""The limit for all nodes to be ready."""

HUGE_PAGES = "vm/nr_hugepages"
"""The kernel's setting for the number of reserved huge pages."""

KUBELET_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""The settings of the whole machine that a kubelet changes when it starts."""


def up(folder: Folder, plan: Plan, report: ProgressReporter) -> Cluster:
    """Make a cluster. If it does not start, all changes of the machine are undone; its folder stays, with the logs."""
    refuse_if_missing()
    found = programs(report)
    journal = claim_machine(folder)
    started = time.monotonic()
    try:
        cluster = _start_cluster(folder, plan, found, journal, report)
    except BaseException:
        release_machine(journal)
        raise
    report(f"up in {time.monotonic() - started:.0f} s: {plan.nodes} nodes, pods with {plan.family}, {folder.root}")
    return cluster


def claim_machine(folder: Folder) -> Journal:
    """Claim the machine and begin with an empty folder."""
    if folder.root.exists() and any(folder.root.iterdir()) and not folder.logs.is_dir():
        raise ClusterError(f"{folder.root} contains files that are not of a cluster; name another folder")
    try:
        MACHINE_CLAIM.mkdir(mode=0o700)
    except FileExistsError:
        other = find_machine_claim()
        where = f"the cluster in {other.root}" if other else "a cluster that has not started"
        raise ClusterIsUp(
            f"this machine carries {where}, and carries one at a time;"
            " end it with: .venv/bin/python e2e/cluster/run.py down"
        ) from None
    (MACHINE_CLAIM / LINK).symlink_to(folder.root)
    shutil.rmtree(folder.root, ignore_errors=True)
    folder.logs.mkdir(parents=True)
    return Journal(MACHINE_CLAIM)


def _start_cluster(folder: Folder, plan: Plan, found: Programs, journal: Journal, report: ProgressReporter) -> Cluster:
    """Start the hub, the control plane and the nodes, and wait until the nodes are ready."""
    for name in KUBELET_SETTINGS:
        journal.set(name, None)
    if plan.huge_pages:
        reserve_huge_pages(plan.huge_pages * plan.nodes, journal)
    mount_groups(journal)
    images.write_archive(
        folder.root / "pause.tar", PAUSE_IMAGE, {"pause": found["pause"]}, ["/pause"], platform.machine()
    )
    hub = Machine.start(HUB, found["pause"], journal, folder.logs / "hub.log")
    network.wire_hub(hub, journal)
    cluster = Cluster(folder, found, plan, {HUB: hub})
    authority = Authority(folder.keys)
    plane = control_plane.ControlPlane(
        folder, found, authority, authority.make_signing_key("service-accounts"), plan.network
    )
    control_plane.start(plane, hub)
    report("the control plane is ready")
    control_plane.start_addons(plane, hub, [found["kubectl"], f"--kubeconfig={folder.kubeconfig}"])
    for number in range(1, plan.nodes + 1):
        files = NodeFiles(number, folder.node(network.node_name(number)), plan.network)
        make_group(files.group, journal)
        machine = _machine_of_node(cluster, number, journal)
        start_node(machine, files, folder, found, authority)
        report(f"{files.name} has started")
    cluster.save()
    wait_until(f"{plan.nodes} ready nodes", lambda: ready_nodes(cluster.api) == set(cluster.nodes), NODES_SECONDS_MAX)
    return cluster


def _machine_of_node(cluster: Cluster, number: int, journal: Journal) -> Machine:
    """Create a machine with its folders and network, without programs yet."""
    name = network.node_name(number)
    machine = Machine.start(name, cluster.programs["pause"], journal, cluster.folder.logs / f"{name}.log")
    cluster.machines[name] = machine
    plan = cluster.plan
    names = known_names(plan.network, plan.nodes)
    mount_private_folders(machine, cluster.folder.node(name), names, plan.network.hub, plan.huge_pages)
    network.wire_node(cluster.hub, machine, number, plan.nodes, plan.family)
    return machine


def revive(cluster: Cluster, name: str) -> None:
    """Switch a crashed node on again: the same disk, a new process 1, its programs. The node becomes ready later."""
    crashed = cluster.machines[name]
    assert not crashed.is_alive(), f"{name} still runs"
    number = cluster.nodes.index(name) + 1
    machine = _machine_of_node(cluster, number, Journal(MACHINE_CLAIM))
    for program, kept in crashed.programs.items():
        machine.spawn(program, kept.command, kept.log)
        if program == CONTAINERD:
            wait_for_containerd(machine)
    cluster.save()


def reserve_huge_pages(pages: int, journal: Journal) -> None:
    """Reserve the pool for all nodes together; the kernel gives fewer pages if memory is fragmented."""
    file = Path("/proc/sys", HUGE_PAGES)
    others = int(file.read_text())
    journal.set(HUGE_PAGES, str(others + pages))
    given = int(file.read_text()) - others
    if given < pages:
        raise ClusterError(f"the kernel gave {given} of {pages} huge pages; free memory or ask for fewer")


def release_machine(journal: Journal) -> None:
    """Undo all changes. The machine is released only if all of them could be undone."""
    failures = journal.undo()
    if failures:
        raise ClusterError("not everything could be undone, try `down` again: " + "; ".join(failures))
    shutil.rmtree(MACHINE_CLAIM)


def down(report: ProgressReporter, keep: bool = False) -> None:
    """End the cluster of this machine and restore the machine. Its folder is deleted unless ``keep`` is set."""
    if not MACHINE_CLAIM.is_dir():
        raise NoCluster("this machine carries no cluster")
    started = time.monotonic()
    folder = find_machine_claim()
    release_machine(Journal(MACHINE_CLAIM))
    if folder is not None and not keep:
        shutil.rmtree(folder.root, ignore_errors=True)
    report(f"down in {time.monotonic() - started:.0f} s")
