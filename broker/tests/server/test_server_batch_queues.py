"""Topics with RocketMQ's batch queues: new ones get plain queues, and batches that RocketMQ stored are served."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from gantry_store_files import segment_name
from gantry_testing.local import (
    GROUP,
    SMALL_STORE,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
)
from gantry_wire.batch import BatchEntry, encode_batch, split_record
from gantry_wire.fastjson import dumps
from gantry_wire.message import (
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    StoredMessage,
    decode_records,
    encode_record,
    parse_offset_message_id,
)

LOG_FILE_BYTES = int(SMALL_STORE["mappedFileSizeCommitLog"])


# ------- topics that are created here


def topic_fields(**more: str) -> dict[str, str]:
    """Return the header of a request that creates the topic of the tests."""
    return {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **more,
    }  # fmt: skip


async def test_topic_with_batch_queues_gets_plain_ones(tmp_path: Path) -> None:
    """It is listed and stored as what it is, so that RocketMQ can open the store, and its type is unchangeable."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert (await client.ask(17, topic_fields(attributes="+queue.type=BatchCQ"))).code == 0

        assert (await client.ask_json(351, {"topic": TOPIC}))["attributes"] == {"queue.type": "SimpleCQ"}
        listed = (await client.ask_json(21))["topicConfigTable"][TOPIC]
        assert listed["attributes"] == {"queue.type": "SimpleCQ"}
        again = await client.ask(17, topic_fields(attributes="+queue.type=BatchCQ"))
        assert (again.code, again.remark) == (1, "attempt to update an unchangeable attribute. key: queue.type")

        several = {"topicName": "Listed", "attributes": {"+queue.type": "BatchCQ"}}
        assert (await client.ask(18, body=dumps({"topicConfigList": [several]}))).code == 0
        assert (await client.ask_json(351, {"topic": "Listed"}))["attributes"] == {"queue.type": "SimpleCQ"}
    stored = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert {stored[name]["attributes"]["queue.type"] for name in (TOPIC, "Listed")} == {"SimpleCQ"}
    assert not (tmp_path / "batchconsumequeue").exists()


async def test_automatic_batch_is_read_as_single_messages(tmp_path: Path) -> None:
    """Java's producer with autoBatch sends such batches; each message has the offset that RocketMQ would give it.

    The batch has an id of its own, and all keys of its messages. RocketMQ stores neither in a message, and the reply
    lists one id for each message, without `batchUniqId`: the client then gives every sender its own result.
    """
    entries = [
        BatchEntry(
            number, b"%d" % number, properties_text(**{"UNIQ_KEY": UNIQUE_ID[:-1] + str(number), **more}).encode()
        )
        for number, more in enumerate(({"KEYS": "a", "TAGS": "t"}, {"TAGS": "t"}, {"KEYS": "b", "TAGS": "t"}))
    ]
    batch_properties = properties_text(UNIQ_KEY=UNIQUE_ID[:-1] + "F", KEYS="a b", TAGS="t", WAIT="true")
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.ask(17, topic_fields(attributes="+queue.type=BatchCQ"))
        await client.send_ok(b"single")
        reply = await client.send(encode_batch(entries), code=320, batch="true", properties=batch_properties)
        after = await client.send_ok(b"after")

        assert "batchUniqId" not in reply.ext
        assert (reply.ext["queueOffset"], after["queueOffset"]) == ("1", "4")
        assert reply.ext["transactionId"] == UNIQUE_ID[:-1] + "F"
        pulled = await client.pull(0)
        assert (pulled.ext["nextBeginOffset"], pulled.ext["minOffset"], pulled.ext["maxOffset"]) == ("5", "0", "5")
        messages = decode_records(pulled.body)
        assert [(one.queue_offset, one.body) for one in messages] == [
            (0, b"single"), (1, b"0"), (2, b"1"), (3, b"2"), (4, b"after"),
        ]  # fmt: skip
        batch = messages[1:4]
        assert [one.properties.get("KEYS") for one in batch] == ["a", None, "b"]
        assert [one.properties["UNIQ_KEY"][-1] for one in batch] == ["0", "1", "2"]
        assert [one.flag for one in batch] == [0, 1, 2]
        assert {one.sys_flag for one in batch} == {0}
        offsets = [parse_offset_message_id(one)[2] for one in reply.ext["msgId"].split(",")]
        assert offsets == [one.physical_offset for one in batch]
        assert [one.body for one in await client.read(2, maxMsgNums="1")] == [b"1"]


@pytest.mark.parametrize("code", [10, 310, 320])
async def test_producer_cannot_mark_a_message_as_a_batch(tmp_path: Path, code: int) -> None:
    """The flags of a batch in one record are cleared: a client that reads such a message would try to take it apart."""
    flags = str(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP | 0x100)
    body = encode_batch([BatchEntry(0, b"1", b"")]) if code == 320 else b"1"
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        for properties in (
            properties_text(UNIQ_KEY=UNIQUE_ID, INNER_NUM="9", INNER_BASE="0"),
            properties_text(INNER_NUM="9", INNER_BASE="1"),
        ):
            assert (await client.send(body, code=code, sysFlag=flags, properties=properties)).code == 0

        assert [one.sys_flag for one in await client.read()] == [0x100, 0x100]
        assert (await client.pull(0)).ext["maxOffset"] == "2"


# ------- batches that RocketMQ stored


def record_of(physical: int, queue_offset: int, bodies: Collection[bytes], *, tag: str = "t") -> bytes:
    """Return a record as RocketMQ 5 writes it for a topic with batch queues: a batch, or a single message."""
    properties = {"UNIQ_KEY": UNIQUE_ID[:-4] + f"{queue_offset:04X}", "TAGS": tag, "CLUSTER": "TestCluster"}
    body, flags = next(iter(bodies)), 0
    if len(bodies) > 1:
        flags = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
        properties |= {"INNER_NUM": str(len(bodies)), "INNER_BASE": str(queue_offset)}
        body = encode_batch(BatchEntry(0, one, properties_text(TAGS=tag).encode()) for one in bodies)
    message = StoredMessage(
        topic=TOPIC, queue_id=0, body=body, queue_offset=queue_offset, physical_offset=physical, sys_flag=flags,
        born_timestamp_ms=1_700_000_000_000, store_timestamp_ms=1_700_000_000_000 + physical,
        properties_bytes=properties_text(**properties).encode(),
    )  # fmt: skip
    return encode_record(message)


def write_java_store(root: Path, groups: Collection[Collection[bytes]], *, first: int = 0) -> None:
    """Write a store of RocketMQ with one batch, or single message, for each of ``groups``."""
    log, offset = b"", first
    for bodies in groups:
        log += record_of(len(log), offset, bodies)
        offset += len(bodies)
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / segment_name(0)).write_bytes(log.ljust(LOG_FILE_BYTES, b"\0"))
    batch_queue = root / "batchconsumequeue" / TOPIC / "0"
    batch_queue.mkdir(parents=True)
    (batch_queue / segment_name(0)).write_bytes(bytes(300_000 * 46))
    config = {
        "topicName": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False, "attributes": {"queue.type": "BatchCQ"},
    }  # fmt: skip
    (root / "config").mkdir()
    version = {"timestamp": 1, "counter": 1, "stateVersion": 0}
    document = {"topicConfigTable": {TOPIC: config}, "dataVersion": version}
    (root / "config" / "topics.json").write_bytes(dumps(document))


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def consume(
    client: Dialogue, offset: int, *, maxMsgNums: str = "32", subscription: str = "*"
) -> list[tuple[int, bytes]]:
    """Read from ``offset`` to the end as a Java 5 client does, which takes batches apart."""
    found: list[tuple[int, bytes]] = []
    for _ in range(100):
        reply = await client.pull(offset, maxMsgNums=maxMsgNums, subscription=subscription)
        if reply.code == 0:
            for record in decode_records(reply.body):
                found += [(one.queue_offset, one.body) for one in split_record(record)]
        following = int(reply.ext["nextBeginOffset"])
        assert following > offset or reply.code == 19, "expected that each pull makes progress"
        if following == int(reply.ext["maxOffset"]):
            return found
        offset = following
    raise AssertionError("the reader never reached the end of the queue")


@pytest.mark.parametrize("at_a_time", ["1", "32"])
async def test_stored_batches_are_served_at_their_offsets(tmp_path: Path, at_a_time: str) -> None:
    """Each message is read once, and new messages continue after the last batch, also after restarts."""
    groups = [numbered(0, 3), numbered(3, 1), numbered(4, 1200), numbered(1204, 5)]
    write_java_store(tmp_path, groups)
    expected = list(enumerate(numbered(0, 1209)))

    for _ in range(2):
        async with running_broker(tmp_path) as broker, dialogue(broker) as client:
            assert await consume(client, 0, maxMsgNums=at_a_time) == expected
            assert (await client.pull(0)).ext["maxOffset"] == str(len(expected))
            assert await consume(client, 0, maxMsgNums=at_a_time, subscription="none") == []

            body = b"%d" % len(expected)
            assert (await client.send_ok(body))["queueOffset"] == body.decode()
            expected.append((len(expected), body))
            assert await consume(client, 0, maxMsgNums=at_a_time) == expected
            assert (await client.ask_json(351, {"topic": TOPIC}))["attributes"] == {"queue.type": "BatchCQ"}


async def test_offset_inside_of_a_batch_returns_the_whole_batch(tmp_path: Path) -> None:
    """As from RocketMQ's broker: the consumer gets the first messages of the batch again, and loses none."""
    write_java_store(tmp_path, [numbered(10, 3), numbered(13, 4), numbered(17, 1)], first=10)
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        everything = list(zip(range(10, 18), numbered(10, 8), strict=True))

        assert await consume(client, 15) == everything[3:]
        assert await consume(client, 11, maxMsgNums="1") == everything
        assert await consume(client, 17) == everything[7:]
        assert (await client.pull(0)).ext["minOffset"] == "10"


async def test_batch_in_one_record_is_not_sent_back(tmp_path: Path) -> None:
    """RocketMQ refuses it, too; its client then sends the one message of the batch to the retry topic."""
    write_java_store(tmp_path, [numbered(0, 3)])
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        fields = {"offset": "0", "group": GROUP, "delayLevel": "0", "originMsgId": "", "originTopic": TOPIC}
        reply = await client.ask(36, {**fields, "unitMode": "false", "maxReconsumeTimes": "16"})

        assert (reply.code, reply.remark) == (1, "the record at 0 is a batch of several messages")
        assert await consume(client, 0) == list(enumerate(numbered(0, 3)))
