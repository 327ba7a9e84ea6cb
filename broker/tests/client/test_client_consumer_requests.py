"""Consumers as members that an administrator queries and resets, through a real broker over TCP."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from named_cluster import QUEUE, TOPIC, named_cluster

from gantry_broker.server.groups import members as broker_members
from gantry_client import (
    Admin,
    BrokerRefused,
    ConsumerSettings,
    InvalidMessage,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
    Unavailable,
)
from gantry_client.admin_groups import Groups
from gantry_client.consume_rates import ConsumeRates, RateWindow
from gantry_client.documents import QueueProgress, QueueTimeSpan
from gantry_testing.client import wait_until
from gantry_wire.codes import ResponseCode
from gantry_wire.names import retry_topic

GROUP = "billing"
FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST)


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with named_cluster(tmp_path) as (at, _):
        yield at


class Recorder:
    """A handler that records its calls, and fails for bodies that request it."""

    def __init__(self) -> None:
        self.tries: Counter[bytes] = Counter()
        self.last: ReceivedMessage | None = None

    async def __call__(self, message: ReceivedMessage) -> None:
        self.tries[message.body] += 1
        self.last = message
        if message.body.startswith(b"later"):
            raise RetryLater
        if message.body.startswith(b"broken"):
            raise ValueError("requested by the test")


async def send(address: str, *bodies: bytes) -> list[str]:
    """Send messages and return their offset message ids."""
    async with Producer(address) as producer:
        return [(await producer.send(Message(TOPIC, body))).offset_message_id for body in bodies]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# ------- resets


async def test_reset_moves_a_running_consumer_at_once(address: str) -> None:
    """The consumer continues at the earlier offset without waiting for its held pull or a new message."""
    handler = Recorder()
    async with (
        Admin(address) as admin,
        PushConsumer(address, GROUP, topics=TOPIC, handler=handler, settings=FROM_FIRST) as consumer,
    ):
        await send(address, *numbers(4))
        await wait_until(lambda: len(handler.tries) == 4, timeout_s=60)
        await consumer.commit()

        assert await admin.groups.reset_queue(GROUP, QUEUE, 1) == 1

        await wait_until(lambda: handler.tries[b"3"] == 2, timeout_s=60)
        await consumer.commit()
        assert (await admin.groups.progress(GROUP, TOPIC))[QUEUE].consumer_offset == 4
    assert [handler.tries[body] for body in numbers(4)] == [1, 2, 2, 2]


async def test_reset_to_the_end_drops_fetched_messages(address: str) -> None:
    """Messages that the administrator skips are not consumed, even if they were fetched already."""
    handled: list[bytes] = []
    gate = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        await gate.wait()

    await send(address, *numbers(5))
    one = ConsumerSettings(start_from=StartFrom.FIRST, concurrency=1)
    async with (
        Admin(address) as admin,
        PushConsumer(address, GROUP, topics=TOPIC, handler=handle, settings=one) as consumer,
    ):
        await wait_until(lambda: handled == [b"0"], timeout_s=60)
        assert await admin.groups.reset_offsets(GROUP, TOPIC, -1) == {QUEUE: 5}

        async def is_there() -> bool:
            await consumer.commit()
            (info,) = [(await admin.consumers.running_info(GROUP, consumer.client_id)).mq_table[QUEUE]]
            return (info.commit_offset, info.cached_msg_count) == (5, 0)

        await wait_until(is_there, timeout_s=60)
        gate.set()
        await send(address, b"new")
        await wait_until(lambda: b"new" in handled, timeout_s=60)

    assert handled == [b"0", b"new"]


async def test_member_is_reset_by_code_220(tmp_path: Path) -> None:
    """Code 220 resets the members, which commit the new offset; without members the client commits it."""
    handler = Recorder()
    async with named_cluster(tmp_path, useServerSideResetOffset="false") as (address, broker):
        await send(address, *numbers(4))
        async with Admin(address) as admin:
            async with PushConsumer(address, GROUP, topics=TOPIC, handler=handler, settings=FROM_FIRST) as consumer:
                await wait_until(lambda: len(handler.tries) == 4, timeout_s=60)
                await consumer.commit()

                assert await admin.groups.reset_offsets(GROUP, TOPIC, 0) == {QUEUE: 0}
                await wait_until(lambda: broker.core.offsets.find(GROUP, TOPIC, 0) == 0, timeout_s=60)
                await send(address, b"ends the pull that is held")
                await wait_until(lambda: handler.tries[b"3"] == 2, timeout_s=60)

            assert await admin.groups.reset_offsets(GROUP, TOPIC, 0) == {QUEUE: 0}
            assert broker.core.offsets.find(GROUP, TOPIC, 0) == 0


async def test_reset_outside_of_the_queue_is_refused(address: str) -> None:
    """The refusal is RocketMQ's text, and no offset changes."""
    await send(address, b"0")
    async with Admin(address) as admin, PullConsumer(address, GROUP) as consumer:
        await consumer.fetch(QUEUE, 0)
        await consumer.commit(QUEUE, 1)

        with pytest.raises(BrokerRefused, match=r"Target offset 2 not in consume queue range \[0-1\]"):
            await admin.groups.reset_queue(GROUP, QUEUE, 2)

        assert await consumer.committed(QUEUE) == 1


async def test_clone_copies_offsets_to_another_group(address: str) -> None:
    """A new group starts at the offsets of an existing one; without a topic all topics are cloned."""
    handler = Recorder()
    await send(address, *numbers(4))
    async with Admin(address) as admin:
        async with PullConsumer(address, GROUP) as consumer:
            await consumer.fetch(QUEUE, 0)
            await consumer.commit(QUEUE, 2)

        assert await admin.groups.topics(GROUP) == [TOPIC]
        await admin.groups.clone(GROUP, "copy")
        async with PushConsumer(address, "copy", topics=TOPIC, handler=handler, settings=FROM_FIRST):
            await wait_until(lambda: len(handler.tries) == 2, timeout_s=60)
    assert sorted(handler.tries) == [b"2", b"3"]


async def test_clone_leaves_out_the_retry_topic_of_the_source(address: str) -> None:
    """The target never reads the retry topic of the source: its offsets there would count as lag for ever."""
    await send(address, *numbers(1))
    retries = MessageQueue(topic=retry_topic(GROUP), broker_name=QUEUE.broker_name, queue_id=0)
    async with Admin(address) as admin:
        async with PushConsumer(address, GROUP, topics=TOPIC, handler=Recorder(), settings=FROM_FIRST) as member:
            await wait_until(lambda: retries in member.queues, timeout_s=60)
        async with PullConsumer(address, GROUP) as consumer:
            await consumer.commit(QUEUE, 1)
            await consumer.commit(retries, 0)
        assert await admin.groups.topics(GROUP) == [retries.topic, TOPIC]

        await admin.groups.clone(GROUP, "copy")

        assert await admin.groups.topics("copy") == [TOPIC]


# ------- requests


@pytest.mark.parametrize("is_ordered", [False, True], ids=["concurrent", "ordered"])
async def test_member_reports_its_running_info(address: str, is_ordered: bool) -> None:
    """The report has settings, subscriptions, queues, rates and stacks, like that of a Java client."""
    handler = Recorder()
    await send(address, *numbers(3))
    async with (
        Admin(address) as admin,
        PushConsumer(
            address, GROUP, topics={TOPIC: "*"}, handler=handler, settings=FROM_FIRST, is_ordered=is_ordered
        ) as consumer,
    ):
        await wait_until(lambda: len(handler.tries) == 3, timeout_s=60)
        assert set(await admin.consumers.connections(GROUP)) == {consumer.client_id}

        info = await admin.consumers.running_info(GROUP, consumer.client_id, has_stacks=True)
        assert await admin.consumers.offsets(GROUP, TOPIC) == {consumer.client_id: {QUEUE: 3}}
        assert await admin.consumers.offsets(GROUP, TOPIC, client_id="unknown") == {}

    assert info.properties["PROP_CONSUMEORDERLY"] == ("true" if is_ordered else "false")
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{address};"
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
    assert {one.topic for one in info.subscription_set} == {TOPIC, f"%RETRY%{GROUP}"}
    in_hand = info.mq_table[QUEUE]
    assert (in_hand.commit_offset, in_hand.cached_msg_count, in_hand.droped) == (3, 0, False)
    assert in_hand.locked is is_ordered
    assert (in_hand.last_lock_timestamp > 0) is is_ordered
    assert in_hand.last_pull_timestamp > 0
    assert in_hand.last_consume_timestamp > 0
    assert info.status_table[TOPIC].consume_ok_tps > 0
    assert info.status_table[TOPIC].pull_tps > 0
    assert info.jstack is not None
    assert "thread MainThread" in info.jstack
    assert "rebalance" in info.jstack


async def test_running_info_of_a_missing_member_is_an_error(address: str) -> None:
    """The error has the text of the broker."""
    async with Admin(address) as admin:
        with pytest.raises(BrokerRefused, match="The Consumer <billing> <unknown> not online"):
            await admin.consumers.running_info(GROUP, "unknown")


async def test_member_consumes_one_message_directly(address: str) -> None:
    """The result is returned; no offset changes, and a failed message is not redelivered because of it."""
    handler = Recorder()
    ids = await send(address, b"good", b"later", b"broken")
    settings = ConsumerSettings(start_from=StartFrom.LAST)
    async with (
        Admin(address) as admin,
        PushConsumer(address, GROUP, topics=TOPIC, handler=handler, settings=settings) as consumer,
    ):
        await wait_until(lambda: QUEUE in consumer.queues, timeout_s=60)
        results = [await admin.consumers.consume(GROUP, consumer.client_id, one, topic=TOPIC) for one in ids]
        assert handler.last is not None
        assert handler.last.queue == QUEUE
        info = await admin.consumers.running_info(GROUP, consumer.client_id)
        assert (await admin.groups.progress(GROUP, f"%RETRY%{GROUP}")).values()
        assert await admin.groups.retry_lag(GROUP) == 0

    assert [one.consume_result for one in results] == ["CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"]
    assert results[2].remark == "ValueError: requested by the test"
    assert info.mq_table[QUEUE].commit_offset == 3
    assert info.status_table[TOPIC].consume_ok_tps == 0
    assert handler.tries == Counter({b"good": 1, b"later": 1, b"broken": 1})


async def test_invalid_direct_consumption_is_refused(address: str) -> None:
    """Invalid are a malformed id, an id of another broker, and a member without a handler."""
    (message_id,) = await send(address, b"good")
    async with Admin(address) as admin, PollConsumer(address, GROUP, topics=TOPIC, settings=FROM_FIRST) as consumer:
        assert await consumer.poll(timeout_ms=60_000)
        (client_id,) = await admin.consumers.connections(GROUP)

        with pytest.raises(InvalidMessage):
            await admin.consumers.consume(GROUP, client_id, "nothing")
        with pytest.raises(Unavailable, match=r"192\.0\.2\.1:10911"):
            await admin.consumers.consume(GROUP, client_id, "C000020100002A9F0000000000000000")
        with pytest.raises(BrokerRefused, match="not exist in this consumer"):
            await admin.consumers.consume(GROUP, client_id, message_id)
        assert (await admin.consumers.running_info(GROUP, client_id)).properties["PROP_CONSUME_TYPE"] == (
            "CONSUME_ACTIVELY"
        )


async def test_slow_direct_consumption_blocks_no_other_request(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker times out with 207; meanwhile the connection of the consumer serves all other requests."""
    monkeypatch.setattr(broker_members, "CALL_TIMEOUT_MS", 1000)
    begun, seen = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"slow":
            begun.set()
            await asyncio.Event().wait()
        seen.set()

    (slow,) = await send(address, b"slow")
    settings = ConsumerSettings(start_from=StartFrom.LAST, concurrency=1)
    async with (
        Admin(address) as admin,
        PushConsumer(address, GROUP, topics=TOPIC, handler=handle, settings=settings) as consumer,
    ):
        await wait_until(lambda: QUEUE in consumer.queues, timeout_s=60)
        asking = asyncio.ensure_future(admin.consumers.consume(GROUP, consumer.client_id, slow))
        await asyncio.wait_for(begun.wait(), 60)

        with pytest.raises(BrokerRefused, match="1 messages are being consumed directly"):
            await admin.consumers.consume(GROUP, consumer.client_id, slow)
        await send(address, b"quick")
        await asyncio.wait_for(seen.wait(), 60)
        with pytest.raises(BrokerRefused) as refused:
            await asking
        assert refused.value.code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_time_spans_are_returned(address: str) -> None:
    """They are the first, last and consumed times of each queue of the topic."""
    await send(address, *numbers(3))
    async with Admin(address) as admin:
        spans = await admin.groups.time_spans(GROUP, TOPIC)

    assert set(spans) == {QUEUE}
    assert 0 < spans[QUEUE].min_time_stamp <= spans[QUEUE].max_time_stamp
    assert spans[QUEUE].delay_time >= 0


# ------- rates


class AdvancedClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_rates_cover_the_last_minute() -> None:
    """In the first minute the rate covers the time since the start; older events do not count."""
    clock = AdvancedClock()
    window = RateWindow(clock)
    clock.now += 20
    window.add(10, 50.0)
    assert (window.per_second(), window.average()) == (0.5, 5.0)

    clock.now += 100
    assert (window.per_second(), window.average()) == (0.0, 0.0)
    assert window.total_over(3600) == (10, 50.0)


def test_memory_of_rates_is_bounded() -> None:
    """A consumer keeps the slices of one hour, ten seconds each, however long it runs."""
    clock = AdvancedClock()
    window = RateWindow(clock)
    for _ in range(3600):
        clock.now += 5
        window.add()

    assert window.total_over(3600)[0] == 719  # the slice that has begun is counted in full
    assert len(window._slices) <= 360


def test_failures_are_counted_separately() -> None:
    """Failures of an hour and successes of a minute are counted by topic."""
    clock = AdvancedClock()
    rates = ConsumeRates(clock)
    rates.for_topic("t").record_handled(4.0, is_consumed=True)
    rates.for_topic("t").record_handled(6.0, is_consumed=False)
    clock.now += 10

    status = rates.status("t")
    assert (status.consume_rt, status.consume_ok_tps, status.consume_failed_tps) == (5.0, 0.1, 0.1)
    clock.now += 600
    assert rates.status("t").consume_failed_msgs == 1
    assert rates.status("other").consume_failed_msgs == 0


# ------- lag in seconds


async def test_lag_in_seconds_is_the_wait_of_the_message_at_the_offset(address: str) -> None:
    """Not the time since the last consumed message was stored; without lag it is 0."""
    await send(address, *numbers(2))
    async with Admin(address) as admin, PullConsumer(address, GROUP) as reader:
        await reader.commit(QUEUE, 1)
        progress = await admin.groups.progress(GROUP, TOPIC)
        [wait_s] = (await admin.groups.lag_seconds(GROUP, progress)).values()
        spans = await admin.groups.time_spans(GROUP, TOPIC)
        assert wait_s is not None and 0 < wait_s <= spans[QUEUE].delay_time / 1000
        await reader.commit(QUEUE, 2)
        progress = await admin.groups.progress(GROUP, TOPIC)
        assert await admin.groups.lag_seconds(GROUP, progress) == {QUEUE: 0.0}


async def test_lag_in_seconds_is_limited_by_the_last_consumed_message(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not report the wait reports when the last consumed message was stored."""

    async def refuse(self: Groups, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        raise Unavailable("not supported")

    monkeypatch.setattr(Groups, "time_spans", refuse)
    now_ms = time.time_ns() // 1_000_000
    behind = QueueProgress(broker_offset=9, consumer_offset=4, last_timestamp=now_ms - 60_000)
    unknown, without_lag = QueueProgress(broker_offset=9), QueueProgress(broker_offset=9, consumer_offset=9)
    queues = [MessageQueue(topic=TOPIC, broker_name="a", queue_id=number) for number in range(3)]
    async with Admin(address) as admin:
        waits = await admin.groups.lag_seconds(GROUP, dict(zip(queues, (behind, unknown, without_lag), strict=True)))

    assert [waits[queue] for queue in queues] == [pytest.approx(60, abs=30), None, 0.0]


async def test_impossible_wait_is_not_believed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache's brokers compute the wait of a deleted message from the store time -1: fifty years."""

    async def report(self: Groups, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        return {QUEUE: QueueTimeSpan(message_queue=QUEUE, delay_time=time.time_ns() // 1_000_000 + 1)}

    monkeypatch.setattr(Groups, "time_spans", report)
    async with Admin(address) as admin:
        assert await admin.groups.lag_seconds(GROUP, {QUEUE: QueueProgress(broker_offset=9)}) == {QUEUE: None}
