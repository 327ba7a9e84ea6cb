"""The capabilities that tests need of the chosen cluster, as needs that the requirements plugin counts.

On nodes that are made here every capability is part of what `GANTRY_REQUIRE=cluster` promises: no test may be skipped
there. Of a foreign cluster only `RUN_GROUPS` is promised; tests that need more are skipped, with the remedy.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final, final

import pytest

from gantry_cluster.capabilities import REMEDIES, Capability
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.errors import ClusterError
from gantry_cluster.foreign import ForeignCluster, open_cluster
from gantry_testing.requirements_plugin import NEEDS, Need

MARKER: Final = "cluster_can"
"""The name of the pytest marker with which a test declares capabilities."""

PROMISE: Final = "cluster"
"""The word in `GANTRY_REQUIRE` that turns the skip of a promised test into a failure."""

KIND_TEXTS: Final = {
    Kind.NODES: "nodes made here",
    Kind.IN_CONTAINERS: "nodes of kind",
    Kind.FOREIGN: "a foreign cluster",
}
"""The kinds of cluster in messages."""


@final
class ChosenCluster:
    """The cluster that was chosen. It is probed when the first test needs it."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._end = ExitStack()
        self._foreign: ForeignCluster | None = None
        self._lacks: dict[Capability, str] | None = None
        """The missing capabilities with their reasons; None before the cluster is probed."""

    @property
    def is_made_here(self) -> bool:
        """Whether its nodes are namespaces of this machine."""
        return self.choice.kind is Kind.NODES

    def foreign(self) -> ForeignCluster:
        """Return the existing cluster, opened on first use. Raises ``ClusterError``."""
        if self._foreign is None:
            self._foreign = self._end.enter_context(open_cluster(self.choice))
        return self._foreign

    def missing_reason(self, capability: Capability) -> str | None:
        """Return why the capability is missing; None if the cluster has it."""
        if not self.choice.can_have(capability):
            return f"not supported by {KIND_TEXTS[self.choice.kind]}"
        if self.is_made_here:
            return None
        if self._lacks is None:
            try:
                self._lacks = self.foreign().find_missing()
            except ClusterError as error:
                self._lacks = dict.fromkeys(Capability, str(error))
        return self._lacks.get(capability)

    def close(self) -> None:
        """Close the connection to the cluster. The cluster itself stays."""
        self._end.close()


def make_need(capability: Capability, cluster: ChosenCluster) -> Need:
    """Return a capability as a need that the plugin counts."""
    is_promised = cluster.is_made_here or capability is Capability.RUN_GROUPS
    probe = partial(cluster.missing_reason, capability)
    return Need(capability.value, probe, REMEDIES[capability], PROMISE if is_promised else "")


def list_needs(item: pytest.Item, cluster: ChosenCluster) -> list[Need]:
    """List a marked test's needs: to make a cluster here, `RUN_GROUPS`, and each capability that its markers name."""
    marks = list(item.iter_markers(MARKER))
    if not marks:
        return []
    named = {Capability.RUN_GROUPS: None} | {Capability(one): None for mark in marks for one in mark.args}
    machine = [NEEDS["cluster"], NEEDS["buildah"]] if cluster.is_made_here else []
    return [*machine, *(make_need(capability, cluster) for capability in named)]
