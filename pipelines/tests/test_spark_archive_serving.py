"""A topic that mostly only the archive has: a Java consumer reads it from its first message. Real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gantry_bench import archive_reads_run
from gantry_bench.archive_reads_run import ArchiveReadsScale, measure
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import Timing
from gantry_bench.machine import Cores

SCALE = ArchiveReadsScale(
    messages=12_000, repetitions=1, timing=Timing(warm_up_ms=50, duration_ms=200), segment_bytes=512 << 10
)
NOT_PINNED = Cores(server=None, load=None)

pytestmark = [pytest.mark.verify, pytest.mark.needs_java, pytest.mark.needs_go, pytest.mark.needs_spark]


def test_java_consumer_gets_each_message_once(tmp_path: Path) -> None:
    """Alone, and beside sends, from the broker and from its slave; nothing was deleted before it was archived."""
    report = measure(SCALE, NOT_PINNED, tmp_path, print)

    assert report.archived_share >= 0.95
    assert [(one.has_slave, one.messages) for one in report.readings] == [
        (False, 12_000), (False, 12_000), (True, 12_000), (True, 12_000)
    ]  # fmt: skip
    assert not any(turn.errors for turn in report.turns)


def test_without_the_setting_messages_are_deleted_that_are_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a broker without an archive deletes them at once."""
    make_keys = archive_reads_run.broker_keys

    def without_archive(*arguments: Any) -> dict[str, str]:
        return {**make_keys(*arguments), "archiveSocketPath": ""}

    monkeypatch.setattr(archive_reads_run, "broker_keys", without_archive)

    with pytest.raises(BenchmarkFailed, match="messages were deleted that are not archived"):
        measure(SCALE, NOT_PINNED, tmp_path, print)
