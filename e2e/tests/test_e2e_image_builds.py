"""A stale archive of our image is never used: the sources that it was made from are compared with the current ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gantry_cluster.errors import ClusterError
from gantry_cluster.image_builds import ImageBuild
from gantry_cluster.paths import ROOT

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
def image(tmp_path: Path) -> ImageBuild:
    """An image of a small clone, with a script in place of the build."""
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
    return ImageBuild(name="operator", archive="made.tar", builds=(("build",),), root=tmp_path)


def builds(image: ImageBuild) -> int:
    """Return how often it was built."""
    return len((image.root / ".image" / "log").read_text().splitlines())


def test_image_is_built_once_for_the_same_sources(image: ImageBuild) -> None:
    """Changes of other files do not matter: tests, and Python's caches."""
    assert not image.is_fresh()
    path = image.build_if_stale()
    for name in ("operator/tests/test_a.py", "operator/src/__pycache__/c.pyc", "broker/Dockerfile"):
        (image.root / name).parent.mkdir(parents=True, exist_ok=True)
        (image.root / name).write_text("new")

    assert image.build_if_stale() == path and path.exists()
    assert builds(image) == 1


@pytest.mark.parametrize("name", SOURCES)
def test_image_of_changed_sources_is_rebuilt(image: ImageBuild, name: str) -> None:
    """A change of any source file counts."""
    image.build_if_stale()

    (image.root / name).write_text("changed")

    assert not image.is_fresh()
    image.build_if_stale()
    assert builds(image) == 2


def test_removed_file_causes_a_rebuild(image: ImageBuild) -> None:
    """A removed module must not stay in an image; here it is renamed, so that a new one is added as well."""
    image.build_if_stale()
    (image.root / "broker/src/a/b.py").rename(image.root / "broker/src/a/c.py")

    assert not image.is_fresh()
    image.build_if_stale()
    assert builds(image) == 2


def test_archive_without_its_source_digest_is_stale(image: ImageBuild) -> None:
    """Its sources are unknown; a build whose sources change meanwhile is refused."""
    image.build_if_stale()
    (image.root / ".image" / "made.tar.sources").unlink()
    assert not image.is_fresh()

    changing = (image.root / "scripts/build").read_text() + "echo x >>operator/src/c.py\n"
    (image.root / "scripts/build").write_text(changing)
    with pytest.raises(ClusterError, match="changed during the build"):
        image.build_if_stale()
