"""SQL92 filters of the client with a real name server and brokers: subscribe, refuse, change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from crash.processes import HOST, broker, name_server

from gantry_client import (
    Admin,
    BrokerRefused,
    ConsumerSettings,
    FetchStatus,
    InvalidMessage,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sql,
    StartFrom,
)
from gantry_client.subscriptions import make_subscription
from gantry_testing.client import FakeCluster, wait_until
from gantry_testing.ports import free_broker_port, free_port
from gantry_wire.codes import RequestCode

SMALL_FILES = {"mappedFileSizeCommitLog": str(16 * 1024 * 1024), "maxHashSlotNum": "1000", "maxIndexNum": "20000"}
FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST)
TOPIC = "orders"


@asynccontextmanager
async def cluster(folder: Path, **settings: str) -> AsyncIterator[str]:
    """Run a name server and a broker with a topic of two queues and ten messages with prices; yield the address."""
    port = free_port()
    servers = [name_server(folder, port), broker(folder, free_broker_port(), port, SMALL_FILES | settings)]
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.kill)
            await server.start()
        await fill(f"{HOST}:{port}")
        yield f"{HOST}:{port}"


async def fill(address: str) -> None:
    """Create the topic, and send its messages."""
    async with Admin(address) as admin:

        async def is_known() -> bool:
            return bool(await admin.brokers.all())

        await wait_until(is_known, timeout_s=60, what="the broker's registration")
        await admin.topics.create(TOPIC, queues=2)
    async with Producer(address, "p") as producer:
        for number in range(10):
            await producer.send(Message(TOPIC, b"%d" % number, properties={"price": str(number)}))


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with cluster(tmp_path, enablePropertyFilter="true") as at:
        yield at


@pytest.fixture
async def address_without_filters(tmp_path: Path) -> AsyncIterator[str]:
    async with cluster(tmp_path) as at:
        yield at


async def test_every_kind_of_consumer_filters_by_properties(address: str) -> None:
    """Push, poll and pull consumers get exactly the messages that their filters accept, now and later."""
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with (
        PushConsumer(
            address, "push", topics={TOPIC: Sql("price BETWEEN 3 AND 5")}, handler=handle, settings=FROM_FIRST
        ),
        PollConsumer(address, "poll", topics={TOPIC: Sql("price > 7")}, settings=FROM_FIRST) as polling,
        PullConsumer(address, "pull") as pulling,
        Producer(address, "p") as producer,
    ):
        polled: list[bytes] = []

        async def is_polled() -> bool:
            polled.extend([message.body for message in await polling.poll(timeout_ms=100)])
            return len(polled) >= 3 and len(seen) >= 4

        await producer.send(Message(TOPIC, b"more", properties={"price": "4"}))
        await producer.send(Message(TOPIC, b"most", properties={"price": "400"}))
        await wait_until(is_polled, timeout_s=60, what="the messages that the filters accept")
        pulled = [await pull_accepted(pulling, queue, "price < 2") for queue in await pulling.queues(TOPIC)]

    assert sorted(seen) == [b"3", b"4", b"5", b"more"]
    assert sorted(polled) == [b"8", b"9", b"most"]
    assert sorted(body for bodies in pulled for body in bodies) == [b"0", b"1"]


async def pull_accepted(consumer: PullConsumer, queue: MessageQueue, expression: str) -> list[bytes]:
    """Return the bodies of a queue that a filter accepts."""
    found: list[bytes] = []
    offset = 0
    while (result := await consumer.fetch(queue, offset, tags=Sql(expression))).status is not FetchStatus.NO_NEW:
        found += [message.body for message in result.messages]
        offset = result.next_offset
    return found


async def test_member_can_change_its_filter(address: str) -> None:
    """A newer subscription replaces the older one: here a filter by properties replaces one by tags."""
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with (
        PushConsumer(
            address, "changing", topics={TOPIC: "nothing has this tag"}, handler=handle, settings=FROM_FIRST
        ) as one,
        Producer(address, "p") as producer,
    ):
        await wait_until(
            lambda: sum(queue.topic == TOPIC for queue in one.queues) == 2, timeout_s=60, what="both queues"
        )
        await one.subscribe(TOPIC, Sql("price = 77"))
        await producer.send(Message(TOPIC, b"late", properties={"price": "77"}))
        await producer.send(Message(TOPIC, b"unwanted", properties={"price": "78"}))
        await wait_until(lambda: bool(seen), timeout_s=60, what="the message that is wanted now")

    assert seen == [b"late"]


async def test_broker_without_filter_support_refuses_at_once(address_without_filters: str) -> None:
    """A new consumer fails to start and leaves nothing open; a running one keeps its subscription."""
    address = address_without_filters
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    for kind in (
        lambda: PollConsumer(address, "g", topics={TOPIC: Sql("price > 1")}),
        lambda: PushConsumer(address, "g", topics={TOPIC: Sql("price > 1")}, handler=handle),
    ):
        with pytest.raises(BrokerRefused, match="does not support") as refused:
            async with kind():
                pass
        assert refused.value.code == 1
    async with PushConsumer(address, "h", topics=TOPIC, handler=handle, settings=FROM_FIRST) as consumer:
        with pytest.raises(BrokerRefused):
            await consumer.subscribe(TOPIC, Sql("price > 1"))
        await wait_until(lambda: len(seen) == 10, timeout_s=60, what="everything")


async def test_unreachable_broker_does_not_refuse_a_filter() -> None:
    """Without a reachable broker the consumer starts and waits, as with tags."""
    async with PollConsumer(f"{HOST}:{free_port()}", "g", topics={TOPIC: Sql("price > 1")}) as consumer:
        assert await consumer.poll(timeout_ms=1) == []
        await asyncio.sleep(0)


async def test_every_reachable_broker_validates_a_filter() -> None:
    """A broker that refuses the filter stops the start also if another one cannot be reached."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster:
        cluster.add_topic(TOPIC)
        cluster.stale_names.add("broker-a")
        await cluster.broker("broker-a").stop()
        cluster.broker("broker-b").refuse(RequestCode.CHECK_CLIENT_CONFIG, 1, "does not support filters")

        with pytest.raises(BrokerRefused, match="does not support filters"):
            async with PollConsumer(cluster.name_server, "g", topics={TOPIC: Sql("price > 1")}):
                pass


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("price >", "unexpected end"),
        ("price = 1 kind = 2", "would be ignored"),
        ("", "unexpected end"),
        ("5", "expected a condition"),
    ],
)
def test_invalid_filter_is_refused_by_the_client(expression: str, why: str) -> None:
    """This includes text after the expression, which a broker would silently ignore."""
    with pytest.raises(InvalidMessage, match=why):
        make_subscription(TOPIC, Sql(expression))


def test_heartbeat_has_the_expression_type() -> None:
    """Brokers ignore tags for SQL92."""
    data = make_subscription(TOPIC, Sql("price > 5")).data()

    assert (data.expression_type, data.sub_string, data.tags_set, data.code_set) == ("SQL92", "price > 5", [], [])
