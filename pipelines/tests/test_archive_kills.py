"""Kills between any two steps of the archive, without Spark. At any time a listing of the folder shows each message at
most once, and none that is not in the manifest; after the next start it shows every message once."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from spark_kit.listings import READERS, RowCounts
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import ToyRun, days_later_ms, lose_checkpoint

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.layout import is_data
from gantry_pipelines.archive.manifest import RangeKind
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.verification import verify
from pyspark_rocketmq.model import QueueId

QUEUES = [QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1), QueueId("%RETRY%bills", "broker-b", 0)]
LOG = ToyLog({QUEUES[0]: 250, QUEUES[1]: 120, QUEUES[2]: 30}, step_us=HOUR_US // 20)
SHORTER = ToyLog({**LOG.ends, QUEUES[0]: 230}, step_us=LOG.step_us)
LATER_MS = days_later_ms("2026-11-23", 3)
QUICK_POINTS = [crash_points.AFTER_DATA, crash_points.AFTER_RECORD, crash_points.MID_BATCH]
SLOW_POINTS = [
    pytest.param(one, marks=pytest.mark.slow)
    for one in (crash_points.MID_DATA, crash_points.BEFORE_RECORD, crash_points.AFTER_BATCH)
]
"""Crash points that `test_archive_slice` covers as well, or that are similar to others."""


def all_rows(log: ToyLog) -> RowCounts:
    """Return every row of the log, once."""
    return Counter(
        (queue.topic, queue.broker, queue.number, offset, log.row(queue, offset)["body"])
        for queue, end in log.ends.items()
        for offset in range(end)
    )


def faults(root: Path, wanted: RowCounts | None = None) -> list[str]:
    """Return the faults that readers see in a listing of the folder; with `wanted`, also missing rows."""
    found = [f"{one}: {fault}" for one, read in READERS.items() for fault in row_faults(read(root), wanted)]
    listed = {path for path in Folder(str(root)).paths() if is_data(path)}
    known = {file.place.path for record in read_manifest(Folder(str(root))).records.values() for file in record.files}
    return found + [f"{path} is not in the manifest" for path in sorted(listed - known)]


def row_faults(seen: RowCounts, wanted: RowCounts | None) -> list[str]:
    """Describe duplicate, unknown and, with `wanted`, missing rows."""
    strange = [row[:4] for row in seen if row not in all_rows(LOG)]
    doubled = [row[:4] for row, count in seen.items() if count > 1]
    missing = [] if wanted is None else [row[:4] for row in wanted if row not in seen]
    named = {"strange": strange, "doubled": doubled, "missing": missing}
    return [f"{len(rows)} {word}, {rows[0]}" for word, rows in named.items() if rows]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("point", [*QUICK_POINTS, *SLOW_POINTS])
def test_kill_at_any_step_of_a_batch_neither_loses_nor_duplicates_messages(tmp_path: Path, point: str) -> None:
    """The process is killed when it hits the crash point for the second time; the next start has other limits."""
    root = tmp_path / "archive"

    killed = ToyRun(str(root), LOG, rows_max=150, crash_at=(point, 2)).run_process()
    after_kill = faults(root)
    ended = ToyRun(str(root), LOG, rows_max=1000).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert after_kill == []
    assert faults(root, all_rows(LOG)) == []
    assert not list(root.glob("_staged/*"))
    assert verify(Folder(str(root)), is_deep=True).findings == ()


@pytest.mark.verify
@pytest.mark.parametrize(
    "point", [pytest.param(crash_points.AFTER_DATA, marks=pytest.mark.slow), crash_points.AFTER_RECORD]
)
def test_a_lost_checkpoint_is_recovered_from_the_manifest(tmp_path: Path, point: str) -> None:
    """A run without checkpoint begins where the manifest ends, after a kill, and with other limits."""
    root = tmp_path / "archive"

    killed = ToyRun(str(root), LOG, rows_max=150, crash_at=(point, 3)).run_process()
    lose_checkpoint(root)
    ended = ToyRun(str(root), LOG, rows_max=70).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert faults(root, all_rows(LOG)) == []


@pytest.mark.verify
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(crash_points.MID_MERGE, marks=pytest.mark.slow),
        crash_points.AFTER_MERGE,
        crash_points.AFTER_EXCHANGE,
    ],
)
def test_kill_at_any_step_of_a_compaction_neither_loses_nor_duplicates_messages(tmp_path: Path, point: str) -> None:
    """Readers see either the old or the new files of a day; after the next start they see the new ones."""
    root = tmp_path / "archive"

    killed = ToyRun(str(root), LOG, is_compacting=True, now_ms=LATER_MS, crash_at=(point, 1)).run_process()
    after_kill = faults(root, all_rows(LOG))
    ended = ToyRun(str(root), LOG, is_compacting=True, now_ms=LATER_MS).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert after_kill == [] == faults(root, all_rows(LOG))
    names = [path for path in Folder(str(root)).paths() if is_data(path)]
    assert len(names) == 4, "expected a file for each day of a queue: two of the first, one of each other queue"
    assert verify(Folder(str(root)), is_deep=True).findings == ()
    assert not list(root.glob("_staged/*"))


@pytest.mark.verify
def test_kill_during_expiry_leaves_no_files_behind(tmp_path: Path) -> None:
    """Expired days are removed from manifest and folder, and the ranges still tile, so nothing is archived again."""
    root = tmp_path / "archive"
    now_ms = days_later_ms("2026-11-22", 3)

    killed = ToyRun(str(root), LOG, expire_days=3, now_ms=now_ms, crash_at=(crash_points.MID_EXPIRY, 1)).run_process()
    lose_checkpoint(root)
    ended = ToyRun(str(root), LOG, expire_days=3, now_ms=now_ms).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    manifest = read_manifest(Folder(str(root)))
    assert manifest.faults() == [] and manifest.ends() == LOG.ends
    assert {file.place.day for file in manifest.data()} == {"2026-11-23"}
    assert {file.kind for file in manifest.files()} == {RangeKind.DATA, RangeKind.EXPIRED}
    assert faults(root) == [] and not list(root.glob("data/topic=*/day=2026-11-22/*"))


@pytest.mark.verify
@pytest.mark.parametrize(
    ("guard", "runs"),
    [
        ("staging", [ToyRun("", SHORTER, None, (crash_points.BEFORE_RECORD, 1)), ToyRun("", LOG)]),
        ("publishing", [ToyRun("", LOG, 150, (crash_points.AFTER_RECORD, 2)), ToyRun("", LOG, 150)]),
        ("exchange", [ToyRun("", LOG, None, (crash_points.AFTER_MERGE, 2), is_compacting=True, now_ms=LATER_MS)]),
    ],
    ids=["staging", "publishing", "exchange"],
)
def test_without_a_guard_the_listings_show_damage(tmp_path: Path, guard: str, runs: list[ToyRun]) -> None:
    """The twin: with one guard removed, the same kills cause faults that the same listings find."""
    root = tmp_path / "archive"
    codes = []
    for toy_run in runs:
        codes.append(
            ToyRun(
                str(root),
                toy_run.log,
                toy_run.rows_max,
                toy_run.crash_at,
                guard,
                toy_run.is_compacting,
                None,
                toy_run.now_ms,
            ).run_process()
        )
        if guard == "staging":
            lose_checkpoint(root)

    assert codes[0] == -signal.SIGKILL
    assert faults(root, all_rows(LOG)) != []
