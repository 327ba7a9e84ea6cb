"""Trials of one fault against single suites: who sees it, after how long.

    caught   a test failed because of the fault, or a judge found a violation that the tree without it does not have
    broken   a suite with a judge did not complete, twice, and does without the fault: seen, but judged by no judge
    missed   the suite ended, or its budget did, and nothing was seen

Results are lines of JSON, one for each fault and suite, so that a run can be ended at any time, continued, and split
over machines.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, final

import msgspec
from mutations.mutation_trials import Stage, Trials, end_session
from mutations.planted_fault import Fault
from mutations.planted_suites import Attempt, Kind, Suite, attempts_of, finding_in

BROKEN_RUNS_MAX: Final = 2
"""After how many runs of a judge that did not complete no further one is tried."""

END_PATIENCE_S: Final = 60.0
"""How long a suite may take to end its brokers."""

LINE_CHARACTERS_MAX: Final = 160


class Caught(StrEnum):
    """The result of one suite for one fault."""

    CAUGHT = "caught"
    BROKEN = "broken"
    MISSED = "missed"


class SuiteResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one suite for one fault."""

    fault: str
    fingerprint: str
    """The digest of the fault's change; results of another form of the fault do not count."""

    suite: str
    result: Caught
    by: str = ""
    """The test, or the judge's finding."""

    seconds: float = 0.0
    runs: int = 1
    """How often the suite was run."""

    notes: tuple[str, ...] = ()


class Output(NamedTuple):
    """The outcome of one command of a judge."""

    code: int | None
    """None if it was ended at its limit."""

    text: str

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        text = "" if not lines else lines[-1]
        named = next((line for line in reversed(lines) if "did not complete" in line or "Error" in line), text)
        return named[:LINE_CHARACTERS_MAX]


@final
class SuiteTrials:
    """Runs suites against faults. ``trials`` makes the copies of the tree."""

    def __init__(
        self,
        trials: Trials,
        near_tests: Callable[[Path, str], Sequence[Sequence[str]]],
        report: Callable[[str], None],
        *,
        attempts: Callable[[Suite], Iterable[Attempt]] = attempts_of,
    ) -> None:
        self._attempts: Final = attempts
        self._trials: Final = trials
        self._near_tests: Final = near_tests
        self._report: Final = report
        self._base_is_good: Final[dict[tuple[str, ...], bool]] = {}
        """For commands of judges, whether they find nothing without a fault."""

    def run(self, fault: Fault, suites: Iterable[Suite], *, budget_s: float | None = None) -> Iterable[SuiteResult]:
        """Yield the result of each suite. Raises WrongImport, BrokenRun and ValueError."""
        with self._trials.planted(fault) as tree:
            for suite in suites:
                budgeted = suite if budget_s is None else suite._replace(budget_s=budget_s)
                yield (
                    self._run_judge(tree, fault, budgeted)
                    if suite.kind is Kind.JUDGE
                    else self._run_tests(tree, fault, budgeted)
                )

    # -- tests ---------------------------------------------------------------------------------------------------------

    def _run_tests(self, tree: Path, fault: Fault, suite: Suite) -> SuiteResult:
        began_at, notes, test = time.monotonic(), list[str](), ""
        stage = Stage.NEAR if suite.kind is Kind.UNIT else Stage.VERIFY
        groups = self._near_tests(self._trials.base, fault.file) if suite.kind is Kind.UNIT else [fault.process]
        for files in groups:
            rest_s = suite.budget_s - (time.monotonic() - began_at)
            if test or rest_s <= 0:
                break
            test = self._trials.run_group(tree, stage, files, notes, rest_s)
        seconds = round(time.monotonic() - began_at, 1)
        result = Caught.CAUGHT if test else Caught.MISSED
        return SuiteResult(fault.name, fault.fingerprint, suite.name, result, test, seconds, 1, tuple(notes))

    # -- judges --------------------------------------------------------------------------------------------------------

    def _run_judge(self, tree: Path, fault: Fault, suite: Suite) -> SuiteResult:
        began_at, notes, runs, broken = time.monotonic(), list[str](), 0, ""
        result, by = Caught.MISSED, ""
        for attempt in self._attempts(suite):
            rest_s = suite.budget_s - (time.monotonic() - began_at)
            if rest_s <= 0:
                break
            runs += 1
            output = self._execute(tree, attempt, min(attempt.limit_s, rest_s))
            if output.code == 0:
                continue
            if output.code is None and rest_s < attempt.limit_s:
                break  # the budget has ended, not the command's patience
            finding = finding_in(output.text)
            seconds = time.monotonic() - began_at
            if not self._is_good_without_fault(attempt):
                notes.append(f"the tree without the fault fails, too: {' '.join(attempt.command[1:])}")
                continue
            if finding:
                result, by = Caught.CAUGHT, finding
                return self._result(fault, suite, result, by, seconds, runs, notes)
            if broken:
                result, by = Caught.BROKEN, output.last_line
                return self._result(fault, suite, result, by, seconds, runs, notes)
            broken = output.last_line or "ended at its time limit"
            notes.append(f"did not complete: {broken}")
        return self._result(fault, suite, result, by, time.monotonic() - began_at, runs, notes)

    def _result(
        self, fault: Fault, suite: Suite, result: Caught, by: str, seconds: float, runs: int, notes: list[str]
    ) -> SuiteResult:
        return SuiteResult(fault.name, fault.fingerprint, suite.name, result, by, round(seconds, 1), runs, tuple(notes))

    def _is_good_without_fault(self, attempt: Attempt) -> bool:
        if attempt.command not in self._base_is_good:
            self._report("  the same without the fault")
            output = self._execute(self._trials.base, attempt, attempt.limit_s)
            self._base_is_good[attempt.command] = output.code == 0
        return self._base_is_good[attempt.command]

    def _execute(self, tree: Path, attempt: Attempt, limit_s: float) -> Output:
        log = self._trials.directory / "judge.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                attempt.command, cwd=tree, env=self._trials.environment(tree), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            code: int | None = None
            try:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(max(limit_s, 1.0))
            finally:
                if process.poll() is None:
                    process.terminate()  # suites end their brokers and remove their mounts on SIGTERM
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(END_PATIENCE_S)
                end_session(process)
        return Output(code, log.read_text(errors="replace"))


# -- the results -------------------------------------------------------------------------------------------------------


def load_suite_results(paths: Iterable[Path]) -> list[SuiteResult]:
    """Return all results in these files, of which some may be missing."""
    lines = (line for path in paths if path.exists() for line in path.read_bytes().splitlines() if line.strip())
    return [msgspec.json.decode(line, type=SuiteResult) for line in lines]


def current_results(results: Iterable[SuiteResult], faults: Sequence[Fault]) -> dict[tuple[str, str], SuiteResult]:
    """Return the last result of each suite for each fault in its present form."""
    prints = {fault.name: fault.fingerprint for fault in faults}
    return {(one.fault, one.suite): one for one in results if prints.get(one.fault) == one.fingerprint}


def append_result(path: Path, result: SuiteResult) -> None:
    """Add one line to a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
