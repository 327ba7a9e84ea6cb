"""Reads of pulls from the archive, with limits: how many at a time, how many wait, and how many bytes per second.

A read never uses the event loop for longer than a request and a reply take: the archive server, another process, reads
files, decodes them and applies filters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Final, NamedTuple, final

from gantry_broker.archive_settings import ArchiveSettings
from gantry_broker.server.archive.connection import ArchiveUnavailable
from gantry_broker.server.archive.link import ArchiveLink, refusal_text
from gantry_broker.server.core.refusals import Refused
from gantry_wire import Command, ResponseCode
from gantry_wire.commands.archive import ArchiveCode, ArchivedRange, ArchivePull, ArchivePulled
from gantry_wire.commands.pull import PullMessage
from gantry_wire.filters import EXPRESSION_SQL92, EXPRESSION_TAG, MessageFilter, TagFilter

FILTER_EXPRESSION_MAX: Final = 16_384
"""The longest expression of a filter that is sent to the archive server with each pull."""


class ArchiveRead(NamedTuple):
    """The result of one read."""

    next_offset: int
    """The queue offset at which to continue."""

    body: bytes
    record_count: int


@final
class ArchiveReads:
    """The reads of one broker. Owned by the event loop."""

    def __init__(
        self, link: ArchiveLink, settings: ArchiveSettings, broker_name: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._link: Final = link
        self._settings: Final = settings
        self._broker_name: Final = broker_name
        self._loop: Final = loop
        self._free: Final = asyncio.Semaphore(settings.reads_max)
        self._waiting: Counter[Hashable] = Counter()
        """The pulls that wait, by their connection."""

        self._paid_until = 0.0
        """The loop time until which the bytes that were read use up the rate."""

    def __repr__(self) -> str:
        return f"<ArchiveReads waiting={self._waiting.total()}>"

    @property
    def is_slave_preferred(self) -> bool:
        return self._settings.is_slave_preferred

    def find(self, topic: str, queue_id: int) -> ArchivedRange | None:
        """Return the archived range of a queue; None if it has none. Raises Refused while that is not known."""
        if not self._link.is_known:
            raise Refused(ResponseCode.SYSTEM_BUSY, refusal_text(ArchiveUnavailable("no answer since the start")))
        return self._link.find_compared(topic, queue_id)

    async def read(
        self,
        pull: PullMessage,
        message_filter: MessageFilter,
        connection: Hashable,
        *,
        log_begin: int,
        count_max: int,
        bytes_max: int,
    ) -> ArchiveRead:
        """Read messages of a queue for a pull. Raises Refused if the archive is unavailable or busy.

        No offset is skipped that may be in the log, which begins at ``log_begin``. ``connection`` is the reader's: one
        of them gets at most a quarter of the waiting places.
        """
        offset = pull.queue_offset
        waiting_max = self._settings.waiting_max
        if self._waiting.total() >= waiting_max or self._waiting[connection] >= max(1, waiting_max // 4):
            raise Refused(ResponseCode.SYSTEM_BUSY, "[ARCHIVE]too many pulls wait for the archive; try again later")
        if len(message_filter.expression) > FILTER_EXPRESSION_MAX:
            text = f"the expression exceeds {FILTER_EXPRESSION_MAX} characters, which reads from the archive allow"
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
        is_by_tags = isinstance(message_filter, TagFilter)
        request = ArchivePull(
            broker=self._broker_name, topic=pull.topic, queue_id=pull.queue_id, queue_offset=offset,
            count_max=count_max, bytes_max=bytes_max, log_begin=log_begin, identity=self._link.identity,
            subscription=message_filter.expression,
            expression_type=EXPRESSION_TAG if is_by_tags else EXPRESSION_SQL92,
        )  # fmt: skip
        self._waiting[connection] += 1
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000), self._free:
                await self._wait_for_rate()
                return await self._request(request)
        except TimeoutError as error:
            late = ArchiveUnavailable(f"no answer within {self._settings.timeout_ms} ms")
            raise Refused(ResponseCode.SYSTEM_BUSY, refusal_text(late)) from error
        except ArchiveUnavailable as error:
            raise Refused(ResponseCode.SYSTEM_BUSY, refusal_text(error)) from error
        finally:
            self._waiting[connection] -= 1
            if not self._waiting[connection]:
                del self._waiting[connection]

    async def _wait_for_rate(self) -> None:
        delay_s = self._paid_until - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def _request(self, request: ArchivePull) -> ArchiveRead:
        command = Command(code=ArchiveCode.PULL, ext=request.write())
        reply = await self._link.connection.request(command, self._settings.timeout_ms)
        if reply.code == ResponseCode.INVALID_PARAMETER:
            raise ArchiveUnavailable(reply.remark or "the archive server has refused the pull")
        header = ArchivePulled.read(reply.ext)
        if header.next_offset <= request.queue_offset:
            raise ArchiveUnavailable("the archive server does not have a message that it has announced")
        body = reply.body
        if self._settings.bytes_per_second:
            now = self._loop.time()
            paid_until = max(self._paid_until, now) + len(body) / self._settings.bytes_per_second
            # Reads that wait for the rate must be able to succeed before their timeout.
            self._paid_until = min(paid_until, now + self._settings.timeout_ms / 2000)
        self._link.read_count += header.count
        return ArchiveRead(header.next_offset, body, header.count)
