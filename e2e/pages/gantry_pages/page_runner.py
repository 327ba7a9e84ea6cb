"""The pages that are run, and running one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gantry_pages.blocks import Block, Kind, blocks_of
from gantry_pages.sandbox import ROOT, Sandbox
from gantry_pages.toolchains import toolchains

DOCS: Final = ROOT / "docs"
TASKS: Final = (
    "start", "java", "python", "spark", "move-consumers", "watch", "failover", "recover", "upgrade", "tune",
)  # fmt: skip
"""The task pages, by file name without suffix."""

SDK_PAGES: Final = ("sdk-java", "sdk-go", "sdk-python", "sdk-node", "sdk-rust")
"""The pages about SDKs of RocketMQ 5: `sdk-` and the name of a folder in e2e/interop/sdk."""
PAGES: Final = (*TASKS, *SDK_PAGES, "output")
FIRST_HALF: Final = ("start", "java", "python", "spark", "move-consumers", "tune", "output")
SECOND_HALF: Final = ("watch", "failover", "recover", "upgrade")
"""The pages of the second half. Two test modules run one half each, so that two processes can share the work. A third
one runs the pages about SDKs."""


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
    languages = frozenset(block.language for block in blocks(name) if block.kind is Kind.PROGRAM and not block.reason)
    with Sandbox(folder, toolchains=toolchains(name, languages)) as sandbox:
        for block in blocks(name):
            sandbox.run(block)
