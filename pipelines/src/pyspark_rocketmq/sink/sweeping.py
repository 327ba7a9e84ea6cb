"""Half messages that nobody lists: an attempt has died, and only its broker knows of them.

They are never delivered, and in the end their broker gives them up by itself; until then it keeps them in memory, and
reads them again after each start. So whoever has committed a batch, and has reason to think that an attempt has died,
shows itself for a few seconds as a producer of the query's group. Brokers then ask it about everything that is open,
and of what belongs to this batch or an older one it knows the answer: what was to be committed is committed already.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from gantry_client import Decision, ReceivedMessage, TransactionProducer
from gantry_wire import properties as words
from pyspark_rocketmq.sink.batches import producer_settings
from pyspark_rocketmq.sink.halves import Halves
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.rows import SPARK_ID

log = logging.getLogger(__name__)

PRESENT_MS: Final = 9_000
"""A broker asks 6 s after a half message was stored (transactionTimeOut), and looks every second who is there."""


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
