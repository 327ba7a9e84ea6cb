"""The import contracts hold, and break when somebody imports across the floors.

The contracts of pyproject.toml are run over small trees made for the purpose, in an interpreter of their own, so
that neither the real packages nor the linter's memory of them are touched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gantry_testing.tree import ROOT


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the import linter of the given tree."""
    return subprocess.run(
        [sys.executable, "-P", "scripts/lint_imports.py"], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with all packages of the plan, each empty, under the real contracts."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "scripts/lint_imports.py", tmp_path / "scripts")
    modules = {
        "broker/src": [
            *("gantry_wire", "gantry_status", "gantry_remoting", "gantry_nameserver", "gantry_client"),
            *(
                "gantry_access",
                "gantry_cli",
                "gantry_admin",
                "gantry_broker",
                "gantry_broker/ports",
                "gantry_broker/store",
            ),
            *("gantry_broker/ha", "gantry_broker/server", "gantry_broker/app"),
        ],
        "operator/src": ["gantry_spec", "gantry_operator"],
        "pipelines/src": ["pyspark_rocketmq", "gantry_pipelines"],
    }
    for folder, names in modules.items():
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "__init__.py").write_text("")
    return tmp_path


def write_import(tree: Path, importer: str, imported: str) -> None:
    """Make one package import another."""
    [module] = tree.glob(f"*/src/{importer.replace('.', '/')}/__init__.py")
    module.write_text(f"import {imported}\n")


ALLOWED = [
    ("gantry_client", "gantry_wire"),
    ("gantry_client", "gantry_remoting"),
    ("gantry_nameserver", "gantry_remoting"),
    ("gantry_nameserver", "gantry_access"),
    ("gantry_client", "gantry_access"),
    ("gantry_broker.server", "gantry_access"),
    ("gantry_access", "gantry_wire"),
    ("gantry_broker.server", "gantry_broker.store"),
    ("gantry_broker.store", "gantry_broker.ports"),
    ("gantry_broker.app", "gantry_status"),
    ("gantry_broker.server", "gantry_status"),
    ("gantry_cli", "gantry_broker.store"),
    ("gantry_cli", "gantry_client"),
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
    ("gantry_wire", "asyncio"),
    ("gantry_wire", "time"),
    ("gantry_wire", "gantry_access"),
    ("gantry_remoting", "gantry_access"),
    ("gantry_access", "gantry_remoting"),
    ("gantry_access", "gantry_broker"),
    ("gantry_access", "socket"),
    ("gantry_broker.store", "gantry_access"),
    ("gantry_status", "gantry_wire"),
    ("gantry_status", "gantry_broker"),
    ("gantry_broker.store", "gantry_status"),
    ("gantry_spec", "gantry_wire"),
    ("gantry_spec", "asyncio"),
    ("gantry_remoting", "gantry_broker"),
    ("gantry_client", "gantry_broker"),
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
    """Who may import whom is kept by the code as it is."""
    result = lint(ROOT)

    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_the_plan_allows_what_it_says(tree: Path) -> None:
    """Every import that the plan names is legal, all of them together."""
    for importer, imported in ALLOWED:
        [module] = tree.glob(f"*/src/{importer.replace('.', '/')}/__init__.py")
        module.write_text(f"{module.read_text()}import {imported}\n")

    result = lint(tree)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.verify(quick=6)
@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN, ids=[f"{a} imports {b}" for a, b in FORBIDDEN])
def test_an_import_across_the_floors_is_refused(tree: Path, importer: str, imported: str) -> None:
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


def test_a_detour_is_refused_too(tree: Path) -> None:
    """What may not be imported may not be reached through a third package either."""
    write_import(tree, "gantry_operator", "gantry_client")
    write_import(tree, "gantry_client", "gantry_broker")

    assert lint(tree).returncode == 1


def test_absent_packages_are_left_out_and_named(tree: Path) -> None:
    """A package that does not exist yet does not stop the linter, which says that it is missing."""
    shutil.rmtree(tree / "pipelines")

    result = lint(tree)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "not there yet: gantry_pipelines, pyspark_rocketmq" in result.stdout


def test_a_package_outside_the_contracts_is_refused(tree: Path) -> None:
    """A new package cannot stay outside the law."""
    (tree / "broker/src/gantry_stranger").mkdir()
    (tree / "broker/src/gantry_stranger/__init__.py").write_text("")

    result = lint(tree)

    assert result.returncode == 1
    assert "gantry_stranger" in result.stderr
