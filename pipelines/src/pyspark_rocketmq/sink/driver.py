"""Commit a transactional batch in the driver when all of its tasks have ended, and sweep if an attempt may have died.

*Sweeping* rolls back half messages that no marker lists: their attempt has died, and only its broker knows them.
They are never delivered, and in the end their broker abandons them by itself; until then it keeps them in memory, and
reads them again after each start. So a driver that has committed a batch, and has reason to suspect a dead attempt,
registers for a few seconds as a producer of the query's group. Brokers then check all open transactions with it, and
the driver knows the outcome of those of this batch and of older ones: all that is to be committed is committed already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, final

from gantry_client import Admin, Decision, Producer, PullConsumer, ReceivedMessage, TransactionProducer
from gantry_wire import properties as names
from pyspark_rocketmq.sink.batch_commit import BatchCommit, CommitResult
from pyspark_rocketmq.sink.batch_decider import BatchDecider
from pyspark_rocketmq.sink.batches import GROUP, producer_settings
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, join_lists, unpack
from pyspark_rocketmq.sink.marker_queue import MARKER_GROUP, BrokerMarkerQueue
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import OnForgotten, SinkOptions
from pyspark_rocketmq.sink.rows import SPARK_ID
from pyspark_rocketmq.sink.tasks import TaskResult
from pyspark_rocketmq.sink.transaction_ender import BrokerTransactionEnder

log = logging.getLogger(__name__)

SWEEP_MS: Final = 9_000
"""Milliseconds for which a sweep answers checks. A broker checks a half message 6 s after it was stored
(transactionTimeOut). While the group has no producer it repeats that attempt every second, and sends no check."""


@final
class Driver:
    """Commits or aborts one batch of one query. Belongs to one event loop."""

    def __init__(self, options: SinkOptions, query: str, batch: int, run: str | None, *, is_new_query: bool) -> None:
        self._options = options
        self._query = query
        self._batch = batch
        self._run = run
        self._is_new_query = is_new_query

    async def commit(self, done: Sequence[TaskResult]) -> CommitResult:
        """Deliver the batch exactly once, then sweep if an attempt may have died."""
        async with self.open_attempt() as attempt:
            halves = join_lists([unpack(one.halves) for one in done])
            committed = await attempt.commit(halves, self._options.on_forgotten)
        may_have_orphans = committed.may_have_orphans or any(one.identity.attempt for one in done)
        if may_have_orphans and self._options.is_sweep_enabled and committed.halves:
            await sweep(self._query, self._batch, committed.halves, self._options)
        return committed

    async def abort(self, done: Sequence[TaskResult], *, is_full_batch: bool) -> int:
        """Roll back what the tasks have stored, unless it was decided, and return how many."""
        async with self.open_attempt() as attempt:
            return await attempt.abort(join_lists([unpack(one.halves) for one in done]), is_full_batch=is_full_batch)

    @asynccontextmanager
    async def open_attempt(self) -> AsyncIterator[BatchCommit]:
        """Open all connections for an attempt at the batch, and close them at the end of the block."""
        options, settings = self._options, self._options.connection
        servers, client_settings = settings.name_servers, settings.client_settings()
        producers = producer_settings(options)
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(servers, client_settings=client_settings))
            producer = await stack.enter_async_context(
                Producer(servers, GROUP, settings=producers, client_settings=client_settings)
            )
            consumer = await stack.enter_async_context(
                PullConsumer(servers, MARKER_GROUP, client_settings=client_settings)
            )
            transactions = await stack.enter_async_context(
                TransactionProducer(
                    servers,
                    group_of(self._query),
                    answers_checks=False,
                    settings=producers,
                    client_settings=client_settings,
                )
            )
            queue = BrokerMarkerQueue(self._query, options, admin=admin, producer=producer, consumer=consumer)
            await queue.open(may_create=self._batch <= 0 or options.on_forgotten is OnForgotten.PROCEED)
            decider = BatchDecider(queue, self._query, self._batch, self._run)
            yield BatchCommit(
                decider, BrokerTransactionEnder(transactions, options), run=self._run, is_new_query=self._is_new_query
            )


class TransactionChecker:
    """Answers transaction checks of one query, a batch of which was just committed. Pure."""

    def __init__(self, query: str, batch: int, committed: HalfMessageList) -> None:
        self._query: Final = query
        self._batch: Final = batch
        self._committed: Final = frozenset((ref.broker, ref.half_offset) for ref in committed)
        self.rolled_back = 0
        self.should_stop: Final = asyncio.Event()
        """Set when a half message of a later batch or of another query is checked. Then sweeping ends, because brokers
        abandon a transaction after some checks without an outcome."""

    async def check(self, message: ReceivedMessage) -> Decision:
        """Return the outcome of the transaction of a half message."""
        batch = batch_of(message.properties.get(SPARK_ID, ""), self._query)
        if batch is None or batch > self._batch:
            self.should_stop.set()
            return Decision.UNKNOWN
        first = message.properties.get(names.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
        half_offset = int(first) if first.isascii() and first.isdigit() else message.queue_offset
        if (message.queue.broker_name, half_offset) in self._committed:
            return Decision.COMMIT
        self.rolled_back += 1
        return Decision.ROLL_BACK


def batch_of(spark_id: str, query: str) -> int | None:
    """Return the batch in a message's `query:batch:partition:row`; None if it is of another query."""
    parts = spark_id.split(":")
    if len(parts) != 4 or parts[0] != query or not (parts[1].isascii() and parts[1].isdigit()):
        return None
    return int(parts[1])


async def sweep(
    query: str, batch: int, committed: HalfMessageList, options: SinkOptions, *, sweep_ms: int | None = None
) -> int:
    """Answer transaction checks for a while, and return how many half messages were rolled back."""
    checker, settings = TransactionChecker(query, batch, committed), options.connection
    producer = TransactionProducer(
        settings.name_servers, group_of(query), checker.check, topics=committed.topics,
        settings=producer_settings(options), client_settings=settings.client_settings(),
    )  # fmt: skip
    async with producer:
        with suppress(TimeoutError):
            await asyncio.wait_for(checker.should_stop.wait(), (SWEEP_MS if sweep_ms is None else sweep_ms) / 1000)
    if checker.rolled_back:
        log.warning("rolled back half messages of dead attempts", extra={"count": checker.rolled_back})
    return checker.rolled_back
