"""Writes docs/compatibility.md from the verdicts of the last recorded run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gantry_interop.admin import verdicts
from gantry_interop.admin.verdicts import Verdict
from gantry_interop.paths import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"

_INTRODUCTION: Final = """\
# Compatibility: mqadmin, command by command

<!-- Written by `e2e/interop/run.py admin --record`; edit e2e/interop/gantry_interop/admin/page.py. -->

You can administer Gantry with Apache RocketMQ's `mqadmin`. This page shows the result of each of its {commands}
commands, as of 5.3.3, with a name server and broker of Gantry, compared with Apache's own 5.3.3. It is generated
from a test run.

| | commands |
|---|---|
| the same | **{same}** |
| the same, except for a line that is refused or accepted on purpose | {but} |
| differ | {differs} |
| fail with Apache's servers too, without a controller | {fails} |
| not run here: they need a controller, a container or files on their own disk | {absent} |

## How they are compared

`make interop-admin` runs the unmodified tool (`org.apache.rocketmq.tools.command.MQAdminStartup`) {steps} times
against each of two pairs of servers, Apache's and Gantry's. Both get the same names and settings, the same topics,
groups and messages, a Java producer and a Java consumer that stay online, a group that has left a backlog, and a
message with a trace.

The test runs each command with its options: correctly, and also with wrong names, missing topics and missing
options. It reads the effect of a command afterwards with another one. It compares the output line by line, the exit
code, and the files that the command writes.

These parts are removed before the comparison:

- addresses, ports and folders of the servers;
- times within the run;
- ids that clients create;
- the checksum over a record;
- measured times and rates (each by the name of its field, and only if both are numbers);
- the order of rows that Apache's tool prints in the order of a hash table;
- the text of a refusal. Its code is compared: programs act on the code, and each server words its errors itself.

The last column lists everything else that was left out.

A run fails if a command differs that this page calls the same, if the tool has a command that no
step runs, or if a command differs without a reason on this page. `{record}` regenerates the page.

## All commands

The columns `theirs` and `ours` show whether the command works with Apache's servers and with Gantry's. The steps are
those whose output was compared; `7/8` means that one differed.

| command | theirs | ours | steps | verdict | why, or what was left out |
|---|---|---|---|---|---|
"""

_DIFFERENCES: Final = """
## What differs

This section has the first lines of each difference. A minus marks output that only Apache's servers produce, a plus
output that only Gantry's produce.
"""

_LINE_MAX: Final = 150


def build_page(found: Sequence[Verdict], steps: int) -> str:
    """Return the whole page as Markdown."""
    counted = verdicts.count_by_word(found)
    head = _INTRODUCTION.format(
        commands=len(found),
        steps=steps,
        same=counted["same"],
        but=counted["same, but"],
        differs=counted["differs"],
        fails=counted["theirs fails, too"],
        absent=counted["not here"],
        record="e2e/interop/run.py admin --record",
    )
    rows = "".join(_row(one) for one in found)
    different = [one for one in found if one.differences]
    return head + rows + ("".join((_DIFFERENCES, *(_section(one) for one in different))) if different else "")


def _row(one: Verdict) -> str:
    steps = f"{one.steps_same}/{one.steps}" if one.steps else ""
    why = "; ".join(one.why).replace("|", "\\|")
    return f"| `{one.command}` | {one.theirs} | {one.ours} | {steps} | {one.word} | {why} |\n"


def _section(one: Verdict) -> str:
    return f"\n### {one.command}\n\n{''.join(_blocks(one))}"


def _blocks(one: Verdict) -> Iterator[str]:
    for why in one.why[:1]:
        yield f"{why[:1].upper()}{why[1:]}.\n\n"
    for difference in one.differences:
        lines = "\n".join(line if len(line) <= _LINE_MAX else line[:_LINE_MAX] + "…" for line in difference.lines)
        yield f"```diff\n# mqadmin {difference.typed}\n{lines}\n```\n"


def write(found: Sequence[Verdict], steps: int, page: Path = PAGE) -> None:
    """Write the page to its file."""
    page.write_text(build_page(found, steps))
