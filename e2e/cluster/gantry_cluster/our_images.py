"""Our images as files, which are built anew as soon as anything that goes into them is another.

`scripts/image-sources` says what an image would be made of now, and beside each archive lies what it was made of. Both
are compared before an archive is used: a test of yesterday's image would say nothing of today's sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError
from gantry_cluster.places import ROOT

BUILD_SECONDS_MAX = 1200.0
LOCAL_BASE = ("local-base",)


@dataclass(frozen=True, kw_only=True)
class OurImage:
    """One of them."""

    name: str
    """What `scripts/image-sources` calls it."""

    archive: str
    """Its file in `.image`."""

    builds: tuple[tuple[str, ...], ...]
    """Scripts that make it, one after another."""

    root: Path = ROOT
    """The clone."""

    @property
    def path(self) -> Path:
        """Where the archive is."""
        return self.root / ".image" / self.archive

    def is_fresh(self) -> bool:
        """Whether the archive is there, and of the sources that are here now."""
        made_of = self.path.with_name(f"{self.archive}.sources")
        if not self.path.exists() or not made_of.exists():
            return False
        return made_of.read_text().strip() == run(self.root / "scripts" / "image-sources", self.name).strip()

    def fresh(self) -> Path:
        """The archive, built now if it is not fresh. Raises ``ClusterError``."""
        if not self.is_fresh():
            for script, *words in self.builds:
                run(self.root / "scripts" / script, *words, seconds_max=BUILD_SECONDS_MAX)
            if not self.is_fresh():
                raise ClusterError(f"the sources of the image {self.name} have changed while it was built; try again")
        return self.path


BROKER = OurImage(
    name="broker", archive="gantry.tar", builds=(LOCAL_BASE, ("image", "gantry-base"), ("image-archive",))
)
PIPELINES = OurImage(
    name="pipelines",
    archive="gantry-pipelines.tar",
    builds=(("local-base", "java"), ("image-pipelines", "gantry-base-java")),
)
OPERATOR = OurImage(
    name="operator", archive="gantry-operator.tar", builds=(LOCAL_BASE, ("image-operator", "gantry-base"))
)
