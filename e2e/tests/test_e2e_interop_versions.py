"""The versions of RocketMQ: one place has them, and the documents name the version of the peer."""

from __future__ import annotations

import subprocess

import pytest
from gantry_interop import java, record, versions

from gantry_testing.tree import ROOT

SOURCES = ("*.py", "*.java", "*.xml", "*.go", "*.sh", "Makefile", "scripts")
PAGES = (
    "README.md", "ARCHITECTURE.md", "docs/java.md", "docs/testing.md", "docs/operations.md", "docs/security.md",
    "docs/compatibility.md", "docs/rocketmq-releases.md", "e2e/interop/README.md",
)  # fmt: skip
ALLOWED = {
    "e2e/interop/pom.xml",
    "broker/src/gantry_wire/codes.py",  # the protocol version is the ordinal of a release
    "e2e/interop/gantry_interop/probe.py",  # independent of gantry_wire on purpose
}


def test_sources_do_not_repeat_the_version_of_the_peer() -> None:
    """The next move to another release is one edit of the build file."""
    names = (versions.PEER, "V" + versions.PEER.replace(".", "_"))
    command = ["git", "grep", "-lF", *(word for name in names for word in ("-e", name)), "--", *SOURCES]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()

    assert set(found) <= ALLOWED


@pytest.mark.parametrize("page", PAGES)
def test_page_names_the_version_of_the_peer(page: str) -> None:
    """A page that names an older version describes a comparison that is not run any more."""
    assert versions.PEER in (ROOT / page).read_text()


def test_clients_are_three_versions() -> None:
    """The oldest, the previous and the newest client have a Maven module each."""
    assert tuple(java.CLIENT_MODULES) == (versions.OLDEST, versions.PREVIOUS, versions.PEER)
    assert len(set(java.CLIENT_MODULES.values())) == len(java.CLIENT_MODULES)


def test_frames_of_the_peer_are_recorded() -> None:
    """The golden frames include those of the version that everything is compared with."""
    assert len(list(record.GOLDEN.glob("*.bin"))) > 400
