"""The driver's part: one attempt at a batch is committed, or its successor finds that it was.

    no marker         store one; if it is the first, its halves are the batch
    a marker          an earlier attempt was committed: its halves are the batch, ours are rolled back
    then              every half of the batch is committed by a request that is answered; only after that Spark goes on

Whoever dies in between leaves a state in which the next one finds its way:

    [halves] ......... [marker] ............ [ends] ............ Spark's own commit
      nobody lists them:    listed: ended by     ended again, which
      never delivered       whoever comes next   stores nothing
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, final

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.sink import points
from pyspark_rocketmq.sink.deciding import Decisions
from pyspark_rocketmq.sink.ending import Ends
from pyspark_rocketmq.sink.halves import Halves
from pyspark_rocketmq.sink.options import OnForgotten

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What became of a batch."""

    rows: int
    is_replay: bool
    """It was an earlier attempt that was committed."""
    rolled_back: int
    """Halves of ours that were not needed."""
    halves: Halves
    is_suspicious: bool
    """There may be half messages that nobody lists: of an attempt that died."""


@final
class BatchCommit:
    """One attempt at one batch of one query. Belongs to one event loop."""

    def __init__(self, decisions: Decisions, ends: Ends, *, run: str | None = None, is_new_query: bool = False) -> None:
        self.decisions: Final = decisions
        self._ends: Final = ends
        self._run: Final = run
        self._is_new_query: Final = is_new_query

    async def commit(self, halves: Halves, on_forgotten: OnForgotten = OnForgotten.FAIL) -> Committed:
        """Have the batch delivered: these halves, or those that were decided before."""
        if self._is_new_query:
            await self.decisions.begin()
        look = await self.decisions.look()
        is_other_run = bool(look.markers) and look.last_run != self._run
        marker = await self.decisions.decided()
        if marker is None:
            await self.decisions.check_memory(on_forgotten)
            if not halves:
                return Committed(rows=0, is_replay=False, rolled_back=0, halves=halves, is_suspicious=is_other_run)
            points.reach("halves-known")
            marker = await self.decisions.commit(halves)
            points.reach("marker-stored")
        is_replay = marker.attempt != halves.fingerprint
        decided = await self.decisions.halves_of(marker) if is_replay else halves
        await self._ends.commit(decided)
        points.reach("all-ended")
        rolled_back = 0
        if is_replay:
            log.warning(
                "a batch was committed by an earlier attempt", extra={"rows": len(decided), "ours": len(halves)}
            )
            rolled_back = await self._ends.roll_back(halves.without(decided))
        return Committed(
            rows=len(decided), is_replay=is_replay, rolled_back=rolled_back, halves=decided,
            is_suspicious=is_replay or is_other_run,
        )  # fmt: skip

    async def abort(self, halves: Halves, *, is_whole: bool) -> int:
        """Roll back, unless these halves were decided; how many were.

        ``is_whole``: every task has succeeded, so that somebody may have tried to commit, and nobody knows how that
        ended. Then the queue is asked, and told that it shall not be.
        """
        if not halves:
            return 0
        if is_whole:
            try:
                marker = await self.decisions.decided() or await self.decisions.abort(halves)
            except RocketMQSourceError as error:
                log.warning("nobody says whether a batch was decided; its halves stay", extra={"reason": str(error)})
                return 0
            if marker is not None and marker.attempt == halves.fingerprint:
                log.warning("a batch is not rolled back: it was decided", extra={"rows": len(halves)})
                return 0
        return await self._ends.roll_back(halves)
