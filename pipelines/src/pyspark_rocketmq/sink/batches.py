"""Send rows at least once, in batches, queue by queue.

    queue 0   [batch]->ok [batch]->ok         one request at a time, so that a repeated one keeps the order
    queue 1   [batch]------>ok
    any       [batch]->ok  [batch]------>ok   as many at a time as allowed, each on any broker that is available

A batch that is not acknowledged (SEND_OK) is sent again until it times out, and may then be stored twice. It is not
repeated if the error is permanent, nor with onUnsure=accept if it is stored, but unsafely. Spark repeats a failed task
as a whole. Delayed messages are sent alone, since brokers accept none in a batch.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, final

from gantry_client import BrokerRefused, MessageQueue, Producer, ProducerSettings, SendReceipt
from gantry_client.clock import wall_ms
from gantry_wire.batch import BatchEntry
from gantry_wire.limits import MESSAGE_BYTES_MAX
from gantry_wire.unique_id import UniqueIds
from pyspark_rocketmq.sink.destinations import Destinations, queues_of
from pyspark_rocketmq.sink.loop import LoopThread
from pyspark_rocketmq.sink.options import OnUnsure, SinkOptions
from pyspark_rocketmq.sink.packing import Packer, entry_bytes
from pyspark_rocketmq.sink.requests import call_with_retries
from pyspark_rocketmq.sink.rows import Row

GROUP: Final = "SPARK_SINK"
"""The producer group of writes that are not transactional."""

CLOCK_INTERVAL_ROWS: Final = 4096
"""Rows for which the clock is read once: message ids count to 65536 for each millisecond, and reading the clock costs
more than an id."""

_Target = tuple[str, MessageQueue | None]
"""A topic, and the queue in it; None for any queue."""

_Send = Callable[..., Coroutine[Any, Any, SendReceipt]]


@final
class BatchSender:
    """Sends the rows of one task. Belongs to the thread that feeds it; the requests run on `loop`."""

    def __init__(
        self, loop: LoopThread, producer: Producer, options: SinkOptions, packer: Packer, ids: UniqueIds
    ) -> None:
        self._loop: Final = loop
        self._producer: Final = producer
        self._options: Final = options
        self._packer: Final = packer
        self._ids: Final = ids
        self._destinations: Final = Destinations(lambda topic: loop.run(queues_of(producer, topic, options.connection)))
        self._pending: Final[dict[_Target, tuple[list[BatchEntry], list[int]]]] = {}
        self._in_flight: Final[deque[concurrent.futures.Future[None]]] = deque()
        self._queue_locks: Final[dict[MessageQueue, asyncio.Lock]] = {}
        self.rows = 0
        self.body_bytes = 0
        self.unsure = 0
        """Rows that were stored less safely than their broker's mode promises, if that is accepted."""

    def feed(self, rows: Iterable[Row]) -> None:
        """Send rows, or keep them until a batch is full. Also raises the errors of earlier batches."""
        now_ms, limit = wall_ms(), self._options.batch_bytes
        for row in rows:
            if self.rows % CLOCK_INTERVAL_ROWS == 0:
                now_ms = wall_ms()
            self.rows += 1
            self.body_bytes += len(row.body)
            target = (row.topic, self._destinations.queue_for(row))
            if row.delay_level:
                self._begin(partial(self._producer.send, self._packer.message(row), queue=target[1]), target, 1)
                continue
            entry = self._packer.entry(row, self._ids.next(now_ms))
            size = entry_bytes(entry)
            entries, total = self._pending.setdefault(target, ([], [0]))
            if entries and total[0] + size > limit:
                self._flush(target)
                entries, total = self._pending.setdefault(target, ([], [0]))
            entries.append(entry)
            total[0] += size

    def finish(self) -> None:
        """Send the remaining rows, and wait until all are acknowledged."""
        for target in list(self._pending):
            self._flush(target)
        while self._in_flight:
            self._in_flight.popleft().result()

    def _flush(self, target: _Target) -> None:
        entries, _ = self._pending.pop(target)
        topic, queue = target
        self._begin(partial(self._producer.send_packed, topic, entries, queue=queue), target, len(entries))

    def _begin(self, send: _Send, target: _Target, rows: int) -> None:
        while len(self._in_flight) >= self._options.in_flight:
            self._in_flight.popleft().result()
        self._in_flight.append(self._loop.begin(self._deliver(send, target, rows)))

    async def _deliver(self, send: _Send, target: _Target, rows: int) -> None:
        topic, queue = target
        if queue is None:
            await self._call_with_retries(send, topic, rows)
            return
        lock = self._queue_locks.setdefault(queue, asyncio.Lock())
        async with lock:  # asyncio grants a lock in the order of the requests
            await self._call_with_retries(send, topic, rows)

    async def _call_with_retries(self, send: _Send, topic: str, rows: int) -> None:
        async def attempt(timeout_ms: int) -> None:
            receipt = await send(timeout_ms=timeout_ms)
            if receipt.is_acknowledged:
                return
            if self._options.on_unsure is OnUnsure.ACCEPT:
                self.unsure += rows
                return
            raise BrokerRefused(receipt.status, "stored, but not as safely as promised", receipt.queue.broker_name)

        what, refresh = f"{rows} messages for {topic} were not stored", partial(self._producer.refresh, topic)
        await call_with_retries(attempt, what, self._options.connection, refresh=refresh)


def producer_settings(options: SinkOptions) -> ProducerSettings:
    """Return settings for the sink's producers: the sink has its own deadlines and size limits."""
    outstanding = max(1000, 128 * options.in_flight)
    return ProducerSettings(outstanding_max=outstanding, message_bytes_max=MESSAGE_BYTES_MAX)
