"""The mutation run: one hand-made fault at a time in a copy of the tree, and the tests that must fail for it.

Exit code 0 when `make test` alone catches at least nine faults of ten and each is caught by `make test` or `make
verify`; 1 otherwise; 2 when a fault does not fit the sources, the copy's code is not what runs, or pytest itself fails.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from types import FrameType, ModuleType
from typing import Final

import click
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutations.mutation_trials import LEFT_OUT, BrokenRun, Result, Stage, Trials, WrongImport, module_of
from mutations.planted import FAULTS
from mutations.planted_fault import Fault
from mutations.planted_suites import Kind, Suite, suites_of
from mutations.suite_table import content, replace_table, summary
from mutations.suite_trials import SuiteResult, SuiteTrials, append_result, current_results, load_suite_results

ROOT: Final = Path(__file__).resolve().parents[3]
RUNS: Final = ROOT / ".gantry"
RECORDED: Final = ROOT / "broker/tests/mutations/planted_results.jsonl"
"""The results of the last published runs, from which a run continues."""
PAGE: Final = ROOT / "docs/testing.md"
TEST_SHARE: Final = (27, 30)
"""How many faults `make test` alone has to catch, of how many."""


@cache
def changed_tests(root: Path) -> ModuleType:
    """Import scripts/changed_tests.py of a tree, which is in no package."""
    specification = importlib.util.spec_from_file_location("changed_tests", root / "scripts/changed_tests.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def near_tests(root: Path, file: str) -> list[list[str]]:
    """Return test files for a source file, in two groups: the closest ones, then the others of its area.

    The closest import the module directly, or have the names that are most like its path. Those of its area share a
    word with it.
    """
    script = changed_tests(root)
    module = module_of(file)
    tests = sorted(path for folder in script.TESTS for path in (root / folder).rglob("test_*.py"))
    tests = [path for path in tests if not path.is_relative_to(root / LEFT_OUT)]
    word = module.rpartition(".")[2].encode()
    closest = [path for path in tests if word in path.read_bytes() and module in script.imports_of(path)]
    words = set(_words(module))
    likeness = {path: len(words & set(_words(path.stem))) for path in tests}
    most = max(likeness.values(), default=0)
    if most > 1:
        closest += [path for path in tests if likeness[path] == most and path not in closest]
    area = [path for path in tests if likeness[path] and path not in closest]
    return [[str(path.relative_to(root)) for path in group] for group in (closest, area) if group]


def _words(name: str) -> Iterator[str]:
    return (word for word in re.split(r"[._]", name) if word not in ("test", "gantry", "broker", "handlers"))


def is_enough(results: Sequence[Result]) -> bool:
    """Return whether `make test` catches its share, and `make test` and `make verify` together catch all."""
    by_test = sum(one.caught_by == "make test" for one in results)
    wanted, total = TEST_SHARE
    return by_test * total >= wanted * len(results) and all(one.stage for one in results)


def table(results: Sequence[Result]) -> str:
    """Return a table with two lines for each fault; the second one names the test."""
    rows = [("FAULT", "CAUGHT BY", "TEST", "PROMISE")]
    rows += [(one.name, one.caught_by, one.test or "-", one.promise) for one in results]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = []
    for name, caught_by, test, promise in rows:
        lines.append(f"{name:<{widths[0]}}  {caught_by:<{widths[1]}}  {promise}")
        lines.append(f"{'':<{widths[0]}}  {'':<{widths[1]}}  {test}")
    return "\n".join(lines)


def load_results(path: Path) -> list[Result]:
    """Return the newest result of each fault that was ever tried; none if there was no run."""
    return msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []


def save_results(path: Path, results: Sequence[Result]) -> None:
    """Write the results to a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(results)), indent=1) + b"\n")


def merged(older: Sequence[Result], newer: Sequence[Result]) -> list[Result]:
    """Return the newest result of each fault."""
    names = {one.name for one in newer}
    return [*newer, *(one for one in older if one.name not in names)]


def faults_named(names: Sequence[str]) -> list[Fault]:
    """Return the faults whose names contain one of ``names``; all of them without names."""
    unknown = [name for name in names if not any(name in fault.name for fault in FAULTS)]
    if unknown:
        raise click.UsageError(f"no fault is named {', '.join(unknown)}; --list shows all")
    return [fault for fault in FAULTS if not names or any(name in fault.name for name in names)]


def show_list(faults: Sequence[Fault]) -> None:
    """Print each fault with its file and its promise."""
    for fault in faults:
        click.echo(f"{fault.name}\n    {PurePath(fault.file)}\n    {fault.promise}")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.option("--only", multiple=True, metavar="WORDS", help="Only faults whose names contain WORDS; may be repeated.")
@click.option(
    "--until", type=click.Choice([one.value for one in Stage]), default=Stage.VERIFY.value, show_default=True,
    help="The last stage that is run.",
)  # fmt: skip
@click.option("--jobs", default=2, show_default=True, help="Processes that share the tests of a stage.")
@click.option("--resume", is_flag=True, help="Keep what earlier runs have caught, and try only the other faults.")
@click.option("--list", "is_listing", is_flag=True, help="Show the faults and run nothing.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=RUNS / "mutations.json",
    help="Where the results go  [default: .gantry/mutations.json].",
)  # fmt: skip
@click.pass_context
def main(
    context: click.Context, only: tuple[str, ...], until: str, jobs: int, resume: bool, is_listing: bool,
    json_path: Path,
) -> None:  # fmt: skip
    """Put hand-made faults into the sources, one at a time, and see which tests fail.

    Each fault is applied to a copy of the tree below TMPDIR; the clone itself is never changed. Three stages run there
    until a test fails: the tests of `make test` near the changed module (near), all of `make test` (test), all that
    `make verify` adds (verify). A failed test counts if it fails again alone with the fault, and passes without it.

    The run succeeds when `make test` catches nine faults of ten, and the two commands together catch all of them. A
    fault that is NOT CAUGHT breaks a promise that no test checks: write that test.

    `scripts/mutations suites` runs each suite that should see a fault separately, those with a judge of histories
    first, and writes the table of docs/testing.md.

    \b
    Examples:
      scripts/mutations                              all faults; takes hours where `make test` misses some
      scripts/mutations --until near                 the cheap stage only
      scripts/mutations --only delay --only retry    faults with these words in their names
      scripts/mutations --resume                     only faults that no earlier run has caught
      scripts/mutations suites --help                each suite by itself
    """
    if context.invoked_subcommand is not None:
        return
    faults = faults_named(only)
    if is_listing:
        show_list(faults)
        return
    known = {one.name: one for one in load_results(json_path) if resume and one.stage}
    directory = Path(tempfile.mkdtemp(prefix="gm-")).resolve()
    trials = Trials(ROOT, directory, near_tests, click.echo, processes=jobs, last_stage=Stage(until))
    results: list[Result] = []
    try:
        trials.prepare()
        for number, fault in enumerate(faults, 1):
            click.echo(f"{number}/{len(faults)} {fault.name} ({fault.file})")
            result = known.get(fault.name) or trials.try_fault(fault)
            click.echo(f"  {result.caught_by} {result.test} ({result.seconds:.0f} s)")
            results.append(result)
            save_results(json_path, merged(load_results(json_path), results))
    except (WrongImport, BrokenRun, ValueError) as error:
        click.echo(f"the mutation run is not possible: {error}", err=True)
        sys.exit(2)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    click.echo(f"\n{table(results)}\n")
    by_test, caught = sum(one.caught_by == "make test" for one in results), sum(bool(one.stage) for one in results)
    click.echo(f"{len(results)} faults: {by_test} caught by `make test`, {caught} by it or `make verify`; {json_path}")
    sys.exit(0 if is_enough(results) else 1)


def end_well(_number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, without leaving copies of the tree or processes behind."""
    sys.exit(1)


def parse_part(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(f"{text!r}, expected K/N with K from 1 to N, for example 2/5")
    return int(number), int(count)


def planned_suites(
    faults: Sequence[Fault], wanted: Sequence[str], known: Mapping[tuple[str, str], SuiteResult]
) -> Iterator[tuple[Fault, list[Suite]]]:
    """Yield each fault with the suites that are still to be run: the judges of all faults, then the other suites.

    ``wanted`` has names of suites, kinds, or the parts of names before a colon; all suites if it is empty.
    """
    for is_judging in (True, False):
        for fault in sorted(faults, key=lambda one: not one.is_about_messages):
            suites = [
                suite
                for suite in suites_of(fault)
                if (suite.kind is Kind.JUDGE) is is_judging
                and (fault.name, suite.name) not in known
                and (not wanted or {suite.name, suite.name.partition(":")[0], suite.kind} & set(wanted))
            ]
            if suites:
                yield fault, suites


@main.command("suites")
@click.option("--only", multiple=True, metavar="WORDS", help="Only faults whose names contain WORDS; may be repeated.")
@click.option(
    "--suite", "wanted", multiple=True, metavar="NAME",
    help="Only this suite: a name as in the table, or unit, process or judge; may be repeated.",
)  # fmt: skip
@click.option("--part", default="1/1", metavar="K/N", callback=parse_part, show_default=True, help="Every N-th fault.")
@click.option(
    "--budget", "budget_s", type=float, metavar="SECONDS", help="The limit of each suite, instead of its own."
)
@click.option("--again", is_flag=True, help="Run also what has a result.")
@click.option("--list", "is_listing", is_flag=True, help="Show what would be run, and run nothing.")
@click.option("--publish", is_flag=True, help="Write the table of docs/testing.md from all results, and run nothing.")
@click.option(
    "--results", "results_path", type=click.Path(path_type=Path), default=RUNS / "planted.jsonl",
    help="Where the results go  [default: .gantry/planted.jsonl].",
)  # fmt: skip
def run_suites(
    only: tuple[str, ...], wanted: tuple[str, ...], part: tuple[int, int], budget_s: float | None, again: bool,
    is_listing: bool, publish: bool, results_path: Path,
) -> None:  # fmt: skip
    """Run the suites that should see each fault, one by one, and record which does.

    A suite is the unit tests near the changed module, the tests with processes that the fault names, or a suite with a
    judge of histories: groups of brokers under faults, the store on a faulty disk, kills under load, services, pops,
    elections. A judge's suite is repeated with other seeds until it finds a violation that the tree without the fault
    does not have, or until its budget ends. First come the judges of the faults that concern messages.

    Each result is a line of JSON. Results that were recorded in the repository count, too, so that a run continues
    where the last one ended; after a change of a fault its results are ignored. To share the work, give each machine
    its --part, and collect the files: --publish reads every `planted*.jsonl` next to --results.

    \b
    Examples:
      scripts/mutations suites                                 everything that has no result yet; takes a day
      scripts/mutations suites --suite judge --part 2/5
      scripts/mutations suites --only recalled --suite services --again
      scripts/mutations suites --publish
    """
    paths = [RECORDED, *sorted(results_path.parent.glob("planted*.jsonl")), results_path]
    known = current_results(load_suite_results(paths), FAULTS)
    if publish:
        publish_results(known)
        return
    faults = faults_named(only)[part[0] - 1 :: part[1]]
    planned = list(planned_suites(faults, wanted, {} if again else known))
    if is_listing:
        for fault, suites in planned:
            click.echo(f"{fault.name}: {', '.join(suite.name for suite in suites)}")
        return
    signal.signal(signal.SIGTERM, end_well)
    directory = Path(tempfile.mkdtemp(prefix="gm-")).resolve()
    trials = Trials(ROOT, directory, near_tests, click.echo, processes=0)
    suite_trials = SuiteTrials(trials, near_tests, click.echo)
    try:
        trials.prepare()
        for number, (fault, suites) in enumerate(planned, 1):
            names = ", ".join(suite.name for suite in suites)
            click.echo(f"{number}/{len(planned)} {fault.name} ({fault.file}): {names}")
            for result in suite_trials.run(fault, suites, budget_s=budget_s):
                append_result(results_path, result)
                click.echo(f"  {result.suite}: {result.result}, {result.seconds:.0f} s, {result.by}")
    except (WrongImport, BrokenRun, ValueError) as error:
        click.echo(f"the run is not possible: {error}", err=True)
        sys.exit(2)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    results = current_results(load_suite_results([*paths, results_path]), FAULTS)
    click.echo(f"\n{summary(results, FAULTS)}\n{results_path}")


def publish_results(results: Mapping[tuple[str, str], SuiteResult]) -> None:
    """Record the results in the repository, and write the table of the page."""
    order = {(fault.name, suite.name): None for fault in FAULTS for suite in suites_of(fault)}
    lines = [msgspec.json.encode(results[key]) + b"\n" for key in order if key in results]
    RECORDED.write_bytes(b"".join(lines))
    PAGE.write_text(replace_table(PAGE.read_text(), content(results)))
    click.echo(summary(results, FAULTS))


if __name__ == "__main__":
    main()
