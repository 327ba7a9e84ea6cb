"""Pytest hooks for all tests of this folder: they collect the rows of the fault catalogue (`faults/rows.py`).

With `--rows` a run ends with the rows of the fault catalogue, and how the tests of each ended.
"""

from __future__ import annotations

from collections import Counter

import pytest
from faults.rows import ROWS, rows_of

ROWS_KEY = "rows"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--rows` to pytest."""
    parser.addoption("--rows", action="store_true", help="end with the rows of the fault catalogue")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Attach the rows of a test to it, so that each of its reports has them."""
    rows, _ = rows_of(getattr(getattr(item, "function", None), "__doc__", None))
    item.user_properties += [(ROWS_KEY, row) for row in rows]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table. A test whose requirement this machine lacks is "skipped" in it; slow tests need `--slow`."""
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
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "NOT TRIED"
        terminalreporter.line(f"{row:<4} {ROWS.get(row, ''):<62} {summary}")
