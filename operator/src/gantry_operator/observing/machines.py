"""What a Node says of the machine: whether it answers, whether it is to be emptied, whether it is known to be off."""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_operator.api import Object

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
