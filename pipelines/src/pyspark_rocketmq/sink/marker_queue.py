"""The queue of one query's markers, on brokers.

The queue is on one broker only, so that it stays the same when brokers join the cluster: on the one that the option
markerBroker names or, without it, on the only broker of the topic. A missing topic is created on the named broker, or
on the first master by name, and never moved. The query's id determines the queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, final

from gantry_client import (
    Admin,
    BrokerRefused,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
    Route,
    Unavailable,
)
from gantry_wire.commands.admin import TopicConfig
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.sink.markers import queue_number
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.requests import call_with_retries

T = TypeVar("T")
QUEUES: Final = 16
"""The number of queues of a marker topic that is created here."""

FETCH_MAX: Final = 32
"""The most messages of one pull from the queue."""

MARKER_GROUP: Final = "SPARK_SINK_MARKERS"
"""The consumer group under which markers are pulled; nothing is committed for it."""

MARKER_TAG: Final = "marker"
"""The tag of all messages of the marker topic."""

READ_AND_WRITE: Final = 6
"""The permission of RocketMQ for a topic that clients read and write."""


@final
class BrokerMarkerQueue:
    """A `MarkerQueue` over three clients that are already started. Belongs to one event loop."""

    def __init__(
        self, query: str, options: SinkOptions, *, admin: Admin, producer: Producer, consumer: PullConsumer
    ) -> None:
        self._query: Final = query
        self._options: Final = options
        self._admin: Final = admin
        self._producer: Final = producer
        self._consumer: Final = consumer
        self._queue: MessageQueue | None = None
        self._may_create = False

    async def open(self, *, may_create: bool) -> None:
        """Find the queue, and create the topic if it does not exist and `may_create` is set.

        Without `may_create`, a missing topic is assumed to be on an unavailable broker, and the search is retried.
        Raises InvalidOption if several brokers have the topic and there is no option markerBroker.
        """
        self._may_create = may_create
        why = "" if may_create else "; it is created by the first batch of a query, or with onForgottenBatch=proceed"
        self._queue = await self._call_with_retries(self._find, f"the marker queue of the query was not found{why}")

    async def bounds(self) -> tuple[int, int]:
        """Return the bounds of the queue; see `MarkerQueue`."""

        async def get_bounds(timeout_ms: int) -> tuple[int, int]:
            return await self._consumer.min_offset(self._opened_queue), await self._consumer.max_offset(
                self._opened_queue
            )

        return await self._call_with_retries(get_bounds, "failed to get the bounds of the marker queue")

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        """Return messages by offset; see `MarkerQueue`."""
        found: dict[int, bytes] = {}
        position = begin

        async def fetch_some(timeout_ms: int) -> int:
            count = min(FETCH_MAX, end - position)
            result = await self._consumer.fetch(self._opened_queue, position, messages_max=count)
            found.update((one.queue_offset, one.body) for one in result.messages if begin <= one.queue_offset < end)
            if result.next_offset <= position:
                raise Unavailable(f"the queue returned nothing from {position} on, but has messages up to {end}")
            return result.next_offset

        while position < end:
            position = await self._call_with_retries(fetch_some, "failed to read the marker queue")
        return found

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        """Store a message and return its offset; see `MarkerQueue`."""
        message = Message(self._options.marker_topic, body, tags=MARKER_TAG, keys=keys)

        async def send(timeout_ms: int) -> int:
            receipt = await self._producer.send(message, queue=self._opened_queue, timeout_ms=timeout_ms)
            if not receipt.is_acknowledged:
                raise BrokerRefused(
                    receipt.status, "stored, but not as safely as promised", self._opened_queue.broker_name
                )
            return receipt.queue_offset

        return await self._call_with_retries(send, "failed to store a marker")

    @property
    def _opened_queue(self) -> MessageQueue:
        assert self._queue is not None, "open comes first"
        return self._queue

    async def _find(self, timeout_ms: int) -> MessageQueue:
        topic, wanted = self._options.marker_topic, self._options.marker_broker
        try:
            route = await self._admin.topics.route(topic)
        except NoRoute:
            if not self._may_create:
                raise
            await self._create_topic(topic, wanted)
            route = await self._admin.topics.route(topic)  # name servers may not list it yet: then it is retried
        names = sorted({queue.broker_name for queue in route.read_queues})
        if wanted is None and len(names) > 1:
            raise InvalidOption(
                f"topic {topic} is on {', '.join(names)}, but the markers of a query must be on one: set option "
                "markerBroker to one of them, the same for all writes"
            )
        if not names:
            raise NoRoute(topic, "no broker grants permission to read it")
        return _queue_on(route, wanted or names[0], self._query)

    async def _create_topic(self, topic: str, wanted: str | None) -> None:
        masters = await self._admin.brokers.masters()
        name = wanted or min(master.name for master in masters)
        address = next((master.address for master in masters if master.name == name), None)
        if address is None:
            raise Unavailable(f"broker {name!r} (option markerBroker) has no master now")
        config = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=READ_AND_WRITE)
        await self._admin.brokers.put_topic(address, config)

    async def _call_with_retries(self, attempt: Callable[[int], Awaitable[T]], what: str) -> T:
        topic = self._options.marker_topic

        async def refresh() -> None:
            await self._producer.refresh(topic)
            await self._consumer.refresh(topic)

        return await call_with_retries(attempt, f"{what} (topic {topic})", self._options.connection, refresh=refresh)


def _queue_on(route: Route, name: str, query: str) -> MessageQueue:
    numbers = sorted(queue.queue_id for queue in route.read_queues if queue.broker_name == name)
    if not numbers:
        raise NoRoute(route.topic, f"broker {name!r} has no queue of it")
    return MessageQueue(topic=route.topic, broker_name=name, queue_id=numbers[queue_number(query, len(numbers))])
