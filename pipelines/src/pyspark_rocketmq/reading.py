"""Read a task in a worker: open a replica, decode its pieces, and continue with the next replica if it fails.

An open replica is a *view*: one replica, read by one transport (`replica_view`).

The rows depend on the task alone: every worker gets the same rows in the same order, from any replica, in any number
of attempts. So an attempt that was interrupted is continued where its last whole piece ended, on another replica, and
nothing downstream notices. No row is ever left out silently: a task ends with all its rows, or with an error.

    replica 1 |###########x                    interrupted, damaged, behind, or deleted
    replica 2             |#######x            continued from there
    replica 1                     |#########>  until `patience_ms` pass without progress
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final, final

import pyarrow as pa

from pyspark_rocketmq.brokers import PAUSE_S
from pyspark_rocketmq.decode import decode
from pyspark_rocketmq.errors import DamagedRecord, DataLost, NoReplica, Refused, RocketMQSourceError
from pyspark_rocketmq.model import Replica, Task
from pyspark_rocketmq.replica_reader import Opener, list_attempts
from pyspark_rocketmq.replica_view import RangeDeleted, View, ViewError
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.worker import prepare_worker

_FINAL: Final = (RangeDeleted, DamagedRecord, Refused)
"""Errors of a replica that another attempt would not change."""


def read_task(task: Task, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in its order. Raises NoReplica, DataLost, DamagedRecord, or Refused."""
    prepare_worker()
    with closing(Opener(settings)) as opener:
        yield from _TaskReader(task, settings, opener).batches()


@final
class _TaskReader:
    """The progress of one task through its replicas."""

    def __init__(self, task: Task, settings: ReadSettings, opener: Opener) -> None:
        self._task = task
        self._rest = task
        self._settings = settings
        self._opener = opener
        self._replicas: tuple[Replica, ...] = task.replicas
        self._last_progress_s = time.monotonic()
        self._has_progressed = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        while not is_done(self._rest):
            errors_found: list[ViewError | RocketMQSourceError] = []
            self._has_progressed = False
            for replica, kind in list_attempts(
                self._replicas, self._task.transport, is_physical=self._task.physical is not None
            ):
                try:
                    view = self._opener.open(replica, kind)
                    try:
                        yield from self._read_view(view)
                    finally:
                        view.close()
                except (ViewError, DamagedRecord, Refused) as error:
                    errors_found.append(error)
                if is_done(self._rest):
                    return
            if not self._has_progressed:
                self._give_up_or_wait(errors_found)

    def _read_view(self, view: View) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        is_verified = settings.is_body_verified or view.needs_body_check
        for piece in view.pieces(self._rest):
            yield from decode(piece, self._rest, batch_rows=settings.batch_rows, is_body_verified=is_verified)
            self._rest = piece.rest
            self._last_progress_s = time.monotonic()
            self._has_progressed = True

    def _give_up_or_wait(self, errors_found: list[ViewError | RocketMQSourceError]) -> None:
        is_final = bool(errors_found) and all(isinstance(error, _FINAL) for error in errors_found)
        if is_final or (time.monotonic() - self._last_progress_s) * 1000 >= self._settings.patience_ms:
            raise _final_error(self._rest, errors_found, self._settings.patience_ms)
        time.sleep(PAUSE_S)
        self._replicas = self._opener.replicas(self._task) or self._replicas


def is_done(rest: Task) -> bool:
    """Return whether nothing of a task is left."""
    if rest.physical is not None and rest.physical[0] >= rest.physical[1]:
        return True
    return all(one.begin >= one.end for one in rest.ranges)


def _final_error(
    rest: Task, errors_found: list[ViewError | RocketMQSourceError], patience_ms: int
) -> RocketMQSourceError:
    """Return the one error that says what the user has to do."""
    left = ", ".join(str(one) for one in rest.ranges if one.begin < one.end)
    reasons = "; ".join(str(error) for error in errors_found) or "no replica found"
    for error in errors_found:
        if isinstance(error, DamagedRecord):
            return DamagedRecord(f"no good copy of the record could be read: {reasons}")
    if errors_found and all(isinstance(error, RangeDeleted) for error in errors_found):
        return DataLost(f"{left} were deleted on all replicas: {reasons}")
    for error in errors_found:
        if isinstance(error, Refused):
            return error
    return NoReplica(f"timed out: no replica of {rest.broker} returned {left} within {patience_ms} ms: {reasons}")
