"""What a running broker and its sidecar say after each edit: the pod that is rendered, as processes of this machine.

Rows are edited together where they do not hide each other. What a running broker takes must be said by the same
process; for the others the pod is made anew, on the same volume.
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

HERE = frozenset({Source.CONFIG, Source.STATUS, Source.TABLES, Source.ARGUMENTS, Source.DOOR})
"""Whose reports there are without a cluster."""

NEEDS_PAGES = {"writeBuffer.medium: huge pages"}
"""Where the volume is not one that any machine has."""

LIVE_S = 180.0
"""Within that a running broker has looked at its files; some seconds is the promise, on a machine with nothing else."""

MEMORY = Path("/dev/shm")

Said = dict[str, dict[str, str]]
"""Values by row and by what shows them."""


def rows(*effects: Effect) -> list[Row]:
    """Those that show something here."""
    found = [row for row in ROWS if row.effect in effects and str(row) not in NEEDS_PAGES]
    return [row for row in found if shown_here(row)]


def shown_here(row: Row) -> list[Shown]:
    """What of a row is seen here."""
    return [shown for shown in row.shown if shown.source in HERE]


def name(batch: Batch) -> str:
    """Of a test."""
    return batch.name


TAKEN = batches(rows(Effect.HOT, Effect.OBJECTS))
ROLLED = batches(rows(Effect.ROLL))


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[LocalPod]:
    """One that is gone after the test, also from memory."""
    buffers = Path(tempfile.mkdtemp(prefix="gantry-buffers-", dir=MEMORY))
    try:
        with LocalPod(tmp_path, buffers) as made:
            yield made
    finally:
        shutil.rmtree(buffers)


def wanted(batch: Batch, *, is_after: bool) -> Said:
    """What the rows promise."""
    return {
        str(row): {f"{one.source} {one.key}": one.after if is_after else one.before for one in shown_here(row)}
        for row in batch.rows
    }


async def said(pod: LocalPod, batch: Batch) -> Said:
    """What is said now."""
    reports: dict[Source, Any] = {
        Source.CONFIG: await pod.config(),
        Source.STATUS: await asyncio.to_thread(pod.status),
        Source.TABLES: await pod.tables(),
        Source.ARGUMENTS: pod.arguments(),
        Source.DOOR: await pod.door(),
    }
    return {
        str(row): {f"{one.source} {one.key}": found(reports[one.source], one) for one in shown_here(row)}
        for row in batch.rows
    }


def found(report: Any, shown: Shown) -> str:
    """Keys of settings and options are no paths."""
    if shown.source in (Source.CONFIG, Source.ARGUMENTS):
        return str(report.get(shown.key, "absent"))
    return value_in(report, shown.key)


async def said_in_time(pod: LocalPod, batch: Batch, *, is_after: bool) -> Said:
    """What is said once it is what is wanted, or when the time for that is over."""
    deadline = time.monotonic() + LIVE_S
    while True:
        now = await said(pod, batch)
        if now == wanted(batch, is_after=is_after) or time.monotonic() > deadline:
            return now
        await asyncio.sleep(0.2)


def test_every_row_that_shows_something_here_is_in_one_batch() -> None:
    """None is left out, whatever hides what."""
    tried = [row for batch in (*TAKEN, *ROLLED) for row in batch.rows]

    assert sorted(map(str, tried)) == sorted(map(str, rows(Effect.HOT, Effect.ROLL, Effect.OBJECTS)))
    assert len(tried) >= 23


@pytest.mark.verify
@pytest.mark.parametrize(
    "batch", [TAKEN[0], *(pytest.param(one, marks=pytest.mark.slow) for one in TAKEN[1:])], ids=name
)
async def test_a_running_broker_takes_it(pod: LocalPod, batch: Batch) -> None:
    """The file under it changes, and the same process says so."""
    await asyncio.to_thread(pod.edit, batch.before)
    assert await said_in_time(pod, batch, is_after=False) == wanted(batch, is_after=False)

    await asyncio.to_thread(pod.edit, batch.after)

    assert await said_in_time(pod, batch, is_after=True) == wanted(batch, is_after=True)
    assert pod.starts == 1


@pytest.mark.verify
@pytest.mark.parametrize(
    "batch", [ROLLED[0], *(pytest.param(one, marks=pytest.mark.slow) for one in ROLLED[1:])], ids=name
)
async def test_a_new_pod_has_it(pod: LocalPod, batch: Batch) -> None:
    """With what was on the old one's volume; the old pod, in a group that is edited already, says what it said."""
    await asyncio.to_thread(pod.edit, batch.before)
    assert await said_in_time(pod, batch, is_after=False) == wanted(batch, is_after=False)

    pod.is_rolling = False
    await asyncio.to_thread(pod.edit, batch.after)
    assert await said(pod, batch) == wanted(batch, is_after=False)
    pod.is_rolling = True
    await asyncio.to_thread(pod.edit, batch.after)

    assert await said_in_time(pod, batch, is_after=True) == wanted(batch, is_after=True)
    assert pod.starts == 2
