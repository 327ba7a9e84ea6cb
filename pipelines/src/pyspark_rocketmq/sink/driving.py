"""What the driver does when all tasks have ended: nothing, or the commit of a transactional batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

from gantry_client import Admin, Producer, PullConsumer, TransactionProducer
from pyspark_rocketmq.sink.batches import GROUP, producer_settings
from pyspark_rocketmq.sink.committing import BatchCommit, Committed
from pyspark_rocketmq.sink.deciding import Decisions
from pyspark_rocketmq.sink.ending import HalfEnds
from pyspark_rocketmq.sink.halves import joined, unpack
from pyspark_rocketmq.sink.marker_queue import MARKER_GROUP, BrokerMarkerQueue
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import OnForgotten, SinkOptions
from pyspark_rocketmq.sink.sweeping import sweep
from pyspark_rocketmq.sink.tasks import TaskDone


@final
class Driver:
    """For one batch of one query. Belongs to one event loop."""

    def __init__(self, options: SinkOptions, query: str, batch: int, run: str | None, *, is_new_query: bool) -> None:
        self._options = options
        self._query = query
        self._batch = batch
        self._run = run
        self._is_new_query = is_new_query

    async def commit(self, done: Sequence[TaskDone]) -> Committed:
        """Have the batch delivered, once."""
        async with self.attempt() as attempt:
            halves = joined([unpack(one.halves) for one in done])
            committed = await attempt.commit(halves, self._options.on_forgotten)
        is_suspicious = committed.is_suspicious or any(one.identity.attempt for one in done)
        if is_suspicious and self._options.sweeps and committed.halves:
            await sweep(self._query, self._batch, committed.halves, self._options)
        return committed

    async def abort(self, done: Sequence[TaskDone], *, is_whole: bool) -> int:
        """Roll back what the tasks have stored, unless it was decided; how many."""
        async with self.attempt() as attempt:
            return await attempt.abort(joined([unpack(one.halves) for one in done]), is_whole=is_whole)

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[BatchCommit]:
        """The same step by step: connections are open inside."""
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
                    servers, group_of(self._query), is_asked=False, settings=producers, client_settings=client_settings
                )
            )
            queue = BrokerMarkerQueue(self._query, options, admin=admin, producer=producer, consumer=consumer)
            await queue.open(may_create=self._batch <= 0 or options.on_forgotten is OnForgotten.PROCEED)
            decisions = Decisions(queue, self._query, self._batch, self._run)
            yield BatchCommit(
                decisions, HalfEnds(transactions, options), run=self._run, is_new_query=self._is_new_query
            )
