"""Every command on the pages of docs/ does what its page says: it is typed here, in order, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_pages import Kind, PageFailed, Sandbox, blocks_of
from gantry_pages.blocks import PageFault, missing_lines
from gantry_pages.typed import DOCS, FIRST, SECOND, TASKS, TYPED, blocks, has_java, has_spark, type_page

NOT_RUN = {
    "start": 1,
    "java": 0,
    "python": 0,
    "spark": 1,
    "move-consumers": 0,
    "watch": 1,
    "failover": 0,
    "recover": 1,
    "upgrade": 1,
    "tune": 0,
    "output": 0,
}
"""How many blocks of each page say that they are not run, and why. Whoever adds one counts it here."""


@pytest.mark.verify
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.needs_java])
        if has_java(name)
        else pytest.param(name, marks=[pytest.mark.slow, pytest.mark.needs_spark])
        if has_spark(name)
        else name
        for name in FIRST
    ],
)
def test_every_command_of_the_page_does_what_the_page_says(name: str, tmp_path: Path) -> None:
    """Each block ends well and prints the lines that the page shows."""
    type_page(name, tmp_path)


def test_every_page_is_typed() -> None:
    """Each page is in one of the two lists, and nothing else is."""
    assert {*FIRST, *SECOND} == set(TYPED) and len(FIRST) + len(SECOND) == len(TYPED)


@pytest.mark.parametrize("name", TYPED)
def test_what_is_not_run_is_counted(name: str) -> None:
    """A block that is left out says why in the page, and somebody has counted it; most of every page is run."""
    found = blocks(name)
    left_out = [block for block in found if block.reason]

    assert len(left_out) == NOT_RUN[name]
    assert all(len(block.reason) > 10 for block in left_out)
    assert sum(block.kind in (Kind.COMMANDS, Kind.PROGRAM) and not block.reason for block in found) >= (
        2 if name in TASKS else 1
    )


@pytest.mark.parametrize("name", TASKS)
def test_page_begins_with_what_one_will_have(name: str) -> None:
    """The first sentence is the goal, and the index leads to the page."""
    text = (DOCS / f"{name}.md").read_text()
    paragraph = text.split("\n\n")[1]

    assert text.startswith("# ") and paragraph.startswith("At the end ")
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


def test_command_that_fails_is_caught(tmp_path: Path) -> None:
    """The block, what was typed and what came are said."""
    [block] = blocks_of(PAGE.replace("echo one", "false; echo one"))

    with Sandbox(tmp_path) as sandbox, pytest.raises(PageFailed, match="line 3: exit code 1"):
        sandbox.run(block)


@pytest.mark.parametrize("shown", ["three", "two ... three", "two\none"], ids=["other", "other end", "other order"])
def test_line_that_does_not_come_is_caught(shown: str, tmp_path: Path) -> None:
    """A page cannot show what a command does not print."""
    [good], [bad] = blocks_of(PAGE), blocks_of(PAGE.replace("one\ntwo ...\n", f"{shown}\n"))

    with Sandbox(tmp_path) as sandbox:
        sandbox.run(good)
        with pytest.raises(PageFailed, match="missing"):
            sandbox.run(bad)


def test_block_that_nobody_can_place_is_caught() -> None:
    """A language that is not run, or a file without a name, is an error of the page and no picture."""
    for text in ("```\ngantry up\n```", "```bash\ngantry up\n```", "```yaml\na: 1\n```", "```python\nprint()\n```"):
        with pytest.raises(PageFault):
            blocks_of(text)


def test_reason_belongs_to_the_block_below_it() -> None:
    """A mark leaves out one block, not the next one."""
    found = blocks_of("<!-- not run: it needs a cluster -->\n```sh\na\n```\n\n```sh\nb\n```\n\n```text\nc\n```\n")

    assert [(block.reason, block.expected) for block in found] == [("it needs a cluster", ()), ("", ("c",))]


def test_dots_stand_for_anything_and_spaces_for_spaces() -> None:
    """Columns may be wider and numbers others; words may not."""
    assert list(missing_lines(("a ... d", "x"), " a   b c d \nx")) == []
    assert list(missing_lines(("a ... e",), "a b c d")) == ["a ... e"]


def test_sandbox_uses_no_port_of_the_page(tmp_path: Path) -> None:
    """Two pages can be typed at the same time, beside a broker on the usual ports."""
    [block] = blocks_of(
        "```sh\necho 127.0.0.1:9876 10911 8080 12345\n```\n```text\n127.0.0.1:9876 10911 8080 12345\n```\n"
    )

    with Sandbox(tmp_path) as sandbox:
        sandbox.run(block)
        with pytest.raises(PageFailed) as failed:
            sandbox.run(blocks_of("```sh\necho 9876 10911 8080\nfalse\n```")[0])

    assert not {"9876", "10911", "8080"} & set(str(failed.value).split())


@pytest.mark.verify
def test_stack_that_a_failure_left_up_is_stopped(tmp_path: Path) -> None:
    """Wherever it was started; nothing of a page outlives it."""
    [block] = blocks_of("```sh\ngantry up --single --detach --data elsewhere\nfalse\n```\n")

    with Sandbox(tmp_path) as sandbox, pytest.raises(PageFailed):
        sandbox.run(block)

    assert (tmp_path / "elsewhere/broker").is_dir()
    assert not (tmp_path / "elsewhere/stack.json").exists()
