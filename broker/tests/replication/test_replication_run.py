"""The program around the seeded runs: it must report failed runs, and remove the files of successful ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from gantry_histories.findings import Finding, Kind
from gantry_histories.judges import Judgement, PorcupineFailed
from replication import network, run_replication
from replication.plans import Plan
from replication.seeded_run import RunResult


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the runs for one test; no network is needed."""
    monkeypatch.setattr(run_replication, "RUNS", tmp_path)
    monkeypatch.setattr(network, "namespaces_missing", lambda: "no network here")
    monkeypatch.setattr(run_replication, "find_porcupine", lambda: None)
    monkeypatch.delenv("GANTRY_REQUIRE", raising=False)
    return tmp_path


def replace_run(monkeypatch: pytest.MonkeyPatch, findings: dict[int, Finding | Exception]) -> None:
    """End every run at once: by its seed with a finding, an error, or successfully."""

    async def run(plan: Plan, directory: Path, *, is_root: bool, without: Sequence[str]) -> RunResult:
        assert not is_root
        found = findings.get(plan.seed)
        if isinstance(found, Exception):
            raise found
        return RunResult(plan, Judgement([found] if found is not None else [], None))

    monkeypatch.setattr(run_replication, "run_plan", run)


def test_successful_runs_leave_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0, and the directory is gone; what could not be run here is reported."""
    replace_run(monkeypatch, {})

    result = CliRunner().invoke(run_replication.main, ["--runs", "3", "--seed", "7"])

    assert result.exit_code == 0, result.output
    assert "3 of 3 runs kept every promise" in result.output
    assert "NOT RUN HERE" in result.output
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize("bad", [Finding(Kind.LOST, "p0-1"), TimeoutError("never whole")], ids=["finding", "error"])
def test_failed_run_is_kept_and_can_be_repeated(
    bad: Finding | Exception, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the findings, and the command that repeats the plan; the other runs are executed, too."""
    replace_run(monkeypatch, {8: bad})

    result = CliRunner().invoke(run_replication.main, ["--runs", "3", "--seed", "7", "--without", "grants"])

    assert result.exit_code == 1
    assert (
        "LOST: an acknowledged message is gone: p0-1" if isinstance(bad, Finding) else "never whole"
    ) in result.output
    assert "--runs 1 --seed 8 --without grants" in result.output
    assert "2 of 3 runs kept every promise" in result.output
    assert [path.name.rpartition("-")[0] for path in runs.iterdir()] == ["replication-8"]


def test_required_root_is_present_or_the_run_fails(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`GANTRY_REQUIRE=root` without network namespaces is a failure."""
    replace_run(monkeypatch, {})
    monkeypatch.setenv("GANTRY_REQUIRE", "root")

    assert CliRunner().invoke(run_replication.main, ["--runs", "1"]).exit_code == 1


def test_required_second_judge_is_present_or_the_run_fails(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Porcupine that was promised and cannot be built is a failure, and its reason is printed."""

    def fail() -> None:
        raise PorcupineFailed("porcupine: go is missing")

    replace_run(monkeypatch, {})
    monkeypatch.setattr(run_replication, "find_porcupine", fail)

    result = CliRunner().invoke(run_replication.main, ["--runs", "1"])

    assert result.exit_code == 1
    assert "go is missing" in result.output
