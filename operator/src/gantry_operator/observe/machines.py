"""What Nodes and claims show of machines and disks, as pure functions.

Of a machine: whether it answers, whether it is to be emptied, whether it is known to be off. A disk is lost only where
its machine, or its volume, is known to be.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_operator.api import Object
from gantry_spec.observed import Disk

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
LEAVING: Final = frozenset(
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
"""Keys of taints that say that a machine is to be emptied. A candidate of the autoscaler is one that soon will be."""


class Machine(NamedTuple):
    """As far as is known."""

    is_reachable: bool = True
    is_leaving: bool = False
    is_off: bool = False
    """A person, or the cloud, has said that nothing runs there any more."""


def machine_of(node: Object | None) -> Machine:
    """Of a machine that pods were put on; None for one that Kubernetes knows no more."""
    if node is None:
        return Machine(is_reachable=False)
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = {taint.get("key", "") for taint in spec.get("taints") or []}
    ready = next((one for one in status.get("conditions") or [] if one.get("type") == "Ready"), None)
    answers = ready is not None and ready.get("status") in ("True", "False")
    return Machine(
        is_reachable=answers and UNREACHABLE not in taints,
        is_leaving=bool(spec.get("unschedulable")) or bool(taints & LEAVING),
        is_off=OUT_OF_SERVICE in taints,
    )


HOSTNAME = "kubernetes.io/hostname"


def disk_of(claim: Object | None, home: Machine | None) -> Disk:
    """Of a claim, whose volume lies on ``home`` if it lies on one machine only and that is known."""
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


def machines_of(volume: Object) -> list[str]:
    """The machines that a volume is bound to; none if it can be anywhere."""
    affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("required") or {}).get("nodeSelectorTerms") or []
    found: list[str] = []
    for term in terms:
        for one in term.get("matchExpressions") or []:
            if one.get("key") == HOSTNAME and one.get("operator") == "In":
                found += one.get("values") or []
    return found
