"""Writes docs/compatibility.md from the verdicts of the last recorded runs of mqadmin and of the SDKs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gantry_interop import versions
from gantry_interop.admin import verdicts
from gantry_interop.admin.features import features_section
from gantry_interop.admin.verdicts import Verdict
from gantry_interop.paths import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"

_INTRODUCTION: Final = """\
# Compatibility: mqadmin and SDKs, compared with RocketMQ

<!-- Written by `e2e/interop/run.py admin --record`; edit e2e/interop/gantry_interop/admin/page.py. -->

You can administer Gantry with the `mqadmin` of Apache RocketMQ {version}. This page shows the result of each of its
{commands} commands, compared with a name server and a broker of Apache RocketMQ {version}. It is generated from a test
run. [The last part](#sdks-of-rocketmq-5) does the same for the SDKs of RocketMQ 5. [RocketMQ
releases](rocketmq-releases.md) has the changes of recent releases, and which of them Gantry follows.

| result | verdict in the table | commands |
|---|---|---|
| The output is the same. | same | **{same}** |
| The output is the same, except for lines that differ on purpose. | same, except | {but} |
| The output differs. | differs | {differs} |
| The command fails with RocketMQ and Gantry, because there is no controller. | both fail | {fails} |
| The command is not run: it needs a controller, a container or local files. | not run | {absent} |

## All commands

The columns RocketMQ and Gantry show whether the command works with these servers. The column *same steps* counts the
test steps with the same output: `7/8` means that one step differs.

| command | RocketMQ | Gantry | same steps | verdict | reason, or parts that are not compared |
|---|---|---|---|---|---|
"""

_METHOD: Final = """
## How the commands are compared

`make interop-admin` runs the unmodified tool (`org.apache.rocketmq.tools.command.MQAdminStartup`) {steps} times
against servers of RocketMQ, and as often against servers of Gantry. Both have the same names and settings, the same
topics, groups and messages, a Java producer and a Java consumer that stay connected, a group with a lag, and a message
with a trace.

The test runs each command with its options: correctly, and also with wrong names, missing topics and missing
options. It checks the effect of a command with another command. It compares the output line by line, the exit
code, and the files that the command writes.

These parts are removed before the comparison:

- addresses, ports and folders of the servers;
- times within the run;
- ids that clients create;
- the checksum over a record;
- measured times and rates (each by the name of its field, and only if both are numbers);
- the order of rows that Apache's tool prints in the order of a hash table;
- the text of a refusal, since the servers use different words; the code of the refusal is compared.

The last column of the table lists all other parts that are not compared.

The test fails if a command differs that this page calls the same, if the tool has a command that is not in this table,
or if a command differs without a reason on this page. `e2e/interop/run.py admin --record` regenerates the page.
"""

_DIFFERENCES: Final = """
## Differences

This section has the first lines of each difference. A minus marks output that only RocketMQ's servers produce, a plus
output that only Gantry's servers produce.
"""

_LINE_MAX: Final = 150


def build_page(found: Sequence[Verdict], steps: int, sdk_section: str) -> str:
    """Return the whole page as Markdown; its last part is about SDKs."""
    counted = verdicts.count_by_word(found)
    head = _INTRODUCTION.format(
        version=versions.PEER,
        commands=len(found),
        same=counted["same"],
        but=counted["same, except"],
        differs=counted["differs"],
        fails=counted["both fail"],
        absent=counted["not run"],
    )
    method = _METHOD.format(steps=steps)
    rows = "".join(_row(one) for one in found)
    different = [one for one in found if one.differences]
    shown = "".join((_DIFFERENCES, *(_section(one) for one in different))) if different else ""
    return f"{head}{rows}{features_section()}{method}{shown}\n{sdk_section}"


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


def write(found: Sequence[Verdict], steps: int, sdk_section: str, page: Path = PAGE) -> None:
    """Write the page to its file."""
    page.write_text(build_page(found, steps, sdk_section))
