"""The link to an archive server: what the archive has of this broker's queues, and requests over one connection.

The ranges of the archive are requested every few seconds. They are kept while the server does not answer: what was
archived stays so. Before the first answer nothing is known about any queue.

An archive of another log with the same names, also of a topic that was deleted and created again, would return other
messages. So the store time of the last archived message of a queue is compared with that of the log, as long as the
log has it. If the log ends before it, the log's last message must not be newer. They are compared at each refresh, and
for retention and each read again, since the log may have changed meanwhile. A queue that differs is not read from the
archive, and is not archived as far as retention is concerned.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_broker.archive_settings import ArchiveSettings
from gantry_broker.errors import BrokerError
from gantry_broker.server.archive.connection import ArchiveConnection, ArchiveUnavailable
from gantry_broker.server.core.refusals import Refused
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.message_store import MessageStore
from gantry_remoting.errors import RemotingTimeout
from gantry_wire import Command, ResponseCode
from gantry_wire.commands.archive import ArchiveCode, ArchivedRange, ArchivedRanges, ArchiveRangesQuery, ArchiveSearch
from gantry_wire.commands.offsets import OffsetResult

log = logging.getLogger(__name__)

REFRESH_S: Final = 5.0
"""The interval at which the ranges are requested."""
RANGES_TIMEOUT_MS: Final = 30_000
QUEUES_PER_TURN: Final = 100
"""How many queues are compared with the log before the event loop serves requests again."""

SEARCHES_MAX: Final = 4
"""How many searches by time are made in the archive at a time."""

QueueKey = tuple[str, int]


def refusal_text(error: ArchiveUnavailable) -> str:
    """Return the text for a client whose request needs the archive."""
    return f"[ARCHIVE]the message is in the archive, which is not available now: {error}"


@final
class ArchiveLink:
    """The link of one broker. Owned by the event loop; `run` is its task."""

    def __init__(
        self,
        settings: ArchiveSettings,
        store: MessageStore,
        broker_name: str,
        is_read_by_archive: Callable[[str, int], bool],
        is_store_lent: Callable[[], bool],
        refresh_s: float = REFRESH_S,
    ) -> None:
        """``is_read_by_archive`` returns whether an archive reads this queue of a topic, if its pattern matches.

        ``is_store_lent`` returns whether another thread uses the store now.
        """
        self._settings: Final = settings
        self._store: Final = store
        self._broker_name: Final = broker_name
        self._is_read_by_archive: Final = is_read_by_archive
        self._is_store_lent: Final = is_store_lent
        self._refresh_s: Final = refresh_s
        self.connection: Final = ArchiveConnection(settings)
        self._searches: Final = asyncio.Semaphore(SEARCHES_MAX)
        self._version = ""
        self.identity = ""
        """The identity of the archive; empty until it is known."""

        self._ranges: dict[QueueKey, ArchivedRange] = {}
        self._foreign: set[QueueKey] = set()
        """The queues of which the archive has other messages than the log, as compared last."""

        self._topics: re.Pattern[str] | None = None
        self._logged_fault = ""
        self.read_count = 0
        """The number of messages that were read from the archive since the start."""

    def __repr__(self) -> str:
        return f"<ArchiveLink {self._settings.place} queues={len(self._ranges)}>"

    @property
    def is_known(self) -> bool:
        """Whether the server has told since the start what it has."""
        return self._topics is not None

    def find(self, topic: str, queue_id: int) -> ArchivedRange | None:
        """Return the archived range of a queue; None if it has none, or one of another log."""
        key = topic, queue_id
        return None if key in self._foreign else self._ranges.get(key)

    def find_compared(self, topic: str, queue_id: int) -> ArchivedRange | None:
        """Return the same after it was compared with the present log."""
        key = topic, queue_id
        found = self._ranges.get(key)
        return None if found is None or self._is_foreign(key, found) else found

    def archived_end(self, queue: ConsumeQueue) -> int:
        """Return the end of the messages of a queue that are archived for certain; 0 if none is."""
        found = self.find_compared(queue.topic, queue.queue_id)
        return 0 if found is None else found.known_offset + 1

    def is_to_be_archived(self, topic: str, queue_id: int) -> bool:
        """Return whether messages of this queue are to be archived; true for every queue before that is known."""
        if self._topics is None:
            return True
        return self._topics.fullmatch(topic) is not None and self._is_read_by_archive(topic, queue_id)

    def describe(self) -> dict[str, object]:
        """Return the entries of the runtime table about the archive."""
        is_available = self.is_known and not self._logged_fault
        return {
            "archiveState": "available" if is_available else "unavailable",
            "archivedQueues": len(self._ranges) - len(self._foreign),
            "archivedQueuesOfAnotherLog": len(self._foreign),
            "archiveReadMessages": self.read_count,
        }

    async def search(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int | None:
        """Return the archived offset for a time; None if there is none. Raises Refused if the archive is unavailable.

        It is that of the first message at or after the time, or with ``upper`` of the last one at or before it.
        """
        boundary = "UPPER" if upper else "LOWER"
        search = ArchiveSearch(
            broker=self._broker_name, topic=topic, queue_id=queue_id, timestamp=timestamp_ms, identity=self.identity,
            boundary_type=boundary,
        )  # fmt: skip
        try:
            async with self._searches:
                reply = await self.connection.request(
                    Command(code=ArchiveCode.SEARCH_OFFSET, ext=search.write()), self._settings.timeout_ms
                )
        except ArchiveUnavailable as error:
            raise Refused(ResponseCode.SYSTEM_BUSY, refusal_text(error)) from error
        return OffsetResult.read(reply.ext).offset if reply.code == ResponseCode.SUCCESS else None

    async def run(self) -> None:
        """Request the ranges again and again, until cancelled."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(self._refresh_s)
        finally:
            self.connection.abort()  # a server that does not read must not delay the broker's end

    async def refresh(self) -> None:
        """Request the ranges once. A failure is logged once, and changes nothing."""
        query = ArchiveRangesQuery(broker=self._broker_name, version=self._version)
        try:
            reply = await self.connection.request(
                Command(code=ArchiveCode.LIST_RANGES, ext=query.write()), RANGES_TIMEOUT_MS
            )
            if reply.body:
                await self._take(msgspec.json.decode(reply.body, type=ArchivedRanges))
            else:
                await self._compare_all()
        except (ArchiveUnavailable, BrokerError, OSError, msgspec.MsgspecError, re.error) as error:
            if isinstance(error.__cause__, RemotingTimeout):
                self.connection.abort()
            if not self._logged_fault:
                log.warning("archive unavailable", extra={"server": self._settings.place, "reason": str(error)})
            self._logged_fault = str(error)
            return
        if self._logged_fault:
            self._logged_fault = ""
            log.info("archive available again", extra={"server": self._settings.place})

    async def _take(self, found: ArchivedRanges) -> None:
        """Take over the ranges, and compare them with the log."""
        topics = re.compile(found.topics_pattern)
        self._ranges = {(topic, one.queue_id): one for topic, queues in found.ranges.items() for one in queues}
        self._foreign &= self._ranges.keys()
        self.identity = found.identity
        if await self._compare_all():
            self._topics, self._version = topics, found.version

    async def _compare_all(self) -> bool:
        """Compare all ranges with the log; return whether that was possible. Raises BrokerError, OSError."""
        for count, (key, one) in enumerate(tuple(self._ranges.items()), 1):
            if self._is_store_lent():
                return False  # another thread uses the log; the next refresh tries again
            self._is_foreign(key, one)
            if count % QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        return True

    def _is_foreign(self, key: QueueKey, archived: ArchivedRange) -> bool:
        """Return whether the archive has other messages of a queue than the log, and remember it."""
        is_foreign = self._differs(key, archived)
        if not is_foreign:
            self._foreign.discard(key)
        elif key not in self._foreign:
            self._foreign.add(key)
            log.error("archive has other messages than the log", extra={"topic": key[0], "queue": key[1]})
        return is_foreign

    def _differs(self, key: QueueKey, archived: ArchivedRange) -> bool:
        """Compare the last archived message with that of the log; False if the log has it no more, or not yet."""
        queue = self._store.queues.get(*key)
        if queue is None or archived.known_offset < 0:
            return False
        offset = min(archived.known_offset, queue.readable_end - 1)
        time_ms = self._store.times.store_time(*key, offset) if offset >= queue.min_offset else -1
        if time_ms < 0:
            return False
        if offset < archived.known_offset:
            # A slave may lag behind the archive. Times never fall, so an older message is not newer than the last one.
            return time_ms > archived.known_to_ms
        return not archived.known_from_ms <= time_ms <= archived.known_to_ms
