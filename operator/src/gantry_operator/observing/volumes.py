"""What a claim says of a broker's disk. A disk is called lost only when its machine, or its volume, is known to be."""

from __future__ import annotations

from gantry_operator.api import Object
from gantry_operator.observing.machines import Machine
from gantry_spec.observed import Disk

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
