"""The pages that are typed, and typing one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from gantry_interop import java

from gantry_pages.blocks import Block, blocks_of
from gantry_pages.sandbox import ROOT, Java, Sandbox

DOCS: Final = ROOT / "docs"
TASKS: Final = (
    "start", "java", "python", "spark", "move-consumers", "watch", "failover", "recover", "upgrade", "tune",
)  # fmt: skip
TYPED: Final = (*TASKS, "output")
FIRST: Final = ("start", "java", "python", "spark", "move-consumers", "tune", "output")
SECOND: Final = ("watch", "failover", "recover", "upgrade")
"""Two halves, each typed by a module of tests of its own, so that two processes can share them."""


def blocks(name: str) -> list[Block]:
    """Those of a page of docs/."""
    return blocks_of((DOCS / f"{name}.md").read_text())


def has_java(name: str) -> bool:
    """Whether a page can be typed only where there is Java."""
    return any(block.language == "java" and not block.reason for block in blocks(name))


def has_spark(name: str) -> bool:
    """Whether a program of it runs on Spark."""
    return any(block.language == "python" and "spark" in block.text and not block.reason for block in blocks(name))


def type_page(name: str, folder: Path) -> None:
    """Do what a reader of the page does, in this folder. Raises PageFailed."""
    with Sandbox(folder, java=_java() if has_java(name) else None) as sandbox:
        for block in blocks(name):
            sandbox.run(block)


def _java() -> Java:
    java.build()
    compiler, machine = shutil.which("javac"), shutil.which("java")
    assert compiler is not None and machine is not None, "the marker of the test asked for Java"
    return Java(compiler, machine, java.class_path(java.CLIENT_MODULES["5.3.3"]))
