"""The transaction benchmark, small: it runs, writes its results, and a broker that loses a commit has no figures.

The tests do not check durations, which are meaningful only on a quiet machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transactions
from click.testing import CliRunner
from gantry_bench import reported_run, transactions_run
from gantry_bench.transactions_run import FULL, Cell, TransactionReport, TransactionScale, transaction_goals

SMALL = TransactionScale(
    others=(0, 30), transactions=40, in_flight=20, repetitions=1, body_bytes=64, segment_bytes=8 << 20
)


@pytest.mark.verify
def test_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction is committed and counted, and the results are written."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(transactions, "QUICK", SMALL)

    result = CliRunner().invoke(transactions.main, ["--quick"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())["report"]
    assert report["committed"] == 80
    assert [cell["others"] for cell in report["cells"]] == [0, 30]


def test_lost_commit_fails_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark of a broker that loses messages fails."""

    async def one_less(address: str) -> int:
        return 79

    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(transactions, "QUICK", SMALL)
    monkeypatch.setattr(transactions_run, "count_committed", one_less)

    result = CliRunner().invoke(transactions.main, ["--quick"])

    assert result.exit_code == 1
    assert "80 transactions were committed, but 79 messages are stored" in result.output


def test_goals_compare_costs_beside_open_transactions() -> None:
    """100 in flight cost the same beside 10,000 and 100,000 open ones; higher costs miss the goals."""
    assert (FULL.in_flight, FULL.others) == (100, (0, 10_000, 100_000))
    cells = [Cell(0, 1000.0, 100.0), Cell(10_000, 1000.0, 110.0), Cell(100_000, 500.0, 200.0)]

    goals = transaction_goals(TransactionReport(cells, 12, 0.0), FULL)

    assert [goal.is_met for goal in goals] == [True, False]
