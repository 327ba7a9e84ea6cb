"""The run tells suites that see a fault from those that break or miss it, and the page has what was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from mutations import run_mutations
from mutations.planted import FAULTS, PARTS
from mutations.planted_fault import Fault
from mutations.planted_suites import UNIT, Attempt, Kind, Suite, attempts_of, finding_in, judge_suite, suites_of
from mutations.run_mutations import PAGE, RECORDED, main, planned_suites, publish_results
from mutations.suite_table import BEGIN, END, content, published, replace_table, summary
from mutations.suite_trials import (
    Caught,
    SuiteResult,
    SuiteTrials,
    append_result,
    current_results,
    load_suite_results,
)
from mutations.tiny_faults import fault_of, trials_of

from gantry_testing.tree import ROOT

JUDGE = Suite("services", Kind.JUDGE, 60.0)
HAS_SUM = "from tiny_product.sums import add; import sys; "
FINDS = HAS_SUM + "add(2, 3) == 5 or sys.exit('  FOUND LOST: a sum')"
BREAKS = HAS_SUM + "assert add(2, 3) == 5"
SEES_NOTHING = "pass"
ALWAYS_FINDS = "import sys; sys.exit('  FOUND LOST: a sum')"


def result_of(tree: Path, suite: Suite, program: str = "", *, runs: int = 3, after: str = "a - b") -> SuiteResult:
    """Return the result of a suite for a fault of the small tree; its judge is a program, which is run ``runs`` times
    at most."""

    def attempts(_suite: Suite) -> Iterator[Attempt]:
        return iter([Attempt((sys.executable, "-c", program), 60.0)] * runs)

    trials = SuiteTrials(
        trials_of(tree), lambda root, file: [["test_sums.py"]], lambda line: None, attempts=attempts
    )  # fmt: skip
    [result] = trials.run(fault_of("a + b", after), [suite])
    return result


@pytest.mark.verify
@pytest.mark.parametrize(
    ("program", "expected", "runs", "by"),
    [
        (FINDS, Caught.CAUGHT, 1, "LOST: a sum"),
        (BREAKS, Caught.BROKEN, 2, "AssertionError"),
        (SEES_NOTHING, Caught.MISSED, 3, ""),
        (ALWAYS_FINDS, Caught.MISSED, 3, ""),
    ],
    ids=["finds", "breaks", "sees nothing", "finds it without the fault, too"],
)
def test_judge_catches_a_fault_by_a_finding_only(
    tiny_tree: Path, program: str, expected: Caught, runs: int, by: str
) -> None:
    """A finding counts if the tree without the fault has none; a run that only breaks is no finding."""
    result = result_of(tiny_tree, JUDGE, program)

    assert (result.result, result.runs, result.by) == (expected, runs, by)


@pytest.mark.verify
def test_budget_ends_a_judge_that_hangs(tiny_tree: Path) -> None:
    """A suite that does not end is ended with its budget, and has missed the fault."""
    result = result_of(tiny_tree, JUDGE._replace(budget_s=1.0), "import time; time.sleep(600)")

    assert (result.result, result.runs) == (Caught.MISSED, 1)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("after", "expected", "by"),
    [("a - b", Caught.CAUGHT, "test_sums.py::test_adding"), ("b + a", Caught.MISSED, "")],
    ids=["wrong", "equivalent"],
)
def test_unit_tests_catch_a_fault_by_a_failed_test(tiny_tree: Path, after: str, expected: Caught, by: str) -> None:
    """The test that fails because of the fault is named; where none fails, the fault is missed."""
    result = result_of(tiny_tree, UNIT, after=after)

    assert (result.result, result.by) == (expected, by)


@pytest.mark.parametrize(
    ("output", "finding"),
    [
        ("seed 7: sync\n  FOUND LOST: it is gone: p0-1\n", "LOST: it is gone: p0-1"),
        ("    simulated.append(3)\nfails at checks.py:7: it is lost\n", "fails at checks.py:7: it is lost"),
        ("seed 12: 2 acknowledges a record\n  again: python x --first 12\n", "2 acknowledges a record"),
        ("FAULT log/one bit: 7\n      wrong body: queue 3\n", "wrong body: queue 3"),
        ("seed 7: kept every promise, 3 s\n", ""),
        ("Traceback:\nAssertionError\n", ""),
    ],
    ids=["group", "store", "election", "damage", "nothing", "broken"],
)  # fmt: skip
def test_finding_is_read_from_what_a_judge_prints(output: str, finding: str) -> None:
    """The violation is found in the output of each judge, and an error of the run is none."""
    assert finding_in(output) == finding


def test_suites_of_every_fault_exist() -> None:
    """Each judge that a fault names has a budget and a command, and each test file exists."""
    for fault in FAULTS:
        for suite in suites_of(fault):
            if suite.kind is Kind.JUDGE:
                assert (ROOT / next(iter(attempts_of(suite))).command[1]).is_file(), suite.name
        assert all((ROOT / file.partition("::")[0]).exists() for file in fault.process), fault.name
        assert fault.is_about_messages or not fault.judges, fault.name
    with pytest.raises(KeyError):
        judge_suite("no such judge")


def test_attempts_of_a_judge_have_different_seeds() -> None:
    """A suite with a judge is repeated with other seeds."""
    attempts = iter(attempts_of(judge_suite("replication")))

    assert next(attempts).command != next(attempts).command


def test_judges_of_faults_about_messages_come_first() -> None:
    """What has a result is not planned, unit tests come last, and a suite can be chosen by its kind."""
    done = {(FAULTS[0].name, "histories"): result("histories", Caught.CAUGHT)}
    planned = list(planned_suites(FAULTS, [], done))
    judges = [fault for fault, suites in planned if suites[0].kind is Kind.JUDGE]

    assert planned[: len(judges)] == [(fault, suites) for fault, suites in planned if suites[0].kind is Kind.JUDGE]
    assert {suite.name for suite in planned[0][1]} == set(FAULTS[0].judges) - {"histories"}
    assert {kind for _, suites in planned_suites(FAULTS, ["unit"], {}) for _, kind, _ in suites} == {Kind.UNIT}


# -- the page ----------------------------------------------------------------------------------------------------------


def result(suite: str, found: Caught, fault: Fault = FAULTS[0]) -> SuiteResult:
    by = "" if found is Caught.MISSED else "LOST: p0-1" if suite != "unit" else "a/test_b.py::test_c[x]"
    return SuiteResult(fault.name, fault.fingerprint, suite, found, by, 12.3)


def keyed(results: Iterable[SuiteResult]) -> dict[tuple[str, str], SuiteResult]:
    return {(one.fault, one.suite): one for one in results}


def test_page_has_the_table_of_the_recorded_results() -> None:
    """The table in the docs lists exactly the planted faults, with the recorded results and no others."""
    recorded = current_results(load_suite_results([RECORDED]), FAULTS)
    text = published(PAGE.read_text())
    names = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")][1:]

    assert text == content(recorded).strip()
    assert [name for name in names if not name.startswith("**")] == [fault.name for fault in FAULTS]


def test_table_shows_who_saw_a_fault_and_who_did_not() -> None:
    """A row names the test or the finding and the seconds, and shows what was missed, broken or not run."""
    about = next(fault for fault in FAULTS if len(fault.judges) > 1)
    first, second = about.judges[:2]
    text = content(keyed([result(first, Caught.CAUGHT, about), result(second, Caught.BROKEN, about),
                          result("unit", Caught.CAUGHT, about)]))  # fmt: skip
    row = next(line for line in text.splitlines() if line.startswith(f"| {about.name} |"))

    assert f"{first}: LOST, 12 s" in row and f"{second}: runs did not complete, 12 s" in row
    assert "`test_b.py::test_c`, 12 s" in row and "not run" in row
    missed = content(keyed([result("unit", Caught.MISSED, about)]))
    assert "**missed** in 12 s" in missed


def test_summary_counts_only_what_was_run() -> None:
    """Faults that were not run are neither seen nor missed, and a broken run is no judge's finding."""
    chosen = [fault for fault in FAULTS if fault.judges][:3]
    found = [
        result(chosen[0].judges[0], Caught.CAUGHT, chosen[0]),
        result(chosen[1].judges[0], Caught.BROKEN, chosen[1]),
    ]
    text = summary(keyed(found), chosen)

    assert text.startswith("3 faults: 2 were run, 2 of these were seen by at least one suite, and 0 by none")
    assert "a judge of histories saw 1," in text
    alone = [fault for fault in FAULTS if not fault.judges and not fault.process][:1]
    assert "0 of these were seen by at least one suite, and 1 by none" in summary(
        keyed([result("unit", Caught.MISSED, alone[0])]), alone
    )


def test_results_continue_over_runs_until_their_fault_changes(tmp_path: Path) -> None:
    """The last line of a fault and suite counts, and no line of an earlier form of the fault."""
    path = tmp_path / "planted.jsonl"
    for found in (Caught.MISSED, Caught.CAUGHT):
        append_result(path, result("unit", found))
    known = current_results(load_suite_results([path, tmp_path / "none"]), FAULTS)

    assert [one.result for one in known.values()] == [Caught.CAUGHT]
    assert current_results(known.values(), [FAULTS[0]._replace(after="pass")]) == {}
    append_result(path, result("unit", Caught.MISSED, FAULTS[0]._replace(after="pass")))
    assert current_results(load_suite_results([path]), FAULTS) == known


def test_publishing_writes_results_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page gets the table between its markers, and the file in the repository all current results."""
    page, recorded = tmp_path / "testing.md", tmp_path / "recorded.jsonl"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(run_mutations, "PAGE", page)
    monkeypatch.setattr(run_mutations, "RECORDED", recorded)
    known = keyed([result("unit", Caught.CAUGHT)])
    publish_results(known)

    assert load_suite_results([recorded]) == list(known.values())
    assert page.read_text().startswith("before\n") and page.read_text().endswith("after\n")
    assert published(page.read_text()) == content(known).strip()
    with pytest.raises(ValueError, match="no line"):
        replace_table("a page without markers", "")


def test_help_teaches_and_list_shows_the_part(tmp_path: Path) -> None:
    """`suites --help` explains the suites; `--list` shows what a part would run, and runs nothing."""
    text = CliRunner().invoke(main, ["suites", "--help"]).output
    path = str(tmp_path / "none.jsonl")
    listed = [
        CliRunner().invoke(main, ["suites", "--list", "--again", "--suite", "unit", "--part", part, "--results", path])
        for part in ("1/2", "2/2")
    ]

    assert "judge" in text and "Examples:" in text and "--part" in text
    names = [line.partition(":")[0] for one in listed for line in one.output.splitlines()]
    assert sorted(names) == sorted(fault.name for faults in PARTS.values() for fault in faults)
    assert "expected K/N" in CliRunner().invoke(main, ["suites", "--part", "3/2"]).output
