"""Compares Gantry's evaluator of SQL92 filters with Apache's: a different verdict on a pair is a finding.

    cases --> FilterJudge (RocketMQ's classes) ----> letters --.
      `-----> gantry_wire.sql92 ---------------------> letters --+--> findings

Letters: T true, F false, U unknown, X the message cannot be evaluated; an invalid expression is `refused`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantry_interop import java
from gantry_interop.errors import InteropError
from gantry_interop.filter_cases import MESSAGES, Case, Cases, corner_cases
from gantry_wire.sql92 import EvaluationFault, ExpressionFault, SqlFilter

REFUSED: Final = "refused"
GOLDEN: Final = Path(__file__).resolve().parents[3] / "broker" / "tests" / "golden" / "sql92-verdicts.jsonl"
GOLDEN_SEED: Final = 92
GOLDEN_CASES: Final = 300
BATCH_CASES: Final = 2_000
BATCH_SECONDS_MAX: Final = 600
FINDINGS_MAX: Final = 20
KINDS_SHARE_MIN: Final = 0.02
"""A run in which a kind of verdict is rarer than this has too little coverage."""

PROGRAM: Final = java.Program(java.REFERENCE, "dev.gantry.interop.FilterJudge", heap_mib=256)
_LETTERS: Final = {True: "T", False: "F", None: "U"}


def gantry_verdicts(case: Case, compile_filter: Callable[[str], SqlFilter] = SqlFilter) -> str:
    """Return the verdicts of Gantry's evaluator on a case."""
    try:
        sql = compile_filter(case.expression)
    except ExpressionFault:
        return REFUSED
    return "".join(_letter(sql, message) for message in case.messages)


def _letter(sql: SqlFilter, message: dict[str, str]) -> str:
    try:
        return _LETTERS[sql.evaluate(message)]
    except EvaluationFault:
        return "X"


def apache_verdicts(cases: Sequence[Case], home: Path) -> list[str]:
    """Return the verdicts of Apache's evaluator on each case. Raises InteropError if some are missing."""
    asked = "".join(json.dumps({"expression": case.expression, "messages": case.messages}) + "\n" for case in cases)
    done = subprocess.run(
        PROGRAM.command(home), input=asked.encode(), capture_output=True, env=java.environment(home),
        timeout=BATCH_SECONDS_MAX, check=False,
    )  # fmt: skip
    answers = done.stdout.decode("ascii").split()
    if done.returncode != 0 or len(answers) != len(cases):
        end = done.stderr.decode(errors="replace")[-2000:]
        raise InteropError(f"the Java evaluator answered {len(answers)} of {len(cases)} cases:\n{end}")
    return answers


@dataclass
class Comparison:
    """The result of a run."""

    pairs: int = 0
    refused: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cases: Iterable[Case], theirs: Iterable[str], ours: Iterable[str]) -> None:
        for case, their, our in zip(cases, theirs, ours, strict=True):
            self.pairs += len(case.messages)
            self.refused += len(case.messages) if their == REFUSED else 0
            self.verdicts.update(their if their != REFUSED else ())
            if their != our:
                self.findings.append(_finding(case, their, our))

    @property
    def rare_kinds(self) -> list[str]:
        """Return the kinds of verdicts that are too rare."""
        counts = {**{letter: self.verdicts[letter] for letter in "TFUX"}, REFUSED: self.refused}
        return [kind for kind, count in counts.items() if count < self.pairs * KINDS_SHARE_MIN]

    @property
    def kept(self) -> bool:
        return not self.findings and not self.rare_kinds

    def as_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "verdicts": dict(self.verdicts),
            "refused": self.refused,
            "findings": self.findings,
            "kept": self.kept,
        }

    def lines(self) -> list[str]:
        counts = ", ".join(f"{letter} {self.verdicts[letter]:,}" for letter in "TFUX")
        found = [
            f"{finding['expression']!r} of {finding['message']!r}: Apache {finding['theirs']}, Gantry {finding['ours']}"
            for finding in self.findings[:FINDINGS_MAX]
        ]
        weak = [f"PROVES TOO LITTLE: {kind} is too rare" for kind in self.rare_kinds]
        return [
            f"{self.pairs:,} pairs of expression and message: {counts}, {REFUSED} {self.refused:,}; "
            f"{len(self.findings)} expressions with another verdict",
            *found,
            *weak,
        ]


def _finding(case: Case, theirs: str, ours: str) -> dict[str, Any]:
    if REFUSED in (theirs, ours):
        return {"expression": case.expression, "message": None, "theirs": theirs, "ours": ours}
    place = next(index for index, (their, our) in enumerate(zip(theirs, ours, strict=True)) if their != our)
    message = case.messages[place]
    return {"expression": case.expression, "message": message, "theirs": theirs[place], "ours": ours[place]}


def compare(pairs: int, seed: int, home: Path, report: Callable[[Comparison], None] = lambda one: None) -> Comparison:
    """Compare both evaluators on at least so many pairs of this seed."""
    comparison, supply = Comparison(), itertools.chain(corner_cases(), Cases(seed))
    while comparison.pairs < pairs:
        wanted = min(BATCH_CASES, -(-(pairs - comparison.pairs) // MESSAGES))
        cases = list(itertools.islice(supply, wanted))
        comparison.add(cases, apache_verdicts(cases, home), map(gantry_verdicts, cases))
        report(comparison)
    return comparison


def record_golden(home: Path) -> int:
    """Record Apache's verdicts on the cases of one seed for tests without Java; return the number of pairs."""
    cases = [*itertools.islice(Cases(GOLDEN_SEED), GOLDEN_CASES), *corner_cases()]
    lines = [
        json.dumps({"expression": case.expression, "messages": case.messages, "verdicts": verdicts}, ensure_ascii=True)
        for case, verdicts in zip(cases, apache_verdicts(cases, home), strict=True)
    ]
    GOLDEN.write_text("".join(line + "\n" for line in lines))
    return sum(len(case.messages) for case in cases)


def read_golden() -> list[tuple[Case, str]]:
    """Read the recorded cases with Apache's verdicts."""
    documents = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return [(Case(one["expression"], tuple(one["messages"])), one["verdicts"]) for one in documents]
