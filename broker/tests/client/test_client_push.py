"""The push consumer handles every message at least once, through failures of handlers, brokers and connections."""

import asyncio
from collections import Counter

import msgspec
import pytest

from gantry_client import (
    ConsumerSettings,
    InvalidMessage,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from gantry_client import handling as handling_module
from gantry_client import queue_reader as reader_module
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode
from gantry_wire.command import oneway
from gantry_wire.fastjson import ObjectKey, dumps

FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST)
PULL = RequestCode.PULL_MESSAGE
GROUP = "billing"


class Recorder:
    """A handler that records messages, and fails each as often as the test sets."""

    def __init__(self, *, failures: int = 0, error: BaseException | None = None) -> None:
        self.handled: list[ReceivedMessage] = []
        self.tries: Counter[bytes] = Counter()
        self._failures = failures
        self._error = error or RetryLater()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.tries[message.body] += 1
        if self.tries[message.body] <= self._failures:
            raise self._error
        self.handled.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.handled]


async def send(cluster: FakeCluster, *bodies: bytes, tags: str | None = None) -> None:
    async with Producer(cluster.name_server) as producer:
        for body in bodies:
            await producer.send(Message("orders", body, tags=tags))


async def test_every_message_is_handled_and_then_committed() -> None:
    """All messages reach the handler once, and closing commits exactly what was handled."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster:
        cluster.add_topic("orders", queues=4)
        bodies = [b"%d" % number for number in range(200)]
        await send(cluster, *bodies)
        handler = Recorder()

        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST):
            await wait_until(lambda: len(handler.handled) == 200)

        assert sorted(handler.bodies) == sorted(bodies)
        committed = sum(
            offset
            for broker in cluster.brokers.values()
            for (group, topic, _), offset in broker.state.offsets.items()
            if (group, topic) == (GROUP, "orders")
        )
        assert committed == 200


async def test_restarted_consumer_continues_at_its_offset() -> None:
    """After a clean close no message is handled twice or skipped."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=2)
        first, second = Recorder(), Recorder()
        await send(cluster, b"1", b"2", b"3")
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=first, settings=FROM_FIRST):
            await wait_until(lambda: len(first.handled) == 3)
        await send(cluster, b"4", b"5")

        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=second, settings=FROM_FIRST):
            await wait_until(lambda: len(second.handled) == 2)

        assert sorted(second.bodies) == [b"4", b"5"]


@pytest.mark.parametrize(
    "error", [RetryLater(), RuntimeError("a bug"), asyncio.CancelledError()], ids=["asked", "bug", "cancelled-inside"]
)
async def test_failed_message_is_redelivered(error: BaseException) -> None:
    """After any exception of the handler the message is sent back to the broker and redelivered with a count."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"bad")
        handler = Recorder(failures=2, error=error)

        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST):
            await wait_until(lambda: handler.bodies == [b"bad"])

        (message,) = handler.handled
        assert (message.topic, message.reconsume_times) == ("orders", 2)
        assert handler.tries[b"bad"] == 3


async def test_message_that_always_fails_ends_in_the_dead_letter_topic() -> None:
    """After max_reconsume_times redeliveries the message is moved and not delivered any more."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, max_reconsume_times=3)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"bad", b"good")
        handler = Recorder(failures=0)

        async def fail_bad(message: ReceivedMessage) -> None:
            handler.tries[message.body] += 1
            if message.body == b"bad":
                raise RetryLater(delay_level=2)

        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=fail_bad, settings=settings):
            await wait_until(lambda: len(cluster.broker().messages(f"%DLQ%{GROUP}")) == 1)

        assert handler.tries == {b"bad": 4, b"good": 1}
        assert {header["delayLevel"] for header in cluster.broker().state.send_backs} == {"2"}


async def test_message_that_cannot_be_sent_back_is_retried_locally(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed send-back neither skips the message nor commits past it."""
    monkeypatch.setattr(handling_module, "LOCAL_RETRY_MS", 50)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"bad")
        cluster.broker().refuse(RequestCode.CONSUMER_SEND_MSG_BACK, 1)
        handler = Recorder(failures=1)

        async with PushConsumer(
            cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST
        ) as consumer:
            await wait_until(lambda: handler.tries[b"bad"] == 1)
            await consumer.commit()
            committed_before = cluster.broker().state.offsets.get((GROUP, "orders", 0))
            await wait_until(lambda: handler.bodies == [b"bad"])

        assert committed_before == 0
        assert cluster.broker().state.offsets[GROUP, "orders", 0] == 1


async def test_slow_message_delays_the_commit() -> None:
    """While one handler runs, no offset after its message is committed, though others are done."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"0", b"1", b"slow", b"3", b"4")
        release, done = asyncio.Event(), Recorder()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"slow":
                await release.wait()
            await done(message)

        async with PushConsumer(
            cluster.name_server, GROUP, topics="orders", handler=handle, settings=FROM_FIRST
        ) as consumer:
            await wait_until(lambda: len(done.handled) == 4)
            await consumer.commit()
            assert cluster.broker().state.offsets[GROUP, "orders", 0] == 2

            release.set()
            await wait_until(lambda: len(done.handled) == 5)
            await consumer.commit()
            assert cluster.broker().state.offsets[GROUP, "orders", 0] == 5


async def test_concurrency_limit_of_handlers_holds() -> None:
    """The limit is reached and never exceeded."""
    running, most, ended = 0, 0, 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        ended += 1

    settings = ConsumerSettings(start_from=StartFrom.FIRST, concurrency=3)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=4)
        await send(cluster, *(b"%d" % number for number in range(50)))
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handle, settings=settings):
            await wait_until(lambda: ended == 50)

    assert most == 3


async def test_fetching_pauses_when_handlers_are_behind() -> None:
    """With cached_messages_max fetched messages nothing more is pulled until one is done."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, cached_messages_max=10, fetch_messages_max=5, concurrency=1)
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await release.wait()

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, *(b"%d" % number for number in range(40)))
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handle, settings=settings):
            broker = cluster.broker()

            def pulls() -> list[int]:
                return [
                    int(command.ext["queueOffset"])
                    for command in broker.requests
                    if command.code == PULL and command.ext["topic"] == "orders"
                ]

            await wait_until(lambda: len(pulls()) == 2)
            await asyncio.wait([asyncio.create_task(release.wait())], timeout=0.1)
            assert pulls() == [0, 5], "pulled more than ten messages that are not done"

            release.set()
            await wait_until(lambda: max(pulls()) == 40)


async def test_only_subscribed_tags_are_handled() -> None:
    """Messages of other tags are skipped and committed."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"1", tags="new")
        await send(cluster, b"2", tags="old")
        await send(cluster, b"3", tags="paid")
        await send(cluster, b"4", tags="old")
        handler = Recorder()

        async with PushConsumer(
            cluster.name_server, GROUP, topics={"orders": "new || paid"}, handler=handler, settings=FROM_FIRST
        ) as consumer:
            await wait_until(lambda: len(handler.handled) == 2)

            async with asyncio.timeout(60):
                while cluster.broker().state.offsets.get((GROUP, "orders", 0)) != 4:
                    await consumer.commit()

        assert handler.bodies == [b"1", b"3"]


@pytest.mark.parametrize(
    ("start_from", "expected"),
    [(StartFrom.FIRST, [b"old", b"new"]), (StartFrom.LAST, [b"new"])],
    ids=["first", "last"],
)
async def test_new_group_starts_by_its_rule(start_from: StartFrom, expected: list[bytes]) -> None:
    """Without an offset start_from decides; LAST receives what is sent after the group joined."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"old")
        handler = Recorder()
        settings = ConsumerSettings(start_from=start_from)

        async with PushConsumer(
            cluster.name_server, GROUP, topics="orders", handler=handler, settings=settings
        ) as consumer:
            await wait_until(lambda: len(consumer.queues) == 2)
            await send(cluster, b"new")
            await wait_until(lambda: len(handler.handled) == len(expected))

        assert handler.bodies == expected


async def test_group_that_started_at_the_end_keeps_its_offset() -> None:
    """A LAST group that handled nothing has an offset: messages that arrive while it is stopped are handled later."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"old")
        handler = Recorder()
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler) as consumer:
            await wait_until(lambda: len(consumer.queues) == 2)
        await send(cluster, b"missed")

        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler):
            await wait_until(lambda: handler.bodies == [b"missed"])


async def test_new_group_can_start_at_a_time() -> None:
    """TIMESTAMP starts at the first message stored at or after it."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"old", b"new")
        messages = cluster.broker().messages("orders")
        messages[0] = msgspec.structs.replace(messages[0], store_timestamp_ms=1000)
        cluster.broker().state.log.queue("orders", 0).messages[:] = messages
        settings = ConsumerSettings(start_from=StartFrom.TIMESTAMP, start_timestamp_ms=1001)
        handler = Recorder()

        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=settings):
            await wait_until(lambda: handler.bodies == [b"new"])


async def test_consumption_continues_after_broker_restart() -> None:
    """Lost connections and a stopped broker lose neither the consumer nor a message."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"1")
        handler = Recorder()
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST):
            await wait_until(lambda: handler.bodies == [b"1"])
            cluster.stale_names.add("broker-a")
            await cluster.broker().stop()
            await cluster.broker().start()
            await send(cluster, b"2")

            await wait_until(lambda: handler.bodies == [b"1", b"2"])
            members = [client_id for _, client_id, _ in cluster.broker().state.consumers(GROUP)]

        assert len(members) == 1, "expected one heartbeat, on the new connection"


async def test_offset_outside_the_queue_moves_into_it() -> None:
    """Code 21 in both directions: the consumer continues with the present messages of the queue."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        broker = cluster.broker()
        await send(cluster, *(b"%d" % number for number in range(10)))
        broker.state.log.queue("orders", 0).min_offset = 8
        broker.state.offsets[GROUP, "orders", 0] = 3
        handler = Recorder()

        async with PushConsumer(
            cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST
        ) as consumer:
            await wait_until(lambda: handler.bodies == [b"8", b"9"])

            del broker.state.log.queue("orders", 0).messages[9:]
            broker.state.log.wake()
            await wait_until(lambda: last_pull_offset(cluster) == 9)
            await send(cluster, b"new 9")
            await wait_until(lambda: handler.bodies[-1] == b"new 9")
            await consumer.commit()

        assert broker.state.offsets[GROUP, "orders", 0] == 10


def last_pull_offset(cluster: FakeCluster) -> int:
    pulls = [c for c in cluster.broker().requests if c.code == PULL and c.ext["topic"] == "orders"]
    return int(pulls[-1].ext["queueOffset"])


async def test_heartbeat_describes_the_consumer() -> None:
    """The heartbeat has group, model, start rule and every subscription, including the retry topic."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        async with PushConsumer(
            cluster.name_server, GROUP, topics={"orders": "a || b"}, handler=Recorder(), settings=FROM_FIRST
        ) as consumer:
            await wait_until(lambda: len(consumer.queues) == 2)
            ((_, client_id, data),) = cluster.broker().state.consumers(GROUP)

            assert client_id == consumer.client_id
            assert (data.consume_type, data.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
            assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
            wanted = {subscription.topic: subscription for subscription in data.subscription_data_set}
            assert set(wanted) == {"orders", f"%RETRY%{GROUP}"}
            assert (wanted["orders"].sub_string, wanted["orders"].tags_set) == ("a || b", ["a", "b"])
            assert sorted(wanted["orders"].code_set) == [97, 98]

        assert cluster.broker().received[RequestCode.UNREGISTER_CLIENT] == 1


async def test_close_waits_for_a_running_handler() -> None:
    """A handler that runs when close is called finishes, and its message is committed."""
    started, release, handled = asyncio.Event(), asyncio.Event(), Recorder()

    async def handle(message: ReceivedMessage) -> None:
        started.set()
        await release.wait()
        await handled(message)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"1")
        consumer = PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handle, settings=FROM_FIRST)
        await consumer.start()
        await started.wait()

        closing = asyncio.create_task(consumer.close())
        await asyncio.wait([closing], timeout=0.05)
        assert not closing.done()
        release.set()
        await closing

        assert handled.bodies == [b"1"]
        assert cluster.broker().state.offsets[GROUP, "orders", 0] == 1


async def test_handler_that_outlives_close_is_cancelled() -> None:
    """After close_timeout_ms the handler is cancelled; its message is not committed and is redelivered."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, close_timeout_ms=50)
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"1")
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handle, settings=settings):
            await started.wait()

        assert cancelled.is_set()
        assert cluster.broker().state.offsets.get((GROUP, "orders", 0)) in (None, 0)


async def test_topic_created_later_is_consumed() -> None:
    """A consumer may start before its topic exists."""
    async with FakeCluster(auto_creates_topics=False) as cluster:
        handler = Recorder()
        async with PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST):
            cluster.add_topic("orders", queues=1)
            await send(cluster, b"1")

            await wait_until(lambda: handler.bodies == [b"1"])


async def test_topic_can_be_added_while_consuming() -> None:
    """subscribe on a running consumer is sent to the brokers and takes effect."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        cluster.add_topic("more", queues=1)
        handler = Recorder()
        async with (
            PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST) as consumer,
            Producer(cluster.name_server) as producer,
        ):
            await wait_until(lambda: len(consumer.queues) == 2)
            await producer.send(Message("more", b"m"))

            await consumer.subscribe("more")

            await wait_until(lambda: handler.bodies == [b"m"])


@pytest.mark.parametrize("topics", [{}, {"../x": "*"}, {"orders": "||"}], ids=["none", "path", "tags"])
def test_invalid_subscription_is_refused_before_the_start(topics: dict[str, str]) -> None:
    """Topics and tags are checked when the consumer is created."""

    async def make() -> None:
        with pytest.raises(InvalidMessage):
            PushConsumer("127.0.0.1:1", GROUP, topics=topics, handler=Recorder())

    asyncio.run(make())


async def test_reset_by_code_220_moves_a_running_consumer() -> None:
    """A broker that leaves the reset to the members (code 220) makes them continue at the new offset."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await send(cluster, b"0", b"1", b"2")
        handler = Recorder()
        async with PushConsumer(
            cluster.name_server, GROUP, topics="orders", handler=handler, settings=FROM_FIRST
        ) as consumer:
            await wait_until(lambda: len(handler.handled) == 3)
            queue = ObjectKey({"brokerName": "broker-a", "queueId": 0, "topic": "orders"})
            order = oneway(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"topic": "orders", "group": GROUP, "timestamp": "0", "isForce": "true"},
                dumps({"offsetTable": {queue: 1}}),
            )
            for connection, _, _ in cluster.broker().state.consumers(GROUP):
                connection.send(order.encode())

            await send(cluster, b"3")  # this ends the held pull
            await wait_until(lambda: handler.tries[b"2"] == 2 and handler.tries[b"3"] >= 1)
            await consumer.commit()

        assert handler.tries[b"0"] == 1
        assert cluster.broker().state.offsets[GROUP, "orders", 0] == 4


async def send_three_and_damage_one(cluster: FakeCluster) -> None:
    """Store three messages in one queue, of which the second has a wrong bit on every replica."""
    cluster.add_topic("orders", queues=1)
    await send(cluster, b"first", b"rotten", b"third")
    cluster.broker().state.log.damaged.add(("orders", 0, 1))


async def test_damaged_message_is_logged_and_skipped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No handler gets it; after the allowed attempts the queue continues after it, and an error logs its offset."""
    monkeypatch.setattr(reader_module, "PAUSE_FIRST_MS", 1)
    recorder = Recorder()
    settings = ConsumerSettings(start_from=StartFrom.FIRST, damaged_attempts_max=3)
    async with FakeCluster() as cluster:
        await send_three_and_damage_one(cluster)
        async with PushConsumer(
            cluster.name_server, GROUP, topics={"orders": "*"}, handler=recorder, settings=settings
        ):
            await wait_until(lambda: len(recorder.handled) == 2)
        assert recorder.bodies == [b"first", b"third"]
        assert cluster.broker().state.offsets[GROUP, "orders", 0] == 3
    [asked, stepped] = [
        record for record in caplog.records if "damaged message" in record.message or "is damaged" in record.message
    ]
    assert asked.message == "message is damaged on every replica; retrying"
    assert stepped.message == "skipped damaged message; it is not consumed"
    assert (stepped.offset, stepped.attempts) == (1, 3)  # type: ignore[attr-defined]


async def test_queue_waits_for_a_damaged_message_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `damaged_attempts_max=None` nothing after it is delivered until it is healed, and then everything is."""
    monkeypatch.setattr(reader_module, "PAUSE_FIRST_MS", 1)
    monkeypatch.setattr(reader_module, "PAUSE_MAX_MS", 2)
    recorder = Recorder()
    settings = ConsumerSettings(start_from=StartFrom.FIRST, damaged_attempts_max=None)
    async with FakeCluster() as cluster:
        await send_three_and_damage_one(cluster)
        async with PushConsumer(
            cluster.name_server, GROUP, topics={"orders": "*"}, handler=recorder, settings=settings
        ):
            await wait_until(lambda: len(cluster.broker().requests) > 60)
            assert recorder.bodies == [b"first"]
            cluster.broker().state.log.damaged.clear()
            await wait_until(lambda: len(recorder.handled) == 3)
        assert recorder.bodies == [b"first", b"rotten", b"third"]
