"""The state of machines and disks, derived from Nodes and claims by pure functions.

A machine is reachable or not, may be about to be drained, and may be known to be off. A disk counts as lost only where
its machine is known to be off, or its volume to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gantry_operator.api import Object, labels_of
from gantry_spec.observed import Disk

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""The taint by which a user or the cloud provider declares that a machine is off."""

UNREACHABLE: Final = "node.kubernetes.io/unreachable"
"""The taint that Kubernetes sets on a machine that does not answer."""

LEAVING_TAINTS: Final = frozenset(
    {
        OUT_OF_SERVICE,
        "node.kubernetes.io/unschedulable",
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
    }
)
"""The keys of taints of a machine that is to be drained, or that the autoscaler considers for removal."""


class Machine(NamedTuple):
    """The state of a machine, as far as it is known."""

    is_reachable: bool = True
    is_leaving: bool = False
    """Whether the machine is to be drained, or may be removed."""

    is_off: bool = False
    """Whether a user or the cloud provider has declared that no process runs on it any more."""


def machine_of(node: Object | None) -> Machine:
    """Return the state of a machine, from its Node; None stands for a Node that was deleted."""
    if node is None:
        return Machine(is_reachable=False)
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = {taint.get("key", "") for taint in spec.get("taints") or []}
    ready = next((one for one in status.get("conditions") or [] if one.get("type") == "Ready"), None)
    answers = ready is not None and ready.get("status") in ("True", "False")
    return Machine(
        is_reachable=answers and UNREACHABLE not in taints,
        is_leaving=bool(spec.get("unschedulable")) or bool(taints & LEAVING_TAINTS),
        is_off=OUT_OF_SERVICE in taints,
    )


HOSTNAME = "kubernetes.io/hostname"
"""The label by which a volume selects the machine that it is bound to. Its value need not be the name of the Node."""


def disk_of(claim: Object | None, home: Machine | None) -> Disk:
    """Return the state of a disk, from its claim, and the machine to which its volume is bound, if that is known."""
    if claim is None:
        return Disk.UNKNOWN
    phase = (claim.get("status") or {}).get("phase")
    if phase == "Lost":
        return Disk.LOST
    if phase != "Bound":
        return Disk.UNKNOWN
    if home is None or home.is_reachable:
        return Disk.PRESENT
    return Disk.LOST if home.is_off else Disk.UNKNOWN


def node_of_host(nodes: Iterable[Object], host: str) -> Object | None:
    """Return the Node with this host name, by its label; a Node without the label has the host name of its name."""
    return next((node for node in nodes if labels_of(node).get(HOSTNAME, node["metadata"]["name"]) == host), None)


def hosts_of(volume: Object) -> list[str]:
    """Return the host names of the machines that a volume is bound to; none if it can be attached anywhere."""
    affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("required") or {}).get("nodeSelectorTerms") or []
    found: list[str] = []
    for term in terms:
        for one in term.get("matchExpressions") or []:
            if one.get("key") == HOSTNAME and one.get("operator") == "In":
                found += one.get("values") or []
    return found
