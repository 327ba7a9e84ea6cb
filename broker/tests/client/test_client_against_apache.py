"""The client against Apache RocketMQ, an implementation that shares no author with it.

One name server and one broker of Apache's serve all tests of this file; every test has its own topic and group.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_interop import java, peers
from gantry_interop.processes import Nursery

from gantry_client import (
    Admin,
    BrokerRefused,
    ClientSettings,
    ConsumerSettings,
    FetchStatus,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from gantry_testing.client import wait_until
from gantry_wire.codes import PROTOCOL_VERSION_NAME

pytestmark = [pytest.mark.verify, pytest.mark.needs_java]

FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST, max_reconsume_times=1)
LONG_TIMEOUT_S = 180.0
LONG_TIMEOUTS = ClientSettings(connect_timeout_ms=60_000, request_timeout_ms=60_000)
LONG_SEND_TIMEOUT = ProducerSettings(send_timeout_ms=60_000)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of Apache's name server, whose broker delays level 1 by a second."""
    folder: Path = tmp_path_factory.mktemp("apache")
    java.build()
    with Nursery(folder / "logs") as nursery:
        # On Apache's broker deleting a topic fails without the timer store.
        yield peers.start(
            "apache", nursery, peers.Layout(folder / "peer", settings={"timerWheelEnable": "true"})
        ).address


async def create(address: str, topic: str, *, queues: int = 4) -> None:
    async with Admin(address, client_settings=LONG_TIMEOUTS) as admin:
        await admin.topics.create(topic, queues=queues)


async def test_apache_broker_returns_every_kind_of_send(apache: str) -> None:
    """Single, compressed, batch and oneway sends are stored by Apache's broker and found by every lookup."""
    await create(apache, "ways")
    large = b"z" * 9000
    async with (
        Producer(apache, "ways-p", settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
        Admin(apache, client_settings=LONG_TIMEOUTS) as admin,
        PullConsumer(apache, "ways-g") as consumer,
    ):
        receipt = await producer.send(Message("ways", large, tags="t", keys=["key-1"]))
        batch = await producer.send_batch([Message("ways", b"b%d" % number) for number in range(3)])
        await producer.send_oneway(Message("ways", b"oneway"))
        created = await producer.send(Message("made-by-sending", b"x"))

        async def bodies() -> list[bytes]:
            found: list[bytes] = []
            for queue in await consumer.queues("ways"):
                result = await consumer.fetch(queue, 0)
                found += [message.body for message in result.messages]
                if result.status is FetchStatus.FOUND:
                    await consumer.commit(queue, result.next_offset)
            return sorted(found)

        async def are_there() -> bool:
            return await bodies() == sorted([large, b"b0", b"b1", b"b2", b"oneway"])

        async def is_indexed() -> bool:
            return len(await admin.messages.by_key("ways", "key-1")) == 1

        await wait_until(are_there, timeout_s=LONG_TIMEOUT_S)
        await wait_until(is_indexed, timeout_s=LONG_TIMEOUT_S)
        assert (await admin.messages.view(receipt.offset_message_id, "ways")).body == large
        assert (await admin.messages.view(batch[1].offset_message_id, "ways")).body == b"b1"
        assert len(await admin.messages.by_id("ways", batch[2].message_id)) == 1
        assert created.is_acknowledged
        assert await admin.groups.lag("ways-g") == 0


async def test_apache_broker_retries_and_dead_letters_failures(apache: str) -> None:
    """Send-back, delayed retry and dead letter topic work with Apache's broker as with Gantry's."""
    await create(apache, "retries")
    tries: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        tries[message.body] += 1
        assert message.topic == "retries"
        if message.body == b"bad":
            raise RetryLater()

    async with (
        Producer(apache, settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
        Admin(apache, client_settings=LONG_TIMEOUTS) as admin,
        PullConsumer(apache, "looking") as looking,
        PushConsumer(apache, "retries-g", topics="retries", handler=handle, settings=FROM_FIRST),
    ):
        await producer.send(Message("retries", b"good"))
        await producer.send(Message("retries", b"bad"))

        async def is_set_aside() -> bool:
            return "%DLQ%retries-g" in await admin.topics.all(with_internal=True)

        await wait_until(is_set_aside, timeout_s=LONG_TIMEOUT_S)
        (queue,) = await looking.queues("%DLQ%retries-g")
        async with asyncio.timeout(LONG_TIMEOUT_S):
            while not (result := await looking.fetch(queue, 0, wait_ms=5000)).messages:
                pass

    assert tries == {b"good": 1, b"bad": 2}
    assert [message.body for message in result.messages] == [b"bad"]


async def test_members_on_apache_broker_share_queues(apache: str) -> None:
    """Apache's broker notifies members of each other, and lists them by their client ids."""
    await create(apache, "shared")
    seen: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        seen[message.body] += 1

    def member() -> PushConsumer:
        return PushConsumer(apache, "shared-g", topics="shared", handler=handle, settings=FROM_FIRST)

    async with (
        Producer(apache, settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
        Admin(apache, client_settings=LONG_TIMEOUTS) as admin,
        member() as first,
    ):
        async with member() as second:
            await wait_until(lambda: len(second.queues) > 0 and len(first.queues) <= 3, timeout_s=LONG_TIMEOUT_S)
            for number in range(100):
                await producer.send(Message("shared", b"%d" % number))
            await wait_until(lambda: len(seen) == 100, timeout_s=LONG_TIMEOUT_S)
            members = await admin.groups.members("shared-g")
            assert members is not None
            assert {member.client_id for member in members.connection_set} == {first.client_id, second.client_id}
        await wait_until(lambda: len(first.queues) == 5, timeout_s=LONG_TIMEOUT_S)


async def test_reset_on_apache_broker_moves_a_running_consumer(apache: str) -> None:
    """A reset on Apache's broker moves the consumer at its next pull."""
    await create(apache, "moved")
    seen: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        seen[message.body] += 1

    async with (
        Producer(apache, settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
        Admin(apache, client_settings=LONG_TIMEOUTS) as admin,
        PushConsumer(apache, "moved-g", topics="moved", handler=handle, settings=FROM_FIRST) as consumer,
    ):
        for number in range(20):
            await producer.send(Message("moved", b"%d" % number))
        await wait_until(lambda: len(seen) == 20, timeout_s=LONG_TIMEOUT_S)
        await consumer.commit()

        await admin.groups.reset_offsets("moved-g", "moved", 0)
        for _ in range(4):
            await producer.send(Message("moved", b"end the pulls that are held"))

        await wait_until(lambda: all(seen[b"%d" % number] == 2 for number in range(20)), timeout_s=LONG_TIMEOUT_S)


async def test_members_answer_requests_of_apache_broker(apache: str) -> None:
    """Running information, offsets, direct consumption, resets and clones work through Apache's broker."""
    await create(apache, "asked", queues=1)
    seen: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        seen[message.body] += 1

    async with (
        Producer(apache, settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
        Admin(apache, client_settings=LONG_TIMEOUTS) as admin,
        PushConsumer(apache, "asked-g", topics="asked", handler=handle, settings=FROM_FIRST) as consumer,
    ):
        queue = (await producer.queues("asked"))[0]
        receipts = [await producer.send(Message("asked", b"%d" % number)) for number in range(5)]
        await wait_until(lambda: len(seen) == 5, timeout_s=LONG_TIMEOUT_S)
        await consumer.commit()

        info = await admin.consumers.running_info("asked-g", consumer.client_id, has_stacks=True)
        assert info.mq_table[queue].commit_offset == 5
        assert info.jstack is not None
        assert await admin.consumers.offsets("asked-g", "asked") == {consumer.client_id: {queue: 5}}
        direct = await admin.consumers.consume("asked-g", consumer.client_id, receipts[2].offset_message_id)
        assert (direct.consume_result, seen[b"2"]) == ("CR_SUCCESS", 2)
        assert set(await admin.groups.time_spans("asked-g", "asked")) == {queue}

        assert await admin.groups.reset_queue("asked-g", queue, 3) == 3
        await producer.send(Message("asked", b"ends the pull that is held"))
        await wait_until(lambda: seen[b"3"] == 2 and seen[b"4"] == 2, timeout_s=LONG_TIMEOUT_S)
        await consumer.commit()
        await admin.groups.clone("asked-g", "asked-copy", "asked")
        assert (await admin.groups.committed("asked-copy", "asked"))[queue] == 6


async def test_ordered_polled_and_delayed_messages_on_apache_broker(apache: str) -> None:
    """Apache's locks, long polling and delay levels work as the client expects."""
    await create(apache, "ordered", queues=2)
    seen: dict[int, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        seen[message.queue.queue_id].append(int(message.body))

    async with Producer(apache, settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer:
        async with PushConsumer(
            apache, "ordered-g", topics="ordered", handler=handle, is_ordered=True, settings=FROM_FIRST
        ):
            for number in range(100):
                queue = MessageQueue(topic="ordered", broker_name="broker-a", queue_id=number % 2)
                await producer.send(Message("ordered", b"%d" % number), queue=queue)
            await wait_until(lambda: sum(map(len, seen.values())) >= 100, timeout_s=LONG_TIMEOUT_S)
        assert all(numbers == sorted(numbers) for numbers in seen.values())

        polled: list[bytes] = []
        async with PollConsumer(apache, "polled-g", topics="ordered", settings=FROM_FIRST) as consumer:
            async with asyncio.timeout(LONG_TIMEOUT_S):
                while len(polled) < 100:
                    polled += [message.body for message in await consumer.poll()]
                await consumer.commit()
                sent_at = asyncio.get_running_loop().time()
                await producer.send(Message("ordered", b"later", delay_level=1))
                while not (late := await consumer.poll()):
                    pass
        assert sorted(map(int, polled)) == list(range(100))
        assert [message.body for message in late] == [b"later"]
        assert asyncio.get_running_loop().time() - sent_at >= 0.9


async def test_administrative_requests_work_on_apache_broker(apache: str) -> None:
    """Apache's broker understands requests about topics, members and itself, and the client understands the replies."""
    await create(apache, "short-lived", queues=2)
    async with (
        Admin(apache, client_settings=LONG_TIMEOUTS) as admin,
        Producer(apache, settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
    ):
        await producer.send(Message("short-lived", b"x"))
        (broker,) = await admin.brokers.all()

        async def is_counted() -> bool:
            stats = await admin.topics.stats("short-lived")
            return sum(queue.max_offset for queue in stats.values()) == 1

        async def has_runtime() -> bool:
            try:
                return bool(await admin.brokers.runtime(broker.address))
            except BrokerRefused:  # wait until the first statistics of the broker are a second old
                return False

        async def is_gone() -> bool:
            return "short-lived" not in await admin.topics.all()

        await wait_until(
            is_counted, timeout_s=LONG_TIMEOUT_S
        )  # Apache's broker dispatches a message to its queue after the reply
        await wait_until(has_runtime, timeout_s=LONG_TIMEOUT_S)
        assert (await admin.brokers.runtime(broker.address))["brokerVersionDesc"] == PROTOCOL_VERSION_NAME
        assert (await admin.brokers.config(broker.address))["brokerName"] == "broker-a"
        assert "SELF_TEST_TOPIC" not in await admin.topics.all()
        assert await admin.groups.members("unknown") is None

        await admin.topics.delete("short-lived")
        await wait_until(is_gone, timeout_s=LONG_TIMEOUT_S)
