"""What the operator calls things, as far as these commands must find them. A test compares it with the operator's.

g-0-master-0     member 1 of shard 0         g-0    the Lease of shard 0
g-0-slave-0      member 2
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gantry_spec.manifest.group import API_GROUP

GROUP_LABEL: Final = f"{API_GROUP}/group"
ROLE_LABEL: Final = f"{API_GROUP}/role"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
BROKER: Final = "broker"
NAME_SERVER: Final = "nameserver"
BROKER_CONTAINER: Final = "broker"
SIDECAR_CONTAINER: Final = "sidecar"
OPERATOR_LABELS: Final = "app.kubernetes.io/name=gantry-operator"
SHORT_NAMES: Final = ("bg", "brokergroup", "brokergroups", "brokergroup.gantry.dev", "brokergroups.gantry.dev")


class Place(NamedTuple):
    """Which broker of a group a pod is."""

    shard: int
    member: int


def place_of(group: str, pod: str) -> Place | None:
    """Of a pod by its name; None for one that is no broker of the group."""
    match = re.fullmatch(rf"{re.escape(group)}-(\d+)-(?:master-0|slave-(\d+))", pod, re.ASCII)
    if match is None:
        return None
    return Place(int(match[1]), 1 if match[2] is None else int(match[2]) + 2)


def pod_of(group: str, shard: int, member: int) -> str:
    """The name of a member's pod."""
    return f"{group}-{shard}-master-0" if member == 1 else f"{group}-{shard}-slave-{member - 2}"


def lease_of(group: str, shard: int) -> str:
    """The name of a shard's Lease."""
    return f"{group}-{shard}"


def brokers_of(group: str) -> str:
    """What the pods of a group's brokers are selected by."""
    return f"{GROUP_LABEL}={group},{COMPONENT_LABEL}={BROKER}"


def group_word(text: str) -> str | None:
    """The name in `bg/NAME`, by any name that kubectl knows for the kind; None for what is none of these."""
    kind, slash, name = text.partition("/")
    return name if slash and kind.lower() in SHORT_NAMES else None
