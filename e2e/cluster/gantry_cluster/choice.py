"""The cluster that the tests of groups run on: nodes made here, nodes made by `kind`, or a cluster given by a
kubeconfig.

`scripts/e2e` reads the choice from its options, all of them validated together, and passes it to the tests in one
environment variable. Without that variable the tests make nodes here.
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
from gantry_cluster.network import Family

VARIABLE: Final = "GANTRY_E2E_CLUSTER"
"""The environment variable that passes the choice to the tests."""


@unique
class Kind(StrEnum):
    """The kinds of cluster that tests can use."""

    NODES = "nodes"
    """Three machines in namespaces, made here."""

    IN_CONTAINERS = "kind"
    """A cluster made by `kind`, each node a container."""

    FOREIGN = "kubeconfig"
    """An existing cluster that belongs to others."""


CAPABILITIES_MAX: Final = {Kind.NODES: OWN_NODES, Kind.IN_CONTAINERS: KIND_NODES, Kind.FOREIGN: FOREIGN_NODES}
"""The most that each kind can do."""


@dataclass(frozen=True)
class Choice:
    """The cluster that was chosen."""

    kind: Kind = Kind.NODES
    kubeconfig: str = ""
    context: str = ""
    """The context in the kubeconfig; empty for its current one."""
    images: Images | None = None
    """The images of Gantry; None if they are built here."""
    node_image: str = ""
    """The image of the nodes that kind makes; empty for a choice by what is available."""

    family: Family = Family.IPV4
    """The family of the addresses of pods on nodes that are made here."""

    def can_have(self, capability: Capability) -> bool:
        """Return whether a cluster of this kind can have the capability."""
        return capability in CAPABILITIES_MAX[self.kind]

    def for_made_cluster(self, kubeconfig: Path, images: Images) -> Choice:
        """Return the choice for a cluster that has been made."""
        return replace(self, kubeconfig=str(kubeconfig), images=images)

    def environment(self) -> dict[str, str]:
        """Return the environment that passes the choice to the tests."""
        return {VARIABLE: json.dumps(asdict(self))}


def choose(
    *,
    is_kind: bool,
    kubeconfig: Path | None,
    context: str,
    broker: str,
    operator: str,
    node_image: str,
    family: Family = Family.IPV4,
) -> Choice:
    """Read the choice from the options of the command line. Raises ``BadChoice``."""
    if is_kind and kubeconfig is not None:
        raise BadChoice("--kind and --kubeconfig exclude each other; leave one of them out")
    if context and kubeconfig is None:
        raise BadChoice("--context needs --kubeconfig FILE")
    if bool(broker) != bool(operator):
        raise BadChoice("two images are needed; give both: --image REPO:TAG --operator-image REPO:TAG")
    if node_image and not is_kind:
        raise BadChoice("--node-image needs --kind")
    if family is not Family.IPV4 and (is_kind or kubeconfig is not None):
        raise BadChoice("--ip-family is for nodes that are made here; leave --kind and --kubeconfig out")
    images = Images(broker, operator) if broker else None
    if is_kind:
        return Choice(Kind.IN_CONTAINERS, images=images, node_image=node_image)
    if kubeconfig is not None:
        if images is None:
            raise BadChoice(
                "images cannot be loaded into an existing cluster; push them to a registry that its nodes can reach,"
                " and name them: --image REPO:TAG --operator-image REPO:TAG"
            )
        return Choice(Kind.FOREIGN, str(kubeconfig.resolve()), context, images)
    if images is not None:
        raise BadChoice("nodes that are made here use images that are built here; leave --image out")
    return Choice(family=family)


def read_choice(environment: Mapping[str, str]) -> Choice:
    """Read the choice from the environment. Raises ``BadChoice``."""
    text = environment.get(VARIABLE)
    if not text:
        return Choice()
    try:
        values: dict[str, Any] = json.loads(text)
        images = values.pop("images")
        kinds = {"kind": Kind(values["kind"]), "family": Family(values["family"])}
        return Choice(**values | kinds | {"images": Images(**images) if images else None})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadChoice(f"{VARIABLE} has an invalid value ({error}); run scripts/e2e, which sets it") from None
