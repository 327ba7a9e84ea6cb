"""The image of the broker builds on a base made here, and its program runs as an ordinary user."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable, Iterator

import pytest
from sbom import find_faults

from gantry_testing.tree import ROOT

SCRIPT_TIMEOUT_S = 900
SBOM = "/usr/share/gantry/sbom.cdx.json"

pytestmark = [pytest.mark.slow, pytest.mark.needs_root, pytest.mark.needs_buildah]

InContainer = Callable[..., str]


def run(*words: str) -> str:
    """Run a command to its end; its output when it succeeds."""
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SCRIPT_TIMEOUT_S)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def buildah(*words: str) -> str:
    """buildah over the storage that the scripts use."""
    folder = ROOT / ".image"
    storage = ["--storage-driver", "vfs", "--root", str(folder / "storage"), "--runroot", str(folder / "run")]
    return run("buildah", *storage, *words)


@pytest.fixture(scope="module")
def in_container() -> Iterator[InContainer]:
    """Run a command in a container of the image, built now."""
    run("scripts/local-base")
    run("scripts/image", "gantry-base")
    container = buildah("from", "--pull-never", "gantry").strip()
    yield lambda *words: buildah("run", "--isolation", "chroot", container, "--", *words)
    buildah("rm", container)


def test_gantry_runs_in_the_image(in_container: InContainer) -> None:
    """The image's program is this version of Gantry, installed as a wheel."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert version in in_container("gantry", "--version")
    assert in_container("gantry", "--version").endswith(", compiled hot path)\n")
    assert in_container("python", "-c", "import gantry_broker; print(gantry_broker.__file__)").startswith(
        "/opt/gantry/lib/"
    )


def test_image_is_safe_by_default(in_container: InContainer) -> None:
    """No root, no imports from the working directory, no installer, and a home it can write."""
    program = (
        "import os, sys; print(os.getuid(), os.getgid(), sys.flags.safe_path, os.access('.', os.W_OK), os.getcwd())"
    )

    assert in_container("python", "-c", program).split() == ["10001", "10001", "True", "True", "/var/lib/gantry"]
    assert in_container("python", "-c", "import importlib.util as u; print(u.find_spec('pip'))").strip() == "None"


def test_archive_names_its_sources(in_container: InContainer) -> None:
    """And an image that is older than its sources is not archived."""
    archive = ROOT / ".image" / "tested.tar"
    probe = ROOT / "operator/src/gantry_cli/made_by_a_test.py"
    made_of = archive.with_name("tested.tar.sources")
    try:
        run("scripts/image-archive", str(archive))
        assert made_of.read_text() == run("scripts/image-sources", "broker")
        assert archive.with_name("tested.tar.cdx.json").read_text() == in_container("cat", SBOM)
        probe.write_text("# newer than the image\n")
        refused = subprocess.run(
            ["scripts/image-archive", archive], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (refused.returncode, "older than its sources" in refused.stderr) == (2, True)
    finally:
        for path in (archive, made_of, archive.with_name("tested.tar.cdx.json"), probe):
            path.unlink(missing_ok=True)


def test_the_sbom_lists_what_the_image_contains(in_container: InContainer) -> None:
    """The SBOM is valid, and has every Python package and every package of Debian in its version."""
    text = in_container("cat", SBOM)
    packages = {one["purl"].partition("?")[0] for one in json.loads(text)["components"] if "purl" in one}
    program = (
        "import importlib.metadata as m, re;"
        "[print(re.sub('[-_.]+', '-', d.name).lower() + '@' + d.version) for d in m.distributions()]"
    )
    python = {f"pkg:pypi/{one}" for one in in_container("python", "-I", "-c", program).split()}
    debian = (
        in_container("dpkg-query", "--show", "--showformat", "${Package}@${Version}\\n").replace("+", "%2B").split()
    )

    assert list(find_faults(text)) == []
    assert python <= packages and {"pkg:pypi/gantry-mq", "pkg:pypi/pyyaml"} <= {one.partition("@")[0] for one in python}
    assert {f"pkg:deb/debian/{one}" for one in debian} <= packages and len(debian) > 50


def test_the_sidecar_runs_in_the_image(in_container: InContainer) -> None:
    """All its imports are installed, and it refuses to listen on every address."""
    assert "--lease" in in_container("gantry", "sidecar", "--help")
    program = (
        "import gantry_admin.server, gantry_admin.__main__ as s;"
        "print(s.main(['--page', 'p', '--control', 'c', '--store', 's', '--listen', '0.0.0.0:8080']))"
    )
    assert in_container("python", "-c", program).strip().endswith("2")


def test_the_image_carries_the_runtime_only(in_container: InContainer) -> None:
    """Broker and sidecar; no build or test tool ships."""
    program = (
        "import importlib.metadata as m; print(*sorted(d.name.lower().replace('_', '-') for d in m.distributions()))"
    )
    names = set(in_container("python", "-I", "-c", program).split())

    assert {"gantry-mq", "msgspec", "uvloop", "click", "rich", "fastapi", "uvicorn", "prometheus-client"} <= names
    assert names.isdisjoint({"hatchling", "pytest", "mypy", "hypothesis", "kopf", "pyspark", "httpx", "trustme"})
