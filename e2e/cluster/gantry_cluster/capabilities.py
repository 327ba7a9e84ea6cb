"""What a cluster lets a test do to it: a test of groups says what it needs, and is skipped where that is missing.

A cluster that was made here can be hurt in every way. One of somebody else is spoken to and nothing more: whatever
needs the machine under a node is left out there. `lacks` looks at what Kubernetes says of itself and touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum, unique
from typing import Final

from gantry_cluster.api import Object
from gantry_cluster.cluster import condition

NODES_MIN: Final = 3
MINOR_MIN: Final = 30
"""Of Kubernetes 1, as the chart demands it."""
PAGES_BYTES_MIN: Final = 64 << 20
"""Of huge pages on a node: a broker of these tests has three buffers of 8 MiB, and a test up to two on a node."""
HUGE_PAGES: Final = "hugepages-2Mi"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
UNITS: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@unique
class Capability(StrEnum):
    """One thing; its value is its name in the table of what did not run."""

    RUN_GROUPS = "run_groups"
    """Carry the operator, groups and their clients: what needs no more runs anywhere."""

    GIVE_IMAGES = "give_images"
    """Give nodes an image that they have under another name, as a new version of it."""

    LOAD_IMAGES = "load_images"
    """Give nodes an image from a file that was built here."""

    HUGE_PAGES = "huge_pages"
    """Run brokers whose buffers are in huge pages."""

    REACH_NODES = "reach_nodes"
    """Be a client outside of the cluster, at the address of a node."""

    ENTER_CONTAINERS = "enter_containers"
    """Kill, stop and enter a container through the runtime of its node, also while the API server is away."""

    CRASH_NODES = "crash_nodes"
    """Pull the plug of a node, lose its disk, and switch it on again."""

    CUT_NODES = "cut_nodes"
    """Cut the cable of a node, or let it hear nobody."""

    STOP_API_SERVER = "stop_api_server"
    """Take the API server away and start it again."""

    RESIZE_VOLUMES = "resize_volumes"
    """Play the storage that grows volumes."""


OWN_NODES: Final = frozenset(Capability)
"""Nodes in namespaces on this machine: everything."""

LOOKED_AT: Final = (Capability.RUN_GROUPS, Capability.HUGE_PAGES, Capability.REACH_NODES)
"""What a look at a cluster of somebody else decides."""

KIND_NODES: Final = frozenset({*LOOKED_AT, Capability.GIVE_IMAGES})
"""At most what a cluster that `kind` made can do."""

FOREIGN_NODES: Final = frozenset(LOOKED_AT)
"""At most what a cluster is asked for of which there is only a kubeconfig."""

ON_OWN_NODES: Final = "scripts/e2e without options, as root, on nodes that it makes"
REMEDIES: Final[dict[Capability, str]] = {
    **dict.fromkeys(Capability, ON_OWN_NODES),
    Capability.RUN_GROUPS: "scripts/e2e --help says what a cluster must have",
    Capability.GIVE_IMAGES: f"scripts/e2e --kind; {ON_OWN_NODES}",
    Capability.HUGE_PAGES: "sysctl vm.nr_hugepages=128 on the nodes, before their kubelets start",
    Capability.REACH_NODES: "run it on a machine that reaches the nodes",
}


def lacks(nodes: Iterable[Object], classes: Iterable[Object], *, minor: str, is_reached: bool) -> dict[Capability, str]:
    """Which of `LOOKED_AT` a cluster has not got, and why; from its nodes, classes of storage, and minor version."""
    usable = [node for node in nodes if _is_usable(node)]
    found: dict[Capability, str] = {}
    number = int("".join(re.findall(r"^\d+", minor)) or 0)
    defaults = [one for one in classes if one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"]
    if number < MINOR_MIN:
        found[Capability.RUN_GROUPS] = f"Kubernetes 1.{minor} is older than 1.{MINOR_MIN}"
    elif len(usable) < NODES_MIN:
        found[Capability.RUN_GROUPS] = f"{len(usable)} nodes take pods, {NODES_MIN} are needed"
    elif not defaults:
        found[Capability.RUN_GROUPS] = "no class of storage is the default"
    if sum(_pages_bytes(node) >= PAGES_BYTES_MIN for node in usable) < NODES_MIN:
        found[Capability.HUGE_PAGES] = f"fewer than {NODES_MIN} nodes have {PAGES_BYTES_MIN >> 20} MiB of {HUGE_PAGES}"
    if not is_reached:
        found[Capability.REACH_NODES] = "the nodes' addresses do not answer here"
    return found


def _is_usable(node: Object) -> bool:
    """Whether it is ready and any pod may come."""
    is_closed = node["spec"].get("unschedulable", False)
    shuts = [taint for taint in node["spec"].get("taints", ()) if taint["effect"] in ("NoSchedule", "NoExecute")]
    return condition(node, "Ready") == "True" and not is_closed and not shuts


def usable_names(nodes: Iterable[Object]) -> list[str]:
    """The names of the nodes that any pod may come to."""
    return [str(node["metadata"]["name"]) for node in nodes if _is_usable(node)]


def _pages_bytes(node: Object) -> int:
    text = str(node.get("status", {}).get("allocatable", {}).get(HUGE_PAGES, "0"))
    parts = re.fullmatch(r"(\d+)(\D*)", text)
    return int(parts[1]) * UNITS.get(parts[2], 1) if parts else 0
