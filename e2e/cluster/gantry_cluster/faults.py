"""Faults of a cluster, injected on purpose and removed again.

A network is cut at the bridge, where the cable of a node ends. One-way cuts and packet loss are rules in the `raw`
table of the receiving node, which comes before connection tracking and is never touched by kube-proxy.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.machine import Machine
from gantry_cluster.network import IPV4, IPV6
from gantry_cluster.node_files import SOCKET
from gantry_cluster.pods import Namespace

CRASH_SECONDS_MAX = 30.0
"""The limit for a killed process to end."""

RAW_TABLE = ("--wait", "-t", "raw")
"""The options for the table whose rules come before connection tracking."""

TASKS = ("ctr", "--address", SOCKET, "--namespace", "k8s.io", "tasks")
"""The command for the processes of containers in containerd."""


@contextmanager
def cut_uplink(cluster: Cluster, node: str) -> Iterator[None]:
    """Cut the network of a node in both directions; its pods still reach each other."""
    cluster.hub.run("ip", "link", "set", node, "down")
    try:
        yield
    finally:
        cluster.hub.run("ip", "link", "set", node, "up")


@contextmanager
def drop_inbound(cluster: Cluster, node: str, source: str, share: float = 1.0) -> Iterator[None]:
    """Drop a share of the packets that a node receives from an address or range; the other direction stays open."""
    chance = () if share >= 1 else ("-m", "statistic", "--mode", "random", "--probability", str(share))
    rule = ("PREROUTING", "-i", "eth0", "-s", source, *chance, "-j", "DROP")
    machine, program = cluster.machines[node], (IPV6 if ":" in source else IPV4).iptables
    machine.run(program, *RAW_TABLE, "-I", *rule)
    try:
        yield
    finally:
        machine.run(program, *RAW_TABLE, "-D", *rule)


@contextmanager
def pause_program(cluster: Cluster, machine: str, program: str) -> Iterator[None]:
    """Pause a program of the cluster with SIGSTOP, as when its machine is overloaded."""
    process = cluster.machines[machine].programs[program].process
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


def crash(cluster: Cluster, node: str) -> None:
    """Cut the power of a node: everything in it ends at once, and it stays down until it is revived."""
    init = cluster.machines[node].init
    init.send(signal.SIGKILL)
    wait_until(f"the end of {node}", lambda: not init.is_alive(), CRASH_SECONDS_MAX)


def kill(cluster: Cluster, machine: str, program: str) -> None:
    """Kill one program of the cluster; it stays down until it is started again (`Machine.respawn`)."""
    process = cluster.machines[machine].programs[program].process
    process.send(signal.SIGKILL)
    wait_until(f"the end of {program}", lambda: not process.is_alive(), CRASH_SECONDS_MAX)


def container_id(namespace: Namespace, pod: str, container: str = "main") -> tuple[Machine, str]:
    """Return the machine in which a container runs, and the id that its runtime uses."""
    found = namespace.read_pod(pod)
    assert found is not None, f"pod {pod} not found"
    status = found["status"]
    [identifier] = [
        one["containerID"].rpartition("/")[2]
        for one in (*status["containerStatuses"], *status.get("initContainerStatuses", ()))
        if one["name"] == container
    ]
    return namespace.cluster.machines[found["spec"]["nodeName"]], identifier


def exec_command(namespace: Namespace, pod: str, container: str, *words: str) -> list[str]:
    """Return the command that runs a program in a container through its node's runtime, without an API server."""
    machine, identifier = container_id(namespace, pod, container)
    name = f"test-{time.monotonic_ns()}"
    return machine.enter([*TASKS, "exec", "--exec-id", name, identifier, *words])


def kill_container(namespace: Namespace, pod: str, container: str = "main") -> None:
    """Kill the first process of a container, as the kernel does when memory is short; the kubelet restarts it."""
    machine, identifier = container_id(namespace, pod, container)
    machine.run(*TASKS, "kill", "--signal", "SIGKILL", identifier)


@contextmanager
def pause_container(namespace: Namespace, pod: str, container: str = "main") -> Iterator[None]:
    """Pause the first process of a container with SIGSTOP."""
    machine, identifier = container_id(namespace, pod, container)
    machine.run(*TASKS, "kill", "--signal", "SIGSTOP", identifier)
    try:
        yield
    finally:
        machine.run(*TASKS, "kill", "--signal", "SIGCONT", identifier)


@contextmanager
def kill_temporarily(cluster: Cluster, machine: str, program: str) -> Iterator[None]:
    """Kill a program of the cluster, and start it again at the end of the context."""
    kill(cluster, machine, program)
    try:
        yield
    finally:
        cluster.machines[machine].respawn(program)
        cluster.save()
