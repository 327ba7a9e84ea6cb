"""The scripts: each target explains itself, works without make, and refuses in one line that names the remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gantry_testing.tree import ROOT

TARGET = re.compile(r"^([a-z][a-z0-9-]*):(?P<rest>.*)$", re.MULTILINE)
HELP = re.compile(r"^ ## [A-Z].*\.$")
BASIC_PROGRAMS = ("sh", "dirname", "basename", "cat", "id", "env", "pwd", "mkdir", "uname", "cksum", "cut", "chmod")


def targets(makefile: str) -> dict[str, str]:
    """Return the text after the colon of each target."""
    return {match[1]: match["rest"] for match in TARGET.finditer(makefile)}


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with a shell's basics and nothing else: no Python, Java, Go or buildah."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in BASIC_PROGRAMS:
        source = shutil.which(name)
        assert source is not None
        (folder / name).symlink_to(source)
    return folder


PROGRAM = re.compile(r"(?:bench|broker|e2e|operator|pipelines)/[a-z_/]+\.py")
PROGRAMS = sorted({
    program
    for script in (ROOT / "scripts").iterdir() if script.is_file()
    for program in PROGRAM.findall(script.read_text()) if "/test_" not in program and "/src/" not in program
})  # fmt: skip
"""The Python programs that scripts start."""


def write_command(folder: Path, name: str, body: str) -> None:
    """A small shell command in place of a real one."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def refusal(script: str, path: Path, *arguments: str, **environment: str) -> str:
    """The one line with which a script refuses; it has not started anything by then."""
    result = subprocess.run(
        [str(ROOT / "scripts" / script), *arguments],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line


def test_every_target_explains_itself() -> None:
    """Each target of the Makefile carries one sentence, and is phony."""
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)

    assert phony is not None
    assert sorted(phony[1].split()) == sorted(targets(text))
    assert {name: rest for name, rest in targets(text).items() if not HELP.match(rest)} == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_a_script_explains_itself(program: str, tmp_path: Path) -> None:
    """A program that takes minutes is not run by every test run, but all of its imports are found."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, str(ROOT / program), "--help"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout.lower()


def test_programs_of_the_scripts_are_found() -> None:
    assert {"bench/operator_groups.py", "pipelines/tests/run_exactly_once.py", "e2e/cluster/run.py"} <= set(PROGRAMS)


def test_a_mute_target_is_caught() -> None:
    """A target without help text does not match."""
    assert {name for name, rest in targets("a: ## Does it.\nb:\nc: a\n").items() if not HELP.match(rest)} == {"b", "c"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on PATH -- apt-get install make")
def test_make_help_prints_every_target() -> None:
    """`make` alone prints the help, one line for each target."""
    result = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert [line.split()[0] for line in result.stdout.splitlines()] == list(targets((ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("name", [name for name in targets((ROOT / "Makefile").read_text()) if name != "help"])
def test_every_target_is_a_script(name: str) -> None:
    """A machine without make loses nothing: the script of the target's name is there, short and executable."""
    script = ROOT / "scripts" / name

    assert os.access(script, os.X_OK)
    assert len(script.read_text().splitlines()) <= 35
    assert f"@scripts/{name}" in (ROOT / "Makefile").read_text()


def test_scripts_are_sound_shell() -> None:
    """Every script parses, and stops at its first failing command."""
    for script in sorted((ROOT / "scripts").iterdir()):
        if script.suffix in (".py", ".toml") or script.is_dir():
            continue
        subprocess.run(["sh", "-n", str(script)], check=True)
        assert script.suffix == ".sh" or '. "$(dirname -- "$0")/common.sh"' in script.read_text(), script
    assert "set -eu" in (ROOT / "scripts/common.sh").read_text()
    assert "set -euo pipefail" in (ROOT / ".ci/run").read_text()


def test_without_python_setup_says_what_to_install(bare_path: Path) -> None:
    """No Python: one line, with the Debian package."""
    assert refusal("setup", bare_path) == (
        "setup: Python 3.11 or newer is missing -- on Debian 12: apt-get install python3.11 python3.11-venv"
    )


def test_scripts_name_missing_tools_and_arguments(bare_path: Path) -> None:
    """The Kubernetes build needs Go; an image has one of three names."""
    assert refusal("kubernetes", bare_path).startswith("kubernetes: go is missing -- on Debian 12: apt-get install")
    assert refusal("image-sources", bare_path) == "image-sources: unknown image '' -- use broker, operator or pipelines"


def test_an_old_python_is_no_python(bare_path: Path) -> None:
    """A Python that is too old is passed over, not used."""
    write_command(bare_path, "python3", "exit 1")

    assert "Python 3.11 or newer is missing" in refusal("setup", bare_path)


def test_without_venv_setup_names_the_package(bare_path: Path) -> None:
    """Debian's Python without its venv module: one line, with the package of that very version."""
    version_asked = 'case "$*" in *ensurepip*) exit 1;; *%d.%d*) echo 3.11;; esac'
    write_command(bare_path, "python3.11", version_asked)

    line = refusal("setup", bare_path)

    assert line.startswith("setup: ")
    assert line.endswith("has no venv module -- on Debian: apt-get install python3.11-venv")


@pytest.mark.parametrize("script", ["interop", "interop-bench"])
def test_without_java_interop_names_the_packages(bare_path: Path, script: str) -> None:
    """No Java: one line, with the Debian packages."""
    assert refusal(script, bare_path) == (
        f"{script}: java is missing -- on Debian: apt-get install openjdk-17-jdk-headless maven"
    )


@pytest.mark.parametrize("script", ["image", "local-base", "sbom"])
def test_without_root_image_says_so(bare_path: Path, script: str) -> None:
    """An ordinary user: one line that says sudo."""
    write_command(bare_path, "id", "echo 1000")

    assert refusal(script, bare_path) == f"{script}: this needs root -- run it again with: sudo"


def test_without_buildah_image_names_the_package(bare_path: Path) -> None:
    """No buildah: one line, with the Debian package."""
    write_command(bare_path, "id", "echo 0")

    assert refusal("image", bare_path) == "image: buildah is missing -- on Debian: apt-get install buildah"


@pytest.mark.parametrize("script", ["image", "image-pipelines"])
def test_without_a_compiler_the_image_is_not_built(bare_path: Path, script: str) -> None:
    """A base without its image for compiling: one line, and not an image with the slower path."""
    write_command(bare_path, "id", "echo 0")
    write_command(bare_path, "buildah", "exit 1")

    assert refusal(script, bare_path, "some-base") == (
        f"{script}: there is no image some-base-build, in which the hot path is compiled"
        " -- run scripts/local-base, or name an image with a C compiler"
    )


@pytest.mark.parametrize("version", [None, "go1.19.8", "go1.21.13"], ids=["none", "Debian 12", "one too old"])
def test_without_a_new_go_the_benchmark_names_the_package(bare_path: Path, version: str | None) -> None:
    """No Go, or one that is too old for the load generator: one line, with the Debian package."""
    if version is not None:
        write_command(bare_path, "go", f"echo {version}")

    line = refusal("bench-send", bare_path)

    assert line.startswith("bench-send: ")
    assert line.endswith(" is missing -- on Debian 12: apt-get install -t bookworm-backports golang-go")


def test_pre_commit_only_formats() -> None:
    """A commit is never blocked by a check, and nothing is fetched for one."""
    text = (ROOT / ".pre-commit-config.yaml").read_text()

    assert re.findall(r"repo: (.*)", text) == ["local"]
    assert re.findall(r"- id: (.*)", text) == ["ruff-imports", "ruff-format"]
