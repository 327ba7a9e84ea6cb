"""The names of Gantry's images on the nodes of a cluster.

Tests write one name, that of the image on nodes made here; on other clusters it is replaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gantry_cluster.api import Object
from gantry_cluster.errors import BadChoice

IMAGE: Final = "localhost/gantry:latest"
"""The name that tests write."""

NAME: Final = re.compile(r"(?P<repository>[^@\s]+):(?P<tag>[\w][\w.-]{0,127})")


@dataclass(frozen=True)
class Images:
    """The names of Gantry's images, which nodes have or can pull."""

    broker: str
    operator: str
    policy: str = "IfNotPresent"
    """The `imagePullPolicy` of pods with these images."""

    def __post_init__(self) -> None:
        """Refuse names that the chart cannot split into repository and tag."""
        for name in (self.broker, self.operator):
            parse_name(name)

    def chart_values(self) -> list[str]:
        """Return the values of the operator's chart for these images."""
        found = []
        for key, name in (("image", self.operator), ("brokerImage", self.broker)):
            repository, tag = parse_name(name)
            found += [f"{key}.repository={repository}", f"{key}.tag={tag}", f"{key}.pullPolicy={self.policy}"]
        return found

    def with_broker_image(self, spec: Object) -> Object:
        """Return a pod's specification in which the test's image name is replaced by the broker's image on this
        cluster."""
        return spec | {
            key: [self._replace_image(one) for one in spec[key]]
            for key in ("containers", "initContainers")
            if key in spec
        }

    def _replace_image(self, container: Object) -> Object:
        if container["image"] != IMAGE:
            return container
        return container | {"image": self.broker, "imagePullPolicy": self.policy}


def parse_name(name: str) -> tuple[str, str]:
    """Split a name into repository and tag. Raises ``BadChoice``: `latest` is no version, and a digest is no tag."""
    parts = NAME.fullmatch(name)
    if parts is None or parts["tag"] == "latest":
        raise BadChoice(f"{name!r} names no version of an image; write REPOSITORY:TAG, with a tag that is not latest")
    return parts["repository"], parts["tag"]


BUILT: Final = Images("localhost/gantry:e2e", "localhost/gantry-operator:e2e", policy="Never")
"""The images that are built here, for nodes into which they are loaded."""
