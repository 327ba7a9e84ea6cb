"""The driver's part of a transactional write: commit one attempt at a batch, or find that an earlier one was committed.

    no marker         store one; if it is the first, its half messages are the batch
    a marker          an earlier attempt was committed: its half messages are the batch, the new ones are rolled back
    then              every half message of the batch is committed by a request that is answered; only then Spark
                      commits the batch

A driver that dies in between leaves a state from which its successor can continue:

    [half messages] ......... [marker] ................. [ends] ............ Spark's own commit
      in no marker:             in the marker: ended       ended again, which
      never delivered           by the successor           stores nothing
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, final

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.sink import crash_points
from pyspark_rocketmq.sink.batch_decider import BatchDecider
from pyspark_rocketmq.sink.half_message_list import HalfMessageList
from pyspark_rocketmq.sink.options import OnForgotten
from pyspark_rocketmq.sink.transaction_ender import TransactionEnder

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The outcome of a commit."""

    rows: int
    """The number of messages of the batch."""
    is_replay: bool
    """Whether an earlier attempt was committed instead of this one."""
    rolled_back: int
    """The number of half messages of this attempt that were rolled back."""
    halves: HalfMessageList
    """The half messages that were committed."""
    may_have_orphans: bool
    """Whether an attempt that died may have left half messages that no marker lists."""


@final
class BatchCommit:
    """One attempt at one batch of one query. Belongs to one event loop."""

    def __init__(
        self, decider: BatchDecider, ender: TransactionEnder, *, run: str | None = None, is_new_query: bool = False
    ) -> None:
        self.decider: Final = decider
        self._ender: Final = ender
        self._run: Final = run
        self._is_new_query: Final = is_new_query

    async def commit(self, halves: HalfMessageList, on_forgotten: OnForgotten = OnForgotten.FAIL) -> CommitResult:
        """Deliver the batch: these half messages, or those that an earlier attempt has decided."""
        if self._is_new_query:
            await self.decider.skip_scan()
        scan = await self.decider.scan()
        is_other_run = bool(scan.markers) and scan.last_run != self._run
        marker = await self.decider.find_decision()
        if marker is None:
            await self.decider.require_retained_markers(on_forgotten)
            if not halves:
                return CommitResult(
                    rows=0, is_replay=False, rolled_back=0, halves=halves, may_have_orphans=is_other_run
                )
            crash_points.hit("halves-known")
            marker = await self.decider.commit(halves)
            crash_points.hit("marker-stored")
        is_replay = marker.attempt != halves.fingerprint
        decided = await self.decider.halves_of(marker) if is_replay else halves
        await self._ender.commit(decided)
        crash_points.hit("all-ended")
        rolled_back = 0
        if is_replay:
            log.warning(
                "batch was committed by an earlier attempt; rolling back this one",
                extra={"rows": len(decided), "ours": len(halves)},
            )
            rolled_back = await self._ender.roll_back(halves.without(decided))
        return CommitResult(
            rows=len(decided), is_replay=is_replay, rolled_back=rolled_back, halves=decided,
            may_have_orphans=is_replay or is_other_run,
        )  # fmt: skip

    async def abort(self, halves: HalfMessageList, *, is_full_batch: bool) -> int:
        """Roll back these half messages unless they were decided, and return how many.

        ``is_full_batch``: every task has succeeded, so a commit may have been attempted with unknown outcome. Then the
        queue is read, and an abort marker is stored unless the batch is decided. If that fails, none is rolled back.
        """
        if not halves:
            return 0
        if is_full_batch:
            try:
                marker = await self.decider.find_decision() or await self.decider.abort(halves)
            except RocketMQSourceError as error:
                log.warning("failed to decide batch; half messages stay open", extra={"reason": str(error)})
                return 0
            if marker is not None and marker.attempt == halves.fingerprint:
                log.warning("batch was decided; not rolled back", extra={"rows": len(halves)})
                return 0
        return await self._ender.roll_back(halves)
