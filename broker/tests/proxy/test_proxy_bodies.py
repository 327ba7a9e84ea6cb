"""Compressed bodies for consumers: they arrive decompressed, and many large ones do not stop other clients."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from proxy_world import BROKER, FakeBrokers, World, popped

from gantry_client.errors import UnreadableBody
from gantry_client.messages import ReceivedMessage, inflate_message, to_received_message
from gantry_client.pop import PoppedMessage
from gantry_proxy import bodies as bodies_module
from gantry_proxy.handlers.offsets import pull_message
from gantry_proxy.handlers.receiving import receive_message
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.compress import Codec
from gantry_wire.message import StoredMessage, decode_records, encode_record

CONTENT = b"content " * 2_000
QUEUE = pb.MessageQueue(topic=pb.Resource(name="orders"), id=1, broker=pb.Broker(name=BROKER))
BILLING = pb.Resource(name="billing")


def compressed(number: int, body: bytes = b"") -> PoppedMessage:
    one = popped(number)
    body = body or zlib.compress(CONTENT)
    message = msgspec.structs.replace(
        one.message, stored_body=body, compression=Codec.ZLIB.flags, body_fault="not decompressed yet"
    )
    return PoppedMessage(message, one.receipt)


def world(*messages: PoppedMessage, body_bytes_max: int = 1 << 20) -> World:
    one = World(FakeBrokers(), ProxyLimits(message_bytes_max=body_bytes_max))
    one.join_consumer()
    one.brokers.popped = list(messages)
    return one


def receive(one: World) -> AsyncIterator[Any]:
    request = pb.ReceiveMessageRequest(group=BILLING, message_queue=QUEUE, batch_size=32, auto_renew=True)
    return receive_message(one.core, one.context(), request)


async def test_bodies_arrive_decompressed() -> None:
    """SDKs read fewer codecs than the clients of remoting write."""
    found = [reply.message async for reply in receive(world(compressed(1), popped(2)))][1:]

    assert [one.body for one in found] == [CONTENT, b"body 2"]
    assert {one.system_properties.body_encoding for one in found} == {pb.IDENTITY}


@pytest.mark.parametrize("body", [b"damaged", zlib.compress(bytes(1_001))])
async def test_body_that_cannot_be_decompressed_is_passed_on(body: bytes) -> None:
    """It is damaged, or its content is larger than a body may be."""
    found = [reply.message async for reply in receive(world(compressed(1, body), body_bytes_max=1_000))][1:]

    assert (found[0].body, found[0].system_properties.body_encoding) == (body, pb.GZIP)


@pytest.mark.parametrize(("turn_bytes", "turns_min", "turns_max"), [(1_000, 31, 70), (1 << 30, 0, 3)])
async def test_bodies_are_decompressed_in_many_turns(
    monkeypatch: pytest.MonkeyPatch, turn_bytes: int, turns_min: int, turns_max: int
) -> None:
    """Other clients are served between two of them. The twin, without a limit, takes one turn for all."""
    monkeypatch.setattr(bodies_module, "TURN_BYTES", turn_bytes)
    loop, turns = asyncio.get_running_loop(), 0

    def count() -> None:
        nonlocal turns
        turns += 1
        timer[0] = loop.call_soon(count)

    replies = receive(world(*(compressed(number) for number in range(1, 33))))
    assert (await anext(replies)).status.code == pb.OK
    timer = [loop.call_soon(count)]
    found = [reply.message.body async for reply in replies]
    timer[0].cancel()

    assert found == [CONTENT] * 32
    assert turns_min <= turns <= turns_max


async def test_receives_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred receives at once cannot each use a turn as if they were alone."""
    monkeypatch.setattr(bodies_module, "TURN_BYTES", 1_000)
    inflater, running, most = bodies_module.BodyInflater(1 << 20), 0, 0
    loop = asyncio.get_running_loop()

    def inflate(message: ReceivedMessage, bytes_max: int) -> ReceivedMessage:
        nonlocal running, most
        if not running:
            loop.call_soon(end_turn)
        running += 1
        most = max(most, running)
        return inflate_message(message, bytes_max)

    def end_turn() -> None:
        nonlocal running
        running = 0

    monkeypatch.setattr(bodies_module, "inflate_message", inflate)
    found = await asyncio.gather(*(inflater.inflate(compressed(number).message) for number in range(20)))

    assert {one.body for one in found} == {CONTENT}
    assert most == 1


def record_of(body: bytes, sys_flag: int) -> bytes:
    return encode_record(StoredMessage(topic="orders", body=body, sys_flag=sys_flag, queue_id=1))


async def test_pulled_bodies_arrive_decompressed() -> None:
    """As those of a receive."""
    one = world()
    one.brokers.answers[RequestCode.PULL_MESSAGE] = Command(
        code=ResponseCode.SUCCESS, body=record_of(zlib.compress(CONTENT), Codec.ZLIB.flags) + record_of(b"plain", 0),
        ext={"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0"},
    )  # fmt: skip
    request = pb.PullMessageRequest(group=BILLING, message_queue=QUEUE, batch_size=32)
    replies = [reply async for reply in pull_message(one.core, one.context(), request)]

    assert [reply.message.body for reply in replies if reply.HasField("message")] == [CONTENT, b"plain"]


def test_message_is_left_compressed_on_request() -> None:
    """Its body cannot be read by mistake; one that is not compressed is ready at once."""
    [record] = decode_records(record_of(zlib.compress(CONTENT), Codec.ZLIB.flags))
    [plain] = decode_records(record_of(b"plain", 0))
    message = to_received_message(record, BROKER, body_bytes_max=0)

    with pytest.raises(UnreadableBody, match="not decompressed yet"):
        _ = message.body
    assert inflate_message(message, 1 << 20) == to_received_message(record, BROKER)
    assert to_received_message(plain, BROKER, body_bytes_max=0).body == b"plain"
