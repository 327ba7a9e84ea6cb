"""Faults that fuzz runs have found, each with a regression test of its own."""

from pathlib import Path
from typing import cast

import pytest

from gantry_remoting import CommandService, Connection
from gantry_testing.local import (
    GROUP,
    TOPIC,
    RawPeer,
    dialogue,
    frame_head,
    running_broker,
    send_ext,
    wait_until,
)
from gantry_wire import Command, Frame, RequestCode, ResponseCode
from gantry_wire.command import decode_command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FrameReader

SEND = RequestCode.SEND_MESSAGE_V2


class FakeConnection:
    """A fake connection for a service, which records what is sent to it."""

    peer = ("127.0.0.1", 20000)
    is_backlogged = False
    is_authenticated = True

    def __init__(self) -> None:
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        self._received += data

    @property
    def opaques(self) -> list[int]:
        """Return the opaque numbers of the replies."""
        return [decode_command(frame).opaque for frame in FrameReader().feed(bytes(self._received))]


def fake_connection() -> tuple[FakeConnection, Connection]:
    one = FakeConnection()
    return one, cast(Connection, one)


def send_frame(opaque: int) -> bytes:
    return Command(code=SEND, opaque=opaque, ext=send_ext(SEND), body=b"x").encode()


async def test_sends_after_a_pull_are_answered_to_their_own_sender(tmp_path: Path) -> None:
    """A read that has sends on both sides of a pull leaves none of them to the connection that comes next."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        (first, first_end), (second, second_end), (third, third_end) = (
            fake_connection(),
            fake_connection(),
            fake_connection(),
        )

        def handle_other(frame: Frame, connection: Connection) -> None:
            broker.send_path.flush_for(connection)

        pull = Command(code=RequestCode.PULL_MESSAGE, opaque=12).encode()
        broker.send_path.handle(send_frame(1), first_end, handle_other)
        broker.send_path.handle(send_frame(11) + pull + send_frame(13), second_end, handle_other)
        broker.send_path.handle(send_frame(21), third_end, handle_other)
        broker.send_path.flush()

        assert (first.opaques, second.opaques, third.opaques) == ([1], [11, 13], [21])


@pytest.mark.parametrize("opaque", [1 << 31, -(1 << 31) - 1, 1 << 70], ids=["above", "below", "far above"])
async def test_opaque_out_of_range_closes_the_connection(tmp_path: Path, opaque: int) -> None:
    """The opaque number of a send has 32 bits on the fast path, too: Java could not read the reply."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        peer = await RawPeer.open(broker.port)

        await peer.send(send_frame(opaque))

        assert await peer.is_closed_by_peer()
        assert broker.store.queues.get("TopicTest", 0).end == 1  # type: ignore[union-attr]  # it was just sent to
        await peer.close()


async def test_reply_frame_with_a_send_code_is_not_stored(tmp_path: Path) -> None:
    """The flag decides, not the code: a frame that is marked as a reply is never a request."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        recorder, end = fake_connection()
        reply = Command(code=SEND, opaque=5, flag=1, ext=send_ext(SEND), body=b"x").encode()

        broker.send_path.handle(reply, end, lambda frame, connection: None)
        broker.send_path.flush()

        assert recorder.opaques == []
        assert [message.queue_offset for message in await client.read()] == [0]


async def test_first_byte_determines_the_header_serialization(tmp_path: Path) -> None:
    """JSON in a frame that is marked as binary is not a send: the connection closes, nothing is stored."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        peer = await RawPeer.open(broker.port)
        frame = bytearray(send_frame(5))
        frame[4] = 1

        await peer.send(bytes(frame))

        assert await peer.is_closed_by_peer()
        assert [message.queue_offset for message in await client.read()] == [0]
        await peer.close()


@pytest.mark.parametrize("depth", [40, 5000], ids=["deep", "too deep"])
async def test_send_with_a_deeply_nested_header_is_harmless(
    tmp_path: Path, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nesting is either skipped or breaks the protocol; no exception of ours ends a read."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        peer = await RawPeer.open(broker.port)
        header = send_frame(5)[8:-1]
        deep = header[:-1] + b',"more":' + b"[" * depth + b"]" * depth + b"}"

        await peer.send(send_frame(4) + frame_head(4 + len(deep) + 1, len(deep)) + deep + b"x")

        assert decode_command(await peer.frame()).opaque == 4
        if depth < 100:
            assert decode_command(await peer.frame()).opaque == 5
        else:
            assert await peer.is_closed_by_peer()
        assert not [record for record in caplog.records if record.exc_info]
        await peer.close()


@pytest.mark.parametrize("size", [4, 7, 8], ids=["length", "all but one byte", "whole head"])
async def test_stored_send_is_answered_before_a_bad_length_closes(tmp_path: Path, size: int) -> None:
    """However little of the bad frame's head has arrived with the send: stored is answered, then closed."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        peer = await RawPeer.open(broker.port)

        await peer.send(send_frame(5) + frame_head(0x7FFFFFFF, 1)[:size])

        assert decode_command(await peer.frame()).opaque == 5
        assert await peer.is_closed_by_peer()
        await peer.close()


async def test_stored_send_is_answered_if_a_bad_length_comes_in_pieces(tmp_path: Path) -> None:
    """A send and the first byte of a bad length, then the rest of it in the same turn of the loop."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        listener = broker.listeners.opened[0]
        known = set(listener.connections)
        peer = await RawPeer.open(broker.port)
        await wait_until(lambda: len(listener.connections) > len(known))
        (end,) = set(listener.connections) - known

        end.data_received(send_frame(5) + b"\x7f")
        end.data_received(b"\xff\xff\xff")

        assert decode_command(await peer.frame()).opaque == 5
        assert await peer.is_closed_by_peer()
        await peer.close()


async def test_answers_before_a_bad_frame_are_sent() -> None:
    """Executed requests are answered, although the next frame of the same read closes the connection."""
    service = CommandService(lambda command, connection: command.reply())
    recorder, end = fake_connection()
    good = Command(code=RequestCode.GET_KV_CONFIG, opaque=7).encode()

    with pytest.raises(RemoteProtocolError):
        service.handle(good + b"\x7f\xff\xff\xff\x00\x00\x00\x00", end)

    assert recorder.opaques == [7]


@pytest.mark.parametrize("delay_level", ["0", "-1"], ids=["retry", "dead letter"])
async def test_group_with_a_too_long_retry_topic_is_refused(tmp_path: Path, delay_level: str) -> None:
    """A group name may be legal and still leave no room for the prefix of its retry topic: code 26, no topic made."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        sent = await client.send_ok()
        offset = str(int(sent["msgId"][16:], 16))
        ext = {"offset": offset, "group": "g" * 255, "delayLevel": delay_level}

        reply = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)

        assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert not [topic for topic in broker.core.topics.all if "g" * 100 in topic]


async def test_message_at_the_maximum_reconsume_count_goes_to_the_dead_letters(tmp_path: Path) -> None:
    """The count of attempts stops at what a record can hold."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        sent = await client.send_ok(reconsumeTimes=str((1 << 31) - 1))
        ext = {"offset": str(int(sent["msgId"][16:], 16)), "group": GROUP, "delayLevel": "0"}

        reply = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        await client.heartbeat("client")
        given_up = await client.read(topic=f"%DLQ%{GROUP}")

        assert reply.code == 0
        assert [message.reconsume_times for message in given_up] == [(1 << 31) - 1]


async def test_send_right_after_the_deletion_of_its_topic_creates_it_again(tmp_path: Path) -> None:
    """No message is stored through a deleted queue: acknowledged messages are found from offset 0 on."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(b"before")
        peer = await RawPeer.open(broker.port)
        delete = Command(code=RequestCode.DELETE_TOPIC_IN_BROKER, opaque=1, ext={"topic": TOPIC}).encode()

        await peer.send(delete + send_frame(2))
        replies = sorted([decode_command(await peer.frame()) for _ in range(2)], key=lambda reply: reply.opaque)
        after = await client.send_ok(b"after")

        assert [(reply.opaque, reply.code) for reply in replies] == [(1, 0), (2, 0)]
        assert (replies[1].ext["queueOffset"], after["queueOffset"]) == ("0", "1")
        assert [message.body for message in await client.read()] == [b"x", b"after"]
        await peer.close()
