"""The recipes of images name what the tree has: sources that exist, packages that are copied, programs that can start.

Images are built in few places, so a folder that moved would be noticed late. Each rule is a function of a folder, and
is also shown to catch its own violation.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from gantry_testing.tree import ROOT

BUILD_FOLDER = ".image/"
"""Filled by scripts/image*, and in no clone."""
MANIFESTS = ("charts/*/templates/**/*.yaml", "manifests/*.yaml")
IMPORT = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)
COMMAND = re.compile(r"^\s*command: \[(?P<words>[^\]]+)\]", re.MULTILINE)


def dockerfiles(root: Path) -> list[Path]:
    """Return the Dockerfile of each image."""
    return sorted(root.glob("*/Dockerfile"))


def copied_paths(dockerfile: Path) -> list[str]:
    """Return the paths that a Dockerfile copies out of the tree."""
    lines = [line.split()[1:-1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY ")]
    return [word for words in lines if not words[0].startswith("--from=") for word in words]


def missing_sources(root: Path) -> list[str]:
    """Sources that a recipe copies and that do not exist, or that the ignore file beside it keeps from the build."""
    faults: list[str] = []
    for dockerfile in dockerfiles(root):
        lines = Path(f"{dockerfile}.dockerignore").read_text().splitlines()
        sent = [line[1:] for line in lines if line.startswith("!")]
        for source in copied_paths(dockerfile):
            if not source.startswith(BUILD_FOLDER) and not (root / source).exists():
                faults.append(f"{dockerfile.relative_to(root)} copies {source}, which does not exist")
            if not any(fnmatch(source, line) or line.startswith(f"{source}/") for line in sent):
                faults.append(f"{dockerfile.relative_to(root)}.dockerignore leaves out {source}")
    return faults


def started_package(root: Path, words: list[str]) -> str | None:
    """The package that a command starts, empty for other uses of Python; None if the tree has no such program."""
    match words:
        case ["python", "-m", name, *_]:
            return name if list(root.glob(f"*/src/{name}/__main__.py")) else None
        case ["python", *_]:
            return ""
        case [name, *_]:
            scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
            return str(scripts[name]).partition(".")[0] if name in scripts else None
    return None


def entry_point(dockerfile: Path) -> list[str]:
    """The program of an image."""
    [line] = [line for line in dockerfile.read_text().splitlines() if line.startswith("ENTRYPOINT ")]
    words: list[str] = json.loads(line.partition(" ")[2])
    return words


def unknown_programs(root: Path) -> list[str]:
    """Programs that an image or a manifest starts and the tree does not have."""
    commands = [(path, entry_point(path)) for path in dockerfiles(root)]
    for pattern in MANIFESTS:
        for path in sorted(root.glob(pattern)):
            found = COMMAND.finditer(path.read_text())
            commands += [(path, [word.strip("\"' ") for word in one["words"].split(",")]) for one in found]
    return [
        f"{path.relative_to(root)} starts {words}" for path, words in commands if started_package(root, words) is None
    ]


def imports_of(package: Path) -> set[str]:
    """First words of everything that the modules of a package import."""
    return {name for path in package.glob("**/*.py") for name in IMPORT.findall(path.read_text())}


def missing_packages(root: Path) -> list[str]:
    """Packages that an image's program imports, directly or not, and that its recipe does not copy."""
    imports = {path.parent.name: imports_of(path.parent) for path in root.glob("*/src/*/__init__.py")}
    faults: list[str] = []
    for dockerfile in dockerfiles(root):
        needed: set[str] = set()
        waiting = {started_package(root, entry_point(dockerfile)) or ""}
        while waiting:
            needed |= waiting
            waiting = {one for name in waiting for one in imports.get(name, ()) if one in imports} - needed
        folders = [root / source for source in copied_paths(dockerfile)]
        missing = {name for name in needed if not any((folder / name).is_dir() for folder in folders)}
        faults += [f"{dockerfile.relative_to(root)} does not copy {name}" for name in sorted(missing)]
    return faults


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of one recipe, with all that it names; its program needs a package of another folder."""
    for name in (
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "pipelines/Dockerfile",
        "pipelines/Dockerfile.dockerignore",
        "requirements/gantry-mq.cdx.json",
        "scripts/sbom.py",
        "scripts/sbom_contents.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (
        "requirements/spark.txt",
        "requirements/tables.txt",
        "requirements/schemas.txt",
        "requirements/build.txt",
        "requirements/sbom.txt",
        "broker/src/gantry_wire/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name, text in (("operator/src/gantry_spec", ""), ("pipelines/src/gantry_pipelines", "import gantry_spec\n")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(text)
        (tmp_path / name / "__main__.py").write_text("")
    return tmp_path


def test_images_copy_what_exists(tree: Path) -> None:
    """Every source of a COPY exists and reaches the build."""
    assert missing_sources(ROOT) == []
    assert missing_sources(tree) == []

    (tree / "operator/src").rename(tree / "operator/source")
    ignored = tree / "pipelines/Dockerfile.dockerignore"
    ignored.write_text(ignored.read_text().replace("!broker/src/**\n", ""))

    assert missing_sources(tree) == [
        "pipelines/Dockerfile.dockerignore leaves out broker/src",
        "pipelines/Dockerfile copies operator/src, which does not exist",
    ]


def test_images_carry_every_package_of_their_program(tree: Path) -> None:
    """Every package that an image's program imports, directly or not, is in a copied folder."""
    assert missing_packages(ROOT) == []
    assert missing_packages(tree) == []

    recipe = tree / "pipelines/Dockerfile"
    recipe.write_text(recipe.read_text().replace("COPY operator/src operator/src\n", ""))

    assert missing_packages(tree) == ["pipelines/Dockerfile does not copy gantry_spec"]


def test_programs_of_images_and_manifests_exist(tree: Path) -> None:
    """A module that is started has a `__main__`, and a command is one of pyproject's scripts."""
    assert unknown_programs(ROOT) == []
    assert unknown_programs(tree) == []

    (tree / "pipelines/src/gantry_pipelines/__main__.py").unlink()
    (tree / "manifests").mkdir()
    (tree / "manifests/operator.yaml").write_text("        command: [gantry-oprator]\n        command: [gantry, up]\n")

    assert unknown_programs(tree) == [
        "pipelines/Dockerfile starts ['python', '-m', 'gantry_pipelines']",
        "manifests/operator.yaml starts ['gantry-oprator']",
    ]
