"""The store benchmark, small: every part runs, removes its files, and its tables fit into the page.

The tests do not check durations, which are meaningful only on a quiet machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import store
from click.testing import CliRunner, Result
from gantry_bench import errors, figures, machine, media, parts, recovery, recovery_run, scale, tail, tail_run

MEBIBYTE = 1024 * 1024
RunCommand = Callable[..., Result]


@pytest.fixture(autouse=True)
def skip_memory_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip touching a gibibyte of memory, because a test writes little."""
    monkeypatch.setattr(machine, "WARM_BYTES_MAX", machine.WARM_STEP_BYTES)


@pytest.fixture
def quick_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """The command with its results in a folder of the test; returns a runner for it."""
    monkeypatch.setattr(store, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(store, "ROOT", tmp_path)
    monkeypatch.setattr(store, "QUIET_SECONDS", 0.01)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(store.main, ["--quick", *arguments])

    return run


def read_only_results(folder: Path) -> dict[str, Any]:
    """Return the outcomes in the only results file, the only file that is left."""
    [path] = (folder / "results").iterdir()
    outcomes: dict[str, Any] = json.loads(path.read_text())["outcomes"]
    return outcomes


@pytest.mark.verify
def test_append_tail_is_measured_on_every_medium(quick_store: RunCommand, tmp_path: Path) -> None:
    """Control, no buffer, anonymous memory, and the other media of this machine, each in a process of its own."""
    result = quick_store("--only", "tail")

    assert result.exit_code == 0, result.output
    [one] = read_only_results(tmp_path)["tail"]["raw"]
    reports = {report["medium"]: report for report in [one["control"], *one["runs"]]}
    assert {"control", "none", "anonymous"} <= set(reports)
    assert {report["messages"] for report in reports.values()} == {2000}
    assert reports["control"]["syncs"] == 0
    assert all(report["syncs"] > 0 for medium, report in reports.items() if medium != "control")


@pytest.mark.needs_go
@pytest.mark.slow
def test_sync_flush_is_measured_together_with_async_flush(quick_store: RunCommand, tmp_path: Path) -> None:
    """One send in flight means one message per sync; the asynchronous broker has few syncs."""
    result = quick_store("--only", "sync")

    assert result.exit_code == 0, result.output
    runs = read_only_results(tmp_path)["sync"]["raw"]
    keys = [(run["level"], run["flush"]) for run in runs]
    assert keys == [(level, flush) for level in (1, 16) for flush in ("async", "sync", "slow")]
    alone = runs[1]["progress"]
    assert alone["syncs"] >= alone["messages"] > 0


@pytest.mark.verify
def test_recovery_is_measured_after_a_kill(quick_store: RunCommand, tmp_path: Path) -> None:
    """The whole log is read in the ways that require it, and every message is found."""
    result = quick_store("--only", "recovery")

    assert result.exit_code == 0, result.output
    _, cached, cold = read_only_results(tmp_path)["recovery"]["raw"]
    for cell in (cached, cold):
        assert cell["report"]["start"] == 0
        assert cell["report"]["end"] >= 20_000_000
        assert not cell["report"]["is_clean"]


@pytest.mark.verify
def test_recovery_from_memory_is_repeated(
    quick_store: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make bench` shows the median of three; a log that exceeds the free memory is a note below the table."""
    small = msgspec.structs.replace(scale.QUICK, recovery_ways=scale.SHORT.recovery_ways)
    monkeypatch.setattr(store, "QUICK", small)
    monkeypatch.setattr(parts, "read_available_bytes", lambda: 20_000_000)

    result = quick_store("--only", "recovery")

    assert result.exit_code == 0, result.output
    outcome = read_only_results(tmp_path)["recovery"]
    assert [cell["way"] for cell in outcome["raw"]] == ["all of it, cached"] * 3
    assert all(cell["report"]["start"] == 0 for cell in outcome["raw"])
    first, uncached = outcome["figures"]["notes"]
    assert "3 runs each" in first
    assert uncached.startswith("The log of 20 MB does not fit into the page cache, for which 20 MB of memory were")


@pytest.mark.needs_go
@pytest.mark.slow
def test_memory_is_measured_with_and_without_a_buffer(quick_store: RunCommand, tmp_path: Path) -> None:
    """Buffers use memory from the start, and are counted separately."""
    result = quick_store("--only", "rss")

    assert result.exit_code == 0, result.output
    by_medium = {cell["medium"]: cell for cell in read_only_results(tmp_path)["rss"]["raw"]}
    assert by_medium["none"]["buffers_bytes"] == 0
    for medium in by_medium.keys() - {"none"}:
        assert by_medium[medium]["idle"]["total_bytes"] > by_medium[medium]["buffers_bytes"] == 48 * MEBIBYTE


def test_page_has_markers_for_every_table() -> None:
    """`--publish` must not detect a missing marker only after twenty minutes."""
    names = ("measured on", "goals", "append tail", "synchronous flush", "recovery", "resident memory")
    tables = [figures.Figures(name=name, headings=["x"], rows=[], notes=[]) for name in names]

    assert figures.publish(store.PAGE.read_text(), tables)


@pytest.mark.parametrize(
    "arguments", [("--publish",), ("--publish", "--short"), ("--publish", "--only", "tail")], ids=" ".join
)
def test_parts_and_smoke_tests_are_not_published(quick_store: RunCommand, arguments: tuple[str, ...]) -> None:
    """A page with figures of several runs, or of none, would be misleading."""
    result = quick_store(*arguments)

    assert result.exit_code == 2
    assert "complete run" in result.output


def test_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Filling the disk would harm other programs."""
    plan = recovery.FillPlan(
        store_path=str(tmp_path / "store"), segment_bytes=MEBIBYTE, log_bytes=1 << 60, body_bytes=1024,
        unflushed_bytes_max=MEBIBYTE,
    )  # fmt: skip

    with pytest.raises(errors.BenchmarkFailed, match="are free on the disk"):
        recovery_run.run_recovery(plan)

    assert list(tmp_path.iterdir()) == []


def test_failed_loop_is_the_reported_reason(tmp_path: Path) -> None:
    """A store that does not open gives one line, and leaves no files."""
    small = scale.QUICK
    plan = tail.LoopPlan(
        medium="anonymous", store_path="", pool_path="", messages_per_second=100, messages_per_call=1, body_bytes=10,
        warm_up_seconds=0.1,
        seconds=0.1, flush_interval_ms=10, segment_bytes=small.tail_segment_bytes, buffers_count=1,
    )  # fmt: skip

    with pytest.raises(errors.BenchmarkFailed, match=r"anonymous failed: .*transientStorePoolSize"):
        tail_run.run_loop(plan, folder=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_missing_medium_is_left_out_with_its_reason() -> None:
    """No machine has an exbibyte for a buffer; figures without it are still useful."""
    pages = Path("/proc/sys/vm/nr_hugepages").read_text()

    with media.pool_media(1 << 60) as found:
        assert found.paths == {"anonymous": ""}
        assert set(found.missing) == {"tmpfs", "hugetlbfs"}

    assert Path("/proc/sys/vm/nr_hugepages").read_text() == pages


def test_plans_reach_the_other_process_unchanged() -> None:
    """The measured run has exactly the requested parameters."""
    plan = recovery.RecoverPlan(store_path="/store", segment_bytes=1)

    assert msgspec.json.decode(msgspec.json.encode(plan), type=recovery.RecoverPlan) == plan
