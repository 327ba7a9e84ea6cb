"""The pull consumer: every reply of a broker moves the reader to the right offset."""

import asyncio
import zlib
from collections.abc import AsyncIterator

import pytest

from gantry_client import (
    BadReply,
    BrokerRefused,
    ConsumerSettings,
    DamagedMessage,
    FetchStatus,
    InvalidMessage,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    Unavailable,
    UnreadableBody,
)
from gantry_testing.client import FakeCluster
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.compress import Codec, compress_body
from gantry_wire.hashing import java_string_hash
from gantry_wire.message import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    StoredMessage,
    encode_record,
)

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)


def store_bodies(cluster: FakeCluster, *bodies: bytes, tags: str = "", sys_flag: int = 0) -> None:
    """Store bodies in QUEUE without a producer."""
    properties = f"TAGS\x01{tags}\x02".encode() if tags else b""
    for body in bodies:
        message = StoredMessage(topic="orders", queue_id=0, body=body, sys_flag=sys_flag, properties_bytes=properties)
        cluster.broker().state.log.append(message)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as fake:
        fake.add_topic("orders", queues=1)
        yield fake


async def test_fetched_message_equals_the_sent_one(cluster: FakeCluster) -> None:
    """A sent message is read back with body, properties, ids, store host and offsets."""
    async with Producer(cluster.name_server) as producer, PullConsumer(cluster.name_server, "group") as consumer:
        receipt = await producer.send(Message("orders", b"z" * 10_000, tags="t", keys=["k"], properties={"a": "b"}))

        result = await consumer.fetch(QUEUE, 0)

        (message,) = result.messages
        assert message.body == b"z" * 10_000, "not decompressed"
        assert (message.topic, message.queue, message.queue_offset) == ("orders", receipt.queue, 0)
        assert (message.tags, message.keys, message.properties["a"]) == ("t", ("k",), "b")
        assert (message.message_id, message.offset_message_id) == (receipt.message_id, receipt.offset_message_id)
        assert message.store_host == cluster.broker().address
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (FetchStatus.FOUND, 1, 0, 1)


async def test_empty_reply_keeps_the_offset(cluster: FakeCluster) -> None:
    """Code 19: there are no new messages, and the offset does not change."""
    store_bodies(cluster, b"a")
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(QUEUE, 1)

    assert (result.status, result.messages, result.next_offset) == (FetchStatus.NO_NEW, (), 1)


async def test_filtered_messages_are_skipped(cluster: FakeCluster) -> None:
    """Code 20: no message matched, but the reader advances and does not fetch the same ones again."""
    store_bodies(cluster, b"a", b"b", tags="other")
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(QUEUE, 0, tags="wanted")

    assert (result.status, result.next_offset) == (FetchStatus.NO_MATCH, 2)


@pytest.mark.parametrize("offset", [0, 1])
async def test_batch_in_one_record_is_taken_apart(cluster: FakeCluster, offset: int) -> None:
    """RocketMQ stores batches so for topics with ``queue.type=BatchCQ``."""
    entries = [BatchEntry(number, b"%d" % number, b"TAGS\x01t%d\x02" % number) for number in range(3)]
    flags = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
    store_bodies(cluster, *[encode_batch(entries)] * 2, tags="of all", sys_flag=flags)
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(QUEUE, offset)

    found = [(one.queue_offset, one.body, one.tags, one.flag) for one in result.messages]
    expected = [(first + number, b"%d" % number, f"t{number}", number) for first in (0, 1) for number in range(3)]
    assert found == expected[3 * offset :]


@pytest.mark.parametrize(("offset", "expected"), [(0, 2), (99, 3)], ids=["expired", "beyond"])
async def test_offset_outside_the_queue_is_corrected(cluster: FakeCluster, offset: int, expected: int) -> None:
    """Code 21: an offset below the beginning moves to the beginning, one beyond the end to the end."""
    store_bodies(cluster, b"a", b"b", b"c")
    cluster.broker().state.log.queue("orders", 0).min_offset = 2
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(QUEUE, offset)

    assert (result.status, result.next_offset) == (FetchStatus.OFFSET_MOVED, expected)
    assert (result.min_offset, result.max_offset) == (2, 3)


async def test_colliding_tag_is_not_delivered(cluster: FakeCluster) -> None:
    """Brokers filter by Java's hash, and "Aa" has the hash of "BB": the client compares the tag itself."""
    assert java_string_hash("Aa") == java_string_hash("BB")
    store_bodies(cluster, b"wrong", tags="BB")
    store_bodies(cluster, b"right", tags="Aa")
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(QUEUE, 0, tags="Aa || Cc")

    assert [message.body for message in result.messages] == [b"right"]
    assert result.next_offset == 2


async def test_waiting_fetch_returns_when_a_message_arrives(cluster: FakeCluster) -> None:
    """Long polling: the reply arrives with the message, long before the wait time is over."""
    async with PullConsumer(cluster.name_server, "group") as consumer:
        waiting = asyncio.create_task(consumer.fetch(QUEUE, 0, wait_ms=60_000))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done

        store_bodies(cluster, b"late")
        async with asyncio.timeout(50):
            result = await waiting

    assert [message.body for message in result.messages] == [b"late"]


async def test_refusal_has_code_and_remark(cluster: FakeCluster) -> None:
    """Codes that are no pull result raise an error with code and remark."""
    cluster.broker().refuse(PULL, 26, "subscription group does not exist")
    async with PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(BrokerRefused, match="26 SUBSCRIPTION_GROUP_NOT_EXIST: subscription group"):
            await consumer.fetch(QUEUE, 0)


async def test_invalid_records_raise_bad_reply(cluster: FakeCluster) -> None:
    """Bytes that are no records are never delivered as messages."""
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
    cluster.broker().fault(PULL, lambda command, _: command.reply(ext=ext, body=b"\x00\x00\x00\x5bgarbage"))
    async with PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(BadReply):
            await consumer.fetch(QUEUE, 0)


@pytest.mark.parametrize("sys_flag", [0, FLAG_COMPRESSED | COMPRESSION_ZLIB], ids=["plain", "compressed"])
async def test_body_with_wrong_checksum_is_never_delivered(cluster: FakeCluster, sys_flag: int) -> None:
    """The messages before it are delivered, it raises an error with its offset, and reading continues after it. The
    checksum is that of the stored body."""
    store_bodies(cluster, b"before")
    store_bodies(cluster, zlib.compress(b"rotten") if sys_flag else b"rotten", sys_flag=sys_flag)
    store_bodies(cluster, b"after")
    cluster.broker().state.log.damaged.add(("orders", 0, 1))
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(QUEUE, 0)
        assert ([message.body for message in result.messages], result.next_offset) == ([b"before"], 1)

        with pytest.raises(
            DamagedMessage, match=f"at offset 1 of orders/0 of broker-a.*{cluster.broker().address}"
        ) as caught:
            await consumer.fetch(QUEUE, 1)
        assert caught.value.addresses == (cluster.broker().address,)

        result = await consumer.fetch(QUEUE, caught.value.queue_offset + 1)
        assert [message.body for message in result.messages] == [b"after"]


async def test_damaged_message_is_read_from_another_replica(caplog: pytest.LogCaptureFixture) -> None:
    """The slave of the same broker is tried at once, its message is delivered, and one log line reports it."""
    async with FakeCluster(("broker-a", "twin")) as cluster:
        cluster.add_topic("orders", queues=1)
        cluster.slaves["broker-a"] = {1: cluster.broker("twin").address}
        for name in ("broker-a", "twin"):
            for body in (b"good", b"rotten"):
                cluster.broker(name).state.log.append(StoredMessage(topic="orders", queue_id=0, body=body))
        cluster.broker().state.log.damaged.add(("orders", 0, 1))
        async with PullConsumer(cluster.name_server, "group") as consumer:
            result = await consumer.fetch(QUEUE, 1)
        assert [message.body for message in result.messages] == [b"rotten"]
        assert [record.message for record in caplog.records if "replica" in record.message] == [
            "read damaged message from another replica"
        ]


async def test_pull_after_a_failed_one_goes_to_the_master() -> None:
    """A slave that the master suggested may die: its address stays in the route until the name server drops it."""
    async with FakeCluster(("broker-a", "twin")) as cluster, PullConsumer(cluster.name_server, "group") as consumer:
        cluster.add_topic("orders", queues=1)
        cluster.slaves["broker-a"] = {1: cluster.broker("twin").address}
        store_bodies(cluster, b"x")
        ext = {"suggestWhichBrokerId": "1", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "1"}
        cluster.broker().fault(PULL, lambda command, _: command.reply(ResponseCode.PULL_NOT_FOUND, ext=ext))
        await consumer.fetch(QUEUE, 0)
        await cluster.broker("twin").stop()
        with pytest.raises(Unavailable):
            await consumer.fetch(QUEUE, 0)

        result = await consumer.fetch(QUEUE, 0)

        assert [message.body for message in result.messages] == [b"x"]


async def test_damaged_offset_raises_bad_reply(cluster: FakeCluster) -> None:
    """A record whose head is damaged, too, must not move the reader."""
    store_bodies(cluster, b"x")
    record = bytearray(encode_record(StoredMessage(topic="orders", queue_id=0, body=b"x", queue_offset=7_000)))
    record[88] ^= 1
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
    cluster.broker().fault(PULL, lambda command, _: command.reply(ext=ext, body=bytes(record)))
    async with PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(BadReply, match="outside"):
            await consumer.fetch(QUEUE, 0)


async def test_reply_without_fields_raises_bad_reply(cluster: FakeCluster) -> None:
    """A missing offset is not guessed."""
    cluster.broker().fault(PULL, lambda command, _: command.reply(ext={"nextBeginOffset": "1"}))
    async with PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(BadReply):
            await consumer.fetch(QUEUE, 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (zlib.compress(bytes(1_000_000)), "limit"),
        (zlib.compress(b"x" * 100)[:-3], "cut short"),
        (b"\x00garbage", "damaged"),
        (compress_body(bytes(1_000_000), Codec.LZ4), "limit"),
        (compress_body(bytes(1_000_000), Codec.ZSTD), "limit"),
    ],
    ids=["bomb", "cut", "garbage", "LZ4 bomb", "Zstandard bomb"],
)
async def test_unreadable_body_affects_only_its_message(cluster: FakeCluster, body: bytes, reason: str) -> None:
    """A decompression bomb or a damaged body fails alone, when it is read."""
    store_bodies(cluster, b"before")
    kind = {b"\x04\x22": COMPRESSION_LZ4, b"\x28\xb5": COMPRESSION_ZSTD}.get(body[:2], COMPRESSION_ZLIB)
    store_bodies(cluster, body, sys_flag=FLAG_COMPRESSED | kind)
    store_bodies(cluster, b"after")
    settings = ConsumerSettings(body_bytes_max=100_000)
    async with PullConsumer(cluster.name_server, "group", settings=settings) as consumer:
        result = await consumer.fetch(QUEUE, 0)

    before, bad, after = result.messages
    assert (before.body, after.body) == (b"before", b"after")
    with pytest.raises(UnreadableBody, match=reason):
        _ = bad.body


async def test_retried_message_has_its_original_topic(cluster: FakeCluster) -> None:
    """A message from a retry topic names the topic to which it was sent."""
    cluster.add_topic("%RETRY%group", queues=1)
    message = StoredMessage(
        topic="%RETRY%group", queue_id=0, body=b"x", properties_bytes=b"RETRY_TOPIC\x01orders\x02", reconsume_times=2
    )
    cluster.broker().state.log.append(message)
    async with PullConsumer(cluster.name_server, "group") as consumer:
        result = await consumer.fetch(replace_topic(QUEUE, "%RETRY%group"), 0)

    (received,) = result.messages
    assert (received.topic, received.queue.topic, received.reconsume_times) == ("orders", "%RETRY%group", 2)


async def test_offsets_are_committed_and_read_back(cluster: FakeCluster) -> None:
    """A new group has no offset; afterwards it has the committed one."""
    async with PullConsumer(cluster.name_server, "group") as consumer:
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, 0)
        assert await consumer.committed(QUEUE) == 0
        await consumer.commit(QUEUE, 17)
        assert await consumer.committed(QUEUE) == 17


async def test_queue_offsets_and_offsets_by_time(cluster: FakeCluster) -> None:
    """They are min, max, and the first message at or after a time, or max without such a message."""
    for at_ms in (1000, 2000, 3000):
        message = StoredMessage(topic="orders", queue_id=0, body=b"x", store_timestamp_ms=at_ms)
        cluster.broker().state.log.append(message)
    async with PullConsumer(cluster.name_server, "group") as consumer:
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 3)
        assert [await consumer.offset_at(QUEUE, at_ms) for at_ms in (0, 1000, 1001, 3001)] == [0, 0, 1, 3]


@pytest.mark.parametrize("tags", ["||", " || "])
async def test_filter_without_a_tag_is_refused(cluster: FakeCluster, tags: str) -> None:
    """An expression without a tag is refused before a request is sent."""
    async with PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(InvalidMessage):
            await consumer.fetch(QUEUE, 0, tags=tags)


def replace_topic(queue: MessageQueue, topic: str) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
