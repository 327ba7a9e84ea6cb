"""The hand-made faults fit the sources, and the mutation run tells a caught fault from one that is not caught."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from mutations.mutation_trials import Result, Stage, WrongImport, copy_tree
from mutations.planted import FAULTS
from mutations.planted_fault import Fault, mutated
from mutations.run_mutations import faults_named, is_enough, load_results, main, merged, near_tests, save_results, table
from mutations.tiny_faults import SOURCE, fault_of, trials_of

from gantry_testing.tree import ROOT

PARTS = (
    "gantry_wire", "gantry_broker/store", "gantry_broker/ha", "gantry_broker/server", "gantry_client",
    "gantry_nameserver", "gantry_access", "gantry_remoting", "gantry_proxy", "gantry_cli", "gantry_spec",
    "gantry_admin", "gantry_operator", "gantry_pipelines", "pyspark_rocketmq",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_fits_its_file_and_compiles(fault: Fault) -> None:
    """The piece that a fault replaces occurs once, is changed, and what comes of it is still a program."""
    text = (ROOT / fault.file).read_text()

    assert mutated(fault, text) != text
    compile(mutated(fault, text), fault.file, "exec")
    assert fault.promise.endswith(".")


def test_every_part_of_the_product_has_a_fault() -> None:
    """Each fault has a name of its own, and together they are in all parts of the product."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert [part for part in PARTS if not any(f"/src/{part}/" in fault.file for fault in FAULTS)] == []


@pytest.mark.parametrize("text", ["", "x = 1\nx = 1\n"], ids=["missing", "twice"])
def test_fault_that_does_not_fit_is_refused(text: str) -> None:
    """A fault whose piece is missing, or occurs twice, is an error and no mutation."""
    with pytest.raises(ValueError, match="occurs"):
        mutated(fault_of("x = 1", "x = 2"), text)


def test_near_tests_are_those_that_import_the_module_or_are_named_like_it() -> None:
    """The first stage runs them before the other tests of the area, and leaves out the tests of the faults."""
    closest, area = near_tests(ROOT, "broker/src/gantry_broker/store/retention.py")

    assert closest[0] == "broker/tests/server/test_server_retention_rules.py"
    assert "broker/tests/store/test_store_retention_plan.py" in closest
    assert "broker/tests/store/test_store_append.py" in area and not set(area) & set(closest)
    assert not any("mutations" in one for one in (*closest, *area))
    assert near_tests(ROOT, "broker/src/gantry_broker/server/pull/handlers.py")[0] == [
        "broker/tests/server/test_server_cold_reads.py",
        "broker/tests/server/test_server_pull.py",
        "broker/tests/server/test_server_pull_frames.py",
        "broker/tests/server/test_server_pull_plans.py",
    ]


# -- the run on a small tree -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "near", "stage", "caught_by", "test"),
    [
        ("a + b", "a - b", ("test_sums.py",), Stage.NEAR, "make test", "test_sums.py::test_adding"),
        pytest.param(
            "a * 2", "a * 3", (), Stage.VERIFY, "make verify", "test_sums.py::test_doubling", marks=pytest.mark.verify
        ),
    ],
    ids=["make test", "make verify"],
)
def test_fault_is_caught_by_the_cheapest_stage(
    tiny_tree: Path, before: str, after: str, near: tuple[str, ...], stage: Stage, caught_by: str, test: str
) -> None:
    """A fault that a test notices is CAUGHT, by the command that selects the test, which is named."""
    result = trials_of(tiny_tree, near=near).try_fault(fault_of(before, after))

    assert (result.stage, result.caught_by, result.test) == (stage, caught_by, test)
    assert "return a + b" in (tiny_tree / SOURCE).read_text(), "the fault was applied to the tree itself"


def test_fault_that_no_test_notices_is_not_caught(tiny_tree: Path) -> None:
    """Without a test of the promise the result is NOT CAUGHT, and no run with it succeeds."""
    result = trials_of(tiny_tree).try_fault(fault_of("a / 2", "a / 3"))

    assert result.caught_by == "NOT CAUGHT" and not result.test
    assert not is_enough([result])


@pytest.mark.parametrize(
    ("variable", "test"),
    [("TINY_BROKEN", "test_of_the_machine"), pytest.param("TINY_CHANCE", "test_of_chance", marks=pytest.mark.verify)],
)
def test_failure_for_another_reason_does_not_count(
    tiny_tree: Path, monkeypatch: pytest.MonkeyPatch, variable: str, test: str
) -> None:
    """A test that fails without the fault, or not again, catches nothing: the stage is run again without it."""
    monkeypatch.setenv(variable, str(tiny_tree / "mark"))
    result = trials_of(tiny_tree, last_stage=Stage.TEST).try_fault(fault_of("a / 2", "a / 3"))

    assert result.caught_by == "NOT CAUGHT"
    assert result.notes == (f"test: test_sums.py::{test} failed, and not because of the fault",)


def test_copy_whose_code_is_not_imported_is_refused(tiny_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process would import the module from elsewhere, the run ends instead of calling everything caught."""
    trials = trials_of(tiny_tree)
    (tiny_tree.parent / "run/base" / SOURCE).with_name("__init__.py").write_text(
        f"__path__ = [{str((tiny_tree / SOURCE).parent)!r}]\n"
    )

    with pytest.raises(WrongImport, match="expected"):
        trials.try_fault(fault_of("a / 2", "a / 3"))


def test_copy_has_the_files_of_git_and_no_others(tiny_tree: Path) -> None:
    """What git ignores stays behind: an environment, stores, results of other runs."""
    (tiny_tree / ".gitignore").write_text("/ignored\n")
    (tiny_tree / "ignored").touch()
    copy_tree(tiny_tree, tiny_tree.parent / "copy")

    assert (tiny_tree.parent / "copy" / SOURCE).read_bytes() == (tiny_tree / SOURCE).read_bytes()
    assert not (tiny_tree.parent / "copy/ignored").exists() and not (tiny_tree.parent / "copy/.git").exists()


# -- judging and showing -----------------------------------------------------------------------------------------------


def results_of(near: int, verify: int, missed: int) -> list[Result]:
    stages = [Stage.NEAR] * near + [Stage.VERIFY] * verify + [""] * missed
    return [Result(f"fault {n}", SOURCE, "A promise.", stage, "a test") for n, stage in enumerate(stages)]


@pytest.mark.parametrize(
    ("near", "verify", "missed", "enough"),
    [(27, 3, 0, True), (30, 0, 0, True), (26, 4, 0, False), (29, 0, 1, False), (1, 0, 0, True), (0, 1, 0, False)],
)
def test_nine_of_ten_by_make_test_and_all_by_both(near: int, verify: int, missed: int, enough: bool) -> None:
    """`make test` must catch 27 of 30 alone, or as large a share of fewer, and `make verify` the rest."""
    assert is_enough(results_of(near, verify, missed)) is enough


def test_results_are_kept_as_json_and_shown_as_a_table(tmp_path: Path) -> None:
    """A newer result of a fault replaces the older one; the table names fault, command, test and promise."""
    older, newer = results_of(2, 0, 1), [Result("fault 2", SOURCE, "A promise.", Stage.VERIFY, "another test")]
    save_results(tmp_path / "results.json", merged(older, newer))
    found = {one.name: one for one in load_results(tmp_path / "results.json")}

    assert len(found) == 3 and found["fault 2"].caught_by == "make verify"
    assert load_results(tmp_path / "none.json") == []
    text = table(results_of(1, 0, 1))
    assert "make test   A promise." in text and "NOT CAUGHT" in text and "a test" in text


def test_help_teaches_and_list_runs_nothing() -> None:
    """`--help` explains what a run does and how it ends; `--list` shows every fault; unknown words are refused."""
    text = CliRunner().invoke(main, ["--help"]).output
    listed = CliRunner().invoke(main, ["--list"]).output

    assert "a copy of the tree" in text and "Examples:" in text and "NOT CAUGHT" in text
    assert all(fault.name in listed and fault.promise in listed for fault in FAULTS)
    assert [fault.name for fault in faults_named(["delay level"])] == ["delay level off by one"]
    with pytest.raises(click.UsageError, match="--list"):
        faults_named(["no such words"])
