"""A page of docs/ as runnable blocks: its fenced blocks, in the order of the page.

    ```sh                                commands, run by a shell in the page's own folder
    ```text      right after it          lines of the output, in this order; `...` matches anything
    ```yaml group.yaml                   a file (`FILES`) that the reader writes; its name follows the language
    ```python send.py   ```java Send.java   a program: written, then run by its toolchain (`toolchains`), which may
    ```go main.go   ```js main.mjs   ```rust src/main.rs                                          compile it first

A block that is not run has a comment with the reason above it in the source of the page; the tests count these.

    <!-- not run: needs a cluster -->

A command that a reader leaves running in its own terminal is started and runs until the page ends:

    <!-- ready after: broker listening on ... -->

Every other block is an illustration, such as sample JSON or a diagram. Nothing else distinguishes it from a block that
is run, so its language must be `text`, and it must not be right after a command. The rule: a reader who types a page
from the top to the end does what the test does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, final

FENCE: Final = re.compile(r"^```(?P<language>\w*)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced block with its language and its file name."""

MARK: Final = re.compile(r"<!-- (?P<word>not run|ready after): (?P<text>[^\n]+) -->\n+\Z")
"""A comment above a block."""

PROGRAMS: Final = ("python", "java", "go", "js", "rust")
FILES: Final = ("yaml", "properties", "json", "ini", "toml")
"""The languages of programs, and of files that a reader writes."""


class PageFault(Exception):
    """A block of a page cannot be classified; the message has its line."""


class Kind(Enum):
    """What is done with a block."""

    COMMANDS = auto()
    PROGRAM = auto()
    FILE = auto()
    ILLUSTRATION = auto()


@final
@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    line: int
    """The line of its fence, from 1 on."""
    kind: Kind
    language: str
    name: str
    """The name of the file; empty for commands."""
    text: str
    expected: tuple[str, ...] = ()
    """Patterns of the lines that must be printed."""
    reason: str = ""
    """The reason for not running the block; empty if it is run."""
    ready_line: str = ""
    """The output line after which the command counts as started; empty for one that ends."""


def blocks_of(page: str) -> list[Block]:
    """Return all blocks of a page. Raises PageFault for one that cannot be classified."""
    found: list[Block] = []
    last_end = -1
    for match in FENCE.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        is_right_after = page[last_end : match.start()].strip() == "" and last_end >= 0
        last_end = match.end()
        if match["language"] == "text":
            if is_right_after and found and found[-1].kind in (Kind.COMMANDS, Kind.PROGRAM):
                found[-1] = _with_expected(found[-1], tuple(match["text"].splitlines()))
            else:
                found.append(Block(line, Kind.ILLUSTRATION, "text", "", match["text"]))
            continue
        found.append(_block(match, line, MARK.search(page[: match.start()])))
    return found


def _block(match: re.Match[str], line: int, mark: re.Match[str] | None) -> Block:
    language, name = match["language"], match["name"] or ""
    kind = Kind.COMMANDS if language == "sh" else Kind.PROGRAM if language in PROGRAMS else Kind.FILE
    if language not in ("sh", *PROGRAMS, *FILES):
        raise PageFault(
            f"line {line}: a block of {language or 'no language'} cannot be run; use sh, or text for illustrations"
        )
    reason = mark["text"] if mark is not None and mark["word"] == "not run" else ""
    ready_mark = mark["text"] if mark is not None and mark["word"] == "ready after" else ""
    if kind is not Kind.COMMANDS and not name and not reason:
        raise PageFault(
            f"line {line}: add a file name after {language}, or a comment with the reason for not running it"
        )
    if ready_mark and kind is not Kind.COMMANDS:
        raise PageFault(f"line {line}: only commands may have the mark 'ready after'")
    return Block(line, kind, language, name, match["text"], reason=reason, ready_line=ready_mark)


def _with_expected(block: Block, lines: tuple[str, ...]) -> Block:
    return Block(block.line, block.kind, block.language, block.name, block.text, lines, block.reason, block.ready_line)


def missing_lines(expected: tuple[str, ...], printed: str) -> Iterator[str]:
    """Yield the lines of the page that were not printed in their order; `...` matches anything."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    for shown in expected:
        if not shown.strip() or shown.strip() == "...":
            continue
        pattern = re.compile(".*".join(re.escape(" ".join(part.split())) for part in _parts(shown)))
        if not any(pattern.fullmatch(" ".join(line.split())) for line in lines):
            yield shown


def _parts(shown: str) -> list[str]:
    return re.split(r" *\.\.\. *", " ".join(shown.split()))
