"""Every command on the listed pages of docs/ (`page_runner.PAGES`) works as its page shows. The first half is run here,
each page from top to bottom in its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_pages import Kind, PageFailed, Sandbox, blocks_of
from gantry_pages.blocks import PageFault, missing_lines
from gantry_pages.page_runner import (
    DOCS,
    FIRST_HALF,
    PAGES,
    SDK_PAGES,
    SECOND_HALF,
    TASKS,
    blocks,
    has_java,
    has_spark,
    run_page,
)

NOT_RUN = {
    "start": 1,
    "java": 0,
    "python": 0,
    "spark": 2,
    "move-consumers": 0,
    "watch": 1,
    "failover": 0,
    "recover": 1,
    "upgrade": 1,
    "tune": 0,
    "output": 0,
    "sdk-java": 0,
    "sdk-go": 1,
    "sdk-python": 1,
    "sdk-node": 1,
    "sdk-rust": 1,
}
"""The number of blocks of each page that are not run, with the reason; a new one must be counted here."""


@pytest.mark.verify
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.needs_java])
        if has_java(name)
        else pytest.param(name, marks=[pytest.mark.slow, pytest.mark.needs_spark])
        if has_spark(name)
        else name
        for name in FIRST_HALF
    ],
)
def test_every_command_of_the_page_works_as_shown(name: str, tmp_path: Path) -> None:
    """Each block succeeds and prints the lines that the page shows."""
    run_page(name, tmp_path)


def test_every_page_is_run() -> None:
    """Each page is in exactly one of the three lists."""
    assert sorted((*FIRST_HALF, *SECOND_HALF, *SDK_PAGES)) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_that_are_not_run_are_counted(name: str) -> None:
    """A block that is not run has a reason on the page, and is counted here; at least one block of a page is run, and
    two of a page with a task.
    """
    found = blocks(name)
    left_out = [block for block in found if block.reason]

    assert len(left_out) == NOT_RUN[name]
    assert all(len(block.reason) > 10 for block in left_out)
    assert sum(block.kind in (Kind.COMMANDS, Kind.PROGRAM) and not block.reason for block in found) >= (
        2 if name in (*TASKS, *SDK_PAGES) else 1
    )


@pytest.mark.parametrize("name", (*TASKS, *SDK_PAGES))
def test_page_begins_with_its_goal(name: str) -> None:
    """The first sentence is the goal, and the index leads to the page."""
    text = (DOCS / f"{name}.md").read_text()
    paragraph = text.split("\n\n")[1]

    assert text.startswith("# ") and paragraph.startswith("This page shows how to ")
    assert f"]({name}.md)" in (DOCS / "README.md").read_text()


# -- the guard itself --------------------------------------------------------------------------------------------------

PAGE = """# A page

```sh
echo one; echo "two 2"
```
```text
one
two ...
```
"""


def test_failing_command_is_caught(tmp_path: Path) -> None:
    """The error has the line of the block and the exit code."""
    [block] = blocks_of(PAGE.replace("echo one", "false; echo one"))

    with Sandbox(tmp_path) as sandbox, pytest.raises(PageFailed, match="line 3: exit code 1"):
        sandbox.run(block)


@pytest.mark.parametrize("shown", ["three", "two ... three", "two\none"], ids=["other", "other end", "other order"])
def test_missing_output_line_is_caught(shown: str, tmp_path: Path) -> None:
    """A page cannot show what a command does not print."""
    [good], [bad] = blocks_of(PAGE), blocks_of(PAGE.replace("one\ntwo ...\n", f"{shown}\n"))

    with Sandbox(tmp_path) as sandbox:
        sandbox.run(good)
        with pytest.raises(PageFailed, match="missing"):
            sandbox.run(bad)


def test_unclassified_block_is_caught() -> None:
    """A language that is not run, or a file without a name, is an error of the page and no illustration."""
    for text in ("```\ngantry up\n```", "```bash\ngantry up\n```", "```yaml\na: 1\n```", "```python\nprint()\n```"):
        with pytest.raises(PageFault):
            blocks_of(text)


def test_reason_applies_to_the_next_block_only() -> None:
    """A mark leaves out the block right below it, and no later block."""
    found = blocks_of("<!-- not run: it needs a cluster -->\n```sh\na\n```\n\n```sh\nb\n```\n\n```text\nc\n```\n")

    assert [(block.reason, block.expected) for block in found] == [("it needs a cluster", ()), ("", ("c",))]


def test_dots_match_anything_and_spaces_match_spaces() -> None:
    """Columns may be wider and numbers may differ; words may not."""
    assert list(missing_lines(("a ... d", "x"), " a   b c d \nx")) == []
    assert list(missing_lines(("a ... e",), "a b c d")) == ["a ... e"]


def test_sandbox_uses_no_port_of_the_page(tmp_path: Path) -> None:
    """Two pages can run at the same time, beside a broker on the usual ports."""
    [block] = blocks_of(
        "```sh\necho 127.0.0.1:9876 10911 8080 12345\n```\n```text\n127.0.0.1:9876 10911 8080 12345\n```\n"
    )

    with Sandbox(tmp_path) as sandbox:
        sandbox.run(block)
        with pytest.raises(PageFailed) as failed:
            sandbox.run(blocks_of("```sh\necho 9876 10911 8080\nfalse\n```")[0])

    assert not {"9876", "10911", "8080"} & set(str(failed.value).split())


@pytest.mark.verify
def test_stack_left_by_a_failed_page_is_stopped(tmp_path: Path) -> None:
    """The stack may be in any folder; no process of a page outlives it."""
    [block] = blocks_of("```sh\ngantry up --single --detach --data elsewhere\nfalse\n```\n")

    with Sandbox(tmp_path) as sandbox, pytest.raises(PageFailed):
        sandbox.run(block)

    assert (tmp_path / "elsewhere/broker").is_dir()
    assert not (tmp_path / "elsewhere/stack.json").exists()
