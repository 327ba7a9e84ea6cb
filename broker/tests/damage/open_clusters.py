"""Combinations that are known not to hold yet, each with the reason. Empty is the aim.

A full run plays them like all others and shows their FAULTs; only the slice among the tests leaves them out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from damage.harms import Harm
from damage.kinds import LOG, Kind
from damage.plan import Cell

ALL_HARMS: Final = frozenset(Harm)


class Cluster(NamedTuple):
    """Kinds and ways of damage that fail for one reason."""

    kinds: Collection[Kind]
    harms: Collection[Harm]
    reason: str


OPEN: Final[tuple[Cluster, ...]] = (
    Cluster(LOG, ALL_HARMS, "a first or newest file that is lost, foreign or older, and what that says of the store"),
)  # fmt: skip


def why_open(cell: Cell) -> str:
    """The reason that a combination is not expected to hold; empty if it is."""
    for cluster in OPEN:
        if cell.kind in cluster.kinds and cell.harm in cluster.harms:
            return cluster.reason
    return ""
