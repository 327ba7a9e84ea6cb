"""What comes of a run: one verdict for each command of mqadmin, and whether it still is what the page says.

    same                every step printed the same at both, apart from what its rules leave out
    same, but           the same, save for lines of which the plan says why ours means to do something else
    differs             one did not; the first lines that differ are kept
    theirs fails, too   Apache's own servers, set up like this, refuse every step
    not here            no step runs it; the plan says why

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
from gantry_interop.admin.play import Compared
from gantry_interop.admin.steps import Absent

Word = Literal["same", "same, but", "differs", "theirs fails, too", "not here"]

RESULTS: Final = Path(__file__).with_name("results.json")
LINES_MAX: Final = 8
"""How much of a difference is kept."""


@dataclass(frozen=True)
class Difference:
    """One step that printed something else, and how."""

    typed: str
    lines: tuple[str, ...]
    """The first lines only Apache's servers printed, after a minus, or only ours, after a plus."""


@dataclass(frozen=True)
class Verdict:
    """What is known of one command."""

    command: str
    word: Word
    steps: int
    """How many steps the verdict hangs on."""
    steps_same: int
    theirs: str
    ours: str
    why: tuple[str, ...]
    """What was left out of the comparison, and why; or why the command is not run; or why it differs."""
    differences: tuple[Difference, ...] = ()


def judge(known: Sequence[str], compared: Sequence[Compared], absent: Sequence[Absent]) -> list[Verdict]:
    """One verdict for each command that the tool has, in its order."""
    missing = {one.command: one.why for one in absent}
    return [
        Verdict(command, "not here", 0, 0, "not run", "not run", (missing[command],))
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
    whys = dict.fromkeys(why for one in steps for why in one.step.whys)
    meant = [one for one in different if one.step.deviation is not None]
    word: Word = "same"
    if different:
        word = "differs" if len(different) > len(meant) else "same, but"
    if not works_there:
        word = "theirs fails, too"
    is_explained = word in ("differs", "theirs fails, too") and command in REASONS
    reasons = [REASONS[command]] if is_explained else []
    reasons += [one.step.deviation for one in meant if one.step.deviation is not None]
    ours = "works" if len(works_here) == len(works_there) else "in part" if works_here else "fails"
    return Verdict(
        command, word, len(steps), len(steps) - len(different),
        "works" if works_there else "fails", ours if works_there else "fails", (*reasons, *whys),
        tuple(_difference(one) for one in different),
    )  # fmt: skip


def _is_usage(one: Compared) -> bool:
    """Whether the tool only said how it is called."""
    return bool(one.theirs) and one.theirs[0].startswith("usage: ")


def _difference(one: Compared) -> Difference:
    diff = difflib.unified_diff(one.theirs, one.ours, n=0, lineterm="")
    lines = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
    more = [f"… {len(lines) - LINES_MAX} more lines"] if len(lines) > LINES_MAX else []
    return Difference(one.step.typed, (*lines[:LINES_MAX], *more))


def forgotten(known: Sequence[str], planned: set[str]) -> list[str]:
    """What is wrong with the plan: commands of the tool that it does not have, and commands that are none."""
    return [f"no row in the plan: {name}" for name in known if name not in planned] + [
        f"not a command of mqadmin: {name}" for name in sorted(planned - set(known))
    ]


def lost(before: Sequence[Verdict], now: Sequence[Verdict]) -> list[Verdict]:
    """Commands that were the same when the page was made, and are not any more."""
    same = {one.command for one in before if one.word == "same"}
    return [one for one in now if one.command in same and one.word != "same"]


def stale(compared: Sequence[Compared]) -> list[str]:
    """Lines that are the same though the plan says that ours means to do something else."""
    return [one.step.typed for one in compared if one.step.deviation is not None and one.is_same]


def unexplained(verdicts: Sequence[Verdict]) -> list[str]:
    """Commands that differ, without a reason in the plan."""
    return [one.command for one in verdicts if one.word == "differs" and one.command not in REASONS]


def counts(verdicts: Sequence[Verdict]) -> Mapping[Word, int]:
    """How many there are of each word."""
    words: tuple[Word, ...] = ("same", "same, but", "differs", "theirs fails, too", "not here")
    return {word: sum(one.word == word for one in verdicts) for word in words}


def write(verdicts: Sequence[Verdict], path: Path = RESULTS) -> None:
    """Keep them."""
    path.write_text(json.dumps([asdict(one) for one in verdicts], indent=1) + "\n")


def read(path: Path = RESULTS) -> list[Verdict]:
    """Those that were kept."""
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
