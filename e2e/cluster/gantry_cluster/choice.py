"""Which cluster the tests of groups run on: nodes made here, nodes that `kind` makes, or what a kubeconfig leads to.

`scripts/e2e` chooses once, in words that are refused together or not at all, and the tests read what was chosen from
one variable of their environment. Without it they make nodes here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum, unique
from pathlib import Path
from typing import Any, Final

from gantry_cluster.capabilities import FOREIGN_NODES, KIND_NODES, OWN_NODES, Capability
from gantry_cluster.errors import BadChoice
from gantry_cluster.image_names import Images

VARIABLE: Final = "GANTRY_E2E_CLUSTER"


@unique
class Kind(StrEnum):
    """Of clusters."""

    NODES = "nodes"
    """Three machines in namespaces, made here."""

    IN_CONTAINERS = "kind"
    """Made by `kind`, each node a container."""

    FOREIGN = "kubeconfig"
    """There already; somebody else's."""


MOST: Final = {Kind.NODES: OWN_NODES, Kind.IN_CONTAINERS: KIND_NODES, Kind.FOREIGN: FOREIGN_NODES}
"""What each can do at most."""


@dataclass(frozen=True)
class Choice:
    """What was chosen."""

    kind: Kind = Kind.NODES
    kubeconfig: str = ""
    context: str = ""
    """Of the kubeconfig; empty for its current one."""
    images: Images | None = None
    """None for those that are built here."""

    def can(self, capability: Capability) -> bool:
        """Whether a cluster of this kind ever can."""
        return capability in MOST[self.kind]

    def at(self, kubeconfig: Path, images: Images) -> Choice:
        """The same, now that it is there."""
        return replace(self, kubeconfig=str(kubeconfig), images=images)

    def environment(self) -> dict[str, str]:
        """How the tests are told."""
        return {VARIABLE: json.dumps(asdict(self))}


def choose(*, is_kind: bool, kubeconfig: Path | None, context: str, broker: str, operator: str) -> Choice:
    """From the options of the command line. Raises ``BadChoice``."""
    if is_kind and kubeconfig is not None:
        raise BadChoice("--kind makes a cluster and --kubeconfig leads to another; leave one of them out")
    if context and kubeconfig is None:
        raise BadChoice("--context says which of a kubeconfig; give --kubeconfig FILE too")
    if bool(broker) != bool(operator):
        raise BadChoice("there are two images; name both: --image REPO:TAG --operator-image REPO:TAG")
    images = Images(broker, operator) if broker else None
    if is_kind:
        return Choice(Kind.IN_CONTAINERS, images=images)
    if kubeconfig is not None:
        if images is None:
            raise BadChoice(
                "nobody can give images to a cluster that is there already; push them where its nodes fetch images,"
                " and name them: --image REPO:TAG --operator-image REPO:TAG"
            )
        return Choice(Kind.FOREIGN, str(kubeconfig.resolve()), context, images)
    if images is not None:
        raise BadChoice("nodes that are made here are given images that are built here; leave --image out")
    return Choice()


def chosen(environment: Mapping[str, str]) -> Choice:
    """What the tests are told. Raises ``BadChoice``."""
    text = environment.get(VARIABLE)
    if not text:
        return Choice()
    try:
        told: dict[str, Any] = json.loads(text)
        images = told.pop("images")
        return Choice(**told | {"kind": Kind(told["kind"]), "images": Images(**images) if images else None})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadChoice(f"{VARIABLE} is not what scripts/e2e writes there ({error}); run scripts/e2e") from None
