"""`make test CHANGED=1` finds the tests of what was changed; `make test DURATIONS=1` shows what took long."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from gantry_broker.testing.durations_plugin import area_of

pytest_plugins = ["pytester"]

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


@pytest.mark.parametrize(
    ("nodeid", "area"),
    [
        ("broker/tests/test_store_append.py::test_it[a/b::c]", "broker store"),
        ("broker/tests/faults/test_fault_kill.py::test_it", "broker faults"),
        ("e2e/tests/test_e2e_pages.py::test_it", "e2e e2e"),
        ("test_one.py::test_it", " one"),
    ],
)
def test_a_test_belongs_to_the_area_that_its_file_names(nodeid: str, area: str) -> None:
    """A folder inside of the tests is an area of its own."""
    assert area_of(nodeid) == area


def test_the_slowest_tests_and_each_area_are_shown_when_wanted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds of all processes come together, and are kept after every run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]")
    pytester.mkdir(".gantry")
    pytester.makepyfile(
        test_store_one="import time\n\ndef test_long():\n    time.sleep(0.2)\n",
        test_ha_two="def test_short():\n    pass\n",
    )
    plugins = ["-p", "xdist.plugin", "-p", "gantry_broker.testing.durations_plugin", "-n", "2"]

    monkeypatch.setenv("GANTRY_DURATIONS", "1")
    shown = pytester.runpytest_subprocess(*plugins)
    shown.stdout.fnmatch_lines(
        ["*= durations =*", "* 0.2 s  test_store_one.py::test_long", "* 0.2 s   store * 1 tests"]
    )
    kept = json.loads((pytester.path / ".gantry/durations.json").read_text())
    assert list(kept) == ["test_store_one.py::test_long", "test_ha_two.py::test_short"]

    monkeypatch.setenv("GANTRY_DURATIONS", "0")
    pytester.runpytest_subprocess(*plugins).stdout.no_fnmatch_line("*= durations =*")
