"""The client against a name server and a broker in real processes, for what the fake cluster cannot prove.

Each test has its own processes on free ports, and each broker a store in its own folder.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from crash.processes import HOST, ServerProcess, broker, name_server

from gantry_client import (
    Admin,
    ClientError,
    ClientSettings,
    ConsumerSettings,
    FetchStatus,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
    sync,
)
from gantry_testing.client import wait_until
from gantry_testing.ports import free_broker_port, free_port

FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST)
SMALL_FILES = {"mappedFileSizeCommitLog": str(16 * 1024 * 1024), "maxHashSlotNum": "1000", "maxIndexNum": "20000"}
GROUP = "billing"


@dataclass
class Servers:
    """A name server and the brokers that register with it."""

    folder: Path
    name_server: ServerProcess
    port: int
    brokers: dict[str, ServerProcess]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start_broker(self, name: str = "broker-a", **settings: str) -> ServerProcess:
        """Start a broker, and wait until it is registered."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if name not in self.brokers:
            self.brokers[name] = broker(
                folder, free_broker_port(), self.port, SMALL_FILES | {"brokerName": name} | settings
            )
        await self.brokers[name].start()
        async with Admin(self.address) as admin:

            async def is_known() -> bool:
                return name in {known.name for known in await admin.brokers.all()}

            await wait_until(is_known, timeout_s=120, what=f"{name}'s registration")
        return self.brokers[name]


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    """Run a name server; all processes are ended after the test."""
    port = free_port()
    one = Servers(tmp_path, name_server(tmp_path, port), port, {})
    await one.name_server.start()
    try:
        yield one
    finally:
        for process in (*one.brokers.values(), one.name_server):
            await process.kill()


async def create(servers: Servers, topic: str = "orders", *, queues: int = 4) -> None:
    async with Admin(servers.address) as admin:
        await admin.topics.create(topic, queues=queues)


def body(number: int) -> bytes:
    """Return a unique body: its number and a hash of it."""
    return b"%d:" % number + sha256(b"%d" % number).hexdigest().encode()


async def read_all(servers: Servers, topic: str = "orders") -> list[ReceivedMessage]:
    """Return every message of `topic`, queue by queue, by offset."""
    found: list[ReceivedMessage] = []
    async with PullConsumer(servers.address, "reader") as consumer:
        for queue in await consumer.queues(topic):
            offset = 0
            while (result := await consumer.fetch(queue, offset)).status is not FetchStatus.NO_NEW:
                found += result.messages
                offset = result.next_offset
    return found


async def test_every_kind_of_send_is_stored_unchanged(servers: Servers) -> None:
    """Single, batch, oneway, compressed, tagged and keyed messages are read back unchanged with their properties."""
    await servers.start_broker()
    await create(servers)
    async with Producer(servers.address, "p") as producer:
        large = bytes(range(256)) * 400
        await producer.send(Message("orders", large, tags="big", keys=["k1", "k2"], properties={"own": "väl"}))
        await producer.send_batch([Message("orders", body(number), tags="batch") for number in range(20)])
        await producer.send_oneway(Message("orders", b"oneway"))
        receipt = await producer.send(Message("orders", b"last", sharding_key="s"))

        messages: list[ReceivedMessage] = []
        async with asyncio.timeout(120):
            while len(messages) < 23:
                messages = await read_all(servers)

    by_body = {message.body: message for message in messages}
    assert set(by_body) == {large, b"oneway", b"last"} | {body(number) for number in range(20)}
    assert (by_body[large].tags, by_body[large].keys) == ("big", ("k1", "k2"))
    assert by_body[large].properties["own"] == "väl"
    assert by_body[b"last"].offset_message_id == receipt.offset_message_id
    assert (by_body[b"last"].queue, by_body[b"last"].queue_offset) == (receipt.queue, receipt.queue_offset)


async def test_acknowledged_messages_are_at_their_offsets(servers: Servers) -> None:
    """After thousands of pipelined sends, every acknowledged message is at the offset of its receipt."""
    await servers.start_broker()
    await create(servers, queues=3)
    async with Producer(servers.address, settings=ProducerSettings(send_timeout_ms=20_000)) as producer:
        receipts = await asyncio.gather(*(producer.send(Message("orders", body(n))) for n in range(3000)))

    messages = await read_all(servers)
    places = {(message.queue, message.queue_offset): message for message in messages}
    assert len(messages) == len(places) == 3000
    for number, receipt in enumerate(receipts):
        assert receipt.is_acknowledged
        assert places[receipt.queue, receipt.queue_offset].body == body(number)
    ends = Counter(message.queue for message in messages)
    assert all({m.queue_offset for m in messages if m.queue == queue} == set(range(end)) for queue, end in ends.items())


@pytest.mark.verify
async def test_failing_message_is_redelivered_and_ends_in_the_dead_letter_topic(servers: Servers) -> None:
    """The broker delays and counts retries, and moves the message after the limit; others are handled once."""
    await servers.start_broker()
    await create(servers, queues=1)
    tries: Counter[bytes] = Counter()
    times: list[float] = []

    async def handle(message: ReceivedMessage) -> None:
        tries[message.body] += 1
        assert message.topic == "orders"
        if message.body == b"bad":
            times.append(asyncio.get_running_loop().time())
            assert message.reconsume_times == tries[message.body] - 1
            raise RetryLater(delay_level=1)

    settings = ConsumerSettings(start_from=StartFrom.FIRST, max_reconsume_times=1)
    async with (
        Producer(servers.address) as producer,
        Admin(servers.address) as admin,
        PushConsumer(servers.address, GROUP, topics="orders", handler=handle, settings=settings),
    ):
        for text in (b"good", b"bad", b"fine"):
            await producer.send(Message("orders", text))
        await wait_until(lambda: tries == {b"good": 1, b"bad": 2, b"fine": 1}, timeout_s=120)

        async def has_dead_letters() -> bool:
            return f"%DLQ%{GROUP}" in await admin.topics.all(with_internal=True)

        await wait_until(has_dead_letters, timeout_s=120)

    assert times[1] - times[0] >= 0.9, "redelivered before the second of level 1 was over"
    (dead,) = await read_all(servers, f"%DLQ%{GROUP}")
    assert dead.body == b"bad"


@pytest.mark.verify
async def test_no_message_is_lost_while_real_members_join_and_leave(servers: Servers) -> None:
    """While two further members join and leave, every message is handled, and on average less than twice."""
    await servers.start_broker()
    await create(servers, queues=6)
    handled: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        handled[message.body] += 1

    def member() -> PushConsumer:
        return PushConsumer(servers.address, GROUP, topics="orders", handler=handle, settings=FROM_FIRST)

    async def send_all() -> None:
        async with Producer(servers.address) as producer:
            for number in range(1500):
                await producer.send(Message("orders", body(number)))

    async with member() as stays:
        sending = asyncio.create_task(send_all())
        for _ in range(2):
            async with member() as second, member() as third:
                await wait_until(
                    lambda second=second, third=third: (
                        {len(stays.queues), len(second.queues), len(third.queues)}  # type: ignore[misc]
                        <= {2, 3}
                    ),
                    timeout_s=120,
                )
        await sending
        await wait_until(lambda: len(handled) == 1500, timeout_s=120)
        async with asyncio.timeout(120):
            await stays.commit()

    assert sum(handled.values()) < 2 * 1500


@pytest.mark.verify
async def test_ordered_consumption_keeps_order_while_members_change(servers: Servers) -> None:
    """With the locks of the broker no message is handled before an earlier one of the same queue."""
    await servers.start_broker()
    await create(servers, queues=3)
    seen: dict[int, list[int]] = defaultdict(list)
    running: Counter[int] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        queue_id = message.queue.queue_id
        running[queue_id] += 1
        assert running[queue_id] == 1, "two handlers of one queue"
        await asyncio.sleep(0)
        seen[queue_id].append(int(message.body))
        running[queue_id] -= 1

    def member() -> PushConsumer:
        return PushConsumer(
            servers.address, GROUP, topics="orders", handler=handle, is_ordered=True, settings=FROM_FIRST
        )

    async def send_all() -> None:
        async with Producer(servers.address) as producer:
            for number in range(600):
                queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=number % 3)
                await producer.send(Message("orders", b"%d" % number), queue=queue)

    async with member():
        sending = asyncio.create_task(send_all())
        async with member() as second:
            await wait_until(lambda: len(second.queues) > 0, timeout_s=120)
        await sending
        await wait_until(lambda: {n for numbers in seen.values() for n in numbers} == set(range(600)), timeout_s=120)

    for numbers in seen.values():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts)


async def test_acknowledged_message_survives_kill_and_clients_reconnect(servers: Servers) -> None:
    """After kill -9 under load and a restart, both clients continue, and every acknowledged message is handled."""
    process = await servers.start_broker()
    await create(servers, queues=2)
    acknowledged: set[bytes] = set()
    handled: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        handled.add(message.body)

    async def send_until(stop: asyncio.Event, producer: Producer) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                receipt = await producer.send(Message("orders", body(number)), timeout_ms=1000)
            except ClientError:
                await asyncio.sleep(0.02)
                continue
            if receipt.is_acknowledged:
                acknowledged.add(body(number))

    stop = asyncio.Event()
    poll = ClientSettings(route_poll_interval_ms=500)
    async with (
        Producer(servers.address, client_settings=poll) as producer,
        PushConsumer(
            servers.address, GROUP, topics="orders", handler=handle, settings=FROM_FIRST, client_settings=poll
        ),
    ):
        sending = asyncio.create_task(send_until(stop, producer))
        await wait_until(lambda: len(acknowledged) > 200, timeout_s=120)
        await process.kill()
        before = len(acknowledged)
        await servers.start_broker()
        await wait_until(lambda: len(acknowledged) > before + 200, timeout_s=120)
        stop.set()
        await sending
        await wait_until(lambda: acknowledged <= handled, timeout_s=120)


@pytest.mark.verify
async def test_committed_offsets_survive_broker_restart(servers: Servers) -> None:
    """After a clean stop of the broker the consumer continues at its committed offsets."""
    process = await servers.start_broker()
    await create(servers, queues=2)
    first: list[bytes] = []
    second: list[bytes] = []

    async def into_first(message: ReceivedMessage) -> None:
        first.append(message.body)

    async def into_second(message: ReceivedMessage) -> None:
        second.append(message.body)

    async with Producer(servers.address) as producer:
        for number in range(20):
            await producer.send(Message("orders", body(number)))
        async with PushConsumer(servers.address, GROUP, topics="orders", handler=into_first, settings=FROM_FIRST):
            await wait_until(lambda: len(first) == 20, timeout_s=120)
    assert await process.stop() == 0
    await servers.start_broker()

    async with Producer(servers.address) as producer:
        await producer.send(Message("orders", b"new"))
        async with PushConsumer(servers.address, GROUP, topics="orders", handler=into_second, settings=FROM_FIRST):
            await wait_until(lambda: len(second) > 0, timeout_s=120)

    assert second == [b"new"]


@pytest.mark.verify
async def test_sends_use_the_other_broker_while_one_is_stopped(servers: Servers) -> None:
    """With two brokers a clean stop of one fails no send."""
    await servers.start_broker("broker-a")
    await servers.start_broker("broker-b")
    await create(servers, queues=2)
    async with Producer(servers.address) as producer:
        before = [await producer.send(Message("orders", body(number))) for number in range(20)]
        await servers.brokers["broker-a"].stop()
        after = [await producer.send(Message("orders", body(number))) for number in range(20, 60)]

    assert {receipt.queue.broker_name for receipt in before} == {"broker-a", "broker-b"}
    assert {receipt.queue.broker_name for receipt in after} == {"broker-b"}
    assert all(receipt.is_acknowledged for receipt in after)


@pytest.mark.verify
async def test_delayed_message_is_delivered_when_due(servers: Servers) -> None:
    """Level 1 is delivered after a second to its own topic, and later messages overtake it."""
    await servers.start_broker()
    await create(servers, queues=1)
    arrived: dict[bytes, float] = {}
    loop = asyncio.get_running_loop()

    async def handle(message: ReceivedMessage) -> None:
        arrived[message.body] = loop.time()

    async with (
        Producer(servers.address) as producer,
        PushConsumer(servers.address, GROUP, topics="orders", handler=handle, settings=FROM_FIRST) as consumer,
    ):
        await wait_until(lambda: len(consumer.queues) > 0, timeout_s=120)
        sent_at = loop.time()
        await producer.send(Message("orders", b"later", delay_level=1))
        await producer.send(Message("orders", b"now"))
        is_in_time = loop.time() - sent_at < 0.9
        await wait_until(lambda: set(arrived) == {b"later", b"now"}, timeout_s=120)

    assert arrived[b"later"] - sent_at >= 0.9
    assert arrived[b"now"] < arrived[b"later"] or not is_in_time, (
        "the delayed message was not overtaken, although the other one was sent in time"
    )


async def test_administration_works_on_a_real_broker(servers: Servers) -> None:
    """Topics, stats, lag, groups, single messages and resets work with the real handlers."""
    process = await servers.start_broker()
    address = f"{HOST}:{process_port(process)}"
    async with Admin(servers.address) as admin, Producer(servers.address) as producer:
        await admin.topics.create("orders", queues=2)
        queues = await producer.queues("orders")
        receipt = await producer.send(Message("orders", b"this", keys=["key-1"]), queue=queues[0])
        for number in range(4):
            await producer.send(Message("orders", body(number)), queue=queues[0])
        async with PullConsumer(servers.address, GROUP) as consumer:
            await consumer.fetch(queues[0], 0)
            await consumer.commit(queues[0], 2)

        assert await admin.topics.all() == ["orders"]
        stats = await admin.topics.stats("orders")
        assert (stats[queues[0]].min_offset, stats[queues[0]].max_offset) == (0, 5)
        assert (await admin.groups.progress(GROUP, "orders"))[queues[0]].lag == 3
        assert GROUP in await admin.topics.groups("orders")
        assert (await admin.messages.view(receipt.offset_message_id, "orders")).body == b"this"

        async def is_indexed() -> bool:
            return bool(await admin.messages.by_key("orders", "key-1"))

        await wait_until(is_indexed, what="the index entry")
        assert [message.body for message in await admin.messages.by_key("orders", "key-1")] == [b"this"]
        assert [m.message_id for m in await admin.messages.by_id("orders", receipt.message_id)] == [receipt.message_id]
        assert (await admin.brokers.runtime(address))["brokerVersionDesc"]
        assert (await admin.brokers.config(address))["brokerName"] == "broker-a"
        assert (await admin.groups.reset_offsets(GROUP, "orders", 0))[queues[0]] == 0

        await admin.topics.delete("orders")
        assert await admin.topics.all() == []
        with pytest.raises(NoRoute):
            await admin.topics.stats("orders")


def process_port(process: ServerProcess) -> int:
    """Return the port in the configuration of a broker."""
    lines = Path(process._arguments[-1]).read_text().splitlines()
    return int(next(line for line in lines if line.startswith("listenPort=")).partition("=")[2])


@pytest.mark.verify
async def test_unknown_topic_is_an_error_without_automatic_creation(servers: Servers) -> None:
    """With autoCreateTopicEnable=false there is no route, and the query creates nothing."""
    await servers.start_broker(autoCreateTopicEnable="false")
    async with Producer(servers.address) as producer, Admin(servers.address) as admin:
        with pytest.raises(NoRoute):
            await producer.send(Message("fresh", b"x"))
        assert "fresh" not in await admin.topics.all()


async def test_held_fetch_returns_when_a_message_arrives(servers: Servers) -> None:
    """A held fetch is answered when messages arrive, and returns those that match its tag filter only."""
    await servers.start_broker()
    await create(servers, queues=1)
    async with Producer(servers.address) as producer, PullConsumer(servers.address, "waiting") as consumer:
        (queue,) = await consumer.queues("orders")
        waiting = asyncio.create_task(consumer.fetch(queue, 0, tags="wanted", wait_ms=60_000))
        await producer.send(Message("orders", b"other", tags="other"))
        await asyncio.wait([waiting], timeout=0.2)
        await producer.send(Message("orders", b"wanted", tags="wanted"))

        bodies: list[bytes] = []
        async with asyncio.timeout(50):
            result = await waiting
            bodies += [message.body for message in result.messages]
            while not bodies:
                result = await consumer.fetch(queue, result.next_offset, tags="wanted", wait_ms=1000)
                bodies += [message.body for message in result.messages]

    assert bodies == [b"wanted"]


@pytest.mark.verify
async def test_synchronous_client_works_with_a_real_broker(servers: Servers) -> None:
    """Plain code sends and polls; it runs in a thread here because the test has an event loop."""
    await servers.start_broker()
    await create(servers)

    def plain_program() -> list[bytes]:
        with sync.Producer(servers.address) as producer:
            producer.send_many([Message("orders", body(number)) for number in range(50)])
        bodies: list[bytes] = []
        with sync.PollConsumer(servers.address, "plain", topics="orders", settings=FROM_FIRST) as consumer:
            while len(bodies) < 50:
                bodies += [message.body for message in consumer.poll()]
            consumer.commit()
        return bodies

    async with asyncio.timeout(120):
        bodies = await asyncio.to_thread(plain_program)

    assert sorted(bodies) == sorted(body(number) for number in range(50))
