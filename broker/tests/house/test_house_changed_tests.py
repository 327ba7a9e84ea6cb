"""`make test CHANGED=1` finds the tests of what was changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import changed_tests
import pytest

from gantry_testing.small_clone import small_clone, write_script
from gantry_testing.tree import ROOT

SEAL, BALLOT = "broker/tests/wire/test_wire_seal.py", "operator/tests/spec/test_spec_ballot.py"
SECOND_RUN = "broker/tests/house/test_house_second_run.py"
STORE_WORLD_FILE = "broker/testkit/gantry_testing/store_world.py"


@pytest.mark.parametrize(
    ("changed", "chosen", "left_out"),
    [
        ("broker/src/gantry_wire/seal.py", SEAL, BALLOT),
        (STORE_WORLD_FILE, "broker/tests/store/test_store_append.py", SEAL),
        ("broker/tests/faults/scene.py", "broker/tests/faults/test_fault_kill.py", SEAL),
        (BALLOT, BALLOT, SEAL),
        ("broker/tests/faults/conftest.py", "broker/tests/faults/test_fault_kill.py", SEAL),
        ("scripts/run_tests", SECOND_RUN, SEAL),
        ("scripts/changed_tests.py", "broker/tests/house/test_house_changed_tests.py", BALLOT),
        (".ci/run", "broker/tests/house/test_house_scripts.py", SEAL),
        ("Makefile", "broker/tests/house/test_house_scripts.py", SEAL),
    ],
    ids=[
        "a module", "a helper", "a helper of one folder", "a test", "fixtures", "a script", "a script in Python",
        "continuous integration", "the Makefile",
    ],
)  # fmt: skip
def test_tests_of_what_was_changed_are_chosen(changed: str, chosen: str, left_out: str) -> None:
    """Tests that import the file, directly or through helpers, or use its fixtures; for a script, the house tests."""
    found = changed_tests.select_tests([changed])
    assert chosen in found and left_out not in found


def test_file_without_tests_selects_nothing() -> None:
    """A page of prose is checked by `make check`."""
    assert changed_tests.select_tests(["docs/tls.md"]) == []


@pytest.mark.parametrize(
    ("files", "run", "code"),
    [("test_a.py", "5", 0), ("test_a.py", "1", 1), ("test_a.py", "0", 0), ("", "1", 0)],
    ids=["only tests of make verify", "a failure", "a success", "no file"],
)
def test_changed_files_with_tests_of_make_verify_only_are_no_failure(
    tmp_path: Path, files: str, run: str, code: int
) -> None:
    """Pytest exits with 5 if it has deselected every test; any other failure is kept."""
    with small_clone(ROOT, tmp_path / "a clone é", "test") as clone:
        write_script(clone, "check", "exit 0")
        write_script(clone, "run_tests", f"exit {run}")
        (clone / "scripts/changed_tests.py").write_text(f"print({files!r})\n")

        def exit_code(**variables: str) -> int:
            return subprocess.run([str(clone / "scripts/test")], env=os.environ | variables, check=False).returncode

        assert exit_code(CHANGED="1") == code
        assert exit_code(CHANGED="0") == int(run)


def test_files_that_git_does_not_know_yet_count_as_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new test is the one that is worked on."""
    monkeypatch.setattr(changed_tests, "ROOT", tmp_path)
    for words in (("init", "-q", "-b", "main"), ("config", "user.email", "a@b.c"), ("config", "user.name", "A")):
        changed_tests.git(*words)
    (tmp_path / "old").write_text("1")
    changed_tests.git("add", "old")
    changed_tests.git("commit", "-q", "-m", "One")
    (tmp_path / "old").write_text("2")
    (tmp_path / "new").touch()
    assert changed_tests.changed_files(changed_tests.default_since()) == {"old", "new"}
    changed_tests.git("checkout", "-q", "-b", "work")
    changed_tests.git("commit", "-q", "-a", "-m", "Two")
    assert changed_tests.changed_files(changed_tests.default_since()) == {"old", "new"}
    changed_tests.git("checkout", "-q", "main")
    assert changed_tests.changed_files(changed_tests.default_since()) == {"new"}
