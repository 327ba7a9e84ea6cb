"""The charts in the form of OCI registries: packages with the same bytes in every run, pushed and pulled by Helm."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import package_charts
import pytest
import yaml
from charts_scene import GROUP, OPERATOR, ROOT, helm, template
from package_charts import PackageError

from gantry_testing.programs import chart_registry_program

pytestmark = pytest.mark.needs_helm


def packages(folder: Path, **options: Any) -> list[Path]:
    """Package both charts in a new folder."""
    folder.mkdir()
    return [package_charts.package(helm(), chart, folder, **options) for chart in (OPERATOR, GROUP)]


def test_packages_have_the_same_bytes_in_every_run(tmp_path: Path) -> None:
    """A user can compare a digest in a registry with a package of the same tree. Helm alone gives other bytes."""
    first, second = packages(tmp_path / "first"), packages(tmp_path / "second")
    later = packages(tmp_path / "later", time_s=1_000_000_000)

    assert [path.name for path in first] == ["gantry-operator-0.1.0.tgz", "broker-group-0.1.0.tgz"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert all(one.read_bytes() != other.read_bytes() for one, other in zip(first, later, strict=True))
    with tarfile.open(first[0]) as archive:
        members = archive.getmembers()
    assert {member.mtime for member in members} == {0}
    assert members[0].name == "gantry-operator/Chart.yaml"


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_package_renders_as_its_chart(chart: Path, tmp_path: Path) -> None:
    """The package has every file of the chart that a release needs."""
    packed = package_charts.package(helm(), chart, tmp_path)

    assert template(packed) == template(chart)


def test_version_is_that_of_charts_and_images(tmp_path: Path) -> None:
    """A release needs no edit of Chart.yaml."""
    [operator, group] = packages(tmp_path / "packages", version="1.4.0")
    shown = subprocess.run([str(helm()), "show", "chart", str(operator)], capture_output=True, text=True, check=True)
    images = re.findall(r"gantry[a-z-]*:[0-9]+\.[0-9.]+", template(operator) + shown.stdout)

    assert (operator.name, group.name) == ("gantry-operator-1.4.0.tgz", "broker-group-1.4.0.tgz")
    assert set(images) == {"gantry-operator:1.4.0", "gantry:1.4.0", "gantry-pipelines:1.4.0"}
    assert 'artifacthub.io/prerelease: "false"' in shown.stdout


def test_wrong_version_is_refused(tmp_path: Path) -> None:
    """Helm's own message is shown."""
    with pytest.raises(PackageError, match='"newest" is invalid'):
        package_charts.package(helm(), GROUP, tmp_path, version="newest")

    assert list(tmp_path.iterdir()) == []


def test_command_packages_and_names_the_publisher(tmp_path: Path) -> None:
    """It prints the files, and writes the metadata of a repository in Artifact Hub only for a publisher."""
    words = [sys.executable, str(ROOT / "scripts/package_charts.py")]
    environment = os.environ | {"GANTRY_HELM": str(helm())}
    repository = ["--repository-id", "7a1f7c35-4a4f-4f77-8f2d-3c1a8c0f5b11", "--owner", "Ada <ada@example.org>"]
    good = subprocess.run([*words, *repository, str(tmp_path)], capture_output=True, text=True, env=environment)
    bad = subprocess.run([*words, "--owner", "Ada", str(tmp_path)], capture_output=True, text=True, env=environment)

    names = ("gantry-operator-0.1.0.tgz", "broker-group-0.1.0.tgz", "artifacthub-repo.yml")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.split() == [str(tmp_path / name) for name in names]
    assert yaml.safe_load((tmp_path / names[2]).read_text())["owners"] == [{"name": "Ada", "email": "ada@example.org"}]
    assert bad.returncode == 2
    assert bad.stderr.startswith("charts: artifacthub-repo.yml: owners: an entry has no name")


# -- a registry --------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[str]:
    """Yield the address of an OCI registry on this machine, which keeps its content in memory."""
    program = chart_registry_program()
    assert program is not None
    process = subprocess.Popen([str(program), "-port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = re.search(r"serving on port (\d+)", line)
        assert port is not None, line
        yield f"localhost:{port[1]}/charts"
    finally:
        process.kill()
        process.communicate()


def run_helm(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Helm with files of its own, and return the result."""
    environment = os.environ | {
        name: str(home / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
    }
    return subprocess.run([str(helm()), *words], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.needs_chart_registry
def test_pulled_charts_are_the_packaged_ones(registry: str, tmp_path: Path) -> None:
    """`helm push` and `helm pull` keep every byte, and `helm template` renders from the registry."""
    packed = packages(tmp_path / "packages")
    (tmp_path / "pulled").mkdir()
    for path in packed:
        pushed = run_helm("push", str(path), f"oci://{registry}", "--plain-http", home=tmp_path)
        assert pushed.returncode == 0, pushed.stderr
        name = path.name.removesuffix("-0.1.0.tgz")
        source = (f"oci://{registry}/{name}", "--version", "0.1.0", "--plain-http")
        pulled = run_helm("pull", *source, "--destination", str(tmp_path / "pulled"), home=tmp_path)
        assert pulled.returncode == 0, pulled.stderr
        rendered = run_helm(
            *("template", "gantry-operator", *source, "--namespace", "gantry-system", "--kube-version", "1.34.0"),
            home=tmp_path,
        )
        assert rendered.stdout == template(ROOT / "charts" / name), rendered.stderr

    assert [(tmp_path / "pulled" / path.name).read_bytes() for path in packed] == [path.read_bytes() for path in packed]


@pytest.mark.needs_chart_registry
def test_damaged_package_is_not_pushed(registry: str, tmp_path: Path) -> None:
    """The registry has nothing under the name afterwards, so the test above cannot pass by accident."""
    [path, _] = packages(tmp_path / "packages")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:2000]))
    pushed = run_helm("push", str(path), f"oci://{registry}", "--plain-http", home=tmp_path)
    pulled = run_helm("pull", f"oci://{registry}/gantry-operator", "--plain-http", home=tmp_path)

    assert pushed.returncode != 0
    assert pulled.returncode != 0
