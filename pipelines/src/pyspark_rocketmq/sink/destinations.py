"""The queue of each row: the one in its columns, the one of its sharding key, or any.

queue, broker   that queue                         in order
shardingKey     by the key's hash, as Java does    in order, equal keys together
neither         any queue                          if a broker is unavailable, a queue of another one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_client import MessageQueue, Producer, TransactionProducer
from gantry_wire.hashing import java_string_hash
from pyspark_rocketmq.errors import InvalidRow
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.sink.requests import call_with_retries
from pyspark_rocketmq.sink.rows import Row


@final
class Destinations:
    """The queues of the topics of one task, as they were at the first row of each topic."""

    def __init__(self, queues_of: Callable[[str], Sequence[MessageQueue]]) -> None:
        self._queues_of: Final = queues_of
        self._queues: Final[dict[str, Sequence[MessageQueue]]] = {}

    def queue_for(self, row: Row) -> MessageQueue | None:
        """Return the queue of a row; None for any. Raises InvalidRow, and the errors of the route lookup."""
        if row.queue is not None:
            return self._find_queue(row)
        if row.sharding_key is None:
            return None
        queues = self._topic_queues(row.topic)
        return queues[abs(java_string_hash(row.sharding_key)) % len(queues)]

    def _find_queue(self, row: Row) -> MessageQueue:
        found = [
            queue
            for queue in self._topic_queues(row.topic)
            if queue.queue_id == row.queue and row.broker in (None, queue.broker_name)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(queue.broker_name for queue in found)
            raise InvalidRow(f"row {row.number}: queue {row.queue} of {row.topic} is on {names}: add a column broker")
        where = f" on {row.broker}" if row.broker is not None else ""
        raise InvalidRow(f"row {row.number}: column queue is {row.queue}; topic {row.topic} has no such queue{where}")

    def _topic_queues(self, topic: str) -> Sequence[MessageQueue]:
        if topic not in self._queues:
            self._queues[topic] = self._queues_of(topic)
        return self._queues[topic]


async def queues_of(
    producer: Producer | TransactionProducer, topic: str, settings: ReadSettings
) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic, from name servers. Raises NotStored if none answers in time."""

    async def attempt(timeout_ms: int) -> tuple[MessageQueue, ...]:
        return tuple(await producer.queues(topic))

    return await call_with_retries(attempt, f"no route found for topic {topic}", settings)
