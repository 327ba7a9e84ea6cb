"""Pulls in the usual form are decoded in one step, and answered from a template: the same as in the general way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.app import Broker
from gantry_broker.server.pull.pull_frames import PULL_HEADER_BYTES_MAX, decode_pull, encode_found
from gantry_broker.server.service import BrokerService
from gantry_testing.local import RawPeer, dialogue, properties_text, pull_ext, running_broker
from gantry_wire import Command, Frame, RequestCode, decode_command
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.pull import PullMessage
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.header import FLAG_ONEWAY, FLAG_RESPONSE

PULL = int(RequestCode.PULL_MESSAGE)
numbers = st.integers(-(1 << 70), 1 << 70) | st.integers(-2, 40)
values = (
    numbers | numbers.map(str) | st.text(max_size=5) | st.none() | st.booleans()
    | st.sampled_from(["null", "true", "1.0", " 1", "01", "+1", "-0", "1e3", "TAG", "*"])
)  # fmt: skip


def header_bytes(ext: dict[str, Any], code: int = PULL, **rest: Any) -> bytes:
    """Return a JSON header with the keys in Java's order."""
    return json.dumps({"code": code, "extFields": ext, **rest}, separators=(",", ":")).encode()


def general(frame: Frame) -> tuple[int, int, int, PullMessage] | None:
    """Return what the general path decodes; None if it refuses the request."""
    try:
        command = decode_command(frame)
        return command.code, command.opaque, command.flag, PullMessage.read(command.ext)
    except (RemoteProtocolError, FieldError):
        return None


@given(
    changed=st.dictionaries(st.sampled_from([*pull_ext(0), "maxMsgBytes", "brokerName"]), values, max_size=3),
    opaque=numbers,
    flag=st.sampled_from([0, FLAG_ONEWAY, FLAG_RESPONSE, 4]),
)
def test_decoded_pull_is_that_of_the_general_path(changed: dict[str, Any], opaque: int, flag: int) -> None:
    """A header that is decoded in one step has the values that the general path finds, for any values."""
    frame = Frame(0, header_bytes({**pull_ext(0), **changed}, flag=flag, opaque=opaque), b"")

    request = decode_pull(frame)

    if request is not None:
        assert (request.code, request.opaque, request.flag, request.fields) == general(frame)
        assert not request.flag & FLAG_RESPONSE


def test_usual_pull_is_decoded_in_one_step() -> None:
    """The header that Java's client sends takes the fast path."""
    frame = Frame(0, header_bytes(pull_ext(7), flag=0, language="JAVA", opaque=3, version=435), b"")

    request = decode_pull(frame)

    assert request is not None
    assert (request.opaque, request.fields.queue_offset, request.is_oneway) == (3, 7, False)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, header_bytes(pull_ext(0), opaque=1), b""),
        Frame(0, header_bytes(pull_ext(0), code=361, opaque=1), b""),
        Frame(0, header_bytes({**pull_ext(0), "x": "y" * PULL_HEADER_BYTES_MAX}, opaque=1), b""),
        Frame(0, header_bytes(pull_ext(0), opaque=1, flag=FLAG_RESPONSE), b""),
        Frame(0, b'{"code":11,' + header_bytes(pull_ext(0), code=34, opaque=1)[1:], b""),
        Frame(0, header_bytes({"topic": "t"}, opaque=1), b""),
        Frame(0, header_bytes(pull_ext(0), opaque=1, version=None), b""),
        Frame(0, header_bytes(pull_ext(0), opaque=1, version=""), b""),
    ],
    ids=["binary", "another code", "too long", "a reply", "a second code", "fields are missing", "null", "no number"],
)
def test_unusual_pull_is_left_to_the_general_path(frame: Frame) -> None:
    """Anything that the fast path is not sure about is decoded in the general way."""
    assert decode_pull(frame) is None


@given(
    broker_id=st.integers(0, 1 << 40), offsets=st.lists(st.integers(0, (1 << 63) - 1), min_size=3, max_size=3),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1), body=st.binary(max_size=50),
)  # fmt: skip
def test_reply_from_the_template_is_that_of_the_general_path(
    broker_id: int, offsets: list[int], opaque: int, body: bytes
) -> None:
    """A reply with messages has the bytes that encoding a command gives."""
    following, first, last = offsets
    ext = {
        "suggestWhichBrokerId": str(broker_id), "nextBeginOffset": str(following), "minOffset": str(first),
        "maxOffset": str(last),
    }  # fmt: skip
    reply = Command(code=PULL, opaque=opaque).reply(0, "FOUND", ext=ext, body=body)

    head = encode_found(broker_id, following, first, last, opaque, len(body))

    assert head + body == reply.encode()


# ------- in a broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker that accepts SQL92 expressions."""
    async with running_broker(tmp_path, enablePropertyFilter="true") as one:
        yield one


REQUESTS = {
    "found": pull_ext(0),
    "found from the middle": pull_ext(2, maxMsgNums="1"),
    "with a tag": pull_ext(0, subscription="a"),
    "nothing matches": pull_ext(0, subscription="none"),
    "by properties": pull_ext(0, subscription="TAGS = 'a'", expressionType="SQL92"),
    "at the end": pull_ext(4),
    "beyond": pull_ext(9),
    "no such topic": pull_ext(0, topic="Missing"),
    "no such queue": pull_ext(0, queueId="99"),
    "a wrong expression": pull_ext(0, subscription="x >", expressionType="SQL92"),
    "no subscription known": pull_ext(0, sysFlag="0"),
    "a wrong number": pull_ext(0, queueOffset="x"),
    "committing": pull_ext(1, sysFlag="5", commitOffset="1"),
}


def switch_fast_path_off(service: BrokerService) -> None:
    """Let all pulls take the general path."""
    service._pulls = None


@pytest.mark.parametrize("name", REQUESTS)
async def test_answer_is_that_of_the_general_path(broker: Broker, name: str) -> None:
    """Every outcome of a pull has the same bytes on both paths, and the same counters."""
    async with dialogue(broker) as client:
        for number in range(4):
            await client.send_ok(b"x" * 3000, properties=properties_text(TAGS="ab"[number % 2]))
    statistics, service = broker.core.topic_statistics, broker.listeners.services[0]
    answers = []
    for is_fast in (True, False):
        if not is_fast:
            switch_fast_path_off(service)
        peer = await RawPeer.open(broker.port)
        await peer.send(Command(code=PULL, opaque=9, ext=REQUESTS[name]).encode())
        answers.append(await peer.frame())
        await peer.close()
    assert answers[0] == answers[1]
    found = statistics.find("GROUP_GET_NUMS", f"{pull_ext(0)['topic']}@{pull_ext(0)['consumerGroup']}")
    assert broker.core.stats.get_found in (0, 2)
    assert (found is not None) == (broker.core.stats.get_found == 2)


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "general"])
async def test_pulls_of_one_read_are_answered_in_their_order(broker: Broker, is_fast: bool) -> None:
    """Large and small answers, and those of other requests between them, come in the order of the requests."""
    async with dialogue(broker) as client:
        for _ in range(4):
            await client.send_ok(b"x" * 9000)
    if not is_fast:
        switch_fast_path_off(broker.listeners.services[0])
    pulls = [pull_ext(offset, maxMsgNums=count) for offset, count in ((0, "4"), (9, "1"), (3, "1"), (0, "2"))]
    requests = [Command(code=PULL, opaque=number, ext=ext) for number, ext in enumerate(pulls)]
    requests.insert(2, Command(code=RequestCode.GET_MAX_OFFSET, opaque=70, ext={"topic": "TopicTest", "queueId": "0"}))
    peer = await RawPeer.open(broker.port)

    await peer.send(b"".join(request.encode() for request in requests))

    replies = [decode_command(await peer.frame()) for _ in requests]
    assert [reply.opaque for reply in replies] == [request.opaque for request in requests]
    assert [len(reply.body) > 9000 for reply in replies] == [True, False, False, True, True]
    await peer.close()


async def test_oneway_pull_gets_no_reply(broker: Broker) -> None:
    """A one-way pull is not answered and not held, and the next request is."""
    async with dialogue(broker) as client:
        await client.send_ok(b"x")
        for offset, wait_ms in ((0, 0), (1, 60_000)):
            client.send_oneway(PULL, pull_ext(offset, wait_ms=wait_ms))
        assert (await client.pull(0)).code == 0
        assert broker.pulls.hold.count == 0


async def test_answer_beyond_the_frame_limit_is_an_error(tmp_path: Path) -> None:
    """An answer that no frame can hold is replaced by an error that names both sizes, on both paths."""
    async with (
        running_broker(
            tmp_path, maxMessageSize="400000", frameMaxLength="600000", maxTransferBytesOnMessageInMemory="4000000"
        ) as broker,
        dialogue(broker) as client,
    ):
        for _ in range(2):
            await client.send_ok(b"x" * 399_000)
        replies = [await client.pull(0)]
        switch_fast_path_off(broker.listeners.services[0])
        replies.append(await client.pull(0))
        assert replies[0].code == replies[1].code == 1
        assert replies[0].remark == replies[1].remark
        assert "frame at most 600000" in (replies[0].remark or "")


async def test_pull_with_an_unexpected_error_gets_an_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in one pull is answered with code 1, and the connection lives on."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with dialogue(broker) as client:
        await client.send_ok(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(broker.pulls._plans, "find", fail)
            reply = await client.pull(0)
        assert (reply.code, reply.remark) == (1, "the broker failed to handle the request: ZeroDivisionError")
        assert (await client.pull(0)).code == 0
