"""A pytest plugin: how long each test took, for whoever wants the whole run to be short.

    each run                 .gantry/durations.json     seconds by test, set-up and clean-up included
    GANTRY_DURATIONS=1       a table at the end: the slowest tests, and the time of each area

An area is what the file's name begins with, as in `broker/tests/test_store_*.py`, or the folder. The seconds are those
of the processes that ran the tests, so with three processes they add up to three times what a clock on the wall shows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final

import pytest

VARIABLE: Final = "GANTRY_DURATIONS"
FILE: Final = ".gantry/durations.json"
SLOWEST: Final = 20


def area_of(nodeid: str) -> str:
    """What a test belongs to, by its file: `broker store`, `broker faults`, `operator admin`."""
    path = PurePath(nodeid.partition("::")[0])
    package, *folders = path.parts[:-1] or ("",)
    inner = [folder for folder in folders if folder != "tests"]
    return f"{package} {inner[0] if inner else path.stem.removeprefix('test_').partition('_')[0]}"


class Durations:
    """The seconds of each test. Not in processes that run tests for another one: their reports come together there."""

    def __init__(self, root: Path, *, is_shown: bool) -> None:
        self.seconds: Final[dict[str, float]] = {}
        self._root: Final = root
        self._is_shown: Final = is_shown

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up, the test, and its clean-up."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep them where a clone keeps what it makes."""
        path = self._root / FILE
        if self.seconds and path.parent.is_dir():
            rounded = {name: round(seconds, 3) for name, seconds in _longest(self.seconds)}
            path.write_text(json.dumps(rounded, indent=0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, if it is wanted."""
        if not self._is_shown:
            return
        terminalreporter.section("durations")
        for name, seconds in _longest(self.seconds)[:SLOWEST]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
        areas: dict[str, float] = {}
        counts = Counter(map(area_of, self.seconds))
        for name, seconds in self.seconds.items():
            areas[area_of(name)] = areas.get(area_of(name), 0.0) + seconds
        terminalreporter.line("")
        for area, seconds in _longest(areas):
            terminalreporter.line(f"{seconds:8.1f} s  {area:<24} {counts[area]:>6} tests")


def _longest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda one: -one[1])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        durations = Durations(config.rootpath, is_shown=os.environ.get(VARIABLE, "") not in ("", "0"))
        config.pluginmanager.register(durations, "gantry-durations")
