"""Writes docs/museum.md from the exhibits and their recorded results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gantry_interop import versions
from gantry_interop.paths import ROOT

from gantry_museum.exhibit import TITLES, Exhibit, System, Thread
from gantry_museum.results import Result

PAGE: Final = ROOT / "docs" / "museum.md"

_HEAD: Final = """\
# Museum of known failures

<!-- Written by `scripts/museum --record`; edit e2e/museum/gantry_museum. -->

Users of message brokers and of their operators have reported these failures in public. Each one is a scenario here,
which runs on Apache RocketMQ {version} and on Gantry. The page is generated from the recorded runs.

```sh
scripts/museum --list                  # the exhibits and the systems on which they run
scripts/museum failed-flush            # run one exhibit, and compare with the recorded result
scripts/museum --record                # run all of them, and write this page
```

You need Java 17 and Maven for RocketMQ, and root for the exhibits with disks. `make museum` runs all exhibits.

## Overview

*Occurs* means that the reported failure happened in the run. A result says something about this scenario with these
settings, and not about every cause of such a failure.

{table}
## How the exhibits are run

- Both systems have their default settings except for names, ports and sizes of files, and the settings that an exhibit
  names. Both get the same client, unless an exhibit names another.
- Some exhibits also run on RocketMQ {previous}, where a failure is fixed in {version}.
- Some exhibits also run on Gantry without the guard that prevents the failure. There it must occur; otherwise the
  scenario could not detect it, and a test fails.
- Reports about operators of other systems run on Gantry's operator: its real loop with a model of a cluster
  (`operator/tests/operator_world`). Those operators are not run here, and the page does not claim how their present
  versions behave.
- The texts of the reports are summarized in our words; the links lead to the threads.
"""


def build_page(recorded: Sequence[Result], exhibits: Sequence[Exhibit]) -> str:
    """Return the whole page as Markdown."""
    found = {(one.exhibit, one.system): one for one in recorded}
    head = _HEAD.format(version=versions.PEER, previous=versions.PREVIOUS, table=_overview(found, exhibits))
    return head + "".join(_section(one, found) for one in exhibits)


def write(recorded: Sequence[Result], exhibits: Sequence[Exhibit], page: Path = PAGE) -> None:
    """Write the page to its file."""
    page.write_text(build_page(recorded, exhibits))


def _overview(found: dict[tuple[str, str], Result], exhibits: Sequence[Exhibit]) -> str:
    lines = [f"| failure | reported in | {TITLES[System.APACHE]} | Gantry |", "|---|---|---|---|"]
    for one in exhibits:
        cells = [_word(one, system, found) for system in (System.APACHE, System.GANTRY)]
        lines.append(f"| [{one.title}](#{_anchor(one.title)}) | {_links(one.threads)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _word(exhibit: Exhibit, system: System, found: dict[tuple[str, str], Result]) -> str:
    if system not in exhibit.systems:
        return "not run"
    one = found.get((exhibit.name, system.value))
    if one is None:
        return "no result"
    return "**occurs**" if one.has_failed else "does not occur"


def _section(exhibit: Exhibit, found: dict[tuple[str, str], Result]) -> str:
    unread = [one for one in exhibit.threads if not one.was_read]
    parts = [
        f"\n## {exhibit.title}\n",
        f"Reported in {_links(exhibit.threads)}.\n",
        f"{exhibit.reported}\n",
        *([f"The text of {_links(unread)} could not be read, so the scenario has nothing of it.\n"] if unread else []),
        f"**Scenario.** {exhibit.scenario}\n",
        _table(exhibit, found),
        *([exhibit.remark + "\n"] if exhibit.remark else []),
    ]
    return "\n".join(parts)


def _table(exhibit: Exhibit, found: dict[tuple[str, str], Result]) -> str:
    lines = ["| system | the failure | measured |", "|---|---|---|"]
    for system in System:
        title = TITLES[system]
        if system is System.TWIN and exhibit.twin:
            title = f"Gantry that {exhibit.twin}"
        if system in exhibit.absent:
            lines.append(f"| {title} | not run | {exhibit.absent[system]} |")
        elif system in exhibit.systems:
            one = found.get((exhibit.name, system.value))
            facts = " ".join(one.facts) if one is not None else ""
            lines.append(f"| {title} | {_word(exhibit, system, found)} | {facts} |")
    return "\n".join(lines) + "\n"


def _links(threads: Sequence[Thread]) -> str:
    return ", ".join(f"{one.repository} {_numbers(one)}" for one in threads)


def _numbers(thread: Thread) -> str:
    address = f"https://github.com/{thread.repository}/issues"
    return ", ".join(f"[{number}]({address}/{number})" for number in thread.numbers)


def _anchor(title: str) -> str:
    return "".join(one for one in title.lower() if one.isalnum() or one in " -_").replace(" ", "-")
