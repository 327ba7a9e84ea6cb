"""Ordered consumption: one message of a queue at a time, in order, by one member at a time."""

import asyncio
from collections import defaultdict

from gantry_client import (
    ConsumerSettings,
    Handler,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode

GROUP = "ordered"
SETTINGS = ConsumerSettings(start_from=StartFrom.FIRST, ordered_retry_delay_ms=20, handover_timeout_ms=200)


class QueueRecorder:
    """The handled messages of each queue, and whether two handlers of a queue ever overlapped."""

    def __init__(self) -> None:
        self.by_queue: dict[int, list[int]] = defaultdict(list)
        self.overlaps = 0
        self._running: set[int] = set()

    async def __call__(self, message: ReceivedMessage) -> None:
        queue_id = message.queue.queue_id
        self.overlaps += queue_id in self._running
        self._running.add(queue_id)
        await asyncio.sleep(0)
        self.by_queue[queue_id].append(int(message.body))
        self._running.discard(queue_id)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_queue.values()))


async def send(cluster: FakeCluster, count: int, *, queues: int) -> None:
    """Send messages 0..count-1 round-robin over the queues."""
    async with Producer(cluster.name_server) as producer:
        for number in range(count):
            queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=number % queues)
            await producer.send(Message("orders", b"%d" % number), queue=queue)


def consumer(cluster: FakeCluster, handler: Handler, settings: ConsumerSettings = SETTINGS) -> PushConsumer:
    return PushConsumer(
        cluster.name_server, GROUP, topics="orders", handler=handler, is_ordered=True, settings=settings
    )


async def test_messages_of_a_queue_are_handled_in_order() -> None:
    """Within a queue every message waits for the previous one; closing gives the locks back."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=3)
        await send(cluster, 90, queues=3)
        handled = QueueRecorder()

        async with consumer(cluster, handled):
            await wait_until(lambda: handled.count == 90)

        assert handled.overlaps == 0
        assert all(numbers == sorted(numbers) for numbers in handled.by_queue.values())
        assert cluster.broker().state.locks == {}, "locks are held after the close"


async def test_failed_ordered_message_is_retried_in_place() -> None:
    """No message after a failing one is handled before it, and it is not sent back."""
    tries: list[tuple[int, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        tries.append((int(message.body), message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 2:
            raise RetryLater()

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, 3, queues=1)
        async with consumer(cluster, handle):
            await wait_until(lambda: len(tries) == 5)

        assert tries == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
        assert cluster.broker().state.send_backs == []


async def test_exhausted_ordered_message_goes_to_the_dead_letter_topic() -> None:
    """After max_reconsume_times the message moves to the dead letter topic and the queue continues."""
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            raise RuntimeError("never")
        handled.append(message.body)

    settings = ConsumerSettings(start_from=StartFrom.FIRST, ordered_retry_delay_ms=5, max_reconsume_times=2)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, 2, queues=1)
        async with consumer(cluster, handle, settings):
            await wait_until(lambda: handled == [b"1"])

        assert [message.body for message in cluster.broker().messages(f"%DLQ%{GROUP}")] == [b"0"]


async def test_queue_locked_by_another_member_is_not_read() -> None:
    """Without the broker's lock nothing is consumed; consumption starts when the lock becomes free."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, 1, queues=1)
        broker, handled = cluster.broker(), QueueRecorder()
        queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)
        broker.state.locks[GROUP, queue] = "another-client"

        async with consumer(cluster, handled):
            await wait_until(lambda: broker.received[RequestCode.LOCK_BATCH_MQ] >= 2)
            assert handled.count == 0

            del broker.state.locks[GROUP, queue]
            await wait_until(lambda: handled.count == 1)


async def test_lost_lock_stops_the_consumption() -> None:
    """When renewal fails because another member holds the queue, no further message is handled."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, lock_interval_ms=20, ordered_retry_delay_ms=5)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        broker, handled = cluster.broker(), QueueRecorder()
        queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)
        async with consumer(cluster, handled, settings):
            await send(cluster, 1, queues=1)
            await wait_until(lambda: handled.count == 1)
            broker.state.locks[GROUP, queue] = "another-client"
            renewals = broker.received[RequestCode.LOCK_BATCH_MQ]
            await wait_until(lambda: broker.received[RequestCode.LOCK_BATCH_MQ] >= renewals + 2)

            await send(cluster, 1, queues=1)
            await wait_until(
                lambda: any(c.ext.get("queueOffset") == "2" for c in broker.requests), what="the second one's fetch"
            )
            assert handled.count == 1

            del broker.state.locks[GROUP, queue]
            await wait_until(lambda: handled.count == 2)


async def test_two_members_never_handle_one_queue_concurrently() -> None:
    """While a second member joins and leaves, messages of each queue stay in order and never overlap."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=4)
        handled = QueueRecorder()
        sending = asyncio.create_task(send(cluster, 400, queues=4))
        async with consumer(cluster, handled):
            for _ in range(3):
                async with consumer(cluster, handled) as second:
                    await wait_until(lambda second=second: len(second.queues) > 0 or sending.done())  # type: ignore[misc]
            await sending
            await wait_until(lambda: {n for q in handled.by_queue.values() for n in q} == set(range(400)))

        assert handled.overlaps == 0
        for numbers in handled.by_queue.values():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts), "handled before an earlier message of its queue"
