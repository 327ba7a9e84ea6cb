"""What the members of a local group are called: by shard, and by who had which role first.

    member 1 of shard 0   master-0        (also ``0/1``)
    member 2              slave-0-1       ``0/2``
    member 3              slave-0-2       ``0/3``

A name stays with its broker when the role moves, as a pod's name does.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = re.compile(
    r"master-(?P<m>\d{1,3})|slave-(?P<s>\d{1,3})-(?P<n>\d{1,2})|(?P<shard>\d{1,3})/(?P<own>\d{1,2})"
)


def member_name(shard: int, number: int) -> str:
    """Of the broker with this number."""
    return f"master-{shard}" if number == 1 else f"slave-{shard}-{number - 1}"


def parse_member(text: str) -> tuple[int, int] | None:
    """Shard and number; None for what is no name of a member."""
    match = _NAMES.fullmatch(text)
    if match is None:
        return None
    if match["m"] is not None:
        return int(match["m"]), 1
    if match["s"] is not None:
        return int(match["s"]), int(match["n"]) + 1
    return int(match["shard"]), int(match["own"])
