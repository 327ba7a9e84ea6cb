"""What the driver does when all tasks of a transactional batch have ended: it commits the batch, then it may sweep.

*Sweeping* is for half messages that no marker lists: an attempt has died, and only its broker knows of them.
They are never delivered, and in the end their broker gives them up by itself; until then it keeps them in memory, and
reads them again after each start. So whoever has committed a batch, and has reason to think that an attempt has died,
shows itself for a few seconds as a producer of the query's group. Brokers then ask it about everything that is open,
and of what belongs to this batch or an older one it knows the answer: what was to be committed is committed already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, final

from gantry_client import Admin, Decision, Producer, PullConsumer, ReceivedMessage, TransactionProducer
from gantry_wire import properties as words
from pyspark_rocketmq.sink.batches import GROUP, producer_settings
from pyspark_rocketmq.sink.committing import BatchCommit, Committed
from pyspark_rocketmq.sink.deciding import Decisions
from pyspark_rocketmq.sink.ending import HalfEnds
from pyspark_rocketmq.sink.halves import Halves, joined, unpack
from pyspark_rocketmq.sink.marker_queue import MARKER_GROUP, BrokerMarkerQueue
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import OnForgotten, SinkOptions
from pyspark_rocketmq.sink.rows import SPARK_ID
from pyspark_rocketmq.sink.tasks import TaskDone

log = logging.getLogger(__name__)

PRESENT_MS: Final = 9_000
"""A broker asks 6 s after a half message was stored (transactionTimeOut), and looks every second who is there."""


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


class Judge:
    """Answers for one query, one batch of which was committed just now. Pure."""

    def __init__(self, query: str, batch: int, committed: Halves) -> None:
        self._query: Final = query
        self._batch: Final = batch
        self._committed: Final = frozenset((place.broker, place.half_offset) for place in committed)
        self.rolled_back = 0
        self.met_later: Final = asyncio.Event()
        """Somebody is at work on a later batch: each question that we cannot answer counts against it."""

    async def check(self, message: ReceivedMessage) -> Decision:
        """What became of the transaction that this is the half of."""
        batch = batch_of(message.properties.get(SPARK_ID, ""), self._query)
        if batch is None or batch > self._batch:
            self.met_later.set()
            return Decision.UNKNOWN
        first = message.properties.get(words.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
        half_offset = int(first) if first.isascii() and first.isdigit() else message.queue_offset
        if (message.queue.broker_name, half_offset) in self._committed:
            return Decision.COMMIT
        self.rolled_back += 1
        return Decision.ROLL_BACK


def batch_of(spark_id: str, query: str) -> int | None:
    """The batch in a message's `query:batch:partition:row`; None if it is of another query."""
    parts = spark_id.split(":")
    if len(parts) != 4 or parts[0] != query or not (parts[1].isascii() and parts[1].isdigit()):
        return None
    return int(parts[1])


async def sweep(
    query: str, batch: int, committed: Halves, options: SinkOptions, *, present_ms: int | None = None
) -> int:
    """Be there for a while, and roll back what is asked about; how many that were."""
    judge, settings = Judge(query, batch, committed), options.connection
    producer = TransactionProducer(
        settings.name_servers, group_of(query), judge.check, topics=committed.topics,
        settings=producer_settings(options), client_settings=settings.client_settings(),
    )  # fmt: skip
    async with producer:
        with suppress(TimeoutError):
            await asyncio.wait_for(judge.met_later.wait(), (PRESENT_MS if present_ms is None else present_ms) / 1000)
    if judge.rolled_back:
        log.warning("half messages of dead attempts were rolled back", extra={"count": judge.rolled_back})
    return judge.rolled_back
