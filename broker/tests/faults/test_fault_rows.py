"""The fault catalogue in rows.py is complete: every row has tests, and a row without one is a failure here.

A twin is a test that runs without the guard of its row, and must then find the damage.
"""

import re
from pathlib import Path

import pytest
from faults.rows import ROWS, catalogue, rows_of

BY_ROW = catalogue()
PAGE = Path(__file__).parents[3] / "docs" / "security.md"


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_tests(row: str) -> None:
    """Each row has a test that runs without `--slow` and without root, loop devices and memory groups."""
    reason = f"{row} ({ROWS[row]}) has no test that runs without --slow and without root"

    assert any(test.runs_everywhere for test in BY_ROW[row]), reason


@pytest.mark.parametrize("row", ["S6", "S7"])
def test_a_row_of_denials_has_twins(row: str) -> None:
    """A denial proves nothing unless the same request succeeds without the guard."""
    assert any(test.is_twin for test in BY_ROW[row]), f"{row} ({ROWS[row]}) has no test without its guard"


def differences(page: str) -> list[str]:
    """Return the files that the table of docs/security.md lacks, and those that it lists for a row of other tests."""
    files = {row: {test.name.partition(".")[0] for test in tests} for row, tests in BY_ROW.items() if row[0] == "S"}
    found = []
    for line in re.findall(r"^\| S\d.*", page, re.MULTILINE):
        cells = line.split("|")
        rows, listed = re.findall(r"S\d+", cells[1]), set(re.findall(r"`(test_\w+)\.py`", cells[3]))
        declared = set().union(*(files.pop(row) for row in rows))
        others = set().union(*({test.name.partition(".")[0] for test in tests} for tests in BY_ROW.values()))
        found += [f"{', '.join(rows)} lacks {name}" for name in sorted(declared - listed)]
        found += [f"{', '.join(rows)} has {name}" for name in sorted(listed & others - declared)]
    return found + [f"{row} is missing" for row in files]


def test_security_page_lists_the_files_of_each_row() -> None:
    """It may list more files, whose tests begin with no row, but none whose tests belong to other rows only."""
    page = PAGE.read_text()
    lines = page.splitlines(keepends=True)

    assert differences(page) == []
    assert differences(page.replace("`test_wire_compress.py`", "`test_server_bad_names.py`")) == [
        "S5 lacks test_wire_compress", "S5 has test_server_bad_names",
    ]  # fmt: skip
    assert differences("".join(line for line in lines if not line.startswith("| S4 "))) == ["S4 is missing"]


def test_tests_name_existing_rows_only() -> None:
    """A typing error in a docstring would remove its test from the table."""
    assert BY_ROW.keys() - ROWS.keys() == set()


@pytest.mark.parametrize(
    ("docstring", "rows", "is_twin"),
    [
        ("D4: the n-th sync fails.", ("D4",), False),
        ("D10 and D11: lengths.", ("D10", "D11"), False),
        ("K1, K2, in memory: kills.", ("K1", "K2"), False),
        ("D14's twin: no lock.", ("D14",), True),
        ("S6: no producer sends.", ("S6",), False),
        ("Each D4 is tried.", (), False),
        (None, (), False),
    ],
)
def test_docstring_declares_its_rows(docstring: str | None, rows: tuple[str, ...], is_twin: bool) -> None:
    """Only the beginning of the docstring is parsed."""
    assert rows_of(docstring) == (rows, is_twin)


def test_row_needs_one_test_with_both_properties(tmp_path: Path) -> None:
    """A slow test, one that needs root and a twin are no substitute for a test that runs everywhere."""
    path = tmp_path / "test_parts.py"
    path.write_text(
        '@pytest.mark.slow\ndef test_slow():\n    """D4: x."""\n'
        '@pytest.mark.needs_loop\ndef test_root():\n    """D4: x."""\n'
        'def test_twin():\n    """D4\'s twin: x."""\n'
    )
    parts = catalogue(tmp_path)["D4"]
    path.write_text(path.read_text() + '@pytest.mark.verify\ndef test_whole():\n    """D4: x."""\n')

    assert [test.runs_everywhere for test in parts] == [False, False, False]
    assert [test.name for test in catalogue(tmp_path)["D4"] if test.runs_everywhere] == ["test_parts.test_whole"]


def test_row_without_a_test_is_reported(tmp_path: Path) -> None:
    """In a folder with one test, every row but that of the test is without tests; its markers are read."""
    (tmp_path / "test_one.py").write_text(
        'pytestmark = [pytest.mark.needs_root]\n@pytest.mark.slow\nasync def test_it():\n    """D4: x."""\n'
    )

    found = catalogue(tmp_path)

    assert [row for row, tests in found.items() if tests] == ["D4"]
    assert (found["D4"][0].is_slow, found["D4"][0].needs) == (True, ("root",))
