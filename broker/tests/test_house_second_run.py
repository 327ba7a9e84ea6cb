"""What fails is run a second time where continuous integration runs: one piece of bad luck is listed, a fault fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FAILING = """
from pathlib import Path

def test_that_passes() -> None: ...

def test_that_has_bad_luck_once() -> None:
    been = Path(__file__).with_name("been")
    was_here = been.exists()
    been.touch()
    assert was_here

def test_of_a_fault() -> None:
    assert Path(__file__).with_name("mended").exists()
"""


def _runs(place: Path) -> tuple[int, int, str]:
    """Both runs as `scripts/run_tests` makes them; their exit codes, and what is printed in the end."""
    words = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(place), "-p", "no:schemathesis"]
    words += ["-o", f"cache_dir={place / '.gantry/second-run'}", str(place)]
    helper = [sys.executable, str(ROOT / "scripts/second_run.py"), str(place / ".gantry/second-run")]
    (place / ".gantry").mkdir()
    first = subprocess.run(words, cwd=place, capture_output=True, check=False).returncode
    before = subprocess.run([*helper, "before"], cwd=place, capture_output=True, check=False).returncode
    second = subprocess.run([*words, "--last-failed"], cwd=place, capture_output=True, check=False).returncode
    after = subprocess.run([*helper, "after"], cwd=place, capture_output=True, text=True, check=True).stdout
    assert before == 0
    return first, second, after


def test_bad_luck_is_listed_and_does_not_fail_the_run(tmp_path: Path) -> None:
    """It passed alone."""
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "mended").touch()

    first, second, printed = _runs(tmp_path)

    assert (first, second) == (1, 0)
    assert "test_that_has_bad_luck_once" in printed and "test_of_a_fault" not in printed


def test_a_fault_fails_the_second_run_too(tmp_path: Path) -> None:
    """And bad luck beside it is listed all the same."""
    (tmp_path / "test_it.py").write_text(FAILING)

    first, second, printed = _runs(tmp_path)
    report = json.loads((tmp_path / ".gantry/second-run.json").read_text())

    assert (first, second) == (1, 1)
    assert [name.rpartition("::")[2] for name in report["failed"]] == ["test_of_a_fault"]
    assert "test_of_a_fault" not in printed


def test_many_failures_are_no_bad_luck(tmp_path: Path) -> None:
    """There is no second run, and the run fails."""
    cache = tmp_path / "v/cache"
    cache.mkdir(parents=True)
    (tmp_path / ".gantry").mkdir()
    (cache / "lastfailed").write_text(json.dumps({f"test_{number}": True for number in range(21)}))
    words = [sys.executable, str(ROOT / "scripts/second_run.py"), str(tmp_path), "before"]

    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 1
