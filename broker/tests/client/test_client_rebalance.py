"""Rebalancing: while members join and leave, every message is handled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from gantry_client import (
    ClientSettings,
    ConsumerSettings,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    group_consumer,
)
from gantry_client.documents import ConsumerIds
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode
from gantry_wire.commands.documents import write_document

GROUP = "billing"
SETTINGS = ConsumerSettings(start_from=StartFrom.FIRST, handover_timeout_ms=100)


class GroupRecorder:
    """The messages that all members of a group handled."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        self.bodies.append(message.body)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(("broker-a", "broker-b")) as fake:
        fake.add_topic("orders", queues=4)
        yield fake


def member(cluster: FakeCluster, handler: GroupRecorder, settings: ConsumerSettings = SETTINGS) -> PushConsumer:
    return PushConsumer(cluster.name_server, GROUP, topics="orders", handler=handler, settings=settings)


def order_queues(consumer: PushConsumer) -> set[tuple[str, int]]:
    return {(queue.broker_name, queue.queue_id) for queue in consumer.queues if queue.topic == "orders"}


async def test_members_share_the_queues_without_overlap(cluster: FakeCluster) -> None:
    """Every queue is read by exactly one of three members."""
    handler = GroupRecorder()
    async with (
        member(cluster, handler) as first,
        member(cluster, handler) as second,
        member(cluster, handler) as third,
    ):
        members = (first, second, third)
        await wait_until(lambda: sorted(len(order_queues(one)) for one in members) == [2, 3, 3])

        assert len(set().union(*(order_queues(one) for one in members))) == 8


async def test_leaving_member_releases_its_queues(cluster: FakeCluster) -> None:
    """After a close the other members read all queues again."""
    handler = GroupRecorder()
    async with member(cluster, handler) as stays:
        async with member(cluster, handler) as leaves:
            await wait_until(lambda: len(order_queues(stays)) == len(order_queues(leaves)) == 4)

        await wait_until(lambda: len(order_queues(stays)) == 8)


async def test_no_message_is_lost_while_members_join_and_leave(cluster: FakeCluster) -> None:
    """Messages sent during joins and leaves are all handled; some may be handled twice."""
    handler, sent = GroupRecorder(), [b"%d" % number for number in range(600)]

    async def send_all() -> None:
        async with Producer(cluster.name_server) as producer:
            for body in sent:
                await producer.send(Message("orders", body))

    sending = asyncio.create_task(send_all())
    async with member(cluster, handler):
        for _ in range(3):
            async with AsyncExitStack() as others:
                for _ in range(2):
                    await others.enter_async_context(member(cluster, handler))
                    done = len(handler.bodies)
                    await wait_until(lambda done=done: len(handler.bodies) > done or sending.done())  # type: ignore[misc]
        await sending
        await wait_until(lambda: set(handler.bodies) == set(sent))

    assert len(handler.bodies) < 2 * len(sent), "on average each message was handled twice"


async def test_crashed_member_is_replaced_from_its_last_commit(cluster: FakeCluster) -> None:
    """A crashed member loses nothing: its uncommitted messages go to the others."""
    stuck = asyncio.Event()

    async def never(message: ReceivedMessage) -> None:
        await stuck.wait()

    victim = PushConsumer(cluster.name_server, GROUP, topics="orders", handler=never, settings=SETTINGS)
    await victim.start()
    async with Producer(cluster.name_server) as producer:
        for number in range(40):
            await producer.send(Message("orders", b"%d" % number))
    await wait_until(lambda: len(order_queues(victim)) == 8)
    await victim._session.tasks.close()
    await victim._consumer._tasks.close()
    await victim._session.pool.close()

    handler = GroupRecorder()
    async with member(cluster, handler):
        await wait_until(lambda: len(set(handler.bodies)) == 40)
    await victim._handling.close()


async def test_unlisted_member_keeps_its_queues_and_sends_a_heartbeat(cluster: FakeCluster) -> None:
    """After a member list without us, as from a restarted broker, a heartbeat is sent and no queue is released."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, rebalance_interval_ms=30)
    handler = GroupRecorder()
    async with member(cluster, handler, settings) as consumer:
        await wait_until(lambda: len(order_queues(consumer)) == 8)
        heartbeats = [broker.received[RequestCode.HEART_BEAT] for broker in cluster.brokers.values()]
        for broker in cluster.brokers.values():
            broker.state.clients.clear()

        await wait_until(
            lambda: all(
                broker.received[RequestCode.HEART_BEAT] > before
                for broker, before in zip(cluster.brokers.values(), heartbeats, strict=True)
            )
        )
        assert len(order_queues(consumer)) == 8


async def test_new_queues_of_a_topic_are_read(cluster: FakeCluster) -> None:
    """The queues of a topic that grows are assigned at the next rebalance."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, rebalance_interval_ms=30)
    handler = GroupRecorder()
    async with PushConsumer(
        cluster.name_server,
        GROUP,
        topics="orders",
        handler=handler,
        settings=settings,
        client_settings=ClientSettings(route_poll_interval_ms=30),
    ) as consumer:
        await wait_until(lambda: len(order_queues(consumer)) == 8)
        cluster.add_topic("orders", queues=6)

        await wait_until(lambda: len(order_queues(consumer)) == 12)


async def test_unanswered_rebalance_keeps_the_queues(cluster: FakeCluster) -> None:
    """If no broker returns the members of the group, members keep their queues."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, rebalance_interval_ms=20)
    handler = GroupRecorder()
    async with member(cluster, handler, settings) as consumer:
        await wait_until(lambda: len(order_queues(consumer)) == 8)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        asked = {name: broker.received[code] for name, broker in cluster.brokers.items()}
        for broker in cluster.brokers.values():
            broker.refuse(code, 1, times=1000)

        await wait_until(lambda: all(b.received[code] >= asked[n] + 3 for n, b in cluster.brokers.items()))

        assert len(order_queues(consumer)) == 8


async def test_incomplete_rebalance_is_repeated_after_doubling_delays(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first delay is the one in the constant."""
    delays_s: list[float] = []

    def timeout(delay_s: float) -> asyncio.Timeout:
        delays_s.append(delay_s)
        return asyncio.timeout(delay_s / 100)

    monkeypatch.setattr(group_consumer, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": timeout}))
    first_s = group_consumer.RETRY_FIRST_MS / 1000
    for broker in cluster.brokers.values():
        broker.refuse(RequestCode.GET_CONSUMER_LIST_BY_GROUP, 1, times=3)

    async with member(cluster, GroupRecorder()) as consumer:
        await wait_until(lambda: len(order_queues(consumer)) == 8)

        retries_s = [delay_s for delay_s in delays_s if delay_s in {first_s * 2**n for n in range(5)}]
        assert retries_s[:2] == [first_s, first_s * 2]


async def test_member_list_of_other_clients_releases_no_queue(cluster: FakeCluster) -> None:
    """While a broker lists only other clients, our share is unknown: the queues are kept, and the query is repeated."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, rebalance_interval_ms=20)
    strangers = write_document(ConsumerIds(consumer_id_list=["10.0.0.1@1", "10.0.0.2@2"]))
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    handler = GroupRecorder()
    async with member(cluster, handler, settings) as consumer:
        await wait_until(lambda: len(order_queues(consumer)) == 8)
        for broker in cluster.brokers.values():
            broker.fault(code, lambda command, _: command.reply(body=strangers), times=1000)
        asked = cluster.broker().received[code]

        await wait_until(lambda: cluster.broker().received[code] >= asked + 5)

        assert len(order_queues(consumer)) == 8
