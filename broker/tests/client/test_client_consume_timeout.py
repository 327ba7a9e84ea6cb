"""The timeout of handlers: a handler that hangs is cancelled, and its message is redelivered."""

import asyncio

import pytest

from gantry_client import ConsumerSettings, Message, Producer, PushConsumer, ReceivedMessage, StartFrom
from gantry_testing.client import FakeCluster, wait_until

GROUP = "billing"


class HangingHandler:
    """A handler that hangs at the first delivery of each message, and handles the second."""

    def __init__(self) -> None:
        self.handled: list[ReceivedMessage] = []
        self.cancelled = 0
        self._seen: set[bytes] = set()

    async def __call__(self, message: ReceivedMessage) -> None:
        if message.body not in self._seen:
            self._seen.add(message.body)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        self.handled.append(message)


def settings(timeout_ms: int) -> ConsumerSettings:
    return ConsumerSettings(start_from=StartFrom.FIRST, consume_timeout_ms=timeout_ms, ordered_retry_delay_ms=10)


@pytest.mark.parametrize("is_ordered", [False, True], ids=["concurrent", "ordered"])
async def test_hanging_handler_is_cancelled_and_its_message_redelivered(is_ordered: bool) -> None:
    """After consume_timeout_ms the message counts as failed: it is delayed by level 3, or in ordered mode retried."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        async with Producer(cluster.name_server) as producer:
            for number in range(3):
                await producer.send(Message("orders", b"%d" % number))
        slow = HangingHandler()
        async with PushConsumer(
            cluster.name_server, GROUP, topics="orders", handler=slow, is_ordered=is_ordered, settings=settings(50)
        ):
            await wait_until(lambda: len(slow.handled) == 3, timeout_s=120, what="the second deliveries")

        assert slow.cancelled == 3
        levels = [header["delayLevel"] for header in cluster.broker().state.send_backs]
        assert levels == ([] if is_ordered else ["3"] * 3)
        if is_ordered:
            assert [message.body for message in slow.handled] == [b"0", b"1", b"2"]
        assert {message.reconsume_times for message in slow.handled} == {1}


async def test_handler_within_its_timeout_is_not_cancelled() -> None:
    """With the default of 15 minutes the same handler is not cancelled while its consumer runs."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        async with Producer(cluster.name_server) as producer:
            await producer.send(Message("orders", b"0"))
        slow = HangingHandler()
        default = ConsumerSettings(start_from=StartFrom.FIRST, close_timeout_ms=10)
        consumer = PushConsumer(cluster.name_server, GROUP, topics="orders", handler=slow, settings=default)
        async with consumer:
            await wait_until(lambda: bool(slow._seen), timeout_s=120, what="the delivery")
            await asyncio.sleep(0.2)
            assert (slow.cancelled, slow.handled) == (0, [])
        assert default.consume_timeout_ms == 900_000
