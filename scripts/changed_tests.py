"""Select the test files for `make test CHANGED=1`: those changed, and those that import a changed file.

python scripts/changed_tests.py [SINCE]      one path a line; SINCE is a commit, by default the merge base with main

A test file imports a module directly, or through helpers of tests (`gantry_testing`, the files beside it), which
are followed. Other modules are not followed: nearly all tests reach nearly all modules through them. A conftest.py
selects the tests below its folder; a file of TOOLS, such as a script, selects the tests of the repository itself. The
selection is meant for the time between two complete test runs, and does not replace them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ("broker/tests", "operator/tests", "pipelines/tests", "e2e", "bench")
"""The folders of tests and of what only tests use."""

SOURCES: Final = ("broker/src", "broker/testkit", "operator/src", "pipelines/src")
"""The folders below which a path is the name of a module."""

TOOLS: Final = ("scripts", ".ci", "Makefile", "hatch_build.py")
"""Files and folders that no test imports, and that the tests of the repository run."""

HOUSE: Final = "broker/tests/house"
"""The folder of the tests of the repository itself."""


def git(*words: str) -> list[str]:
    """Run git and return the lines of its output."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def default_since() -> str:
    """Return the merge base with origin/main, else with main; without either, the last commit."""
    for name in ("origin/main", "main"):
        if subprocess.run(["git", "rev-parse", "-q", "--verify", name], cwd=ROOT, capture_output=True).returncode == 0:
            return git("merge-base", "HEAD", name)[0]
    return "HEAD"


def changed_files(since: str) -> set[str]:
    """Return the files that differ from ``since``, and untracked files."""
    return {*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")}


def module_of(path: PurePath) -> str | None:
    """Return the module name of a file, or None."""
    if path.suffix != ".py":
        return None
    for source in SOURCES:
        if path.is_relative_to(source):
            parts = path.relative_to(source).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the imports of a file; for `from a import b` both `a` and `a.b`, since `b` may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def helpers() -> Iterator[tuple[str, Path]]:
    """Yield the modules that only tests import, with each name under which they can be imported."""
    for path in (ROOT / "broker/testkit").rglob("*.py"):
        yield ".".join(path.relative_to(ROOT / "broker/testkit").with_suffix("").parts), path
    for folder in TESTS:
        for path in (ROOT / folder).rglob("*.py"):
            if not path.name.startswith("test_"):
                yield path.stem, path
                yield f"{path.parent.name}.{path.stem}", path


def select_tests(changed: Collection[str]) -> list[str]:
    """Return the test files to run, as paths relative to the root."""
    files = {ROOT / name for name in changed}
    modules = {name for path in changed if (name := module_of(PurePath(path))) is not None}
    fixtures = [path.parent for path in files if path.name == "conftest.py"]
    is_house = any(PurePath(name).is_relative_to(tool) for name in changed for tool in TOOLS)
    known = dict(helpers())
    reached: dict[Path, bool] = {}

    def is_reached(path: Path) -> bool:
        if path not in reached:
            reached[path] = path in files  # set before the recursion, which ends here if helpers import each other
            names = imports_of(path)
            others = [known[name] for name in names if name in known]
            reached[path] = path in files or bool(names & modules) or any(map(is_reached, others))
        return reached[path]

    def is_selected(path: Path) -> bool:
        if is_house and path.parent == ROOT / HOUSE:
            return True
        return any(map(path.is_relative_to, fixtures)) or is_reached(path)

    tests = [path for folder in TESTS for path in (ROOT / folder).rglob("test_*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in tests if is_selected(path))


def main(arguments: list[str]) -> int:
    """Print the paths of the test files to run."""
    since = arguments[0] if arguments else default_since()
    found = select_tests(changed_files(since))
    print("\n".join(found))
    print(f"{len(found)} test files are selected by the files changed since {since[:12]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
