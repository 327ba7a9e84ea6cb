"""The pages that are run, and running one of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from gantry_interop import java, versions

from gantry_pages.blocks import Block, blocks_of
from gantry_pages.sandbox import ROOT, Java, Sandbox

DOCS: Final = ROOT / "docs"
TASKS: Final = (
    "start", "java", "python", "spark", "move-consumers", "watch", "failover", "recover", "upgrade", "tune",
)  # fmt: skip
"""The task pages, by file name without suffix."""

PAGES: Final = (*TASKS, "output")
FIRST_HALF: Final = ("start", "java", "python", "spark", "move-consumers", "tune", "output")
SECOND_HALF: Final = ("watch", "failover", "recover", "upgrade")
"""The pages of the second half. Two test modules run one half each, so that two processes can share the work."""


def blocks(name: str) -> list[Block]:
    """Return the blocks of a page of docs/."""
    return blocks_of((DOCS / f"{name}.md").read_text())


def has_java(name: str) -> bool:
    """Return whether the page needs Java."""
    return any(block.language == "java" and not block.reason for block in blocks(name))


def has_spark(name: str) -> bool:
    """Return whether a program on the page runs on Spark."""
    return any(block.language == "python" and "spark" in block.text and not block.reason for block in blocks(name))


def run_page(name: str, folder: Path) -> None:
    """Run all blocks of the page in this folder. Raises PageFailed."""
    with Sandbox(folder, java=_java() if has_java(name) else None) as sandbox:
        for block in blocks(name):
            sandbox.run(block)


def _java() -> Java:
    java.build()
    compiler, machine = shutil.which("javac"), shutil.which("java")
    assert compiler is not None and machine is not None, "expected java and javac, which the test's marker requires"
    return Java(compiler, machine, java.class_path(java.CLIENT_MODULES[versions.PEER]))
