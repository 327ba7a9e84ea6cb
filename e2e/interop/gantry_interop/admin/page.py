"""docs/compatibility.md, made of the verdicts of the last recorded run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gantry_interop.admin import verdicts
from gantry_interop.admin.verdicts import Verdict
from gantry_interop.places import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"

_INTRODUCTION: Final = """\
# Compatibility: mqadmin, command by command

<!-- Written by `e2e/interop/run.py admin --record`; edit e2e/interop/gantry_interop/admin/page.py. -->

Apache RocketMQ is administered with `mqadmin`. This page says what each of its {commands} commands, as of 5.3.3, does
with a name server and broker of Gantry, beside Apache's own 5.3.3. It is the result of a run, not of an intention.

| | commands |
|---|---|
| the same | **{same}** |
| the same, but for a line that is refused or taken on purpose | {but} |
| differ | {differs} |
| fail at Apache's servers, too, without a controller | {fails} |
| not run here: they ask a controller, a container or files on their own disk | {absent} |

## How they are compared

`make interop-admin` runs the unmodified tool (`org.apache.rocketmq.tools.command.MQAdminStartup`) {steps} times
against each of two pairs of servers, Apache's and ours. Both get the same names and settings, the same topics, groups
and messages, a Java producer and a Java consumer that stay on line, a group that has gone and left a backlog, and a
message with a trace. Each command is typed with the options that it has: once as it should be, and also with wrong
names, missing topics and missing options. What a command changes is looked at afterwards with another one. Everything
it prints is compared line by line, and its exit code, and the files that it writes.

Taken out before the comparison are: addresses, ports and folders of the servers; moments that lie within the run; ids
that clients make; the checksum over a record; measured times and rates (each by the name of its field, and only if
both are numbers); the order of rows that Apache's tool prints in the order of a hash table. Of a refusal the code is
compared and the words are not: a program acts upon the code, and each server says in its own words what was wrong.
What else was left out is in the last column.

A run fails when a command is not the same any more that this page calls the same, when the tool has a command that no
step runs, and when a command differs without a reason on this page. `{record}` writes the page anew.

## All commands

`theirs` and `ours` say whether the command does its work there. The steps are those whose output was compared; `7/8`
means that one differed.

| command | theirs | ours | steps | verdict | why, or what was left out |
|---|---|---|---|---|---|
"""

_DIFFERENCES: Final = """
## What differs

The first lines of each difference: with a minus what only Apache's servers make the tool print, with a plus what only
ours do.
"""

_LINE_MAX: Final = 150


def text(found: Sequence[Verdict], steps: int) -> str:
    """The whole page."""
    counted = verdicts.counts(found)
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
    """Put it where it belongs."""
    page.write_text(text(found, steps))
