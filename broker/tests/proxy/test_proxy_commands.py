"""Commands for clients: questions of brokers about transactions, and clients that read slowly or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from proxy_world import ADDRESS, BROKER, NOW_MS, FakeBrokers, FakeStream, World, producer_settings

from gantry_proxy import clients
from gantry_proxy.clients import WAITING_BYTES_MAX, WRITE_TIMEOUT_S, ProxyClient
from gantry_proxy.orphans import OrphanedTransactions
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.translation.handles import OpenTransaction, read_transaction_id
from gantry_wire.command import Command
from gantry_wire.commands.transactions import CheckTransactionState
from gantry_wire.message import StoredMessage, encode_host, encode_record
from gantry_wire.properties import encode_properties


def question(transaction_id: str = "1") -> pb.TelemetryCommand:
    return pb.TelemetryCommand(recover_orphaned_transaction_command={"transaction_id": transaction_id})


def slow_client(one: World) -> tuple[ProxyClient, FakeStream, asyncio.Event]:
    """Return a client that reads nothing until the event is set."""
    stream = one.join_producer(client_id="client-1")
    stream.is_read = asyncio.Event()
    client = one.clients.find("client-1")
    assert client is not None
    return client, stream, stream.is_read


async def test_client_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK connects again when it reads."""
    monkeypatch.setattr(clients, "WRITE_TIMEOUT_S", 0.01)
    client, stream, _ = slow_client(World())

    assert await client.send(pb.TelemetryCommand()) is False
    assert (stream.is_closed, client.waiting_bytes) == (True, 0)


async def test_burst_of_commands_waits_for_the_client() -> None:
    """A broker asks about many transactions at once; a client that reads gets every question on its one stream."""
    client, stream, is_read = slow_client(World())
    burst = asyncio.gather(*(client.send(question("1" * 500)) for _ in range(2_000)))
    await asyncio.sleep(0)
    assert stream.written == []

    is_read.set()

    assert await burst == [True] * 2_000
    assert (len(stream.written), stream.is_closed, client.waiting_bytes) == (2_000, False, 0)


async def test_only_the_command_that_is_written_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly keeps its stream: many commands wait longer than the limit, and none is written for so
    long."""
    limits: list[float] = []

    @asynccontextmanager
    async def timeout(seconds: float) -> AsyncIterator[None]:
        limits.append(seconds)
        yield

    client, stream, is_read = slow_client(World())
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "timeout", timeout)
        burst = asyncio.gather(*(client.send(question()) for _ in range(5)))
        for _ in range(3):
            await asyncio.sleep(0)
        while_first_waits = list(limits)
        is_read.set()
        sent = await burst

    assert while_first_waits == [WRITE_TIMEOUT_S]
    assert (sent, limits, stream.is_closed) == ([True] * 5, [WRITE_TIMEOUT_S] * 5, False)


async def test_command_that_waits_is_not_written_to_an_ended_stream() -> None:
    """It is reported as not sent, so that the broker's next question may go to another producer."""
    one = World()
    client, stream, is_read = slow_client(one)
    burst = asyncio.gather(*(client.send(question()) for _ in range(3)))
    await asyncio.sleep(0)

    one.clients.disconnect("client-1", stream)
    is_read.set()

    assert await burst == [True, False, False]
    assert (len(stream.written), client.waiting_bytes) == (1, 0)


async def test_commands_beyond_the_limit_are_dropped() -> None:
    """The memory for one client is bounded, and its stream stays open; a single large command is within the limit."""
    client, stream, is_read = slow_client(World())
    first = asyncio.create_task(client.send(question("1" * WAITING_BYTES_MAX)))
    await asyncio.sleep(0)

    assert await client.send(pb.TelemetryCommand(settings=producer_settings())) is False
    is_read.set()
    assert await first is True
    assert (len(stream.written), stream.is_closed) == (1, False)


# ------- transactions


def half_message(topic: str = "orders", message_id: str = "01ABC") -> Command:
    record = StoredMessage(
        topic=topic, queue_id=0, body=b"half", physical_offset=4711, queue_offset=9,
        born_host=encode_host("10.0.0.7", 1), store_host=encode_host("10.0.0.1", 10911), born_timestamp_ms=NOW_MS,
        store_timestamp_ms=NOW_MS, properties_bytes=encode_properties({"UNIQ_KEY": message_id, "TRAN_MSG": "true"}),
    )  # fmt: skip
    header = CheckTransactionState(
        tran_state_table_offset=9, commit_log_offset=4711, topic="RMQ_SYS_TRANS_HALF_TOPIC", transaction_id=message_id,
        bname=BROKER,
    )  # fmt: skip
    return Command(code=39, ext=header.write(), body=encode_record(record))


def transactions(kind: str = "TRANSACTION") -> tuple[World, OrphanedTransactions]:
    one = World(FakeBrokers(kinds={"orders": kind}))
    return one, OrphanedTransactions(one.brokers, one.topics, one.clients, 1 << 20)


@pytest.mark.parametrize(("kind", "is_registered"), [("TRANSACTION", True), ("MIXED", True), ("NORMAL", False)])
async def test_proxy_is_a_producer_of_topics_with_transactions(kind: str, is_registered: bool) -> None:
    """Brokers ask the producers of a group; the group of a message from a proxy is its topic."""
    one, orphans = transactions(kind)
    one.join_producer()

    await orphans.register()

    assert one.brokers.registered == ({ADDRESS: ["orders"]} if is_registered else {})


async def test_proxy_leaves_when_the_last_producer_is_gone() -> None:
    """Otherwise brokers would ask a proxy that has no producer to ask."""
    one, orphans = transactions()
    stream = one.join_producer()
    await orphans.register()

    one.clients.disconnect("producer-1", stream)
    await orphans.register()

    assert one.brokers.unregistered == [(ADDRESS, "orders")]


async def test_question_of_a_broker_reaches_a_producer() -> None:
    """The producer gets the message, and a transaction id with which any replica can end it."""
    one, orphans = transactions()
    streams = [one.join_producer(client_id=f"p{number}") for number in range(2)]

    for _ in range(4):
        await orphans.on_check(half_message(), ADDRESS)

    assert [len(stream.written) for stream in streams] == [2, 2]
    command = streams[0].written[0].recover_orphaned_transaction_command
    assert read_transaction_id(command.transaction_id) == OpenTransaction("01ABC", BROKER, 9, 4711)
    assert (command.message.topic.name, command.message.body) == ("orders", b"half")
    assert command.message.system_properties.message_type == pb.TRANSACTION


@pytest.mark.parametrize("damage", ["no producer", "no body", "no header"])
async def test_question_that_cannot_be_passed_on_is_dropped(damage: str) -> None:
    """The broker repeats it; a malformed one must not end the connection."""
    one, orphans = transactions()
    command: Any = half_message()
    if damage != "no producer":
        stream = one.join_producer()
        command = Command(code=39, ext=command.ext if damage == "no body" else {}, body=b"x")

    await orphans.on_check(command, ADDRESS)

    assert orphans.asked == 0
    if damage != "no producer":
        assert stream.written == []


async def test_question_that_waits_for_the_producer_is_not_repeated() -> None:
    """A broker repeats its questions every few seconds; one that the producer has read may be asked again."""
    one, orphans = transactions()
    stream = one.join_producer()
    stream.is_read = asyncio.Event()

    asked = asyncio.gather(*(orphans.on_check(half_message(message_id=f"0{n % 3}"), ADDRESS) for n in range(12)))
    await asyncio.sleep(0)
    stream.is_read.set()
    await asked
    await orphans.on_check(half_message(message_id="00"), ADDRESS)

    ids = [one.recover_orphaned_transaction_command.message.system_properties.message_id for one in stream.written]
    assert ids == ["00", "01", "02", "00"]
    assert (orphans.asked, orphans.dropped) == (4, 0)
