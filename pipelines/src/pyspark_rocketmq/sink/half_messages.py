"""The tasks' part of an exactly-once write: rows are stored as half messages, which consumers do not see.

The producer never registers with a broker. A broker checks open transactions with the registered producers of a group,
and abandons a transaction after too many checks; here a marker decides the outcome, and may be written hours later. A
group without a producer is not checked, so a half message stays open for as long as the broker keeps messages.

A half message whose response was lost is stored again. Only one of the two is in a marker; the other is never
delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, final

from gantry_client import HalfMessage, MessageQueue, TransactionProducer
from pyspark_rocketmq.errors import NotTransactional
from pyspark_rocketmq.sink import crash_points
from pyspark_rocketmq.sink.destinations import Destinations, queues_of
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, HalfMessageRef
from pyspark_rocketmq.sink.loop import LoopThread
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.packing import Packer
from pyspark_rocketmq.sink.requests import call_with_retries, map_concurrently
from pyspark_rocketmq.sink.rows import Row

CHUNK_ROWS: Final = 2048
"""How many rows are stored at a time."""


@final
class HalfMessageSender:
    """Stores the rows of one task as half messages. Belongs to the thread that feeds it."""

    def __init__(self, loop: LoopThread, producer: TransactionProducer, options: SinkOptions, packer: Packer) -> None:
        self._loop: Final = loop
        self._producer: Final = producer
        self._options: Final = options
        self._packer: Final = packer
        self._checked: Final[set[str]] = set()
        self._destinations: Final = Destinations(lambda topic: loop.run(queues_of(producer, topic, options.connection)))
        self._refs: Final[list[HalfMessageRef]] = []
        self._chunk: list[tuple[Row, MessageQueue | None]] = []
        self.rows = 0
        self.body_bytes = 0

    @property
    def halves(self) -> HalfMessageList:
        """The locations of the stored rows, in their order."""
        return HalfMessageList(self._refs)

    def feed(self, rows: Iterable[Row]) -> None:
        """Store rows, a chunk at a time."""
        for row in rows:
            if row.topic not in self._checked:
                self._loop.run(self._require_idempotent_commits(row.topic))
                self._checked.add(row.topic)
            self.rows += 1
            self.body_bytes += len(row.body)
            self._chunk.append((row, self._destinations.queue_for(row)))
            if len(self._chunk) >= CHUNK_ROWS:
                self._store()

    def finish(self) -> None:
        """Store the last chunk of rows."""
        self._store()

    def _store(self) -> None:
        chunk, self._chunk = self._chunk, []
        work = map_concurrently(chunk, self._begin, window=128 * self._options.in_flight)
        self._refs.extend(_ref_of(half) for half in self._loop.run(work))
        crash_points.hit("chunk-stored")

    async def _begin(self, item: tuple[Row, MessageQueue | None]) -> HalfMessage:
        row, queue = item
        message = self._packer.message(row)

        async def attempt(timeout_ms: int) -> HalfMessage:
            return await self._producer.begin(message, queue=queue, timeout_ms=timeout_ms)

        what, refresh = f"row {row.number} was not stored in {row.topic}", partial(self._producer.refresh, row.topic)
        return await call_with_retries(attempt, what, self._options.connection, refresh=refresh)

    async def _require_idempotent_commits(self, topic: str) -> None:
        """Raise NotTransactional if a broker of the topic cannot end a transaction exactly once."""

        async def attempt(timeout_ms: int) -> dict[str, bool]:
            return await self._producer.idempotent_commits(topic)

        what, refresh = f"no route found for topic {topic}", partial(self._producer.refresh, topic)
        found = await call_with_retries(attempt, what, self._options.connection, refresh=refresh)
        unable = [broker for broker, ends_once in found.items() if not ends_once]
        if unable:
            raise NotTransactional(
                f"transactional=true: broker {', '.join(unable)} of topic {topic} would store a message twice if its "
                "commit is repeated, like Apache's brokers. Gantry's with messageIndexEnable=true store it once. "
                "Write to Gantry's brokers, or without the option transactional (at least once)"
            )


def _ref_of(half: HalfMessage) -> HalfMessageRef:
    return HalfMessageRef(half.topic, half.queue.broker_name, half.half_offset, half.physical_offset)
