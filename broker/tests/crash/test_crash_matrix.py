"""The crash run's matrix of cells requires that a run proves something, and covers every crash point."""

from collections import Counter
from collections.abc import Callable

import pytest
from crash.cells import CELLS
from crash.matrix import Matrix, format_points_hit, format_totals, shortcomings
from crash.verdict import Verdict

from gantry_broker.store import crash_points
from gantry_testing.crashing_broker import parse_crash_at


def good_cell(name: str) -> Verdict:
    """Return the verdict of a cell whose run has proved everything."""
    hits = Counter({moment.point: 1 for moment in CELLS[name].crash_moments})
    return Verdict(rounds=50, acked=100, replayed=9, replayed_reported=9, lost=9, hits=hits)


def never_replayed(verdicts: dict[str, Verdict]) -> None:
    verdicts["async-tmpfs"].replayed = 0


def never_reported(verdicts: dict[str, Verdict]) -> None:
    verdicts["async-hugetlbfs"].replayed_reported = 0


def never_lost(verdicts: dict[str, Verdict]) -> None:
    verdicts["async-anonymous"].lost = 0


def point_never_hit(verdicts: dict[str, Verdict]) -> None:
    for verdict in verdicts.values():
        del verdict.hits[crash_points.MID_TRUNCATION]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (never_replayed, "async-tmpfs"),
        (never_reported, "async-hugetlbfs"),
        (never_lost, "async-anonymous"),
        (point_never_hit, crash_points.MID_TRUNCATION),
    ],
)
def test_run_without_risk_proves_too_little(change: Callable[[dict[str, Verdict]], None], word: str) -> None:
    """Nothing replayed, nothing lost, a point never reached: each is reported once, if enough rounds ran."""
    verdicts = {name: good_cell(name) for name in CELLS}
    assert shortcomings(Matrix(verdicts), 50) == []

    change(verdicts)

    [text] = shortcomings(Matrix(verdicts), 50)
    assert word in text
    assert shortcomings(Matrix(verdicts), 2) == []


def test_every_crash_point_is_in_a_cell() -> None:
    """A crash point that is added to the store must be in a cell. Those of retention are hit in test_store_loss."""
    of_retention = {crash_points.BEFORE_UNLINK, crash_points.MID_UNLINK}
    assert {moment.point for cell in CELLS.values() for moment in cell.crash_moments} == set(
        crash_points.ALL
    ) - of_retention


def test_unknown_crash_point_is_refused() -> None:
    """An unknown point is refused, since it would be a run without crashes."""
    assert str(parse_crash_at("mid-roll")) == "mid-roll:1"
    assert parse_crash_at("mid-commit:3").times == 3
    for text in ("mid-rol", "mid-roll:0", "mid-roll:x", ""):
        with pytest.raises(ValueError):
            parse_crash_at(text)


def test_tables_have_a_line_for_each_cell_and_point() -> None:
    """Cells that this machine does not support have a line, too; all lines have the same width."""
    matrix = Matrix({"async-tmpfs": good_cell("async-tmpfs")}, {"sync-hugetlbfs": "no root"})

    lines, hits = format_totals(matrix).splitlines(), format_points_hit(matrix).splitlines()

    assert [line.split()[0] for line in lines] == ["cell", "async-tmpfs", "sync-hugetlbfs"]
    assert [line.split()[0] for line in hits] == [
        "ended",
        *dict.fromkeys(m.point for m in CELLS["async-tmpfs"].crash_moments),
    ]
    assert len({len(line) for line in lines}) == len({len(line) for line in hits}) == 1
