"""`make test CHANGED=1` finds the tests of what was changed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changed_tests", ROOT / "scripts/changed_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SEAL, BALLOT = "broker/tests/test_wire_seal.py", "operator/tests/test_spec_ballot.py"
WORLD = "broker/src/gantry_broker/testing/store_world.py"


@pytest.mark.parametrize(
    ("changed", "chosen", "left_out"),
    [
        ("broker/src/gantry_wire/seal.py", SEAL, BALLOT),
        (WORLD, "broker/tests/test_store_append.py", SEAL),
        ("broker/tests/faults/scene.py", "broker/tests/faults/test_fault_kill.py", SEAL),
        (BALLOT, BALLOT, SEAL),
    ],
    ids=["a module", "a helper", "a helper of one folder", "a test"],
)
def test_tests_of_what_was_changed_are_chosen(script: ModuleType, changed: str, chosen: str, left_out: str) -> None:
    """Those that import it, directly or through helpers of tests; and no others."""
    found = script.chosen([changed])
    assert chosen in found and left_out not in found


def test_what_no_test_knows_chooses_nothing(script: ModuleType) -> None:
    """A page of prose is checked by `make check`."""
    assert script.chosen(["docs/tls.md"]) == []


def test_files_that_git_does_not_know_yet_count_as_changed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new test is the one that is worked on."""
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for words in (("init", "-q", "-b", "main"), ("config", "user.email", "a@b.c"), ("config", "user.name", "A")):
        script.git(*words)
    (tmp_path / "old").write_text("1")
    script.git("add", "old")
    script.git("commit", "-q", "-m", "One")
    (tmp_path / "old").write_text("2")
    (tmp_path / "new").touch()
    assert script.changed_files(script.default_since()) == {"old", "new"}
    script.git("checkout", "-q", "-b", "work")
    script.git("commit", "-q", "-a", "-m", "Two")
    assert script.changed_files(script.default_since()) == {"old", "new"}
    script.git("checkout", "-q", "main")
    assert script.changed_files(script.default_since()) == {"new"}
