"""What tests of groups need of the cluster that was chosen, as needs that the requirements plugin counts.

On nodes that are made here every capability is part of what `GANTRY_REQUIRE=cluster` promises: nothing is left out
there. Of somebody else's cluster only that it carries groups at all is promised; the rest is skipped, with the remedy.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final, final

import pytest

from gantry_cluster.capabilities import REMEDIES, Capability
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.errors import ClusterError
from gantry_cluster.foreign import ForeignCluster, opened
from gantry_testing.requirements_plugin import NEEDS, Need

MARKER: Final = "cluster_can"
PROMISE: Final = "cluster"
WHAT: Final = {
    Kind.NODES: "nodes made here",
    Kind.IN_CONTAINERS: "nodes of kind",
    Kind.FOREIGN: "a cluster of somebody else",
}


@final
class Chosen:
    """The cluster that was chosen, looked at when the first test asks."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._end = ExitStack()
        self._foreign: ForeignCluster | None = None
        self._lacks: dict[Capability, str] | None = None

    @property
    def is_made_here(self) -> bool:
        """Whether its nodes are namespaces of this machine."""
        return self.choice.kind is Kind.NODES

    def foreign(self) -> ForeignCluster:
        """One that is there already. Raises ``ClusterError``."""
        if self._foreign is None:
            self._foreign = self._end.enter_context(opened(self.choice))
        return self._foreign

    def lack(self, capability: Capability) -> str | None:
        """Why it cannot; None if it can."""
        if not self.choice.can(capability):
            return f"{WHAT[self.choice.kind]} cannot do it"
        if self.is_made_here:
            return None
        if self._lacks is None:
            try:
                self._lacks = self.foreign().lacks()
            except ClusterError as error:
                self._lacks = dict.fromkeys(Capability, str(error))
        return self._lacks.get(capability)

    def close(self) -> None:
        """The way to it is closed; it stays."""
        self._end.close()


def need_of(capability: Capability, here: Chosen) -> Need:
    """A capability as the plugin counts it."""
    is_promised = here.is_made_here or capability is Capability.RUN_GROUPS
    probe = partial(here.lack, capability)
    return Need(capability.value, probe, REMEDIES[capability], PROMISE if is_promised else "")


def needs(item: pytest.Item, here: Chosen) -> list[Need]:
    """Of one test: what making a cluster needs where it is made here, and every capability that its markers name."""
    marks = list(item.iter_markers(MARKER))
    if not marks:
        return []
    named = {Capability.RUN_GROUPS: None} | {Capability(one): None for mark in marks for one in mark.args}
    machine = [NEEDS["cluster"], NEEDS["buildah"]] if here.is_made_here else []
    return [*machine, *(need_of(capability, here) for capability in named)]
