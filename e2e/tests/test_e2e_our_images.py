"""An archive of our image is never taken for newer than it is: what it was made of is compared with what is here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gantry_cluster.errors import ClusterError
from gantry_cluster.our_images import OurImage
from gantry_cluster.places import ROOT

SOURCES = (
    *("operator/Dockerfile", "operator/Dockerfile.dockerignore", "requirements/operator.txt", "requirements/build.txt"),
    *("pyproject.toml", "README.md", "LICENSE", "broker/src/a/b.py", "operator/src/c.py"),
)
BUILD = """#!/bin/sh
. "$(dirname -- "$0")/common.sh"
mkdir -p .image
echo built >>.image/log
scripts/image-sources operator >.image/made.tar.sources
touch .image/made.tar
"""


@pytest.fixture
def image(tmp_path: Path) -> OurImage:
    """One of a small clone, which a script pretends to build."""
    for name in SOURCES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "scripts").mkdir()
    for name in ("common.sh", "image-sources"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    build = tmp_path / "scripts" / "build"
    build.write_text(BUILD)
    build.chmod(0o755)
    return OurImage(name="operator", archive="made.tar", builds=(("build",),), root=tmp_path)


def builds(image: OurImage) -> int:
    """How often it was built."""
    return len((image.root / ".image" / "log").read_text().splitlines())


def test_an_image_is_built_once_for_the_same_sources(image: OurImage) -> None:
    """What does not go into it changes nothing: tests, and what Python leaves behind."""
    assert not image.is_fresh()
    path = image.fresh()
    for name in ("operator/tests/test_a.py", "operator/src/__pycache__/c.pyc", "broker/Dockerfile"):
        (image.root / name).parent.mkdir(parents=True, exist_ok=True)
        (image.root / name).write_text("new")

    assert image.fresh() == path and path.exists()
    assert builds(image) == 1


@pytest.mark.parametrize("name", SOURCES)
def test_an_image_of_other_sources_is_built_again(image: OurImage, name: str) -> None:
    """Whichever file it is; also one that is gone, and one that is new."""
    image.fresh()

    (image.root / name).write_text("changed")

    assert not image.is_fresh()
    image.fresh()
    assert builds(image) == 2


def test_files_that_come_and_go_count(image: OurImage) -> None:
    """A module that was removed must not live on in an image."""
    image.fresh()
    (image.root / "broker/src/a/b.py").rename(image.root / "broker/src/a/c.py")

    assert not image.is_fresh()


def test_an_archive_without_its_number_is_not_believed(image: OurImage) -> None:
    """Nobody knows what it was made of; and one whose sources change while it is built is refused."""
    image.fresh()
    (image.root / ".image" / "made.tar.sources").unlink()
    assert not image.is_fresh()

    changing = (image.root / "scripts/build").read_text() + "echo x >>operator/src/c.py\n"
    (image.root / "scripts/build").write_text(changing)
    with pytest.raises(ClusterError, match="have changed while it was built"):
        image.fresh()
