"""The lock files: pinned, hashed, free of addresses, and agreeing with pyproject.toml and with each other."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from gantry_testing.tree import ROOT

LOCKS = (
    "runtime",
    "build",
    "dev",
    "operator",
    "kubernetes",
    "admin",
    "codecs",
    "proxy",
    "spark",
    "tables",
    "schemas",
    "connect",
    "sbom",
)
PIN = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+)( ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
ADDRESS = re.compile(r"://|--(extra-)?index-url|--find-links|--trusted-host| @ |\b[\w-]+\.(org|com|io|net|cn|dev)\b")


def project() -> Any:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def faults(text: str) -> list[str]:
    """Lines of a lock that are neither a pin nor a hash, pins without a hash, and lines that name an address."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    wrong = [line for line in text.splitlines() if ADDRESS.search(line)]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if PIN.match(line):
            wrong += [] if HASH.match(following) else [line]
        elif not HASH.match(line):
            wrong.append(line)
    return wrong


def pins(lock: str) -> dict[str, str]:
    """Return the pinned versions of a lock file by package name."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    matches = (PIN.match(line) for line in text.splitlines())
    return {match["name"]: match["version"] for match in matches if match}


def names(requirements: list[str]) -> set[str]:
    """The package names of a list of requirements, as locks write them."""
    found = (re.split(r"[<>=!~ \[;]", requirement, maxsplit=1)[0] for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in found}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_lock_is_pinned_hashed_and_names_no_address(lock: str) -> None:
    """A lock says which bytes to install, and leaves it to the user's own configuration where from."""
    assert faults((ROOT / "requirements" / f"{lock}.txt").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url x",
        "name @ file:///x",
        "name>=1",
        "name==1",
        "# from https://x",
        "    --find-links /x",
        "# by host.org",
    ],
)
def test_a_loose_line_is_caught(line: str) -> None:
    """An address, even in a comment, an open range and a missing hash are each a fault."""
    good = "name==1 \\\n    --hash=sha256:" + "0" * 64

    assert faults(good) == []
    assert faults(f"{good}\n{line}\n") != []


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock not in {"runtime", "build", "sbom"}])
def test_every_lock_contains_the_runtime_at_the_same_versions(lock: str) -> None:
    """Locks are installed over each other, so they agree."""
    assert pins("runtime").items() <= pins(lock).items()


def test_packages_shared_with_the_build_lock_have_one_version() -> None:
    """The build tools share an environment with every other lock."""
    for lock in LOCKS:
        both = pins(lock).keys() & pins("build").keys()
        assert {name: pins(lock)[name] for name in both} == {name: pins("build")[name] for name in both}


def test_the_runtime_core_is_six_packages() -> None:
    """A broker needs nothing else, and the image beyond that the sidecar's."""
    assert names(project()["project"]["dependencies"]) == {"msgspec", "uvloop", "click", "rich", "pyyaml", "isal"}


def test_every_declared_package_is_locked() -> None:
    """Every package that pyproject.toml asks for is in the lock of its use; `make lock` was not forgotten."""
    declared = project()["project"]

    assert names(declared["dependencies"]) <= pins("runtime").keys()
    assert names(project()["build-system"]["requires"]) <= pins("build").keys()
    for extra, requirements in declared["optional-dependencies"].items():
        assert names(requirements) <= pins(extra).keys()


def test_the_build_lock_follows_the_build_system() -> None:
    """requirements/build.in repeats [build-system], because the resolver reads no build systems."""
    lines = (ROOT / "requirements/build.in").read_text().splitlines()

    assert [line for line in lines if not line.startswith("#")] == project()["build-system"]["requires"]


def test_the_sbom_lock_agrees_with_the_development_lock() -> None:
    """An image's build writes its SBOM with the library with which the tests validate it."""
    lines = (ROOT / "requirements/sbom.in").read_text().splitlines()

    assert {line for line in lines if not line.startswith("#")} <= set(
        project()["project"]["optional-dependencies"]["dev"]
    )
    assert pins("sbom").items() <= pins("dev").items()
