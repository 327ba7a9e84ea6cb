"""The settings of a running broker and its sidecar after each edit: the rendered pod, as processes of this machine.

The edits are the rows of `edit_world.table`; rows are edited together where they do not hide each other. A live setting
must be reported by the same process; for the others the pod is recreated, on the same volume.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edit_world.batches import Batch, batches
from edit_world.local_pods import LocalPod
from edit_world.reports import value_in
from edit_world.row import Effect, Row, Shown, Source
from edit_world.table import ROWS

LOCAL_SOURCES = frozenset({Source.CONFIG, Source.STATUS, Source.TABLES, Source.ARGUMENTS, Source.CLIENT_ACCESS})
"""The sources of reports that exist without a cluster."""

NEEDS_PAGES = {"writeBuffer.medium: huge pages"}
"""The edits with a storage medium that this machine may not have."""

LIVE_S = 180.0
"""The time within which a running broker reloads its files: some seconds on an idle machine, more on a busy one."""

MEMORY = Path("/dev/shm")
"""The file system in memory for write buffers."""

Reported = dict[str, dict[str, str]]
"""Values by row and by the source that reports them."""


def rows(*effects: Effect) -> list[Row]:
    """Return the rows with at least one report here."""
    found = [row for row in ROWS if row.effect in effects and str(row) not in NEEDS_PAGES]
    return [row for row in found if values_shown_here(row)]


def values_shown_here(row: Row) -> list[Shown]:
    """Return the expected values of a row that are reported without a cluster."""
    return [shown for shown in row.shown if shown.source in LOCAL_SOURCES]


def name(batch: Batch) -> str:
    """Return the name of a test."""
    return batch.name


LIVE_BATCHES = batches(rows(Effect.HOT, Effect.OBJECTS))
ROLLED_BATCHES = batches(rows(Effect.ROLL))


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[LocalPod]:
    """Return a pod that is stopped after the test, and whose buffers in memory are deleted then."""
    buffers = Path(tempfile.mkdtemp(prefix="gantry-buffers-", dir=MEMORY))
    try:
        with LocalPod(tmp_path, buffers) as made:
            yield made
    finally:
        shutil.rmtree(buffers)


def wanted(batch: Batch, *, is_after: bool) -> Reported:
    """Return the values that the rows expect before or after the edit, by row and source."""
    return {
        str(row): {f"{one.source} {one.key}": one.after if is_after else one.before for one in values_shown_here(row)}
        for row in batch.rows
    }


async def reported(pod: LocalPod, batch: Batch) -> Reported:
    """Return the values that are reported now."""
    reports: dict[Source, Any] = {
        Source.CONFIG: await pod.config(),
        Source.STATUS: await asyncio.to_thread(pod.status),
        Source.TABLES: await pod.tables(),
        Source.ARGUMENTS: pod.arguments(),
        Source.CLIENT_ACCESS: await pod.plain_access(),
    }
    return {
        str(row): {f"{one.source} {one.key}": found(reports[one.source], one) for one in values_shown_here(row)}
        for row in batch.rows
    }


def found(report: Any, shown: Shown) -> str:
    """Return a value of settings or options, whose keys are not paths."""
    if shown.source in (Source.CONFIG, Source.ARGUMENTS):
        return str(report.get(shown.key, "absent"))
    return value_in(report, shown.key)


async def reported_in_time(pod: LocalPod, batch: Batch, *, is_after: bool) -> Reported:
    """Return the reported values once they are the expected ones, or when the time is over."""
    deadline = time.monotonic() + LIVE_S
    while True:
        now = await reported(pod, batch)
        if now == wanted(batch, is_after=is_after) or time.monotonic() > deadline:
            return now
        await asyncio.sleep(0.2)


def test_every_row_with_a_report_is_in_one_batch() -> None:
    """No row is left out because it hides another."""
    tried = [row for batch in (*LIVE_BATCHES, *ROLLED_BATCHES) for row in batch.rows]

    assert sorted(map(str, tried)) == sorted(map(str, rows(Effect.HOT, Effect.ROLL, Effect.OBJECTS)))
    assert len(tried) >= 23


@pytest.mark.verify
@pytest.mark.parametrize(
    "batch", [LIVE_BATCHES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in LIVE_BATCHES[1:])], ids=name
)
async def test_running_broker_applies_the_edit(pod: LocalPod, batch: Batch) -> None:
    """Its file changes, and the same process reports the new value."""
    await asyncio.to_thread(pod.edit, batch.before)
    assert await reported_in_time(pod, batch, is_after=False) == wanted(batch, is_after=False)

    await asyncio.to_thread(pod.edit, batch.after)

    assert await reported_in_time(pod, batch, is_after=True) == wanted(batch, is_after=True)
    assert pod.starts == 1


@pytest.mark.verify
@pytest.mark.parametrize(
    "batch", [ROLLED_BATCHES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in ROLLED_BATCHES[1:])], ids=name
)
async def test_new_pod_applies_the_edit(pod: LocalPod, batch: Batch) -> None:
    """It uses the old pod's volume; the old pod of an edited group still reports the old values."""
    await asyncio.to_thread(pod.edit, batch.before)
    assert await reported_in_time(pod, batch, is_after=False) == wanted(batch, is_after=False)

    pod.is_rolling = False
    await asyncio.to_thread(pod.edit, batch.after)
    assert await reported(pod, batch) == wanted(batch, is_after=False)
    pod.is_rolling = True
    await asyncio.to_thread(pod.edit, batch.after)

    assert await reported_in_time(pod, batch, is_after=True) == wanted(batch, is_after=True)
    assert pod.starts == 2
