"""What a worker does with a task: open a replica, unpack its pieces, and go to the next replica if it fails.

The rows depend on the task alone: whoever reads it, from whichever replica, in however many attempts, gets the same
rows in the same order. So an attempt that broke off goes on where its last whole piece ended, on another replica, and
nobody downstream sees it. Nothing is ever left out in silence: a task ends with all its rows, or with an error that
says which messages it could not have, and from whom.

    replica 1 |###########x                    broken off, damaged, behind, or gone
    replica 2             |#######x            from there on
    replica 1                     |#########>  as long as `patience_ms` is not over without a step forward
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
from pyspark_rocketmq.replica_view import Gone, View, ViewError
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.views import Opener, attempts
from pyspark_rocketmq.worker import prepare_worker

_FINAL: Final = (Gone, DamagedRecord, Refused)
"""What another look at the same replica would not change."""


def read_task(task: Task, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in its order. Raises NoReplica, DataLost, DamagedRecord, or Refused."""
    prepare_worker()
    with closing(Opener(settings)) as opener:
        yield from _Reading(task, settings, opener).batches()


@final
class _Reading:
    """One task on its way through its replicas."""

    def __init__(self, task: Task, settings: ReadSettings, opener: Opener) -> None:
        self._task = task
        self._rest = task
        self._settings = settings
        self._opener = opener
        self._replicas: tuple[Replica, ...] = task.replicas
        self._last_step = time.monotonic()
        self._has_stepped = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        while not is_done(self._rest):
            faults: list[ViewError | RocketMQSourceError] = []
            self._has_stepped = False
            for replica, kind in attempts(
                self._replicas, self._task.transport, is_physical=self._task.physical is not None
            ):
                try:
                    view = self._opener.open(replica, kind)
                    try:
                        yield from self._from(view)
                    finally:
                        view.close()
                except (ViewError, DamagedRecord, Refused) as error:
                    faults.append(error)
                if is_done(self._rest):
                    return
            if not self._has_stepped:
                self._give_up_or_wait(faults)

    def _from(self, view: View) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        is_verified = settings.is_body_verified or view.is_doubtful
        for piece in view.pieces(self._rest):
            yield from decode(piece, self._rest, batch_rows=settings.batch_rows, is_body_verified=is_verified)
            self._rest = piece.rest
            self._last_step = time.monotonic()
            self._has_stepped = True

    def _give_up_or_wait(self, faults: list[ViewError | RocketMQSourceError]) -> None:
        is_hopeless = bool(faults) and all(isinstance(fault, _FINAL) for fault in faults)
        if is_hopeless or (time.monotonic() - self._last_step) * 1000 >= self._settings.patience_ms:
            raise _verdict(self._rest, faults, self._settings.patience_ms)
        time.sleep(PAUSE_S)
        self._replicas = self._opener.replicas(self._task) or self._replicas


def is_done(rest: Task) -> bool:
    """Whether nothing of a task is left."""
    if rest.physical is not None and rest.physical[0] >= rest.physical[1]:
        return True
    return all(one.begin >= one.end for one in rest.ranges)


def _verdict(rest: Task, faults: list[ViewError | RocketMQSourceError], patience_ms: int) -> RocketMQSourceError:
    """The one error that says what somebody has to do."""
    left = ", ".join(str(one) for one in rest.ranges if one.begin < one.end)
    said = "; ".join(str(fault) for fault in faults) or "there is no replica to ask"
    for fault in faults:
        if isinstance(fault, DamagedRecord):
            return DamagedRecord(f"no replica has a good copy: {said}")
    if faults and all(isinstance(fault, Gone) for fault in faults):
        return DataLost(f"{left} can be read from no replica any more: {said}")
    for fault in faults:
        if isinstance(fault, Refused):
            return fault
    return NoReplica(f"no replica of {rest.broker} gave {left} within {patience_ms} ms: {said}")
