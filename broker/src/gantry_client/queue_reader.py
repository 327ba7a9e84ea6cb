"""Fetches one queue ahead of whoever consumes it, as far as its backlog has room.

The loop never ends by itself: a broker that is down or refuses is asked again with growing pauses. An offset below the
queue's beginning jumps forward, and what was fetched before is still consumed. An offset beyond its end begins a new
backlog: what lies there now are other messages than those in hand. So does one that an administrator moved: what is in
hand is not wanted any more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from gantry_client.backlog import Backlog, BacklogLimits
from gantry_client.clock import wall_ms
from gantry_client.consume_rates import TopicRates
from gantry_client.errors import ClientError
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
    ) -> None:
        self.queue = request.queue
        self.backlog = Backlog(request.offset)
        self.committed: int | None = None
        """What the offset store holds, as far as we know."""

        self.pulled_at_ms = wall_ms()
        """When the broker was last asked."""

        self._session = session
        self._fetcher = fetcher
        self._request = request
        self._limits = limits
        self._deliver = deliver
        self._rates = rates

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
            except ClientError as error:
                log.warning("a queue cannot be read", extra={"queue": repr(self), "reason": str(error)})
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)
                await self._refresh_route()
            else:
                pause_ms = PAUSE_FIRST_MS
                if backlog is self.backlog:
                    self._take(result)

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

    async def _refresh_route(self) -> None:
        try:
            await self._session.routes.refresh(self.queue.topic)
        except ClientError as error:
            log.info("a route is not refreshed", extra={"topic": self.queue.topic, "reason": str(error)})
