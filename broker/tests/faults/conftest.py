"""Fixtures of the fault tests, and with `--rows` the catalogue's rows with how the tests of each ended."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.loop_disk import LoopDisk, loop_disk
from faults.modes import buffer_directory
from faults.rows import ROWS, rows_of

ROWS_KEY = "rows"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A mounted disk whose power can be cut. The test is marked `needs_loop`."""
    with loop_disk(tmp_path) as made:
        yield made


@pytest.fixture
def buffers() -> Iterator[Path]:
    """A directory in memory for write buffers that survive their process."""
    with buffer_directory() as made:
        yield made


def pytest_addoption(parser: pytest.Parser) -> None:
    """One switch."""
    parser.addoption("--rows", action="store_true", help="end with the rows of the fault catalogue")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each report then knows the rows of its test."""
    rows, _ = rows_of(getattr(getattr(item, "function", None), "__doc__", None))
    item.user_properties += [(ROWS_KEY, row) for row in rows]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table. A test that needs what this machine has not, or is slow, is "skipped" in it."""
    if not config.getoption("--rows", default=False):
        return
    ended: dict[str, Counter[str]] = {row: Counter() for row in ROWS}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            for key, row in report.user_properties:
                if key == ROWS_KEY:
                    ended.setdefault(str(row), Counter())[outcome] += 1
    terminalreporter.section("rows of the fault catalogue")
    for row, counts in ended.items():
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "NOT TRIED"
        terminalreporter.line(f"{row:<4} {ROWS.get(row, ''):<62} {said}")
