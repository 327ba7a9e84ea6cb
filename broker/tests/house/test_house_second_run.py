"""With GANTRY_SECOND_RUN=1 failed tests run a second time, alone; one that passes then does not fail the run.

A test that takes longer than GANTRY_SECONDS_MAX is measured again, alone, with or without that setting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry_testing.small_clone import small_clone
from gantry_testing.tree import ROOT

PLUGINS = ("requirements", "parts", "processes", "durations")

UNRELIABLE = """
from pathlib import Path
import pytest

def fails_once(name):
    been = Path(__file__).with_name(name)
    was_here = been.exists()
    been.touch()
    assert was_here
"""

QUICK = f"""{UNRELIABLE}
def test_that_passes(): ...

def test_that_fails_once():
    fails_once("been")

def test_of_a_fault():
    assert Path(__file__).with_name("mended").exists()
"""

SEEDED_TESTS = f"""{UNRELIABLE}
@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("seed", range(4))
def test_seeds(seed):
    assert seed != 2 or Path(__file__).with_name("mended").exists()

@pytest.mark.verify
def test_that_fails_once():
    fails_once("been")

@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("seed", range(4))
def test_seeds_that_fail_once(seed):
    if seed == 3:
        fails_once("seen")
"""


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A small clone: the scripts, our Python packages, and an empty folder of tests that loads our plugins."""
    words = " ".join(f"-p gantry_testing.{name}_plugin" for name in PLUGINS)
    with small_clone(ROOT, tmp_path / "a clone é", "run_tests", "second_run.py") as place:
        (place / "pytest.ini").write_text(f"[pytest]\naddopts = -p no:schemathesis {words}\n")
        yield place


def run_tests(clone: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run the script with a second run and one process; its exit code, and what it prints."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("GANTRY_", "PYTEST_"))}
    variables |= {"GANTRY_SECOND_RUN": "1", "GANTRY_TEST_PROCESSES": "0", "GANTRY_BUSY_SHARE_MAX": "1"}
    done = subprocess.run(
        [str(clone / "scripts/run_tests"), "-q", *arguments],
        cwd=clone, env=variables | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout


def report(clone: Path) -> dict[str, list[str]]:
    """The report of the second run, with the names of the tests alone."""
    kept = json.loads((clone / ".gantry/second-run-test.json").read_text())
    return {key: [name.rpartition("::")[2] for name in names] for key, names in kept.items()}


def test_a_test_that_passes_the_second_time_does_not_fail_the_run(clone: Path) -> None:
    """It is listed as unreliable instead."""
    (clone / "test_it.py").write_text(QUICK)
    (clone / "mended").touch()

    code, printed = run_tests(clone)

    assert code == 0, printed
    assert report(clone) == {"failed": [], "passed on the second run": ["test_that_fails_once"]}
    listed = printed.partition("passed on the second run")[2]
    assert "test_that_fails_once" in listed and "test_of_a_fault" not in listed


def test_a_fault_fails_the_second_run_too(clone: Path) -> None:
    """An unreliable test beside it is listed all the same."""
    (clone / "test_it.py").write_text(QUICK)

    code, printed = run_tests(clone)

    assert code == 1, printed
    assert report(clone) == {"failed": ["test_of_a_fault"], "passed on the second run": ["test_that_fails_once"]}


@pytest.mark.verify
def test_a_fault_in_a_later_case_of_a_test_fails_the_run_of_make_verify(clone: Path) -> None:
    """The second run selects each failed case, although it collects no other case of the test."""
    (clone / "test_it.py").write_text(SEEDED_TESTS)

    code, printed = run_tests(clone, "--verify")

    assert code == 1, printed
    assert report(clone)["failed"] == ["test_seeds[2]"]
    assert report(clone)["passed on the second run"] == ["test_seeds_that_fail_once[3]", "test_that_fails_once"]


@pytest.mark.verify
def test_a_later_case_that_passes_the_second_time_does_not_fail_the_run(clone: Path) -> None:
    """Also if no other test failed, so that nothing else is selected."""
    (clone / "test_it.py").write_text(SEEDED_TESTS)
    (clone / "mended").touch()
    (clone / "been").touch()

    code, printed = run_tests(clone, "--verify")

    assert code == 0, printed
    assert report(clone) == {"failed": [], "passed on the second run": ["test_seeds_that_fail_once[3]"]}


@pytest.mark.verify
def test_a_failed_test_that_the_second_run_left_out_fails_the_run(clone: Path) -> None:
    """Only a pass clears a failure; a second run that selects fewer tests does not."""
    (clone / "test_it.py").write_text(QUICK)
    (clone / "conftest.py").write_text(
        "def pytest_collection_modifyitems(config, items):\n"
        "    if config.getoption('lf'):\n"
        "        items[:] = [item for item in items if item.name != 'test_of_a_fault']\n"
    )

    code, printed = run_tests(clone)

    assert code == 1, printed
    assert report(clone)["failed"] == ["test_of_a_fault"]


@pytest.mark.verify
def test_many_failures_are_not_repeated(clone: Path) -> None:
    """More than twenty at once are a fault of the product: there is no second run, and the run fails."""
    (clone / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('number', range(21))\ndef test_it(number):\n    assert False\n"
    )

    code, printed = run_tests(clone)

    assert code == 1, printed
    assert "there is no second run" in printed and "passed on the second run" not in printed


LONG = """
def test_long():
    sum(range(3_000_000))

def test_that_passes():
    pass

def test_that_fails_once():
    fails_once("been")
"""


@pytest.mark.verify
def test_reruns_keep_the_durations_of_the_whole_run(clone: Path) -> None:
    """Neither the second run nor the measurement alone replaces the file or shows the table again."""
    (clone / "test_it.py").write_text(UNRELIABLE + LONG)

    code, printed = run_tests(clone, GANTRY_TEST_PROCESSES="1", GANTRY_SECONDS_MAX="0.01", GANTRY_DURATIONS="1")

    assert code == 1, printed
    assert "passed on the second run" in printed and "slow tests, measured again alone" in printed
    assert printed.count("= durations =") == 1
    assert len(json.loads((clone / ".gantry/durations.json").read_text())) == 3


OFTEN_LONG = """
import pathlib, time

def test_that_is_often_long():
    runs = pathlib.Path("runs")
    count = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (count + 1))
    if count < TIMES:
        time.sleep(1.5)

def test_that_passes():
    pass
"""


@pytest.mark.verify
@pytest.mark.parametrize(("times", "expected"), [(2, 0), (3, 1)], ids=["once alone", "twice alone"])
def test_a_test_is_too_long_if_it_is_so_alone_twice(clone: Path, times: int, expected: int) -> None:
    """One measurement alone may meet other programs; the second one decides, and measures only what was too long."""
    (clone / "test_it.py").write_text(OFTEN_LONG.replace("TIMES", str(times)))

    code, printed = run_tests(clone, GANTRY_TEST_PROCESSES="1", GANTRY_SECONDS_MAX="0.2")

    assert code == expected, printed
    assert (clone / "runs").read_text() == "xxx"


@pytest.mark.verify
def test_no_test_is_measured_alone_while_other_programs_use_the_processors(clone: Path) -> None:
    """The time that a test takes beside other programs says nothing of the test: it is listed, and does not fail."""
    (clone / "test_it.py").write_text(OFTEN_LONG.replace("TIMES", "3"))

    code, printed = run_tests(clone, GANTRY_TEST_PROCESSES="1", GANTRY_SECONDS_MAX="0.2", GANTRY_BUSY_SHARE_MAX="-1")

    assert code == 0, printed
    assert "not measured alone" in printed and "test_that_is_often_long" in printed
    assert (clone / "runs").read_text() == "x"


@pytest.mark.verify
def test_after_an_interrupt_no_test_is_measured_again(clone: Path) -> None:
    """The run ends at once, with the exit code of the interrupted run."""
    (clone / "test_it.py").write_text(LONG.partition("def test_that_fails_once")[0])
    (clone / "conftest.py").write_text("def pytest_sessionfinish(session):\n    session.exitstatus = 2\n")

    code, printed = run_tests(clone, GANTRY_TEST_PROCESSES="1", GANTRY_SECONDS_MAX="0.01")

    assert code == 2, printed
    assert (clone / ".gantry/too-long.txt.args").exists() and "slow tests, measured again alone" not in printed


@pytest.mark.verify
def test_a_test_that_is_unreliable_twice_in_ten_runs_is_printed(tmp_path: Path) -> None:
    """Each run adds a line, also without a failure; runs of another target and older runs do not count."""
    folder = tmp_path / "a clone é"
    history = folder / "kept/history.jsonl"
    folder.mkdir()

    def keep(run: str, *unreliable: str) -> str:
        report = folder / f"second-run-{run}.json"
        report.unlink(missing_ok=True)
        if unreliable:
            report.write_text(json.dumps({"failed": ["test_b"], "passed on the second run": unreliable}))
        words = [sys.executable, str(ROOT / "scripts/second_run.py"), str(report.with_suffix("")), "history"]
        return subprocess.run([*words, str(history)], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert keep("test", "test_a") == keep("verify", "test_a") == ""
    for _ in range(8):
        assert keep("test") == ""
    assert keep("test", "test_a", "test_c").splitlines()[2:] == ["  2 times  test_a"]
    assert keep("test") == ""
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert len(lines) == 12 and all(line["date"] and line["commit"] for line in lines)
    assert [line["failed"] for line in lines[:3]] == [["test_b"], ["test_b"], []]
