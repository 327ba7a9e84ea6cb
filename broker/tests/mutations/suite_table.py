"""The table of planted faults in docs/testing.md: who saw each fault, after how long, and who did not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Final

from mutations.planted import PARTS
from mutations.planted_fault import Fault
from mutations.planted_suites import Kind, Suite, suites_of
from mutations.suite_trials import Caught, SuiteResult

BEGIN: Final = "<!-- planted faults: written by `scripts/mutations suites --publish` -->"
END: Final = "<!-- end of planted faults -->"
NONE: Final = "none"
NOT_RUN: Final = "not run"

Results = Mapping[tuple[str, str], SuiteResult]


def summary(results: Results, faults: Iterable[Fault]) -> str:
    """Return one sentence with the numbers of faults that were planted, run and caught."""
    faults = list(faults)
    about = [fault for fault in faults if fault.is_about_messages]
    run = [fault for fault in faults if any(_results_of(fault, results))]
    seen = [fault for fault in run if any(_is_seen(one) for one in _results_of(fault, results))]
    missed = [fault for fault in run if fault not in seen and _is_finished(fault, results)]
    judged = [fault for fault in about if any(_is_judged(one, fault) for one in _results_of(fault, results))]
    with_judge = [fault for fault in about if fault.judges]
    judges_run = [fault for fault in with_judge if _judges_finished(fault, results)]
    return (
        f"{len(faults)} faults: {len(run)} were run, {len(seen)} of these were seen by at least one suite, and "
        f"{len(missed)} by none of all their suites. {len(about)} concern messages: a judge of histories saw "
        f"{len(judged)}, {len(about) - len(with_judge)} are in no run that has a judge, and the judges of "
        f"{len(with_judge) - len(judges_run)} were not run to their end."
    )


def table(results: Results) -> str:
    """Return the table in Markdown, by part of the product."""
    titles = ("fault", "concerns messages", "unit tests", "tests with processes", "judges of histories")
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for part, faults in PARTS.items():
        lines.append(f"| **{part}** | | | | |")
        for fault in faults:
            cells = [_cell([one for one in suites_of(fault) if one.kind is kind], fault, results) for kind in Kind]
            concerns = "yes" if fault.is_about_messages else ""
            lines.append(f"| {fault.name} | {concerns} | {' | '.join(cells)} |")
    return "\n".join(lines)


def replace_table(text: str, content: str) -> str:
    """Return the page with other content between the two markers. Raises ValueError if they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN} with {END} after it")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def published(text: str) -> str:
    """Return what a page has between the markers."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def content(results: Results) -> str:
    """Return everything between the markers: the summary and the table."""
    faults = [fault for some in PARTS.values() for fault in some]
    return f"\n{summary(results, faults)}\n\n{table(results)}\n"


def _cell(suites: list[Suite], fault: Fault, results: Results) -> str:
    """Return the text about the suites of one kind."""
    if not suites:
        return NONE
    return "; ".join(_text(suite, results.get((fault.name, suite.name))) for suite in suites)


def _text(suite: Suite, result: SuiteResult | None) -> str:
    prefix = f"{suite.name}: " if suite.kind is Kind.JUDGE else ""
    if result is None:
        return f"{prefix}{NOT_RUN}"
    after = f"{result.seconds:.0f} s"
    if result.result is Caught.MISSED:
        return f"{prefix}**missed** in {after}"
    if result.result is Caught.BROKEN:
        return f"{prefix}runs did not complete, {after}"
    if suite.kind is Kind.JUDGE:
        return f"{prefix}{result.by.partition(':')[0]}, {after}"
    file, _, test = result.by.partition("::")
    return f"`{PurePath(file).name}{'::' if test else ''}{test.partition('[')[0]}`, {after}"


def _results_of(fault: Fault, results: Results) -> list[SuiteResult]:
    found = (results.get((fault.name, suite.name)) for suite in suites_of(fault))
    return [one for one in found if one is not None]


def _is_seen(result: SuiteResult) -> bool:
    return result.result is not Caught.MISSED


def _is_judged(result: SuiteResult, fault: Fault) -> bool:
    return result.suite in fault.judges and result.result is Caught.CAUGHT


def _is_finished(fault: Fault, results: Results) -> bool:
    return len(_results_of(fault, results)) == len(suites_of(fault))


def _judges_finished(fault: Fault, results: Results) -> bool:
    found = [results.get((fault.name, name)) for name in fault.judges]
    return any(one is not None and _is_judged(one, fault) for one in found) or None not in found
