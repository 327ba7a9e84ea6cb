"""Sends: every way of sending stores the same message, in the order of the frames, and answers its offset."""

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import LogReadOnly, StoreFull
from gantry_testing.local import (
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    RawPeer,
    dialogue,
    properties_text,
    running_broker,
    send_ext,
)
from gantry_wire import Command, decode_command
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.frame import FRAME_HEAD, Frame, Serialization
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, decode_host, parse_offset_message_id
from gantry_wire.properties import parse_properties

ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "TestCluster"}


async def conversation(broker: Broker, requests: bytes, replies: int) -> list[Command]:
    """Send bytes on a new connection, and read this many replies."""
    peer = await RawPeer.open(broker.port)
    await peer.send(requests)
    answers = [await peer.frame() for _ in range(replies)]
    assert all(frame.serialization == Serialization.JSON for frame in answers)
    await peer.close()
    return [decode_command(frame) for frame in answers]


# ------- ways of sending


@pytest.mark.parametrize("serialization", list(Serialization), ids=["JSON", "ROCKETMQ"])
@pytest.mark.parametrize("code", [10, 310])
async def test_every_way_of_sending_stores_the_same(
    broker: Broker, client: Dialogue, code: int, serialization: Serialization
) -> None:
    """Long or short field names, JSON or binary header: the same message is stored and the reply is JSON."""
    text = properties_text(UNIQ_KEY=UNIQUE_ID, WAIT="true", TAGS="TagA", KEYS="k1 k2", colour="blue")
    fields = send_ext(code, properties=text, queueId="2", flag="7", sysFlag="1", bornTimestamp="1700000000123")
    request = Command(code=code, opaque=77, ext=fields, body=b"the body")

    for number in range(3):
        [reply] = await conversation(broker, request.encode(serialization), 1)
        assert (reply.code, reply.opaque, reply.is_reply) == (0, 77, True)
        assert reply.ext["queueId"] == "2"
        assert reply.ext["queueOffset"] == str(number)
        assert reply.ext["transactionId"] == UNIQUE_ID
        assert (reply.ext["MSG_REGION"], reply.ext["TRACE_ON"]) == ("DefaultRegion", "true")

    messages = await client.read(0, queueId="2")
    assert [message.queue_offset for message in messages] == [0, 1, 2]
    for message in messages:
        assert (message.topic, message.queue_id, message.body) == (TOPIC, 2, b"the body")
        assert (message.flag, message.sys_flag, message.born_timestamp_ms) == (7, 1, 1700000000123)
        assert message.properties == {
            "UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "TagA", "KEYS": "k1 k2", "colour": "blue", **ADDED,
            "__CRC32#": message.properties["__CRC32#"],
        }  # fmt: skip


async def test_message_id_leads_to_its_message(broker: Broker, client: Dialogue) -> None:
    """The id in the reply names our address and the physical offset; asking for that gives the very message."""
    await client.send_ok(b"first")
    reply = await client.send_ok(b"second")

    address, port, offset = parse_offset_message_id(reply["msgId"])
    found = await client.ask(33, {"offset": str(offset)})

    assert (address, port) == ("127.0.0.1", broker.settings.listen_port)
    assert found.code == 0
    [message] = await client.read(1)
    assert message.size == len(found.body)
    assert message.body == b"second"
    assert message.offset_message_id == reply["msgId"]


async def test_oneway_send_is_stored_and_not_answered(broker: Broker, client: Dialogue) -> None:
    """A one-way producer gets no answer, and its message is stored."""
    oneway = [Command(code=code, ext=send_ext(code), body=b"%d" % code, flag=2) for code in (10, 310, 310)]
    batch = Command(code=320, ext=send_ext(320), body=encode_batch([BatchEntry(0, b"b", b"")]), flag=2)
    asked = Command(code=30, opaque=5, ext={"topic": TOPIC, "queueId": "0"})

    requests = b"".join(command.encode() for command in [*oneway, batch, asked])
    [reply] = await conversation(broker, requests, 1)

    assert (reply.opaque, reply.ext) == (5, {"offset": "4"})
    assert [message.body for message in await client.read()] == [b"10", b"310", b"310", b"b"]


async def test_order_within_a_connection_is_the_order_of_its_frames(broker: Broker, client: Dialogue) -> None:
    """Usual and unusual sends, JSON and binary, single and batch: a queue holds them as they came."""
    await client.send_ok(b"0")
    parts: list[bytes] = []
    wanted = [b"0"]
    for number in range(1, 400):
        body = b"%d" % number
        kind = number % 5
        wanted.append(body)
        if kind == 0:
            text = properties_text(UNIQ_KEY=UNIQUE_ID, KEYS=f"key{number}")
            parts.append(Command(code=310, ext=send_ext(310, properties=text), body=body).encode())
        elif kind == 1:
            parts.append(Command(code=10, ext=send_ext(10), body=body).encode(Serialization.ROCKETMQ))
        elif kind == 2:
            parts.append(Command(code=320, ext=send_ext(320), body=encode_batch([BatchEntry(0, body, b"")])).encode())
        else:
            parts.append(Command(code=310, ext=send_ext(310), body=body).encode())

    replies = await conversation(broker, b"".join(parts), len(parts))

    assert {reply.code for reply in replies} == {0}
    stored: list[StoredMessage] = []
    while len(stored) < 400:
        stored += await client.read(len(stored), maxMsgNums="100")
    assert [message.body for message in stored] == wanted
    assert [message.queue_offset for message in stored] == list(range(400))
    positions = [message.physical_offset for message in stored]
    assert positions == sorted(positions)


async def test_request_sees_the_sends_before_it(broker: Broker) -> None:
    """The answer to a request counts all sends before it on its connection."""
    send = Command(code=310, ext=send_ext(310), body=b"x").encode()
    asked = Command(code=30, opaque=1, ext={"topic": TOPIC, "queueId": "0"}).encode()

    replies = await conversation(broker, send * 5 + asked, 6)

    assert [reply.ext["offset"] for reply in replies if reply.opaque == 1] == ["5"]


async def test_fast_port_accepts_sends_but_no_pulls(broker: Broker) -> None:
    """The port two below the main one serves everything but pulls, as in RocketMQ."""
    assert broker.settings.fast_listen_port is not None
    async with dialogue(broker, port=broker.settings.fast_listen_port) as fast:
        assert (await fast.send()).code == 0
        assert (await fast.pull()).code == 3
        assert (await fast.pull(code=361)).code == 3


# ------- what the broker adds and removes


async def test_message_without_a_unique_id_gets_one(client: Dialogue) -> None:
    """A missing UNIQ_KEY is added, unique, and returned to the producer."""
    replies = [await client.send_ok(properties=properties_text(TAGS="t")) for _ in range(50)]

    ids = [reply["transactionId"] for reply in replies]
    stored = await client.read(0, maxMsgNums="50")
    assert len(set(ids)) == 50
    assert all(len(one) == 32 and set(one) <= set("0123456789ABCDEF") for one in ids)
    assert [message.properties["UNIQ_KEY"] for message in stored] == ids


async def test_producer_cannot_set_broker_properties(client: Dialogue) -> None:
    """A checkpoint that a producer sends is removed; region, trace and cluster are the broker's own. See also seals."""
    text = properties_text(UNIQ_KEY=UNIQUE_ID, POP_CK="1 2 3", CLUSTER="other", MSG_REGION="other")
    for code in (10, 310):
        await client.send(b"x", code=code, properties=text)
    entry = BatchEntry(0, b"y", text.encode())
    await client.send(encode_batch([entry]), code=320)

    stored = await client.read()
    assert len(stored) == 3
    for message in stored:
        assert message.properties == {"UNIQ_KEY": UNIQUE_ID, **message.properties, **ADDED}
        assert "POP_CK" not in message.properties


async def test_unusual_unique_ids_are_returned_unchanged(client: Dialogue) -> None:
    """An id with quotes, percent signs or foreign letters is stored and answered unchanged."""
    for unique in ('"quoted\\"', "100%d %b %s", "ключ", "a" * 31, "\u2028", "Z" * 3000):
        reply = await client.send_ok(properties=properties_text(UNIQ_KEY=unique))
        [message] = await client.read(int(reply["queueOffset"]))
        assert reply["transactionId"] == unique
        assert message.properties["UNIQ_KEY"] == unique


async def test_producer_chooses_whether_to_wait(client: Dialogue) -> None:
    """WAIT=false is stored as it came; both are answered 0 if nothing has to be awaited."""
    for wait in ("true", "false"):
        await client.send_ok(properties=properties_text(UNIQ_KEY=UNIQUE_ID, WAIT=wait))

    assert [message.properties["WAIT"] for message in await client.read()] == ["true", "false"]


async def test_unknown_fields_are_ignored(client: Dialogue) -> None:
    """Newer clients send unknown fields, and access keys that are not checked."""
    ext = send_ext(310) | {
        "n": "test-broker",
        "lo": "false",
        "ns": "space",
        "AccessKey": "k",
        "Signature": "s",
        "zz": "",
    }

    assert (await client.ask(310, ext, b"x")).code == 0


# ------- topics


async def test_first_message_creates_its_topic(broker: Broker, client: Dialogue) -> None:
    """An unknown topic gets the producer's number of queues, at most the template's, and the template's rights."""
    for topic, asked, given in (("Four", "4", 4), ("Many", "500", 8), ("None", "0", 1), ("Less", "-3", 1)):
        await client.send_ok(topic=topic, defaultTopicQueueNums=asked)
        config = broker.core.topics.find(topic)
        assert config == TopicConfig(topic_name=topic, read_queue_nums=given, write_queue_nums=given, perm=6)


async def test_unknown_template_creates_no_topic(broker: Broker, client: Dialogue) -> None:
    """A template that does not exist, or does not pass its rights on, makes no topic: 17."""
    await client.send_ok(topic="Plain")

    for template in ("Plain", "Missing", ""):
        reply = await client.send(topic="Wanted", defaultTopic=template)
        assert (reply.code, reply.remark) == (17, "topic[Wanted] not exist, apply first please!")
    assert "Wanted" not in broker.core.topics


async def test_cluster_name_is_a_topic_template(broker: Broker, client: Dialogue) -> None:
    """A topic that is made from the cluster's own topic gets the producer's number of queues."""
    await client.send_ok(topic="FromCluster", defaultTopic="TestCluster", defaultTopicQueueNums="3")

    config = broker.core.topics.find("FromCluster")
    assert config is not None and config.write_queue_nums == 3


SYSTEM = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
]


@pytest.mark.parametrize("topic", SYSTEM)
async def test_send_to_a_system_topic_is_refused(broker: Broker, client: Dialogue, topic: str) -> None:
    """A send to a topic that only the broker writes is refused with 16."""
    for code in (10, 310, 320):
        reply = await client.send(encode_batch([BatchEntry(0, b"x", b"")]), code=code, topic=topic)
        assert reply.code == 16
    assert broker.core.store.log.wrote == 0


async def test_benchmark_topic_has_1024_queues(client: Dialogue) -> None:
    """Apache's benchmark sends to any of 1024 queues; topics with many queues work as those with few."""
    reply = await client.send_ok(topic="BenchmarkTest", queueId="1023")

    assert reply["queueId"] == "1023"
    assert len(await client.read(0, topic="BenchmarkTest", queueId="1023")) == 1


# ------- batches


async def test_batch_is_stored_contiguously(broker: Broker, client: Dialogue) -> None:
    """A batch has consecutive queue offsets and is contiguous; its ids are returned in order."""
    await client.send_ok(b"before")
    entries = [BatchEntry(number, b"body %d" % number, f"TAGS\x01t{number}\x02".encode()) for number in range(20)]

    reply = await client.send(encode_batch(entries), code=320, queueId="0")

    ids = reply.ext["msgId"].split(",")
    stored = await client.read(1)
    assert (reply.code, reply.ext["queueOffset"], len(ids)) == (0, "1", 20)
    assert [message.queue_offset for message in stored] == list(range(1, 21))
    assert [message.offset_message_id for message in stored] == ids
    assert [(message.flag, message.body, message.properties["TAGS"]) for message in stored] == [
        (number, b"body %d" % number, f"t{number}") for number in range(20)
    ]
    ends = [message.physical_offset + message.size for message in stored]
    assert [message.physical_offset for message in stored[1:]] == ends[:-1]
    assert len({message.properties["UNIQ_KEY"] for message in stored}) == 20


async def test_batch_messages_share_outer_properties(client: Dialogue) -> None:
    """Properties of the batch apply to each message that does not override them."""
    entries = [BatchEntry(0, b"1", b""), BatchEntry(0, b"2", b"WAIT\x01true\x02")]

    reply = await client.send(encode_batch(entries), code=310, batch="true", properties="WAIT\x01false\x02")

    assert reply.code == 0
    assert [message.properties["WAIT"] for message in await client.read()] == ["false", "true"]


GOLDEN = Path(__file__).parents[1] / "golden"
SENDS_ANSWERED = sorted(
    path.relative_to(GOLDEN).as_posix()
    for path in GOLDEN.glob("**/*.bin")
    if path.name[:4] in ("0010", "0310", "0320") and ".request." in path.name
)
"""Requests of Java's clients that Apache's broker answered with code 0, as they were on the wire."""


def golden_frame(name: str) -> Command:
    """Return a recorded frame as a decoded command."""
    data = (GOLDEN / name).read_bytes()
    _, type_and_header = FRAME_HEAD.unpack_from(data)
    end = FRAME_HEAD.size + (type_and_header & 0xFFFFFF)
    return decode_command(Frame(type_and_header >> 24, data[FRAME_HEAD.size : end], data[end:]))


@pytest.mark.parametrize("name", SENDS_ANSWERED)
async def test_send_reply_has_apaches_fields(client: Dialogue, name: str) -> None:
    """Apache's broker answers such a request with the same fields; the transaction id is the request's own unique id.

    A batch is answered with `batchUniqId` only for topics of batch consume queues: Java 5 takes it for the batch's one
    message id, which no stored message has.
    """
    request = golden_frame(name)
    recorded = golden_frame(name.replace(".request.", ".reply-0."))

    reply = await client.ask(request.code, request.ext, request.body)

    assert reply.code == recorded.code == 0
    assert reply.ext.keys() == recorded.ext.keys()
    properties = parse_properties(request.ext["properties" if request.code == 10 else "i"])
    assert reply.ext.get("transactionId") == properties.get("UNIQ_KEY")


async def test_batch_without_an_id_is_answered_without_one(client: Dialogue) -> None:
    """The transaction id of a batch is the id of the batch as a whole; Apache omits the field where there is none."""
    reply = await client.send(
        encode_batch([BatchEntry(0, b"1", b""), BatchEntry(0, b"2", b"")]), code=320, properties="WAIT\x01true\x02"
    )

    assert reply.ext.keys() == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}


async def test_batch_is_never_split_over_files(tmp_path: Path) -> None:
    """A batch that does not fit the rest of a log file goes into the next one, whole."""
    size = 5 * 1024 * 1024
    async with running_broker(tmp_path, mappedFileSizeCommitLog=str(size)) as broker, dialogue(broker) as client:
        await client.send_ok(b"x" * (4 * 1024 * 1024 - 1024))
        batch = encode_batch([BatchEntry(0, b"y" * 100_000, b"") for _ in range(12)])

        reply = await client.send(batch, code=320)

        offsets = [parse_offset_message_id(one)[2] for one in reply.ext["msgId"].split(",")]
        assert {offset // size for offset in offsets} == {1}
        assert reply.ext["queueOffset"] == "1"


# ------- refused sends


async def test_transactional_messages_are_refused_if_configured(tmp_path: Path) -> None:
    """With `rejectTransactionMessage=true`: 16 with the reason, and nothing is stored."""
    async with running_broker(tmp_path, rejectTransactionMessage="true") as broker, dialogue(broker) as client:
        reply = await client.send(properties=properties_text(UNIQ_KEY=UNIQUE_ID, TRAN_MSG="true"), sysFlag="4")

        assert reply.code == 16
        assert "transaction" in (reply.remark or "")
        assert broker.core.store.log.wrote == 0


# ------- a store that refuses


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (StoreFull("no room"), 14, "disk is full"),
        (LogReadOnly("a flush failed"), 14, "read-only"),
        (RuntimeError("unforeseen"), 1, "RuntimeError"),
    ],
    ids=["full", "read-only", "unforeseen"],
)
async def test_store_refusal_is_answered_to_every_sender(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, text: str
) -> None:
    """Every send of a refused append gets a code that clients retry on another broker; nothing is stored."""
    await client.send_ok()

    def refuse(drafts: object) -> None:
        raise error

    monkeypatch.setattr(broker.core.store, "append", refuse)
    requests = [Command(code=number, opaque=number, ext=send_ext(number), body=b"x") for number in (310, 10)]
    replies = await conversation(broker, b"".join(command.encode() for command in requests), 2)

    assert [reply.code for reply in replies] == [code, code]
    assert sorted(reply.opaque for reply in replies) == [10, 310]
    assert all(text in (reply.remark or "") for reply in replies)
    assert broker.core.stats.put_count == 1


async def test_tags_are_hashed_like_java(broker: Broker, client: Dialogue) -> None:
    """The queue holds the hash of a message's tags, which pulls filter by."""
    for tag in ("TagA", "ТегБ", "x" * 100):
        await client.send_ok(properties=properties_text(UNIQ_KEY=UNIQUE_ID, TAGS=tag))
        await client.send_ok(properties=properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="k", TAGS=tag))

    for number, tag in enumerate(("TagA", "ТегБ", "x" * 100)):
        found = await client.read(0, subscription=tag)
        assert [message.queue_offset for message in found] == [2 * number, 2 * number + 1]
        assert tags_code(tag) != 0


async def test_ipv6_peers_are_stored_with_their_address(tmp_path: Path) -> None:
    """A producer's IPv6 address and a broker's own are 16 bytes in records and ids, on both paths."""
    async with running_broker(tmp_path, bindAddress="::1", brokerIP1="::1") as broker:
        client = await Dialogue.open(f"[::1]:{broker.settings.listen_port}")
        for code in (310, 310, 10):
            reply = await client.send(b"six", code=code)
            assert (reply.code, len(reply.ext["msgId"])) == (0, 56)

        stored = await client.read()
        address, port = client.channel.local
        assert [decode_host(message.born_host) for message in stored] == [(address, port)] * 3
        assert {decode_host(message.store_host) for message in stored} == {("::1", broker.settings.listen_port)}
        assert parse_offset_message_id(reply.ext["msgId"]) == (
            "::1", broker.settings.listen_port, stored[-1].physical_offset,
        )  # fmt: skip
        await client.close()
