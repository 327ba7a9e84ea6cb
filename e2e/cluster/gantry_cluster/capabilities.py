"""The capabilities of a cluster: what a test may do to it. A test of groups declares the capabilities that it needs,
and is skipped on a cluster that lacks one.

Nodes in namespaces of this machine allow every fault. Any other cluster is used through its API, the ports of its nodes
and, if `kind` made it, `ctr` in its nodes: every test that needs control of a node's machine is left out there.
`find_missing` reads what Kubernetes reports and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum, unique
from typing import Final

from gantry_cluster.api import Object
from gantry_cluster.cluster import condition_status

NODES_MIN: Final = 3
"""The number of nodes that accept pods: one each for a master and two slaves."""

MINOR_MIN: Final = 30
"""The minor version of Kubernetes 1 that the chart requires."""
HUGE_PAGES_BYTES_MIN: Final = 64 << 20
"""Bytes of huge pages on a node: a broker of these tests has three buffers of 8 MiB, and a test has up to two
brokers on a node."""
HUGE_PAGES: Final = "hugepages-2Mi"
"""The resource of a node for huge pages."""

DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
UNITS: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
"""The units of a quantity of Kubernetes, in bytes."""


@unique
class Capability(StrEnum):
    """One capability. Its value is its name in the table of skipped tests."""

    RUN_GROUPS = "run_groups"
    """Run the operator, groups and their clients. A test that needs no more runs on every cluster."""

    TAG_IMAGES = "tag_images"
    """Give an image on the nodes another name, as a new version."""

    LOAD_IMAGES = "load_images"
    """Load an image from a file that was built here into the nodes."""

    HUGE_PAGES = "huge_pages"
    """Run brokers whose buffers are in huge pages."""

    REACH_NODES = "reach_nodes"
    """Connect from outside of the cluster to the address of a node."""

    ENTER_CONTAINERS = "enter_containers"
    """Kill, pause and enter a container through its node's runtime, also while the API server is down."""

    CRASH_NODES = "crash_nodes"
    """Cut the power of a node, lose its disk, and switch it on again."""

    CUT_NODES = "cut_nodes"
    """Cut the network of a node in both directions or in one."""

    STOP_API_SERVER = "stop_api_server"
    """Stop the API server and start it again."""

    RESIZE_VOLUMES = "resize_volumes"
    """Act as a storage driver that expands volumes."""

    SNAPSHOT_VOLUMES = "snapshot_volumes"
    """Make VolumeSnapshots, and claims from them."""


OWN_NODES: Final = frozenset(Capability)
"""Nodes in namespaces on this machine have every capability."""

PROBED: Final = (Capability.RUN_GROUPS, Capability.HUGE_PAGES, Capability.REACH_NODES)
"""The capabilities that are probed on a foreign cluster."""

KIND_NODES: Final = frozenset({*PROBED, Capability.TAG_IMAGES})
"""The most that a cluster made by `kind` can do."""

FOREIGN_NODES: Final = frozenset(PROBED)
"""The most that is asked of a cluster that is given by a kubeconfig."""

ON_OWN_NODES: Final = "scripts/e2e without options, as root, on nodes that it makes"
REMEDIES: Final[dict[Capability, str]] = {
    **dict.fromkeys(Capability, ON_OWN_NODES),
    Capability.RUN_GROUPS: "scripts/e2e --help lists the requirements of a cluster",
    Capability.TAG_IMAGES: f"scripts/e2e --kind; {ON_OWN_NODES}",
    Capability.HUGE_PAGES: "sysctl vm.nr_hugepages=128 on the nodes, before their kubelets start",
    Capability.REACH_NODES: "run it on a machine that reaches the nodes",
}
"""Where a test that is skipped for a missing capability can run."""


def find_missing(
    nodes: Iterable[Object], classes: Iterable[Object], *, minor: str, is_reached: bool
) -> dict[Capability, str]:
    """Return which of `PROBED` a cluster lacks, and why, from its nodes, storage classes and minor version."""
    usable = [node for node in nodes if _is_usable(node)]
    found: dict[Capability, str] = {}
    number = int("".join(re.findall(r"^\d+", minor)) or 0)
    defaults = [one for one in classes if one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"]
    if number < MINOR_MIN:
        found[Capability.RUN_GROUPS] = f"Kubernetes 1.{minor} is older than 1.{MINOR_MIN}"
    elif len(usable) < NODES_MIN:
        found[Capability.RUN_GROUPS] = f"{len(usable)} nodes accept pods, but {NODES_MIN} are needed"
    elif not defaults:
        found[Capability.RUN_GROUPS] = "no storage class is the default"
    if sum(_huge_pages_bytes(node) >= HUGE_PAGES_BYTES_MIN for node in usable) < NODES_MIN:
        found[Capability.HUGE_PAGES] = (
            f"fewer than {NODES_MIN} nodes have {HUGE_PAGES_BYTES_MIN >> 20} MiB of {HUGE_PAGES}"
        )
    if not is_reached:
        found[Capability.REACH_NODES] = "the nodes' addresses are not reachable from here"
    return found


def _is_usable(node: Object) -> bool:
    """Return whether the node is ready and accepts any pod."""
    is_unschedulable = node["spec"].get("unschedulable", False)
    blocking_taints = [
        taint for taint in node["spec"].get("taints", ()) if taint["effect"] in ("NoSchedule", "NoExecute")
    ]
    return condition_status(node, "Ready") == "True" and not is_unschedulable and not blocking_taints


def usable_names(nodes: Iterable[Object]) -> list[str]:
    """Return the names of the nodes that accept any pod."""
    return [str(node["metadata"]["name"]) for node in nodes if _is_usable(node)]


def _huge_pages_bytes(node: Object) -> int:
    text = str(node.get("status", {}).get("allocatable", {}).get(HUGE_PAGES, "0"))
    parts = re.fullmatch(r"(\d+)(\D*)", text)
    return int(parts[1]) * UNITS.get(parts[2], 1) if parts else 0
