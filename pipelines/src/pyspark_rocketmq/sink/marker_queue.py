"""The queue of one query's markers, on brokers.

The topic is on one broker only, so that a query's queue is the same whatever joins the cluster: made on the first
master by name where nobody has made it, and never moved. Its queue follows from the query's id.
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
from pyspark_rocketmq.sink.requests import patiently

T = TypeVar("T")
QUEUES: Final = 16
FETCH_MAX: Final = 32
MARKER_GROUP: Final = "SPARK_SINK_MARKERS"
MARKER_TAG: Final = "marker"
READ_AND_WRITE: Final = 6


@final
class BrokerMarkerQueue:
    """`MarkerQueue` over three clients, which are started already. Belongs to one event loop."""

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
        """Find the queue; make the topic if nobody has, and if that may be the reason why it is not there.

        Where markers were written before, a topic that is not there is on a broker that is away. Raises InvalidOption
        where several brokers have it.
        """
        self._may_create = may_create
        why = "" if may_create else "; it is made by the first batch of a query, or with onForgottenBatch=proceed"
        self._queue = await self._patiently(self._find, f"the queue of the query's markers was not found{why}")

    async def bounds(self) -> tuple[int, int]:
        """See `MarkerQueue`."""

        async def ask(timeout_ms: int) -> tuple[int, int]:
            return await self._consumer.min_offset(self._at), await self._consumer.max_offset(self._at)

        return await self._patiently(ask, "the marker queue did not say how long it is")

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        """See `MarkerQueue`."""
        found: dict[int, bytes] = {}
        position = begin

        async def some(timeout_ms: int) -> int:
            count = min(FETCH_MAX, end - position)
            result = await self._consumer.fetch(self._at, position, messages_max=count)
            found.update((one.queue_offset, one.body) for one in result.messages if begin <= one.queue_offset < end)
            if result.next_offset <= position:
                raise Unavailable(f"the queue shows nothing from {position} on, and has messages up to {end}")
            return result.next_offset

        while position < end:
            position = await self._patiently(some, "the marker queue was not read")
        return found

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        """See `MarkerQueue`."""
        message = Message(self._options.marker_topic, body, tags=MARKER_TAG, keys=keys)

        async def send(timeout_ms: int) -> int:
            receipt = await self._producer.send(message, queue=self._at, timeout_ms=timeout_ms)
            if not receipt.is_acknowledged:
                raise BrokerRefused(receipt.status, "stored, but not as safely as promised", self._at.broker_name)
            return receipt.queue_offset

        return await self._patiently(send, "a marker was not stored")

    @property
    def _at(self) -> MessageQueue:
        assert self._queue is not None, "open comes first"
        return self._queue

    async def _find(self, timeout_ms: int) -> MessageQueue:
        topic, wanted = self._options.marker_topic, self._options.marker_broker
        try:
            route = await self._admin.topics.route(topic)
        except NoRoute:
            if not self._may_create:
                raise
            await self._make(topic, wanted)
            route = await self._admin.topics.route(topic)  # name servers hear of it in a moment: then again
        names = sorted({queue.broker_name for queue in route.read_queues})
        if wanted is None and len(names) > 1:
            raise InvalidOption(
                f"topic {topic} is on {', '.join(names)}, and the markers of a query belong on one: option "
                "markerBroker says on which, the same for all writes, for ever"
            )
        if not names:
            raise NoRoute(topic, "no broker lets anybody read it")
        return _queue_on(route, wanted or names[0], self._query)

    async def _make(self, topic: str, wanted: str | None) -> None:
        masters = await self._admin.brokers.masters()
        name = wanted or min(master.name for master in masters)
        address = next((master.address for master in masters if master.name == name), None)
        if address is None:
            raise Unavailable(f"broker {name!r} (option markerBroker) has no master now")
        config = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=READ_AND_WRITE)
        await self._admin.brokers.put_topic(address, config)

    async def _patiently(self, attempt: Callable[[int], Awaitable[T]], what: str) -> T:
        topic = self._options.marker_topic

        async def refresh() -> None:
            await self._producer.refresh(topic)
            await self._consumer.refresh(topic)

        return await patiently(attempt, f"{what} (topic {topic})", self._options.connection, refresh=refresh)


def _queue_on(route: Route, name: str, query: str) -> MessageQueue:
    numbers = sorted(queue.queue_id for queue in route.read_queues if queue.broker_name == name)
    if not numbers:
        raise NoRoute(route.topic, f"broker {name!r} has no queue of it")
    return MessageQueue(topic=route.topic, broker_name=name, queue_id=numbers[queue_number(query, len(numbers))])
