"""Fetches one queue ahead of whoever consumes it, as far as its backlog has room.

The loop never ends by itself: a broker that is down or refuses is asked again with growing pauses. An offset below the
queue's beginning jumps forward, and what was fetched before is still consumed. An offset beyond its end begins a new
backlog: what lies there now are other messages than those in hand. So does one that an administrator moved: what is in
hand is not wanted any more.

A message that is damaged on every replica is asked for so many times, with the same pauses, in which a broker may heal
it. Then it is reported and stepped over, or, where the settings say so, waited for.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from gantry_client.backlog import Backlog, BacklogLimits
from gantry_client.clock import wall_ms
from gantry_client.consume_rates import TopicRates
from gantry_client.errors import ClientError, DamagedMessage
from gantry_client.fetching import Fetcher, FetchRequest, FetchResult, FetchStatus
from gantry_client.messages import ReceivedMessage
from gantry_client.session import Session
from gantry_wire.commands.clients import MessageQueue

log = logging.getLogger(__name__)

Deliver = Callable[[MessageQueue, Backlog, Sequence[ReceivedMessage]], None]
"""Takes messages that were fetched, in order, with the backlog that they are part of."""

PAUSE_FIRST_MS: Final = 100
PAUSE_MAX_MS: Final = 5000
EMPTY_ANSWER_MS: Final = 50
"""A broker that does not hold pulls answers at once that there is nothing; it is not asked more often than this."""


@final
class QueueReader:
    """The reading end of one assigned queue. Belongs to one event loop."""

    def __init__(
        self,
        session: Session,
        fetcher: Fetcher,
        request: FetchRequest,
        *,
        limits: BacklogLimits,
        deliver: Deliver,
        rates: TopicRates,
        damaged_attempts_max: int | None,
        committed: int | None,
    ) -> None:
        """``damaged_attempts_max`` None waits for a damaged message for as long as it is damaged.

        ``committed`` is what the offset store holds, None if nothing.
        """
        self.queue = request.queue
        self.backlog = Backlog(request.offset)
        self.committed = committed
        """What the offset store holds, as far as we know."""

        self.pulled_at_ms = wall_ms()
        """When the broker was last asked."""

        self._session = session
        self._fetcher = fetcher
        self._request = request
        self._limits = limits
        self._deliver = deliver
        self._rates = rates
        self._damaged_attempts_max = damaged_attempts_max
        self._damaged: tuple[int, int] = (-1, 0)
        """The offset of a damaged message, and how often it was asked for."""

    def __repr__(self) -> str:
        return f"<QueueReader {self.queue.broker_name}/{self.queue.topic}/{self.queue.queue_id} {self.backlog!r}>"

    async def run(self) -> None:
        """Fetch until cancelled."""
        pause_ms = PAUSE_FIRST_MS
        while True:
            backlog = self.backlog
            await backlog.wait_for_room(self._limits)
            if backlog is not self.backlog:
                continue
            try:
                result = await self._fetch(backlog)
            except DamagedMessage as error:
                if backlog is not self.backlog or self._is_stepped_over(error):
                    continue
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)
            except ClientError as error:
                log.warning("a queue cannot be read", extra={"queue": repr(self), "reason": str(error)})
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)
                await self._refresh_route()
            else:
                pause_ms = PAUSE_FIRST_MS
                if backlog is self.backlog:
                    self._take(result)

    def record_commit(self, backlog: Backlog, offset: int) -> None:
        """Note that the offset store took ``offset`` of ``backlog``; a reader that was moved has to commit again."""
        if backlog is self.backlog:
            self.committed = offset

    def seek(self, offset: int) -> None:
        """Go on at `offset`; what is in hand is dropped, and whatever the offset store holds is to be written again."""
        self.committed = None
        self.backlog.drop()
        self.backlog = Backlog(offset)

    async def _fetch(self, backlog: Backlog) -> FetchResult:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        self.pulled_at_ms = wall_ms()
        result = await self._fetcher.fetch(replace(self._request, offset=backlog.next_offset))
        if result.messages:
            self._rates.pulled(len(result.messages), (loop.time() - began_at) * 1000)
        if result.status is FetchStatus.NO_NEW and loop.time() - began_at < EMPTY_ANSWER_MS / 1000:
            await asyncio.sleep(EMPTY_ANSWER_MS / 1000)
        return result

    def _take(self, result: FetchResult) -> None:
        if result.status is FetchStatus.OFFSET_MOVED:
            log.warning("an offset moved", extra={"queue": repr(self), "offset": result.next_offset})
            if result.is_reset or result.next_offset < self.backlog.next_offset:
                self.seek(result.next_offset)
                return
        self.backlog.add(result.messages, result.next_offset)
        if result.messages:
            self._deliver(self.queue, self.backlog, result.messages)

    def _is_stepped_over(self, error: DamagedMessage) -> bool:
        """Whether reading goes on behind the damaged message: it was asked for often enough."""
        offset = error.queue_offset
        attempts = self._damaged[1] + 1 if self._damaged[0] == offset else 1
        self._damaged = (offset, attempts)
        facts = {"queue": repr(self), "offset": offset, "message_id": error.message_id, "reason": str(error)}
        if self._damaged_attempts_max is None or attempts < self._damaged_attempts_max:
            if attempts == 1:
                log.error("message is damaged on every replica; asking again", extra=facts)
            return False
        log.error("stepped over damaged message; it is not consumed", extra={**facts, "attempts": attempts})
        self._rates.stepped_over()
        self.backlog.add((), offset + 1)
        return True

    async def _refresh_route(self) -> None:
        try:
            await self._session.routes.refresh(self.queue.topic)
        except ClientError as error:
            log.info("a route is not refreshed", extra={"topic": self.queue.topic, "reason": str(error)})
