"""Sends that arrive in one turn of the event loop are one request, and each call has its own reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from proxy_world import ADDRESS, NOW_MS, FakeBrokers, World, message, send_reply
from test_proxy_processes import Sdk, cluster, running_proxy

from gantry_client.errors import RequestTimeout, Unavailable
from gantry_proxy import send_batches
from gantry_proxy.handlers.sending import begin_send, send_message
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError, status_of
from gantry_testing.local import wait_until
from gantry_wire.batch import decode_batch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.properties import parse_properties

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


async def connected(kind: str = "NORMAL") -> World:
    """Return a proxy that knows its topic, and has a connection to its broker."""
    one = World(FakeBrokers(kinds={"orders": kind, "bills": kind}, is_connected=True))
    for topic in ("orders", "bills"):
        await one.topics.get(topic)
        await one.topics.kind(topic)
    return one


def numbered(number: int, **system: Any) -> pb.Message:
    return message(body=b"body %d" % number, message_id=f"01{number:04}", **system)


def at(ms: int) -> Timestamp:
    """Return a time of a sender, this many milliseconds after the others'."""
    return Timestamp(seconds=NOW_MS // 1_000, nanos=ms * 1_000_000)


async def sent(one: World, *messages: pb.Message) -> list[list[Any]]:
    """Send each message by a call of its own, all in one turn; return the outcomes of each call."""
    finished: list[list[Any]] = [[] for _ in messages]
    for each, outcomes in zip(messages, finished, strict=True):
        request = pb.SendMessageRequest(messages=[each])
        assert begin_send(one.core, one.context(), request, outcomes.append)
    await asyncio.sleep(0)
    return finished


def codes(one: World) -> list[int]:
    return [command.code for _, command, _, _ in one.brokers.begun]


def bodies(command: Command) -> list[bytes]:
    return [entry.body for entry in decode_batch(command.body)]


async def settled(outcomes: list[list[Any]]) -> list[Any]:
    """Return the outcome of each call, once those have come that need a task."""
    await wait_until(lambda: all(outcomes))
    assert all(len(each) == 1 for each in outcomes), "a call has ended twice"
    return [each[0] for each in outcomes]


async def test_sends_of_one_turn_are_one_request() -> None:
    """Every message keeps its own properties, and every call has the offset of its message."""
    one = await connected()
    outcomes = await sent(one, numbered(1, tag="green"), numbered(2), numbered(3, keys=["k1", "k2"]))

    [(address, command, _, on_outcome)] = one.brokers.begun
    assert (address, command.code) == (ADDRESS, BATCH)
    assert (command.ext["b"], command.ext["m"], command.ext["i"]) == ("orders", "true", "")
    assert bodies(command) == [b"body 1", b"body 2", b"body 3"]
    found = [parse_properties(entry.properties.decode()) for entry in decode_batch(command.body)]
    assert [one["UNIQ_KEY"] for one in found] == ["010001", "010002", "010003"]
    assert [(one.get("TAGS"), one.get("KEYS")) for one in found] == [("green", None), (None, None), (None, "k1 k2")]

    on_outcome(send_reply())
    replies = await settled(outcomes)
    assert [reply.status.code for reply in replies] == [pb.OK] * 3
    assert [(reply.entries[0].message_id, reply.entries[0].offset) for reply in replies] == [
        ("010001", 7), ("010002", 8), ("010003", 9),
    ]  # fmt: skip


async def test_send_alone_in_its_turn_is_an_ordinary_request() -> None:
    one = await connected()
    await sent(one, numbered(1))
    await sent(one, numbered(2))

    assert codes(one) == [SEND, SEND]


@pytest.mark.parametrize(
    "others",
    [
        {"born_timestamp": at(1)}, {"body_encoding": pb.GZIP}, {"message_group": "g", "message_type": pb.FIFO},
        {"delivery_timestamp": at(999), "message_type": pb.DELAY}, {"message_type": pb.TRANSACTION},
        {"priority": 3, "message_type": pb.PRIORITY},
    ],
    ids=["sender's time", "compressed", "fifo", "delay", "transaction", "priority"],
)  # fmt: skip
async def test_message_with_something_of_its_own_is_sent_alone(others: dict[str, Any]) -> None:
    """The record of a message has the time and the flags of its request, and only a single one can be delayed."""
    one = await connected("MIXED")
    same = {"born_timestamp": at(0)}
    await sent(one, numbered(1, **same), numbered(2, **same | others), numbered(3, **same))

    assert sorted(codes(one)) == sorted([SEND, BATCH])
    [batch] = [command for _, command, _, _ in one.brokers.begun if command.code == BATCH]
    assert bodies(batch) == [b"body 1", b"body 3"]


async def test_topics_are_not_mixed() -> None:
    one = await connected()
    other = message("bills", b"bill", message_id="01B")
    await sent(one, numbered(1), other, numbered(2))

    assert [(command.code, command.ext["b"]) for _, command, _, _ in one.brokers.begun] == [
        (BATCH, "orders"), (SEND, "bills"),
    ]  # fmt: skip


async def test_large_message_is_sent_alone() -> None:
    one = await connected()
    large = message(body=bytes(send_batches.JOINED_BODY_BYTES_MAX + 1), message_id="01L")
    await sent(one, numbered(1), large, numbered(2))

    assert sorted(codes(one)) == sorted([SEND, BATCH])


@pytest.mark.parametrize(
    ("body", "fit"), [(b"small", send_batches.BATCH_MESSAGES_MAX), (bytes(15 << 10), 4)], ids=["number", "bytes"]
)
async def test_large_turn_is_several_requests(body: bytes, fit: int) -> None:
    one = await connected()
    outcomes = await sent(one, *(message(body=body, message_id=f"01{number:04}") for number in range(2 * fit + 1)))

    assert codes(one) == [BATCH, BATCH, SEND]
    for (_, _, _, on_outcome), offset in zip(one.brokers.begun, ("1000", "2000", "3000"), strict=True):
        on_outcome(Command(code=0, ext={"msgId": "x", "queueId": "1", "queueOffset": offset}))
    expected = [*range(1_000, 1_000 + fit), *range(2_000, 2_000 + fit), 3_000]
    assert [reply.entries[0].offset for reply in await settled(outcomes)] == expected


@pytest.mark.parametrize(
    "attributes", [{"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}], ids=["one record", "compacted"]
)
async def test_topic_that_treats_batches_otherwise_gets_single_messages(attributes: dict[str, str]) -> None:
    """RocketMQ stores a batch as one record in some topics, and takes what it would refuse alone in others."""
    one = World(FakeBrokers(is_connected=True))
    one.brokers.attributes = attributes
    await one.topics.get("orders")
    await one.topics.kind("orders")
    await sent(one, numbered(1), numbered(2))

    assert codes(one) == [SEND, SEND]


async def test_long_properties_are_sent_alone() -> None:
    """RocketMQ's broker adds its own to each message of a batch, and writes a wrong length if the sum is too large."""
    one = await connected()
    await sent(one, numbered(1), numbered(2, trace_context="x" * send_batches.JOINED_PROPERTIES_MAX), numbered(3))

    assert sorted(codes(one)) == sorted([SEND, BATCH])
    several = [numbered(1), numbered(2, trace_context="x" * 32_000)]
    with pytest.raises(ProxyError) as caught:
        await send_message(one.core, one.context(), pb.SendMessageRequest(messages=several))
    assert caught.value.code == pb.MESSAGE_PROPERTIES_TOO_LARGE


async def test_call_that_is_over_is_not_repeated_alone() -> None:
    """Its client has sent the message again, or given up."""
    one = await connected()
    outcomes: list[list[Any]] = [[], []]
    for remaining_ms, finished in zip((1, 2_500), outcomes, strict=True):
        request = pb.SendMessageRequest(messages=[numbered(remaining_ms)])
        assert begin_send(one.core, one.context(remaining_ms=remaining_ms), request, finished.append)
    await asyncio.sleep(0.005)
    one.brokers.begun.pop()[3](Command(code=ResponseCode.MESSAGE_ILLEGAL))

    [(_, command, timeout_ms, on_outcome)] = one.brokers.begun
    assert command.body == b"body 2500"
    assert 2_000 < timeout_ms < 2_500
    on_outcome(send_reply())
    late, stored = await settled(outcomes)
    assert isinstance(late, RequestTimeout)
    assert stored.status.code == pb.OK


async def test_impossible_reply_is_an_answer_to_the_call() -> None:
    """An offset that does not fit its field is an error of this call, which does not wait for ever."""
    one = await connected()
    outcomes = await sent(one, numbered(1), numbered(2))
    one.brokers.begun[0][3](Command(code=0, ext={"msgId": "x", "queueId": "1", "queueOffset": str((1 << 63) - 1)}))

    first, second = await settled(outcomes)
    assert first.status.code == pb.OK
    assert isinstance(second, ValueError)


@pytest.mark.parametrize("code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL])
async def test_refused_form_is_repeated_one_by_one(code: ResponseCode) -> None:
    """Each call gets the answer to its own message, which may be the only illegal one."""
    one = await connected()
    outcomes = await sent(one, numbered(1), numbered(2))
    one.brokers.begun.pop()[3](Command(code=code))
    assert codes(one) == [SEND, SEND]
    first, second = (on_outcome for _, _, _, on_outcome in one.brokers.begun)
    first(Command(code=ResponseCode.MESSAGE_ILLEGAL, remark="too large"))
    second(send_reply())

    refused, stored = await settled(outcomes)
    assert status_of(refused).code not in (pb.OK, pb.INTERNAL_ERROR)
    assert (stored.status.code, stored.entries[0].message_id) == (pb.OK, "010002")


@pytest.mark.parametrize(
    "outcome",
    [Command(code=ResponseCode.SYSTEM_BUSY, remark="busy"), Command(code=ResponseCode.FLUSH_DISK_TIMEOUT,
     ext={"msgId": "x", "queueId": "1", "queueOffset": "7"}), Unavailable("lost")],
    ids=["busy", "not flushed", "lost"],
)  # fmt: skip
async def test_other_outcome_is_that_of_every_message(outcome: Command | Unavailable) -> None:
    """What may have been stored is not sent again: only the clients can do that."""
    one, alone = await connected(), await connected()
    outcomes = await sent(one, numbered(1), numbered(2))
    expected = await sent(alone, numbered(1))
    one.brokers.begun[0][3](outcome)
    alone.brokers.begun[0][3](outcome)

    [single] = await settled(expected)
    for found in await settled(outcomes):
        assert type(found) is type(single)
        assert str(found) == str(single)
    assert codes(one) == [BATCH]


async def test_connection_lost_within_the_turn_fails_every_message() -> None:
    one = await connected()
    outcomes: list[list[Any]] = [[], []]
    for number, finished in enumerate(outcomes):
        assert begin_send(
            one.core, one.context(), pb.SendMessageRequest(messages=[numbered(number)]), finished.append
        )  # fmt: skip
    one.brokers.is_connected = False
    await asyncio.sleep(0)

    assert [type(found) for found in await settled(outcomes)] == [Unavailable] * 2


async def test_error_of_one_call_does_not_take_the_others_with_it() -> None:
    """Every message of a batch gets its outcome, also after one whose call has an error."""
    one = await connected()
    outcomes: list[Any] = []

    def fail(_: object) -> None:
        raise AssertionError("an error in a call")

    for number, finish in enumerate((fail, outcomes.append)):
        request = pb.SendMessageRequest(messages=[numbered(number)])
        assert begin_send(one.core, one.context(), request, finish)
    await asyncio.sleep(0)
    one.brokers.begun[0][3](send_reply())

    assert [reply.entries[0].offset for reply in outcomes] == [8]


async def test_call_with_little_time_does_not_shorten_that_of_the_others() -> None:
    """It ends at its own deadline."""
    one = await connected()
    for remaining_ms in (1, 2_500):
        request = pb.SendMessageRequest(messages=[numbered(remaining_ms)])
        context = one.context(remaining_ms=remaining_ms)
        assert begin_send(one.core, context, request, lambda _: None)
    await asyncio.sleep(0)

    [(_, _, timeout_ms, _)] = one.brokers.begun
    assert timeout_ms == 2_500


async def test_invalid_message_is_refused_before_it_is_joined() -> None:
    one = await connected()
    with pytest.raises(ProxyError):
        begin_send(one.core, one.context(), pb.SendMessageRequest(messages=[message(body=b"")]), lambda _: None)
    await asyncio.sleep(0)

    assert codes(one) == []


async def test_joined_messages_are_stored_as_they_were_sent(tmp_path: Path) -> None:
    """Through a real broker, by many calls at once: each is received once, with its body, and has another offset."""
    limits = {"pollMsMin": 100, "invisibleMsMin": 1_000}
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, limits=limits) as proxy:
        sdk = Sdk(proxy)
        await sdk.receive(0, auto_renew=False)
        await asyncio.gather(*(sdk.send(number) for number in range(200)))
        found = [one.body for one in await sdk.receive(200, auto_renew=False, invisible_s=60)]

    assert sorted(found) == sorted(f"body {number}".encode() for number in range(200))
