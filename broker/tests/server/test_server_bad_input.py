"""Bad sizes, numbers, fields and bodies are refused, and change nothing."""

import asyncio
from pathlib import Path

import pytest

from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    RawPeer,
    properties_text,
    pull_ext,
    running_broker,
    send_ext,
)
from gantry_testing.refusals import BrokerAndClient, expect_refusal
from gantry_wire import Command
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.frame import Serialization
from gantry_wire.limits import EXT_FIELDS_MAX

# ------- sizes


@pytest.mark.parametrize("code", [10, 310, 320])
async def test_body_over_the_limit_is_refused(place: BrokerAndClient, code: int) -> None:
    """4 MiB is the most; one byte more is code 13 with the sizes in the text."""
    limit = 4 * 1024 * 1024

    reply = await expect_refusal(place, code, send_ext(code), b"x" * (limit + 1))

    assert reply.code == 13
    assert str(limit) in (reply.remark or "")


async def test_body_of_exactly_the_limit_is_accepted(place: BrokerAndClient) -> None:
    """The limit itself is allowed, and comes back whole."""
    body = bytes(range(256)) * (4 * 1024 * 1024 // 256)

    reply = await place.client.send_ok(body)

    [message] = await place.client.read(int(reply["queueOffset"]))
    assert message.body == body


@pytest.mark.parametrize("code", [10, 310, 320])
async def test_empty_body_is_refused(place: BrokerAndClient, code: int) -> None:
    """A message without a body is code 13."""
    assert (await expect_refusal(place, code, send_ext(code), b"")).code == 13


async def test_properties_over_the_limit_are_refused(place: BrokerAndClient) -> None:
    """32767 bytes is what a record holds; with what the broker adds, too."""
    for size in (32_768, 32_709, 40_000):
        text = properties_text(UNIQ_KEY=UNIQUE_ID, long="x" * (size - 48))
        reply = await expect_refusal(place, 310, send_ext(310, properties=text), b"x")
        assert reply.code == 13
        assert "32767" in (reply.remark or "")


async def test_properties_near_the_limit_are_accepted(place: BrokerAndClient) -> None:
    """Properties near the limit come back whole, though their reply header passes two kilobytes."""
    text = properties_text(UNIQ_KEY="U" * 20_000, long="y" * 12_000)

    reply = await place.client.send_ok(properties=text)

    [message] = await place.client.read(int(reply["queueOffset"]))
    assert reply["transactionId"] == "U" * 20_000
    assert message.properties["long"] == "y" * 12_000


async def test_properties_with_stray_separators_are_refused(place: BrokerAndClient) -> None:
    """A value that holds a separator could not be read back, so it is code 13."""
    reply = await expect_refusal(place, 310, send_ext(310, properties="a\x01b\x01c\x02KEYS\x01k\x02"), b"x")

    assert reply.code == 13


BAD_BATCHES = {
    "no message": b"\x00",
    "ends inside": encode_batch([BatchEntry(0, b"x", b"")])[:-1],
    "negative body": b"\x00\x00\x00\x20" + bytes(12) + b"\xff\xff\xff\xff" + bytes(12),
    "body beyond": b"\x00\x00\x00\x20" + bytes(12) + b"\x7f\xff\xff\xff" + bytes(12),
    "empty body": encode_batch([BatchEntry(0, b"x", b""), BatchEntry(0, b"", b"")]),
    "delayed": encode_batch([BatchEntry(0, b"x", b""), BatchEntry(0, b"y", b"DELAY\x011\x02")]),
    "transactional": encode_batch([BatchEntry(0, b"y", b"TRAN_MSG\x01true\x02")]),
}


@pytest.mark.parametrize("body", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
async def test_bad_batch_is_refused_as_a_whole(place: BrokerAndClient, body: bytes) -> None:
    """S5: a batch with one bad message stores none: code 13."""
    assert (await expect_refusal(place, 320, send_ext(320), body)).code == 13


async def test_batch_of_too_many_messages_is_refused(tmp_path: Path) -> None:
    """S5: all requests wait while a batch is appended, so its length is limited: code 13."""
    async with running_broker(tmp_path, maxBatchMessages="3") as broker:
        client = await Dialogue.open(f"127.0.0.1:{broker.port}")
        four = encode_batch([BatchEntry(0, b"x", b"")] * 4)

        refusal = await client.send(four, code=320)
        three = await client.send(encode_batch([BatchEntry(0, b"x", b"")] * 3), code=320)

        assert (refusal.code, three.code) == (13, 0)
        assert "3" in (refusal.remark or "")
        await client.close()


# ------- topics, queues, offsets


async def test_unknown_topic_is_refused(place: BrokerAndClient) -> None:
    """With auto-creation off an unknown topic is code 17, for sends and for pulls."""
    sent = await expect_refusal(place, 310, send_ext(310, topic="Unknown"), b"x")
    pulled = await expect_refusal(place, 11, pull_ext(0, topic="Unknown"))

    assert (sent.code, pulled.code) == (17, 17)
    assert "topic[Unknown] not exist" in (sent.remark or "")


async def test_refused_message_creates_no_topic(tmp_path: Path) -> None:
    """With auto-creation on, a message that is refused for another reason does not leave its topic behind."""
    async with running_broker(tmp_path, rejectTransactionMessage="true") as broker:
        client = await Dialogue.open(f"127.0.0.1:{broker.port}")
        here = BrokerAndClient(broker, client, tmp_path)
        await broker.core.persistence.write_stale()

        for fields in (
            {"queueId": "99"},
            {"properties": "TRAN_MSG\x01true\x02"},
            {"properties": "TIMER_DELAY_MS\x01soon\x02"},
        ):
            await expect_refusal(here, 310, send_ext(310, topic="NotYet", **fields), b"x")
        await expect_refusal(here, 310, send_ext(310, topic="NotYet"), b"")
        await expect_refusal(here, 320, send_ext(320, topic="NotYet"), b"\x00")
        await client.close()


async def test_queue_numbers_are_limited(place: BrokerAndClient) -> None:
    """A queue beyond the topic's is code 29 for sends and pulls, a negative one for pulls and commits."""
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "commitOffset": "1"}

    assert (await expect_refusal(place, 310, send_ext(310, queueId="4"), b"x")).code == 29
    assert (await expect_refusal(place, 10, send_ext(10, queueId="2147483647"), b"x")).code == 29
    assert (await expect_refusal(place, 11, pull_ext(0, queueId="4"))).code == 29
    assert (await expect_refusal(place, 11, pull_ext(0, queueId="-1"))).code == 29
    assert (await expect_refusal(place, 15, commit | {"queueId": "-1"})).code == 29


async def test_negative_queue_means_any_queue(place: BrokerAndClient) -> None:
    """As in RocketMQ, a producer that names no queue has one chosen."""
    reply = await place.client.send_ok(queueId="-1")

    assert 0 <= int(reply["queueId"]) < 4


async def test_negative_offsets_are_refused(place: BrokerAndClient) -> None:
    """A pull below the queue moves to its start (21); a negative commit is 29; a negative place holds no message."""
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "-1"}

    pulled = await expect_refusal(place, 11, pull_ext(-5))
    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (21, "0")
    assert (await expect_refusal(place, 15, commit)).code == 29
    assert (await expect_refusal(place, 33, {"offset": "-1"})).code == 1
    assert (await expect_refusal(place, 36, {"offset": "-1", "group": GROUP, "delayLevel": "0"})).code == 1


@pytest.mark.parametrize("offset", ["7", "1000000000", "9223372036854775807"])
async def test_offset_that_starts_no_message_is_refused(place: BrokerAndClient, offset: str) -> None:
    """A physical offset that is not the start of a message finds nothing."""
    assert (await expect_refusal(place, 33, {"offset": offset})).code == 1
    assert (await expect_refusal(place, 36, {"offset": offset, "group": GROUP, "delayLevel": "0"})).code == 1


BAD_FIELDS = [
    (310, {name: value for name, value in send_ext(310).items() if name != "b"}),
    (310, send_ext(310, queueId="x")),
    (310, send_ext(310, queueId="2147483648")),
    (10, send_ext(10, bornTimestamp="1e400")),
    (11, pull_ext(0, maxMsgNums="")),
    (11, {}),
    (15, {"consumerGroup": GROUP}),
    (30, {"topic": TOPIC}),
    (36, {"group": GROUP}),
    (17, {"topic": "T"}),
    (12, {"topic": TOPIC, "key": "k", "maxNum": "1"}),
]


@pytest.mark.parametrize(
    ("code", "ext"), BAD_FIELDS, ids=[f"{code}-{number}" for number, (code, _) in enumerate(BAD_FIELDS)]
)
async def test_missing_or_invalid_field_is_named(place: BrokerAndClient, code: int, ext: dict[str, str]) -> None:
    """A header that cannot be read is code 1 with the field in the text."""
    reply = await expect_refusal(place, code, ext, b"x")

    assert reply.code == 1
    assert "field" in (reply.remark or "")


BAD_BODIES = {
    "empty": b"",
    "no JSON": b"}",
    "a list": b"[]",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "wrong types": b'{"mqSet":5,"groupName":[],"clientID":{},"topicConfigList":"x","groupConfigList":3,'
    b'"subscriptionData":7}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_body_that_is_not_a_document_is_refused(place: BrokerAndClient, body: bytes) -> None:
    """A body that is not what its request needs is code 1, however it is broken."""
    for code in (34, 41, 42, 46, 18, 200, 225):
        assert (await expect_refusal(place, code, {}, body)).code == 1


async def test_oneway_request_is_never_answered(place: BrokerAndClient) -> None:
    """Not even a refusal answers a oneway request: the next reply is the next request's."""
    peer = await RawPeer.open(place.broker.port)
    bad = [
        Command(code=310, ext=send_ext(310, topic="../x"), body=b"x", flag=2),
        Command(code=310, ext={}, flag=2),
        Command(code=9999, flag=2),
        Command(code=15, ext={}, flag=2),
        Command(code=34, body=b"}", flag=2),
        Command(code=17, ext={}, flag=2),
    ]

    await peer.send(b"".join(command.encode() for command in bad))
    await peer.send(Command(code=9999, opaque=4711).encode(Serialization.ROCKETMQ))

    assert b'"opaque":4711' in (await peer.frame()).header
    await peer.close()


@pytest.mark.parametrize("code", [10, 310])
async def test_send_with_too_many_fields_closes_its_connection(place: BrokerAndClient, code: int) -> None:
    """The limit of fields holds for plain sends, too, also of a topic that is known."""
    peer = await RawPeer.open(place.broker.port)
    plain = Command(code=code, ext=send_ext(code), body=b"x")
    await peer.send(plain.encode())
    assert b'"code":0' in (await peer.frame()).header

    many = {f"f{number}": "" for number in range(EXT_FIELDS_MAX)}
    await peer.send(Command(code=code, ext=send_ext(code) | many, body=b"x").encode())

    assert await peer.is_closed_by_peer()
    assert [message.body for message in await place.client.read(1)] == [b"x"]
    await peer.close()


async def test_unknown_code_is_answered_with_code_3(place: BrokerAndClient) -> None:
    """An unknown request is answered with code 3, and the connection stays open."""
    for code in (1, 9, 200070, 2_000_000_000, -1):
        assert (await expect_refusal(place, code, {})).code == 3
    assert (await place.client.send()).code == 0


async def test_bad_send_does_not_affect_other_sends(place: BrokerAndClient) -> None:
    """Bad and good sends of one read: each gets its own answer, and the good ones keep their order."""
    peer = await RawPeer.open(place.broker.port)
    commands = []
    for number in range(30):
        fields = [{}, {"topic": "../x"}, {"properties": "k\x01\ud7ff\x02"}][number % 3]
        commands.append(Command(code=310, opaque=number, ext=send_ext(310, **fields), body=b"%d" % number))

    await peer.send(b"".join(command.encode() for command in commands))

    codes = {}
    for _ in commands:
        frame = await peer.frame()
        codes[int(frame.header.split(b'"opaque":')[1].split(b",")[0])] = b'"code":0' in frame.header
    assert [codes[number] for number in range(30)] == [number % 3 != 1 for number in range(30)]
    assert [int(message.body) for message in await place.client.read(1)] == [n for n in range(30) if n % 3 != 1]
    await peer.close()


async def test_failing_handler_affects_only_its_request(
    place: BrokerAndClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen error in one send is its own code 1; the sends around it are stored."""

    def explode(text: str) -> dict[str, str]:
        if "BOOM" in text:
            raise RuntimeError("unforeseen")
        return {}

    monkeypatch.setattr("gantry_broker.server.send.handlers.parse_properties", explode)
    delayed = "BOOM\x011\x02DELAY\x011\x02"  # a delayed message is handled by the slow path only
    replies = await asyncio.gather(
        place.client.send(b"1"), place.client.send(b"2", properties=delayed), place.client.send(b"3")
    )

    assert [reply.code for reply in replies] == [0, 1, 0]
    assert "RuntimeError" in (replies[1].remark or "")
