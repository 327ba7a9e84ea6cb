"""The result of a run: one verdict for each command of mqadmin, compared with the recorded page.

    same                every step printed the same at both, apart from the values that its rules leave out
    same, except        the same, except for lines for which the plan has an intended difference
    differs             at least one step differs; the first lines of the difference are kept
    both fail           Apache's own servers, set up like this, refuse every step
    not run             no step runs it; the plan has the reason

The verdicts of the last recorded run lie in `results.json` beside this file, and the page is made of them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from gantry_interop.admin.plan.reasons import REASONS
from gantry_interop.admin.plan_runner import Compared
from gantry_interop.admin.steps import Absent

Word = Literal["same", "same, except", "differs", "both fail", "not run"]

RESULTS: Final = Path(__file__).with_name("results.json")
LINES_MAX: Final = 8
"""The maximum number of lines of a difference that are kept."""


@dataclass(frozen=True)
class Difference:
    """A step with different output, and the difference."""

    typed: str
    lines: tuple[str, ...]
    """The first lines that only Apache's servers printed, after a minus, or only Gantry's, after a plus."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one command."""

    command: str
    word: Word
    """The result, as described above."""
    steps: int
    """The number of steps on which the verdict is based."""
    steps_same: int
    theirs: str
    """Whether the command works with Apache's servers: `works`, `fails` or `not run`."""
    ours: str
    """The same with Gantry's servers; also `partly`."""
    why: tuple[str, ...]
    """What was left out of the comparison and why, or why the command is not run, or why it differs."""
    differences: tuple[Difference, ...] = ()


def judge(known: Sequence[str], compared: Sequence[Compared], absent: Sequence[Absent]) -> list[Verdict]:
    """Return one verdict for each command of the tool, in its order."""
    missing = {one.command: one.why for one in absent}
    return [
        Verdict(command, "not run", 0, 0, "not run", "not run", (missing[command],))
        if command in missing
        else _judge(command, compared)
        for command in known
    ]


def _judge(command: str, compared: Sequence[Compared]) -> Verdict:
    own = [one for one in compared if one.step.command == command and one.step.shows is None]
    assert own, f"no step runs {command}"
    steps = [one for one in compared if one.step.shows == command or one in own]
    different = [one for one in steps if not one.is_same]
    works_there = [one for one in own if not one.is_theirs_failed and not _is_usage(one)]
    works_here = [one for one in works_there if not one.is_ours_failed]
    whys = dict.fromkeys(why for one in steps for why in one.step.rule_reasons)
    meant = [one for one in different if one.step.deviation is not None]
    word: Word = "same"
    if different:
        word = "differs" if len(different) > len(meant) else "same, except"
    if not works_there:
        word = "both fail"
    is_explained = word in ("differs", "both fail") and command in REASONS
    reasons = [REASONS[command]] if is_explained else []
    reasons += [one.step.deviation for one in meant if one.step.deviation is not None]
    ours = "works" if len(works_here) == len(works_there) else "partly" if works_here else "fails"
    return Verdict(
        command, word, len(steps), len(steps) - len(different),
        "works" if works_there else "fails", ours if works_there else "fails", (*reasons, *whys),
        tuple(_difference(one) for one in different),
    )  # fmt: skip


def _is_usage(one: Compared) -> bool:
    """Return whether the tool only printed its usage."""
    return bool(one.theirs) and one.theirs[0].startswith("usage: ")


def _difference(one: Compared) -> Difference:
    diff = difflib.unified_diff(one.theirs, one.ours, n=0, lineterm="")
    lines = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
    more = [f"… {len(lines) - LINES_MAX} more lines"] if len(lines) > LINES_MAX else []
    return Difference(one.step.typed, (*lines[:LINES_MAX], *more))


def find_plan_faults(known: Sequence[str], planned: set[str]) -> list[str]:
    """Return the faults of the plan: missing commands, and commands that the tool does not have."""
    return [f"no row in the plan: {name}" for name in known if name not in planned] + [
        f"not a command of mqadmin: {name}" for name in sorted(planned - set(known))
    ]


def find_regressions(before: Sequence[Verdict], now: Sequence[Verdict]) -> list[Verdict]:
    """Return the commands that were the same when the page was made, and differ now."""
    same = {one.command for one in before if one.word == "same"}
    return [one for one in now if one.command in same and one.word != "same"]


def stale_deviations(compared: Sequence[Compared]) -> list[str]:
    """Return the command lines whose output is the same although the plan expects a difference."""
    return [one.step.typed for one in compared if one.step.deviation is not None and one.is_same]


def unexplained_differences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the commands that differ without a reason in the plan."""
    return [one.command for one in verdicts if one.word == "differs" and one.command not in REASONS]


def count_by_word(verdicts: Sequence[Verdict]) -> Mapping[Word, int]:
    """Count the verdicts by word."""
    words: tuple[Word, ...] = ("same", "same, except", "differs", "both fail", "not run")
    return {word: sum(one.word == word for one in verdicts) for word in words}


def write(verdicts: Sequence[Verdict], path: Path = RESULTS) -> None:
    """Write the verdicts to their file."""
    path.write_text(json.dumps([asdict(one) for one in verdicts], indent=1) + "\n")


def read(path: Path = RESULTS) -> list[Verdict]:
    """Read the verdicts of the last recorded run."""
    return [
        Verdict(
            **{
                **one,
                "why": tuple(one["why"]),
                "differences": tuple(Difference(d["typed"], tuple(d["lines"])) for d in one["differences"]),
            }
        )
        for one in json.loads(path.read_text())
    ]
