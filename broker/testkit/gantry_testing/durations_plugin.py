"""A pytest plugin that records how long each test took, and limits tests of `make test`.

    each run                 .gantry/durations.json     seconds by test, including set-up and clean-up
    GANTRY_DURATIONS=1       a table at the end: the slowest tests, and the time of each area
    GANTRY_SECONDS_MAX=5     a test that takes longer fails, except with `--verify` or if it is marked `slow`; if
                             several processes share the tests, it is listed in .gantry/too-long.txt, to be measured
                             alone
    --verify                 a table at the end: the time of each part
    GANTRY_RERUN=1           the run repeats a few tests of the last run: their seconds replace those in the file

An area is a package with the first folder below its `tests`, as in `broker/tests/store/`, or else the first word of the
file's name. The seconds are those of the processes that ran the tests, so with three processes their sum is three times
the elapsed time.

A limit for a test is no measurement of the product. It keeps `make test` short. It does not count set-up and clean-up,
which tests may share. It grows with ``slowness.cost``, which measures the processor and not the contention between, for
example, three JVMs that start at once; so no test fails by it in a run with several processes. The load of the machine
is left out: after such a run the average of the last minute would allow a test two or three times as long.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from pathlib import Path, PurePath
from typing import Final

import pytest

from gantry_testing import slowness
from gantry_testing.parts_plugin import PART

VARIABLE: Final = "GANTRY_DURATIONS"
MAX_VARIABLE: Final = "GANTRY_SECONDS_MAX"
RERUN_VARIABLE: Final = "GANTRY_RERUN"
SECONDS_MAX: Final = pytest.StashKey[float]()
FILE: Final = ".gantry/durations.json"
LONG_FILE: Final = ".gantry/too-long.txt"
"""Has a line for each test that took too long in a run with several processes, in the form that `pytest @FILE`
reads."""

TOO_LONG: Final = "too-long"
"""The property of the report of such a test."""

SLOWEST: Final = 20


def area_of(nodeid: str) -> str:
    """Return the area of a test, from its file: `broker store`, `broker faults`, `operator admin`."""
    path = PurePath(nodeid.partition("::")[0])
    package, *folders = path.parts[:-1] or ("",)
    inner = [folder for folder in folders if folder != "tests"]
    return f"{package} {inner[0] if inner else path.stem.removeprefix('test_').partition('_')[0]}"


class Durations:
    """Collects the seconds of each test. It is not active in worker processes, whose reports arrive in the main
    process."""

    def __init__(self, root: Path, *, is_shown: bool, is_rerun: bool) -> None:
        self.seconds: Final[dict[str, float]] = {}
        self.parts: Final[dict[str, str]] = {}
        """The part of each test, in a run with parts."""

        self.too_long: Final[list[str]] = []

        self._root: Final = root
        self._is_shown: Final = is_shown
        self._is_rerun: Final = is_rerun

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of set-up, test and clean-up."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        self.parts.update((report.nodeid, str(part)) for name, part in report.user_properties if name == PART)
        if report.when == "call" and any(name == TOO_LONG for name, _ in report.user_properties):
            self.too_long.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the seconds to the clone's folder of generated files."""
        path = self._root / FILE
        (self._root / LONG_FILE).unlink(missing_ok=True)
        if self.too_long and path.parent.is_dir():
            (self._root / LONG_FILE).write_text("".join(f"{name}\n" for name in sorted(self.too_long)))
        if self.seconds and path.parent.is_dir():
            seconds: dict[str, float] = json.loads(path.read_text()) if self._is_rerun and path.exists() else {}
            seconds |= {name: round(took, 3) for name, took in self.seconds.items()}
            path.write_text(json.dumps(dict(_longest(seconds)), indent=0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the tables that the run requested."""
        if self.parts and not self._is_rerun:
            terminalreporter.section("parts (test seconds, summed over all processes)")
            _show_sums(terminalreporter, self.seconds, self.parts.get)
        if not self._is_shown:
            return
        terminalreporter.section("durations")
        for name, seconds in _longest(self.seconds)[:SLOWEST]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
        terminalreporter.line("")
        _show_sums(terminalreporter, self.seconds, area_of)


def _show_sums(
    reporter: pytest.TerminalReporter, seconds: Mapping[str, float], group_of: Callable[[str], str | None]
) -> None:
    """Print a line for each group of tests, the slowest first."""
    groups = {name: group_of(name) or "other" for name in seconds}
    counts = Counter(groups.values())
    sums = dict.fromkeys(counts, 0.0)
    for name, group in groups.items():
        sums[group] += seconds[name]
    for group, took in _longest(sums):
        reporter.line(f"{took:8.1f} s  {group:<24} {counts[group]:>6} tests")


def _longest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda one: -one[1])


def is_bounded(item: pytest.Item) -> bool:
    """Return whether the limit applies to this test."""
    return not item.config.getoption("--verify") and item.get_closest_marker("slow") is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that takes too long for `make test`, or mark it if other tests run at the same time."""
    report = yield
    seconds_max = item.config.stash[SECONDS_MAX]
    if report.when == "call" and report.passed and report.duration > seconds_max and is_bounded(item):
        allowed = seconds_max * slowness.cost()
        if hasattr(item.config, "workerinput"):
            report.user_properties.append((TOO_LONG, True))
        elif report.duration > allowed:
            report.outcome = "failed"
            report.longrepr = (
                f"took {report.duration:.1f} s, and {allowed:.1f} s are allowed on this machine ({seconds_max:g} s on "
                "the reference machine): do less, or mark it `verify` if a test without the mark covers the same path"
            )
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that collects the reports."""
    config.stash[SECONDS_MAX] = float(os.environ.get(MAX_VARIABLE) or "inf")
    if not hasattr(config, "workerinput"):
        is_shown, is_rerun = (os.environ.get(name, "") not in ("", "0") for name in (VARIABLE, RERUN_VARIABLE))
        durations = Durations(config.rootpath, is_shown=is_shown, is_rerun=is_rerun)
        config.pluginmanager.register(durations, "gantry-durations")
