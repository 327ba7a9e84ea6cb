"""Gantry's images as files, which are rebuilt when any of their sources has changed.

`scripts/image-sources` prints a checksum of the sources from which an image would be built now, and a file beside each
archive contains the checksum from its build. Both are compared before an archive is used: a test of an old
image would prove nothing about the current sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError
from gantry_cluster.paths import ROOT

BUILD_SECONDS_MAX = 1200.0
LOCAL_BASE = ("local-base",)
"""The script that makes the base image from Debian packages."""


@dataclass(frozen=True, kw_only=True)
class ImageBuild:
    """One of Gantry's images, with its archive and its build."""

    name: str
    """The name of the image for `scripts/image-sources`."""

    archive: str
    """The name of its file in `.image`."""

    builds: tuple[tuple[str, ...], ...]
    """The scripts that build it, in this order."""

    root: Path = ROOT
    """The root of the repository."""

    @property
    def path(self) -> Path:
        """The path of the archive."""
        return self.root / ".image" / self.archive

    def is_fresh(self) -> bool:
        """Return whether the archive exists and was built from the current sources."""
        made_of = self.path.with_name(f"{self.archive}.sources")
        if not self.path.exists() or not made_of.exists():
            return False
        return made_of.read_text().strip() == run(self.root / "scripts" / "image-sources", self.name).strip()

    def build_if_stale(self) -> Path:
        """Return the archive, built first if it is stale. Raises ``ClusterError``."""
        if not self.is_fresh():
            for script, *words in self.builds:
                run(self.root / "scripts" / script, *words, seconds_max=BUILD_SECONDS_MAX)
            if not self.is_fresh():
                raise ClusterError(f"the sources of the image {self.name} changed during the build; try again")
        return self.path


BROKER = ImageBuild(
    name="broker", archive="gantry.tar", builds=(LOCAL_BASE, ("image", "gantry-base"), ("image-archive",))
)
PIPELINES = ImageBuild(
    name="pipelines",
    archive="gantry-pipelines.tar",
    builds=(("local-base", "java"), ("image-pipelines", "gantry-base-java")),
)
OPERATOR = ImageBuild(
    name="operator", archive="gantry-operator.tar", builds=(LOCAL_BASE, ("image-operator", "gantry-base"))
)
