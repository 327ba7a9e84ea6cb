"""The image of the operator is built on the local base image, and contains its imports, for an unprivileged user."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest
from charts_scene import ROOT
from sbom import find_faults

SCRIPT_TIMEOUT_S = 900
ARCHIVE_BYTES_MAX = 300 << 20

pytestmark = [pytest.mark.slow, pytest.mark.needs_root, pytest.mark.needs_buildah]

InContainer = Callable[..., str]


def run(*words: str) -> str:
    """Run a command to its end, and return its output if it succeeds."""
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SCRIPT_TIMEOUT_S)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def buildah(*words: str) -> str:
    """Run buildah with the storage that the scripts use."""
    folder = ROOT / ".image"
    storage = ["--storage-driver", "vfs", "--root", str(folder / "storage"), "--runroot", str(folder / "run")]
    return run("buildah", *storage, *words)


@pytest.fixture(scope="module")
def in_container() -> Iterator[InContainer]:
    """Run a command in a container of the image that was just built."""
    run("scripts/local-base")
    run("scripts/image-operator", "gantry-base")
    container = buildah("from", "--pull-never", "gantry-operator").strip()
    yield lambda *words: buildah("run", "--isolation", "chroot", container, "--", *words)
    buildah("rm", container)


def test_image_contains_the_imports_of_the_operator(in_container: InContainer) -> None:
    """These are Kopf, the Kubernetes client, and all modules of this project that it runs."""
    program = (
        "import kopf, kubernetes, pkgutil, importlib, gantry_operator as o;"
        "names = [m.name for m in pkgutil.walk_packages(o.__path__, 'gantry_operator.') if '__main__' not in m.name];"
        "[importlib.import_module(name) for name in names]; print('gantry_operator.objects.render' in names)"
    )

    assert in_container("python", "-c", program).strip() == "True"


def test_image_is_safe_by_default(in_container: InContainer) -> None:
    """It does not run as root, imports nothing from the working directory, and has no installer."""
    program = "import os, sys; print(os.getuid(), sys.flags.safe_path)"

    assert in_container("python", "-c", program).split() == ["10001", "True"]
    assert in_container("python", "-c", "import importlib.util as u; print(u.find_spec('pip'))").strip() == "None"


def test_image_archive_is_written(in_container: InContainer) -> None:
    """A cluster without a registry imports it; it is small, and records the sources that it was made from."""
    assert 0 < (ROOT / ".image/gantry-operator.tar").stat().st_size < ARCHIVE_BYTES_MAX
    made_of = (ROOT / ".image/gantry-operator.tar.sources").read_text()
    assert made_of == run("scripts/image-sources", "operator")


def test_image_contains_its_sbom(in_container: InContainer) -> None:
    """It is valid, lists what this image alone contains, and is also beside the archive."""
    text = (ROOT / ".image/gantry-operator.tar.cdx.json").read_text()
    refs = {one["bom-ref"].partition("@")[0] for one in json.loads(text)["components"]}

    assert list(find_faults(text)) == []
    assert text == in_container("cat", "/usr/share/gantry/sbom.cdx.json")
    assert {"pkg:pypi/kopf", "pkg:pypi/kubernetes", "pkg:deb/debian/libc6"} <= refs
