"""The cost of a start: programs that are started often import nothing that this start does not use."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from gantry_testing.tree import ROOT
from gantry_wire.version import VERSION


def test_the_version_in_the_code_is_that_of_the_package() -> None:
    """It is written twice, so that no program searches the installed packages for it."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


@pytest.mark.parametrize("module", ["gantry_broker.__main__", "gantry_nameserver.__main__", "gantry_cli.main"])
def test_start_imports_no_yaml_and_no_package_metadata(module: str) -> None:
    """Without an accounts file no YAML is read; the two imports took a seventh of a broker's start."""
    program = f"import sys, {module}; print(*sorted({{'yaml', 'importlib.metadata'}} & set(sys.modules)))"

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)

    assert found.stdout.split() == []


def test_sidecar_reads_its_options_before_it_imports_the_http_server() -> None:
    """Wrong options are reported at once, and later imports run without the garbage collector."""
    program = "import sys, gantry_admin.__main__; print(*sorted({'fastapi', 'pydantic', 'uvicorn'} & set(sys.modules)))"

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)

    assert found.stdout.split() == []
