"""Fetches one queue ahead of its consumer, as far as the backlog has room.

The loop never ends by itself: failed fetches are repeated with growing pauses. An offset below the first offset of the
queue moves forward, and messages that were fetched before are still consumed. An offset beyond the end starts a new
backlog, because the queue now holds other messages than those that were fetched. An offset that an administrator reset
starts a new backlog, too.

A message that is damaged on every replica is fetched `damaged_attempts_max` times, with the same pauses, in which a
broker may heal it. Then it is logged and skipped. Without a limit of attempts the reader waits until it is healed.
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
"""Accepts fetched messages, in order, with the backlog that contains them."""

PAUSE_FIRST_MS: Final = 100
"""The pause after the first failed fetch; it doubles up to ``PAUSE_MAX_MS``."""
PAUSE_MAX_MS: Final = 5000
EMPTY_ANSWER_MS: Final = 50
"""The minimum interval between pulls from a broker that does not hold pulls but replies at once without messages."""


@final
class QueueReader:
    """Reads one assigned queue. Belongs to one event loop."""

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
        """Create a reader that starts at the offset of ``request``.

        With ``damaged_attempts_max`` None it waits for a damaged message until it is healed. ``committed`` is the
        offset in the offset store, None without one.
        """
        self.queue = request.queue
        self.backlog = Backlog(request.offset)
        self.committed = committed
        """The offset in the offset store, as far as it is known."""

        self.pulled_at_ms = wall_ms()
        """The wall time of the last pull."""

        self._session = session
        self._fetcher = fetcher
        self._request = request
        self._limits = limits
        self._deliver = deliver
        self._rates = rates
        self._damaged_attempts_max = damaged_attempts_max
        self._damaged: tuple[int, int] = (-1, 0)
        """The offset of a damaged message, and how often it was fetched."""

    def __repr__(self) -> str:
        return f"<QueueReader {self.queue.broker_name}/{self.queue.topic}/{self.queue.queue_id} {self.backlog!r}>"

    async def run(self) -> None:
        """Fetch messages in a loop until cancelled."""
        pause_ms = PAUSE_FIRST_MS
        while True:
            backlog = self.backlog
            await backlog.wait_for_room(self._limits)
            if backlog is not self.backlog:
                continue
            try:
                result = await self._fetch(backlog)
            except DamagedMessage as error:
                if backlog is not self.backlog or self._skip_if_exhausted(error):
                    continue
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)
            except ClientError as error:
                log.warning("failed to fetch from queue; retrying", extra={"queue": repr(self), "reason": str(error)})
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)
                await self._refresh_route()
            else:
                pause_ms = PAUSE_FIRST_MS
                if backlog is self.backlog:
                    self._take(result)

    def record_commit(self, backlog: Backlog, offset: int) -> None:
        """Record that ``offset`` of ``backlog`` is committed; a reader that was reset has to commit again."""
        if backlog is self.backlog:
            self.committed = offset

    def seek(self, offset: int) -> None:
        """Continue at `offset`: the backlog is dropped, and the offset is committed again."""
        self.committed = None
        self.backlog.drop()
        self.backlog = Backlog(offset)

    async def _fetch(self, backlog: Backlog) -> FetchResult:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        self.pulled_at_ms = wall_ms()
        result = await self._fetcher.fetch(replace(self._request, offset=backlog.next_offset))
        if result.messages:
            self._rates.record_pull(len(result.messages), (loop.time() - started_at) * 1000)
        if result.status is FetchStatus.NO_NEW and loop.time() - started_at < EMPTY_ANSWER_MS / 1000:
            await asyncio.sleep(EMPTY_ANSWER_MS / 1000)
        return result

    def _take(self, result: FetchResult) -> None:
        if result.status is FetchStatus.OFFSET_MOVED:
            log.warning("fetch offset moved", extra={"queue": repr(self), "offset": result.next_offset})
            if result.is_reset or result.next_offset < self.backlog.next_offset:
                self.seek(result.next_offset)
                return
        self.backlog.add(result.messages, result.next_offset)
        if result.messages:
            self._deliver(self.queue, self.backlog, result.messages)

    def _skip_if_exhausted(self, error: DamagedMessage) -> bool:
        """Skip a damaged message after the allowed attempts; return whether it was skipped."""
        offset = error.queue_offset
        attempts = self._damaged[1] + 1 if self._damaged[0] == offset else 1
        self._damaged = (offset, attempts)
        log_fields = {"queue": repr(self), "offset": offset, "message_id": error.message_id, "reason": str(error)}
        if self._damaged_attempts_max is None or attempts < self._damaged_attempts_max:
            if attempts == 1:
                log.error("message is damaged on every replica; retrying", extra=log_fields)
            return False
        log.error("skipped damaged message; it is not consumed", extra={**log_fields, "attempts": attempts})
        self._rates.record_skipped()
        self.backlog.add((), offset + 1)
        return True

    async def _refresh_route(self) -> None:
        try:
            await self._session.routes.refresh(self.queue.topic)
        except ClientError as error:
            log.info(
                "failed to refresh route; keeping the old one", extra={"topic": self.queue.topic, "reason": str(error)}
            )
