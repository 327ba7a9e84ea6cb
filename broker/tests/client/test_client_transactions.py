"""The transactional producer with a real broker in separate processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crash.processes import HOST, ServerProcess, broker, name_server

from gantry_client import (
    Admin,
    BadReply,
    BrokerRefused,
    ClientSettings,
    ConsumerSettings,
    Decision,
    HalfMessage,
    InvalidMessage,
    Message,
    MessageQueue,
    PollConsumer,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
    StartFrom,
    TransactionProducer,
    Unavailable,
    transactions,
)
from gantry_testing.client import FakeCluster, wait_until
from gantry_testing.ports import free_broker_port, free_port
from gantry_wire.codes import RequestCode

EARLY_CHECKS = {"transactionTimeOut": "100", "transactionCheckInterval": "200"}
SMALL_FILES = {"mappedFileSizeCommitLog": str(16 << 20), "maxHashSlotNum": "1000", "maxIndexNum": "20000"}
GROUP = "payments"
FAST_ROUTE_POLL = ClientSettings(route_poll_interval_ms=500)
"""Settings that query routes often: a topic that a crash has lost is created again when a message is committed to it,
and clients learn of it from its route."""


class Servers:
    """A name server and one broker as processes."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.name_server = name_server(folder, self.port)
        self.broker: ServerProcess = broker(folder, free_broker_port(), self.port, SMALL_FILES | EARLY_CHECKS)
        self.address = f"{HOST}:{self.port}"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    one = Servers(tmp_path)
    await one.name_server.start()
    await one.broker.start()
    async with Admin(one.address) as admin:

        async def is_known() -> bool:
            return bool(await admin.brokers.all())

        await wait_until(is_known, timeout_s=120, what="the broker's registration")
    try:
        yield one
    finally:
        await one.broker.kill()
        await one.name_server.kill()


async def delivered(servers: Servers, count: int, topic: str = "T") -> list[bytes]:
    """Return the first messages of a topic, up to a count."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST, rebalance_interval_ms=500)
    bodies: list[bytes] = []
    consumer = PollConsumer(
        servers.address, "readers", topics=topic, settings=settings, client_settings=FAST_ROUTE_POLL
    )
    async with consumer:
        async with asyncio.timeout(120):
            while len(bodies) < count:
                bodies += [message.body for message in await consumer.poll(timeout_ms=1000)]
    return bodies


async def test_transaction_block_commits_or_rolls_back(servers: Servers) -> None:
    """The block commits at its end, and rolls back if it raises."""
    async with TransactionProducer(servers.address, GROUP) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("T", b"not this")):
                raise ZeroDivisionError
        async with producer.transaction(Message("T", b"this", tags="a", keys=["k"])) as half:
            assert half.queue.topic == "T"
        assert await delivered(servers, 1) == [b"this"]
        await producer.commit(half)
        with pytest.raises(BrokerRefused, match="ended before: committed"):
            await producer.roll_back(half)


async def test_check_decides_open_transactions(servers: Servers) -> None:
    """A producer that starts later gets the checks of open transactions; an exception counts as UNKNOWN."""
    asked: list[bytes] = []

    async def check(message: ReceivedMessage) -> Decision:
        asked.append(message.body)
        if asked.count(message.body) == 1:
            raise RuntimeError("no database yet")
        return Decision.COMMIT if message.body == b"paid" else Decision.ROLL_BACK

    async with TransactionProducer(servers.address, GROUP) as producer:
        for body in (b"paid", b"cancelled"):
            await producer.begin(Message("T", body))
    async with TransactionProducer(servers.address, GROUP, check):
        assert await delivered(servers, 1) == [b"paid"]

        async def was_asked_twice() -> bool:
            return asked.count(b"cancelled") >= 2

        await wait_until(was_asked_twice, timeout_s=120, what="the second check")


@pytest.mark.verify
async def test_killed_broker_loses_no_transaction(servers: Servers) -> None:
    """The commit succeeds after the restart; messages committed before are not delivered again."""
    async with TransactionProducer(servers.address, GROUP) as producer:
        first = await producer.begin(Message("T", b"first"))
        second = await producer.begin(Message("T", b"second"))
        await producer.commit(first)
        await servers.broker.kill()
        commit = asyncio.ensure_future(producer.commit(second, timeout_ms=60_000))
        await servers.broker.start()
        await commit
        await producer.commit(first)
        assert sorted(await delivered(servers, 2)) == [b"first", b"second"]


def test_half_message_without_a_valid_id_is_a_bad_reply() -> None:
    """Its outcome is unknown to the sender, who gets an error of the client and not one of the protocol's parser."""
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    receipt = SendReceipt(
        status=SendStatus.SEND_OK, message_id="A", offset_message_id="no id", queue=queue, queue_offset=0
    )

    with pytest.raises(BadReply, match="broker-a stored a half message without a valid id"):
        transactions._make_half("T", receipt)


async def test_delayed_transaction_is_refused(servers: Servers) -> None:
    """It is refused before anything is sent."""
    async with TransactionProducer(servers.address, GROUP) as producer:
        with pytest.raises(InvalidMessage, match="delayed"):
            await producer.begin(Message("T", b"x", delay_level=1))


async def test_sharding_key_without_a_queue_is_refused(servers: Servers) -> None:
    """The key does not select the queue of a transaction, so a queue is needed. Then the message keeps its key."""
    async with TransactionProducer(servers.address, GROUP) as producer:
        message = Message("T", b"x", sharding_key="customer-7")
        with pytest.raises(InvalidMessage, match="sharding key 'customer-7'"):
            await producer.begin(message)
        queue = (await producer.queues("T"))[0]

        half = await producer.begin(message, queue=queue)
        await producer.commit(half)

    assert half.queue == queue


async def test_route_query_of_a_commit_shares_its_deadline() -> None:
    """A name server that never replies uses up the deadline of a commit, and no more."""
    half = HalfMessage(
        topic="T", queue=MessageQueue(topic="T", broker_name="broker-a", queue_id=0), message_id="A", half_offset=0,
        physical_offset=0,
    )  # fmt: skip
    settings = ClientSettings(request_timeout_ms=120_000)
    async with FakeCluster() as cluster:
        silent = cluster.broker()
        silent.ignore(RequestCode.GET_ROUTEINFO_BY_TOPIC, times=100)
        producer = TransactionProducer(silent.address, GROUP, answers_checks=False, client_settings=settings)
        async with producer, asyncio.timeout(60):
            with pytest.raises(Unavailable, match="no name server replied in time"):
                await producer.commit(half, timeout_ms=100)
