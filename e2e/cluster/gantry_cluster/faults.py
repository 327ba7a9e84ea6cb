"""What goes wrong in a cluster, done on purpose, and put right again.

A cut is made where a cable is, at the bridge. A one-way cut and loss are rules in the `raw` table of the node that does
not hear, before connection tracking and in a table that kube-proxy never touches.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.machine import Machine
from gantry_cluster.node_files import SOCKET
from gantry_cluster.pods import Namespace

CRASH_SECONDS_MAX = 30.0
TABLE = ("iptables", "--wait", "-t", "raw")
TASKS = ("ctr", "--address", SOCKET, "--namespace", "k8s.io", "tasks")


@contextmanager
def uplink_cut(cluster: Cluster, node: str) -> Iterator[None]:
    """Nobody reaches the node and it reaches nobody; its pods go on among themselves."""
    cluster.hub.run("ip", "link", "set", node, "down")
    try:
        yield
    finally:
        cluster.hub.run("ip", "link", "set", node, "up")


@contextmanager
def deaf(cluster: Cluster, node: str, source: str, share: float = 1.0) -> Iterator[None]:
    """The node loses packets that come from an address or range; the other way stays open."""
    chance = () if share >= 1 else ("-m", "statistic", "--mode", "random", "--probability", str(share))
    rule = ("PREROUTING", "-i", "eth0", "-s", source, *chance, "-j", "DROP")
    machine = cluster.machines[node]
    machine.run(*TABLE, "-I", *rule)
    try:
        yield
    finally:
        machine.run(*TABLE, "-D", *rule)


@contextmanager
def stopped(cluster: Cluster, machine: str, program: str) -> Iterator[None]:
    """A program of the cluster is there and does nothing, as when its machine has no time for it."""
    process = cluster.machines[machine].programs[program].process
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


def crash(cluster: Cluster, node: str) -> None:
    """Pull the plug of a node: everything in it is gone at once, and it stays away until somebody revives it."""
    init = cluster.machines[node].init
    init.send(signal.SIGKILL)
    wait_until(f"the end of {node}", lambda: not init.is_alive(), CRASH_SECONDS_MAX)


def kill(cluster: Cluster, machine: str, program: str) -> None:
    """Kill one program of the cluster; it stays dead until somebody starts it again (`Machine.respawn`)."""
    process = cluster.machines[machine].programs[program].process
    process.send(signal.SIGKILL)
    wait_until(f"the end of {program}", lambda: not process.is_alive(), CRASH_SECONDS_MAX)


def container_id(space: Namespace, pod: str, container: str = "main") -> tuple[Machine, str]:
    """Where a container runs, and what the runtime there calls it."""
    found = space.read_pod(pod)
    assert found is not None, f"there is no pod {pod}"
    status = found["status"]
    [identifier] = [
        one["containerID"].rpartition("/")[2]
        for one in (*status["containerStatuses"], *status.get("initContainerStatuses", ()))
        if one["name"] == container
    ]
    return space.cluster.machines[found["spec"]["nodeName"]], identifier


def inside(space: Namespace, pod: str, container: str, *words: str) -> list[str]:
    """The command that runs something in a container by the runtime of its node, without an API server."""
    machine, identifier = container_id(space, pod, container)
    name = f"test-{time.monotonic_ns()}"
    return machine.enter([*TASKS, "exec", "--exec-id", name, identifier, *words])


def kill_container(space: Namespace, pod: str, container: str = "main") -> None:
    """Kill the first process of a container, as the kernel does when memory is short; the kubelet starts another."""
    machine, identifier = container_id(space, pod, container)
    machine.run(*TASKS, "kill", "--signal", "SIGKILL", identifier)


@contextmanager
def stopped_container(space: Namespace, pod: str, container: str = "main") -> Iterator[None]:
    """The first process of a container is there and does nothing."""
    machine, identifier = container_id(space, pod, container)
    machine.run(*TASKS, "kill", "--signal", "SIGSTOP", identifier)
    try:
        yield
    finally:
        machine.run(*TASKS, "kill", "--signal", "SIGCONT", identifier)


@contextmanager
def away(cluster: Cluster, machine: str, program: str) -> Iterator[None]:
    """A program of the cluster is killed, and started again in the end."""
    kill(cluster, machine, program)
    try:
        yield
    finally:
        cluster.machines[machine].respawn(program)
        cluster.save()
