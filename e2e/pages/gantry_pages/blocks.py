"""A page of docs/ as what can be run: its fenced blocks, in the order in which a reader comes to them.

    ```sh                                commands, run by a shell in the page's own folder
    ```text      right behind it         lines that must come, in this order; `...` stands for anything
    ```yaml group.yaml                   a file that the reader writes, with its name behind the language
    ```python send.py   ```java Send.java   a program: written, then run (Java: compiled and run)

What is not run says so in the source of the page, above its block, with the reason; the tests count these.

    <!-- not run: needs a cluster -->

A command that a reader leaves running in a terminal of its own is started and left running, until the page ends:

    <!-- goes on after: broker listening on ... -->

Everything else is a picture of something: `text` that follows no command, JSON, a diagram. It cannot be told from a
command that somebody forgot to mark, so only `text` may be one. The rule: a reader who types a page from the top to the
end does what the test does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, final

FENCE: Final = re.compile(r"^```(?P<language>\w*)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK: Final = re.compile(r"<!-- (?P<word>not run|goes on after): (?P<said>[^\n]+) -->\n+\Z")
PROGRAMS: Final = ("python", "java")
FILES: Final = ("yaml", "properties", "json", "ini", "toml")


class PageFault(Exception):
    """A page that cannot be read as commands. Say it where the reader is."""


class Kind(Enum):
    """What is done with a block."""

    COMMANDS = auto()
    PROGRAM = auto()
    FILE = auto()
    PICTURE = auto()


@final
@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    line: int
    """Of its fence, from 1 on."""
    kind: Kind
    language: str
    name: str
    """Of the file; empty for commands."""
    text: str
    expected: tuple[str, ...] = ()
    """Patterns of the lines that must come."""
    reason: str = ""
    """Why it is not run; empty for what is."""
    goes_on_after: str = ""
    """The line after which it is left running; empty for what comes to its end."""


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page. Raises PageFault for one of which nobody can say what it is."""
    found: list[Block] = []
    last_end = -1
    for match in FENCE.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        is_right_behind = page[last_end : match.start()].strip() == "" and last_end >= 0
        last_end = match.end()
        if match["language"] == "text":
            if is_right_behind and found and found[-1].kind in (Kind.COMMANDS, Kind.PROGRAM):
                found[-1] = _expecting(found[-1], tuple(match["text"].splitlines()))
            else:
                found.append(Block(line, Kind.PICTURE, "text", "", match["text"]))
            continue
        found.append(_block(match, line, MARK.search(page[: match.start()])))
    return found


def _block(match: re.Match[str], line: int, mark: re.Match[str] | None) -> Block:
    language, name = match["language"], match["name"] or ""
    kind = Kind.COMMANDS if language == "sh" else Kind.PROGRAM if language in PROGRAMS else Kind.FILE
    if language not in ("sh", *PROGRAMS, *FILES):
        raise PageFault(
            f"line {line}: a block of {language or 'no language'} is neither run nor a picture: use sh or text"
        )
    reason = mark["said"] if mark is not None and mark["word"] == "not run" else ""
    goes_on = mark["said"] if mark is not None and mark["word"] == "goes on after" else ""
    if kind is not Kind.COMMANDS and not name and not reason:
        raise PageFault(f"line {line}: say behind {language} into which file this goes, or why it is not run")
    if goes_on and kind is not Kind.COMMANDS:
        raise PageFault(f"line {line}: only commands go on")
    return Block(line, kind, language, name, match["text"], reason=reason, goes_on_after=goes_on)


def _expecting(block: Block, lines: tuple[str, ...]) -> Block:
    return Block(
        block.line, block.kind, block.language, block.name, block.text, lines, block.reason, block.goes_on_after
    )


def missing_lines(expected: tuple[str, ...], printed: str) -> Iterator[str]:
    """Which of the lines that a page shows did not come, in their order; `...` stands for anything."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    for shown in expected:
        if not shown.strip() or shown.strip() == "...":
            continue
        pattern = re.compile(".*".join(re.escape(" ".join(part.split())) for part in _parts(shown)))
        if not any(pattern.fullmatch(" ".join(line.split())) for line in lines):
            yield shown


def _parts(shown: str) -> list[str]:
    return re.split(r" *\.\.\. *", " ".join(shown.split()))
