"""A bad frame closes the connection of its sender, and affects no other connection."""

import logging

import pytest

from gantry_testing.local import (
    TOPIC,
    Dialogue,
    RawPeer,
    frame_head,
    send_ext,
)
from gantry_testing.refusals import BrokerAndClient
from gantry_wire import Command, RequestCode

GOOD = Command(code=RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"}).encode()
BAD_FRAMES = {
    "oversized": frame_head(16 * 1024 * 1024, 100),
    "huge": frame_head(0xFFFFFFFF, 100),
    "too short": frame_head(3, 0),
    "header beyond the frame": frame_head(100, 97),
    "header over its limit": frame_head(2 * 1024 * 1024, 1024 * 1024 + 1),
    "unknown serialization": frame_head(100, 90, 2),
    "no header": frame_head(4, 0),
    "header is no JSON": frame_head(8, 4) + b"}{][",
    "header is a list": frame_head(6, 2) + b"[]",
    "code is a text": frame_head(18, 14) + b'{"code":"abc"}',
    "binary header cut": frame_head(8, 4, 1) + b"\x00\x0a\x00\x01",
    "binary map lies": frame_head(4 + 21, 21, 1) + bytes(17) + b"\x7f\xff\xff\xff",
    "plain text": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS without a certificate": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "bad after a good one": GOOD + frame_head(0x7FFFFFFF, 1),
}


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_bad_frame_closes_its_connection_and_logs_one_line(
    place: BrokerAndClient, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """S1: a peer that breaks the protocol is closed with one log line; all others are served on, nothing is changed."""
    before = place.state()
    other = await Dialogue.open(f"127.0.0.1:{place.broker.port}")
    peer = await RawPeer.open(place.broker.port)

    with caplog.at_level(logging.INFO):
        caplog.clear()
        await peer.send(data)
        assert await peer.is_closed_by_peer()

    lines = [record for record in caplog.records if record.name.startswith("gantry_remoting")]
    assert [(record.getMessage(), record.levelno >= logging.ERROR) for record in lines] == [
        ("connection closed", False)
    ]
    assert "broke the protocol" in lines[0].__dict__["reason"]
    assert (await place.client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})).ext == {"offset": "1"}
    assert (await other.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})).code == 0
    assert place.state() == before
    await other.close()
    await peer.close()


async def test_requests_before_a_bad_frame_are_answered(place: BrokerAndClient) -> None:
    """Good requests before the bad frame are carried out and answered before the connection ends."""
    peer = await RawPeer.open(place.broker.port)
    send = Command(code=310, ext=send_ext(310), body=b"before the bad one")

    await peer.send(send.encode() + GOOD + frame_head(0x7FFFFFFF, 1))

    first, second = await peer.frame(), await peer.frame()
    assert b'"queueOffset":"1"' in first.header
    assert b'"offset":"2"' in second.header
    assert await peer.is_closed_by_peer()
    assert place.broker.core.store.queues.get_or_create(TOPIC, 0).end == 2
    await peer.close()


async def test_truncated_frame_leaves_nothing_behind(place: BrokerAndClient) -> None:
    """S1: a frame that ends with its connection is forgotten with it."""
    before = place.state()
    whole = Command(code=310, ext=send_ext(310), body=b"x" * 1000).encode()

    for cut in (1, 3, 4, 7, 8, 9, 200, len(whole) - 1):
        peer = await RawPeer.open(place.broker.port)
        await peer.send(whole[:cut])
        await peer.close()

    assert (await place.client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})).ext == {"offset": "1"}
    assert place.state() == before


async def test_frame_may_arrive_in_any_pieces(place: BrokerAndClient) -> None:
    """Bytes that arrive one by one form the same frames as bytes that arrive at once."""
    peer = await RawPeer.open(place.broker.port)
    whole = Command(code=310, ext=send_ext(310), body=b"piecewise").encode() + GOOD

    for position in range(0, len(whole), 7):
        await peer.send(whole[position : position + 7])

    assert b'"queueOffset":"1"' in (await peer.frame()).header
    assert b'"offset":"2"' in (await peer.frame()).header
    await peer.close()
