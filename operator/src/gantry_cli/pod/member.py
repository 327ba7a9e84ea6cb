"""Which member of which shard a pod is, by its name alone.

    orders-0-master-0   member 1 of the shard that is reached at the Service orders-0
    orders-0-slave-1    member 3; a member's own Service has the name of its pod

Neither says anything about roles: whoever is the master was told so, and remembers it on its disk.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, final

_POD: Final = re.compile(r"(?P<shard>[a-z0-9][-a-z0-9]*-[0-9]{1,3})-(?P<home>master|slave)-(?P<ordinal>[0-9]{1,3})")


@final
class PodMember(NamedTuple):
    """A broker's pod."""

    number: int
    """Its own, from 1, which it keeps in every role."""

    own_service: str
    role_service: str


def member_of_pod(pod: str) -> PodMember | None:
    """What the pod is; None for a name that no broker's pod has."""
    match = _POD.fullmatch(pod)
    if match is None or (match["home"] == "master" and match["ordinal"] != "0"):
        return None
    number = 1 if match["home"] == "master" else int(match["ordinal"]) + 2
    return PodMember(number, pod, match["shard"])


def with_own(conf: str, own: dict[str, str]) -> str:
    """What the pod was made with, and what only it knows, which wins: a key stands there once."""
    stripped = (line.strip() for line in conf.splitlines())
    parts = (line.partition("=") for line in stripped if line and line[0] not in "#!")
    lines = {key.strip(): value.strip() for key, _, value in parts}
    return "".join(f"{key}={value}\n" for key, value in (lines | own).items())
