"""Which test files `make test CHANGED=1` runs: those that were changed, and those that import what was changed.

python scripts/changed_tests.py [SINCE]      one path a line; SINCE is a commit, by default where the branch left main

A test file imports a module directly, or through helpers of tests (`gantry_broker.testing`, the files beside it), which
are followed. Other modules are not followed: nearly all tests reach nearly all modules through them. So this is for
the time between two whole runs, and takes the place of none.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ("broker/tests", "operator/tests", "pipelines/tests", "e2e", "bench")
SOURCES: Final = ("broker/src", "operator/src", "pipelines/src")
HELPERS: Final = "gantry_broker.testing"


def git(*words: str) -> list[str]:
    """The lines that git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def default_since() -> str:
    """Where this branch left main; on main itself the last commit, so that what is not committed yet counts."""
    for name in ("origin/main", "main"):
        if subprocess.run(["git", "rev-parse", "-q", "--verify", name], cwd=ROOT, capture_output=True).returncode == 0:
            return git("merge-base", "HEAD", name)[0]
    return "HEAD"


def changed_files(since: str) -> set[str]:
    """Files that differ from ``since``, and files that git does not know yet."""
    return {*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")}


def module_of(path: PurePath) -> str | None:
    """By which name a file is imported; None for what is no module."""
    if path.suffix != ".py":
        return None
    for source in SOURCES:
        if path.is_relative_to(source):
            parts = path.relative_to(source).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


@cache
def imports_of(path: Path) -> frozenset[str]:
    """What a file imports; of `from a import b` both `a` and `a.b`, since `b` may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def helpers() -> Iterator[tuple[str, Path]]:
    """Modules that only tests import, by each name under which one may."""
    for path in (ROOT / "broker/src/gantry_broker/testing").glob("*.py"):
        yield f"{HELPERS}.{path.stem}", path
    for folder in TESTS:
        for path in (ROOT / folder).rglob("*.py"):
            if not path.name.startswith("test_"):
                yield path.stem, path
                yield f"{path.parent.name}.{path.stem}", path


def chosen(changed: Iterable[str]) -> list[str]:
    """The test files to run, as paths from the root."""
    files = {ROOT / name for name in changed}
    modules = {name for path in changed if (name := module_of(PurePath(path))) is not None}
    known = dict(helpers())
    reached: dict[Path, bool] = {}

    def is_reached(path: Path) -> bool:
        if path not in reached:
            reached[path] = path in files  # also the answer to helpers that import each other
            names = imports_of(path)
            others = [known[name] for name in names if name in known]
            reached[path] = path in files or bool(names & modules) or any(map(is_reached, others))
        return reached[path]

    tests = [path for folder in TESTS for path in (ROOT / folder).rglob("test_*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in tests if is_reached(path))


def main(arguments: list[str]) -> int:
    """Print the files."""
    since = arguments[0] if arguments else default_since()
    found = chosen(changed_files(since))
    print("\n".join(found))
    print(f"{len(found)} test files know what was changed since {since[:12]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
