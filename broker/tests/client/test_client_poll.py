"""The poll consumer: messages on request, consumed when the next are requested."""

import asyncio

import pytest

from gantry_client import ConsumerSettings, Message, PollConsumer, Producer, StartFrom
from gantry_testing.client import FakeCluster, wait_until

GROUP = "pollers"
FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST)


async def send(cluster: FakeCluster, *bodies: bytes) -> None:
    async with Producer(cluster.name_server) as producer:
        for body in bodies:
            await producer.send(Message("orders", body))


def committed(cluster: FakeCluster) -> int:
    return sum(offset for (_, topic, _), offset in cluster.broker().state.offsets.items() if topic == "orders")


async def test_polled_messages_are_consumed_by_the_next_poll() -> None:
    """A message counts as consumed, and its offset is committed, only after another poll."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"1", b"2", b"3")
        async with PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as consumer:
            first = await consumer.poll(2)
            await consumer._consumer.commit()
            assert committed(cluster) == 0

            second = await consumer.poll(2)
            await consumer._consumer.commit()
            assert committed(cluster) == 2

            await consumer.commit()
            assert committed(cluster) == 3

        assert [message.body for message in first + second] == [b"1", b"2", b"3"]


async def test_close_between_polls_redelivers_the_messages() -> None:
    """Closing without another poll or a commit does not consume the last messages."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"1", b"2")
        async with PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as consumer:
            assert len(await consumer.poll(1)) == 1
            assert len(await consumer.poll(1)) == 1

        async with PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as consumer:
            again = await consumer.poll(5)

        assert [message.body for message in again] == [b"2"]


async def test_empty_poll_ends_at_its_timeout() -> None:
    """Without messages the result is an empty list after the timeout."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        async with PollConsumer(cluster.name_server, GROUP, topics="orders") as consumer:
            async with asyncio.timeout(60):
                assert await consumer.poll(timeout_ms=30) == []


async def test_poll_during_another_poll_is_an_error() -> None:
    """Two polls would return the same messages, or one would mark those of the other as consumed, so that a crash loses
    them. The first poll is not disturbed, and a poll after it, or after one that was cancelled, succeeds."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        async with PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as consumer:
            cancelled = asyncio.create_task(consumer.poll(timeout_ms=60_000))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            waiting = asyncio.create_task(consumer.poll(timeout_ms=60_000))
            await asyncio.sleep(0)

            with pytest.raises(RuntimeError, match="another poll"):
                await consumer.poll(timeout_ms=60_000)

            await send(cluster, b"1")
            assert [message.body for message in await waiting] == [b"1"]
            await send(cluster, b"2")
            assert [message.body for message in await consumer.poll(timeout_ms=60_000)] == [b"2"]


async def test_iteration_continues_with_later_messages() -> None:
    """`async for` waits for messages that are sent while it runs."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        bodies: list[bytes] = []
        async with PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as consumer:

            async def iterate() -> None:
                async for message in consumer:
                    bodies.append(message.body)

            iterating = asyncio.create_task(iterate())
            await send(cluster, b"1")
            await wait_until(lambda: bodies == [b"1"])
            await send(cluster, b"2")
            await wait_until(lambda: bodies == [b"1", b"2"])
            iterating.cancel()
            await asyncio.gather(iterating, return_exceptions=True)


async def test_pollers_of_one_group_share_the_messages() -> None:
    """Two pollers together get every message; neither gets what the other has committed."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=4)
        async with (
            PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as first,
            PollConsumer(cluster.name_server, GROUP, topics="orders", settings=FROM_FIRST) as second,
        ):
            await wait_until(lambda: len(first.queues) == len(second.queues) == 2)
            await send(cluster, *(b"%d" % number for number in range(20)))
            got: list[list[bytes]] = [[], []]
            async with asyncio.timeout(60):
                while sum(map(len, got)) < 20:
                    for bodies, consumer in zip(got, (first, second), strict=True):
                        bodies += [message.body for message in await consumer.poll(timeout_ms=20)]

        assert all(got), "one of them got nothing"
        assert set(got[0]).isdisjoint(got[1])
