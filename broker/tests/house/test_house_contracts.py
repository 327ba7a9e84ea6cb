"""The import contracts hold, and an import that crosses the layers breaks them.

The contracts of pyproject.toml are run over small trees made for the purpose, in an interpreter of their own, so
that neither the real packages nor the linter's memory of them are touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from gantry_testing.tree import ROOT

CONTRACTS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS_OF_PACKAGES: Final = {
    container: contract["layers"]
    for contract in CONTRACTS["contracts"]
    if contract["type"] == "layers" and contract.get("exhaustive")
    for container in contract["containers"]
}
"""Packages whose modules all have a layer, and these layers from top to bottom."""

PARTS: Final = ("app", "control", "ha", "ports", "server", "store")
"""Of the broker."""

PROXY_PARTS: Final = ("http2", "rpc")
"""The packages of the proxy that contracts name."""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the import linter of the given tree."""
    folders = os.pathsep.join(str(root / folder / "src") for folder in ("broker", "operator", "pipelines"))
    command = [sys.executable, "-P", str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": folders, "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def make_package(tree: Path, name: str) -> None:
    """An empty package, in the folder of the real one."""
    relative = name.replace(".", "/")
    [folder] = [found.parent for found in ROOT.glob(f"*/src/{relative.split('/')[0]}")]
    place = tree / folder.relative_to(ROOT) / relative
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text("")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with all packages of the contracts, each empty, under the real contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    parts = (*(f"gantry_broker.{part}" for part in PARTS), *(f"gantry_proxy.{part}" for part in PROXY_PARTS))
    for name in (*CONTRACTS["root_packages"], *LAYERS_OF_PACKAGES, *parts):
        make_package(tmp_path, name)
    return tmp_path


def write_import(tree: Path, importer: str, imported: str) -> None:
    """Make one package import another."""
    [module] = tree.glob(f"*/src/{importer.replace('.', '/')}/__init__.py")
    module.write_text(f"import {imported}\n")


ALLOWED = [
    ("gantry_wire", "gantry_speedups"),
    ("gantry_broker.store", "gantry_speedups"),
    ("gantry_store_files", "gantry_speedups"),
    ("gantry_client", "gantry_wire"),
    ("gantry_client", "gantry_remoting"),
    ("gantry_nameserver", "gantry_remoting"),
    ("gantry_nameserver", "gantry_access"),
    ("gantry_client", "gantry_access"),
    ("gantry_broker.server", "gantry_access"),
    ("gantry_access", "gantry_wire"),
    ("gantry_store_files", "gantry_wire"),
    ("gantry_broker.ports", "gantry_store_files"),
    ("gantry_broker.store", "gantry_store_files"),
    ("gantry_admin", "gantry_store_files"),
    ("gantry_cli", "gantry_store_files"),
    ("pyspark_rocketmq", "gantry_store_files"),
    ("gantry_pipelines", "gantry_store_files"),
    ("gantry_broker.server", "gantry_broker.store"),
    ("gantry_broker.store", "gantry_broker.ports"),
    ("gantry_broker.app", "gantry_status"),
    ("gantry_broker.server", "gantry_status"),
    ("gantry_cli", "gantry_broker.store"),
    ("gantry_cli", "gantry_client"),
    ("gantry_proxy", "gantry_client"),
    ("gantry_proxy", "gantry_access"),
    ("gantry_cli", "gantry_spec"),
    ("gantry_cli", "gantry_status"),
    ("gantry_admin", "gantry_status"),
    ("gantry_admin", "gantry_spec"),
    ("gantry_spec", "gantry_status"),
    ("gantry_operator", "gantry_status"),
    ("gantry_operator", "gantry_spec"),
    ("gantry_operator", "gantry_client"),
    ("pyspark_rocketmq", "gantry_client"),
    ("gantry_pipelines", "pyspark_rocketmq"),
    ("gantry_pipelines", "gantry_spec"),
]

FORBIDDEN = [
    ("gantry_wire", "gantry_client"),
    ("gantry_speedups", "gantry_wire"),
    ("gantry_speedups", "threading"),
    ("gantry_status", "gantry_speedups"),
    ("gantry_spec", "gantry_speedups"),
    ("gantry_wire", "asyncio"),
    ("gantry_wire", "time"),
    ("gantry_wire", "gantry_access"),
    ("gantry_remoting", "gantry_access"),
    ("gantry_access", "gantry_remoting"),
    ("gantry_access", "gantry_broker"),
    ("gantry_access", "socket"),
    ("gantry_store_files", "gantry_broker"),
    ("gantry_store_files", "gantry_status"),
    ("gantry_store_files", "asyncio"),
    ("gantry_store_files", "socket"),
    ("gantry_wire", "gantry_store_files"),
    ("gantry_status", "gantry_store_files"),
    ("gantry_client", "gantry_store_files"),
    ("gantry_spec", "gantry_store_files"),
    ("gantry_broker.store", "gantry_access"),
    ("gantry_status", "gantry_wire"),
    ("gantry_status", "gantry_broker"),
    ("gantry_broker.store", "gantry_status"),
    ("gantry_spec", "gantry_wire"),
    ("gantry_spec", "asyncio"),
    ("gantry_remoting", "gantry_broker"),
    ("gantry_client", "gantry_broker"),
    ("gantry_client", "gantry_proxy"),
    ("gantry_proxy", "gantry_broker"),
    ("gantry_proxy", "gantry_cli"),
    ("gantry_cli", "gantry_proxy"),
    ("gantry_broker", "gantry_proxy"),
    ("gantry_client", "gantry_status"),
    ("gantry_nameserver", "gantry_broker"),
    ("gantry_broker", "gantry_client"),
    ("gantry_broker.ports", "gantry_broker.store"),
    ("gantry_broker.store", "gantry_broker.ha"),
    ("gantry_broker.store", "gantry_broker.server"),
    ("gantry_broker.store", "socket"),
    ("gantry_broker.ha", "gantry_broker.server"),
    ("gantry_broker.server", "gantry_broker.app"),
    ("gantry_broker.server", "gantry_testing"),
    ("gantry_cli", "gantry_broker"),
    ("gantry_cli", "gantry_broker.server"),
    ("gantry_cli", "gantry_nameserver"),
    ("gantry_cli", "gantry_operator"),
    ("gantry_admin", "gantry_broker.store"),
    ("gantry_operator", "gantry_broker"),
    ("gantry_operator", "gantry_admin"),
    ("gantry_spec", "gantry_admin"),
    ("gantry_spec", "gantry_pipelines"),
    ("pyspark_rocketmq", "gantry_spec"),
    ("gantry_pipelines", "gantry_operator"),
    ("pyspark_rocketmq", "gantry_broker"),
    ("pyspark_rocketmq", "gantry_pipelines"),
    ("gantry_pipelines", "gantry_cli"),
]


def test_the_contracts_hold_for_the_real_packages() -> None:
    """The present code keeps the rules of who may import whom."""
    result = lint(ROOT)

    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_allowed_imports_break_no_contract(tree: Path) -> None:
    """Every import of `ALLOWED` is legal, all of them together."""
    for importer, imported in ALLOWED:
        [module] = tree.glob(f"*/src/{importer.replace('.', '/')}/__init__.py")
        module.write_text(f"{module.read_text()}import {imported}\n")

    result = lint(tree)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.verify(quick=6)
@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN, ids=[f"{a} imports {b}" for a, b in FORBIDDEN])
def test_a_forbidden_import_is_refused(tree: Path, importer: str, imported: str) -> None:
    """Each forbidden import alone breaks a contract, and the report names the pair."""
    write_import(tree, importer, imported)

    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{importer} -> {imported}" in result.stdout


def test_an_import_across_the_layers_of_the_server_is_refused(tree: Path) -> None:
    """A lower layer of the server does not import a higher one, and parts of one layer do not import each other."""
    server = tree / "broker/src/gantry_broker/server"
    for name in ("core", "send", "groups", "delay"):
        (server / name).mkdir()
        (server / name / "__init__.py").write_text("")
    write_import(tree, "gantry_broker.server.send", "gantry_broker.server.core")
    assert lint(tree).returncode == 0

    write_import(tree, "gantry_broker.server.core", "gantry_broker.server.send")
    write_import(tree, "gantry_broker.server.groups", "gantry_broker.server.delay")
    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "gantry_broker.server.core -> gantry_broker.server.send" in result.stdout
    assert "gantry_broker.server.groups -> gantry_broker.server.delay" in result.stdout


def test_a_module_of_the_server_outside_its_layers_is_refused(tree: Path) -> None:
    """A new part of the server is given a layer."""
    (tree / "broker/src/gantry_broker/server/stray.py").write_text("")

    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "stray" in result.stdout


@pytest.mark.verify(quick=2)
@pytest.mark.parametrize("package", LAYERS_OF_PACKAGES)
def test_layers_of_a_package_are_kept(tree: Path, package: str) -> None:
    """The lowest layer does not import the highest one, and a module without a layer is refused."""
    [folder] = tree.glob(f"*/src/{package.replace('.', '/')}")
    highest, lowest = (
        layer.partition(")")[0].lstrip("(")
        for layer in (LAYERS_OF_PACKAGES[package][0], LAYERS_OF_PACKAGES[package][-1])
    )
    (folder / "stray.py").write_text("")
    for name, text in ((highest, ""), (lowest, f"import {package}.{highest}\n")):
        module = folder / name / "__init__.py" if (folder / name).is_dir() else folder / f"{name}.py"
        module.write_text(text)

    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{package}.{lowest} -> {package}.{highest}" in result.stdout
    assert "stray" in result.stdout


def test_a_detour_is_refused_too(tree: Path) -> None:
    """A forbidden package may not be reached through a third package either."""
    write_import(tree, "gantry_operator", "gantry_client")
    write_import(tree, "gantry_client", "gantry_broker")

    assert lint(tree).returncode == 1


def unnamed_packages(root: Path) -> set[str]:
    """Packages in the source folders that the contracts do not name."""
    found = {package.parent.name for package in root.glob("*/src/*/__init__.py")}
    return found - set(CONTRACTS["root_packages"])


def test_every_package_is_under_the_contracts(tree: Path) -> None:
    """The linter reads only packages that it is given, so a new one is named in pyproject.toml."""
    (tree / "broker/src/gantry_stranger").mkdir()
    (tree / "broker/src/gantry_stranger/__init__.py").write_text("")

    assert unnamed_packages(tree) == {"gantry_stranger"}
    assert unnamed_packages(ROOT) == set()


def test_a_cycle_of_imports_is_refused(tree: Path) -> None:
    """Two modules that import each other are refused, also if one needs only a type of the other."""
    package = tree / "broker/src/gantry_wire"
    (package / "frame.py").write_text("import gantry_wire.header\n")
    (package / "header.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gantry_wire.frame\n"
    )

    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "No cycles are allowed in gantry_wire" in result.stdout
