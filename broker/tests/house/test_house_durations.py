"""`make test DURATIONS=1` shows what took long, and a test that takes too long for `make test` fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gantry_testing import slowness
from gantry_testing.durations_plugin import area_of

pytest_plugins = ["pytester"]

NAMES = ("requirements", "parts", "durations")
PLUGINS = [word for name in NAMES for word in ("-p", f"gantry_testing.{name}_plugin")]


@pytest.fixture(autouse=True)
def own_settings(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest that loads no other plugin, and has a folder to write to."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("GANTRY_SECONDS_MAX", raising=False)
    pytester.makeini("[pytest]")
    pytester.mkdir(".gantry")


@pytest.mark.parametrize(
    ("nodeid", "area"),
    [
        ("broker/tests/store/test_store_append.py::test_it[a/b::c]", "broker store"),
        ("broker/tests/faults/test_fault_kill.py::test_it", "broker faults"),
        ("e2e/tests/test_e2e_pages.py::test_it", "e2e e2e"),
        ("test_one.py::test_it", " one"),
    ],
)
def test_a_test_belongs_to_the_area_that_its_file_names(nodeid: str, area: str) -> None:
    """A folder inside of the tests is an area of its own."""
    assert area_of(nodeid) == area


@pytest.mark.verify
def test_the_slowest_tests_and_each_area_are_shown_when_wanted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds of all processes come together, and are kept after every run."""
    pytester.makepyfile(
        test_store_one="import time\n\ndef test_long():\n    time.sleep(0.5)\n",
        test_ha_two="def test_short():\n    pass\n",
    )
    plugins = ["-p", "xdist.plugin", *PLUGINS, "-n", "2"]

    monkeypatch.setenv("GANTRY_DURATIONS", "1")
    shown = pytester.runpytest_subprocess(*plugins)
    shown.stdout.fnmatch_lines(["*= durations =*", "* s  test_store_one.py::test_long", "* s   store * 1 tests"])
    kept = json.loads((pytester.path / ".gantry/durations.json").read_text())
    assert list(kept) == ["test_store_one.py::test_long", "test_ha_two.py::test_short"]

    monkeypatch.setenv("GANTRY_DURATIONS", "0")
    pytester.runpytest_inprocess(*PLUGINS).stdout.no_fnmatch_line("*= durations =*")


TWO_TESTS = """
    import pytest, time

    def test_short():
        pass

    @pytest.fixture(scope="module")
    def shared():
        time.sleep(1.5)

    def test_of_what_is_shared(shared):
        pass

    {mark}
    def test_long():
        time.sleep(1.5)
"""


def test_a_test_that_takes_too_long_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a shared fixture, which the first test creates, does not count; nor does the machine's load."""
    monkeypatch.setenv("GANTRY_SECONDS_MAX", "1")
    monkeypatch.setattr(slowness, "cost", lambda: 1.0)
    monkeypatch.setattr(slowness, "processes_per_core", lambda: 60.0)
    pytester.makepyfile(TWO_TESTS.format(mark=""))

    result = pytester.runpytest_inprocess(*PLUGINS)

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["took * s, and 1.0 s are allowed on this machine (1 s on the reference machine): do less, or *"]
    )


@pytest.mark.verify
def test_a_test_that_takes_too_long_beside_others_is_listed_to_be_measured_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not fail there; run from the list, it does. A run without such a test leaves no list."""
    monkeypatch.setenv("GANTRY_SECONDS_MAX", "1")
    source = "import time\n\ndef test_short():\n    pass\n\ndef test_long():\n    time.sleep(1.5)\n"
    pytester.makepyfile(test_it=source)
    listed = pytester.path / ".gantry/too-long.txt"

    pytester.runpytest_subprocess("-p", "xdist.plugin", *PLUGINS, "-n", "1").assert_outcomes(passed=2)
    assert listed.read_text() == "test_it.py::test_long\n"
    long = pytester.path / "long.txt"
    listed.rename(long)
    monkeypatch.setenv("GANTRY_SECONDS_MAX", "0.1")
    pytester.runpytest_inprocess(*PLUGINS, f"@{long}").assert_outcomes(failed=1)
    listed.touch()
    pytester.runpytest_inprocess(*PLUGINS, "-k", "short").assert_outcomes(passed=1)
    assert not listed.exists()


@pytest.mark.verify
@pytest.mark.parametrize(
    ("mark", "wanted", "factor", "seconds_max"),
    [
        ("@pytest.mark.verify", "--verify", 1.0, "1"),
        ("@pytest.mark.slow", "--slow", 1.0, "1"),
        ("", "--slow", 60.0, "1"),
        ("", "--slow", 1.0, ""),
    ],
    ids=["verify", "slow", "on a slow machine", "no limit"],
)
def test_a_test_may_take_longer_where_it_must(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mark: str, wanted: str, factor: float, seconds_max: str
) -> None:
    """In the long suites, on a machine that is slow, and where no limit is set."""
    monkeypatch.setenv("GANTRY_SECONDS_MAX", seconds_max)
    monkeypatch.setattr(slowness, "cost", lambda: factor)
    pytester.makepyfile(TWO_TESTS.format(mark=mark))
    named = [wanted, "test_a_test_may_take_longer_where_it_must.py::test_long"]

    pytester.runpytest_inprocess(*PLUGINS, *named).assert_outcomes(passed=1)


@pytest.mark.verify
def test_a_run_of_make_verify_shows_its_parts(pytester: pytest.Pytester) -> None:
    """Each with its time and the number of its tests."""
    source = "import pytest\n\n@pytest.mark.verify\n@pytest.mark.{}\ndef test_it():\n    pass\n"
    pytester.makepyfile(test_one=source.format("needs_root"), test_two=source.format("needs_root"))

    result = pytester.runpytest_subprocess("-p", "xdist.plugin", *PLUGINS, "-n", "2", "--verify")

    result.stdout.fnmatch_lines(["*= parts (test seconds, summed over all processes) =*", "* s  server * 2 tests"])
    pytester.runpytest_inprocess(*PLUGINS).stdout.no_fnmatch_line("*= parts *")


def test_a_rerun_adds_to_the_durations_of_the_run_before(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measures a few tests again; the others keep their seconds, and the table of parts is not shown again."""
    kept = pytester.path / ".gantry/durations.json"
    kept.write_text(json.dumps({"test_other.py::test_it": 9.5, "test_it.py::test_it": 8.5}))
    pytester.makepyfile(test_it="import pytest\n\n@pytest.mark.verify\ndef test_it():\n    pass\n")
    monkeypatch.setenv("GANTRY_RERUN", "1")

    result = pytester.runpytest_inprocess(*PLUGINS, "--verify")

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= parts *")
    seconds = json.loads(kept.read_text())
    assert seconds.pop("test_it.py::test_it") < 8.5 and seconds == {"test_other.py::test_it": 9.5}


def test_patience_grows_with_the_crowd_and_never_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six processes on two processors: everything takes three times as long."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(slowness, "cost", lambda: 1.0)
    for load, sharing, seconds in ((0.1, "1", 5.0), (2.0, "", 5.0), (6.0, "3", 15.0), (0.1, "3", 7.5)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", sharing)
        assert slowness.patience(5.0) == seconds


def test_the_fixed_work_is_measured() -> None:
    """By the processor's time: a crowd does not count twice."""
    slowness.cost.cache_clear()

    assert slowness.measure_work_s() > 0
    assert slowness.cost() >= 1.0


def test_the_share_of_busy_processors_is_measured() -> None:
    """A process that works is seen: at least a good part of one processor of all that there are."""
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert wait_for_share(0.5 / os.cpu_count()), "no sample shows the process"  # type: ignore[operator]
    finally:
        worker.kill()
        worker.wait()


def wait_for_share(share: float) -> bool:
    """Return whether one of a hundred samples shows that share; the first ones may precede the process's work."""
    return any(share <= slowness.busy_share(0.1) <= 1 for _ in range(100))
