"""Batches: one request for many messages, split where necessary."""

import pytest

from gantry_client import BadReply, InvalidMessage, Message, Producer, ProducerSettings
from gantry_testing.client import FakeCluster
from gantry_wire.codes import RequestCode

BATCH = RequestCode.SEND_BATCH_MESSAGE


async def test_batch_is_one_request_with_a_receipt_per_message() -> None:
    """Every message of a batch has its own id and offset, in order."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")

        receipts = await producer.send_batch([Message("orders", b"%d" % i, tags=f"t{i}") for i in range(10)])

        broker = cluster.broker()
        messages = broker.messages("orders")
        assert broker.received[BATCH] == 1
        assert [message.body for message in messages] == [b"%d" % i for i in range(10)]
        assert [message.properties["TAGS"] for message in messages] == [f"t{i}" for i in range(10)]
        assert [receipt.queue_offset for receipt in receipts] == list(range(10))
        assert [receipt.message_id for receipt in receipts] == [m.properties["UNIQ_KEY"] for m in messages]
        assert [receipt.offset_message_id for receipt in receipts] == [m.offset_message_id for m in messages]


async def test_batch_above_the_size_limit_is_split() -> None:
    """Requests have at most batch_bytes_max bytes, and all messages arrive."""
    settings = ProducerSettings(batch_bytes_max=1000)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders", queues=1)

        receipts = await producer.send_batch([Message("orders", bytes([i]) * 300) for i in range(10)])

        broker = cluster.broker()
        requests = [command for command in broker.requests if command.code == BATCH]
        assert len(requests) > 1 and all(len(command.body) <= 1000 for command in requests)
        assert [message.body[0] for message in broker.messages("orders")] == list(range(10))
        assert [receipt.queue_offset for receipt in receipts] == list(range(10))


async def test_message_above_the_batch_limit_is_sent_alone() -> None:
    """The batch limit never refuses a message that a broker would accept."""
    settings = ProducerSettings(batch_bytes_max=100)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders", queues=1)

        await producer.send_batch([Message("orders", b"a"), Message("orders", b"b" * 500), Message("orders", b"c")])

        assert [message.body[:1] for message in cluster.broker().messages("orders")] == [b"a", b"b", b"c"]


async def test_refused_batch_is_retried_as_a_whole() -> None:
    """A refused batch is stored on another broker, complete and once."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1)
        cluster.broker("broker-a").refuse(BATCH, 14, times=10)

        for _ in range(2):
            await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])

        assert cluster.broker("broker-a").messages("orders") == []
        assert len(cluster.broker("broker-b").messages("orders")) == 4


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("orders", b"x"), Message("other", b"y")],
        [Message("orders", b"x"), Message("orders", b"y", waits_for_store=False)],
        [Message("orders", b"x", delay_level=1)],
        [Message("%RETRY%group", b"x")],
        [Message("orders", b"x"), Message("orders", b"")],
        [Message("orders", b"x", sharding_key="a"), Message("orders", b"y", sharding_key="b")],
        [Message("orders", b"x"), Message("orders", b"y", sharding_key="b")],
    ],
    ids=["empty", "topics", "waits", "delay", "retry", "empty-body", "sharding-keys", "sharding-key-of-one"],
)
async def test_invalid_batch_is_refused_as_a_whole(messages: list[Message]) -> None:
    """One invalid message refuses the whole call before anything is sent."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send_batch(messages)

        assert cluster.broker().received[BATCH] == 0


@pytest.mark.parametrize("is_function", [False, True], ids=["queue", "function"])
async def test_batch_with_different_sharding_keys_goes_to_a_given_queue(is_function: bool) -> None:
    """A queue or a function replaces the choice by the key, as in a single send; every message keeps its key."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=4)
        last = (await producer.queues("orders"))[-1]
        messages = [Message("orders", b"%d" % number, sharding_key=f"key-{number}") for number in range(3)]

        receipts = await producer.send_batch(messages, queue=(lambda queues, message: last) if is_function else last)

        assert {receipt.queue for receipt in receipts} == {last}
        found = [message.properties["__SHARDINGKEY"] for message in cluster.broker().messages("orders")]
        assert found == ["key-0", "key-1", "key-2"]


async def test_batch_with_one_sharding_key_goes_to_its_queue() -> None:
    """It is the queue of a single message with this key."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=4)
        alone = await producer.send(Message("orders", b"x", sharding_key="customer-7"))

        receipts = await producer.send_batch([Message("orders", b"y", sharding_key="customer-7") for _ in range(3)])

        assert {receipt.queue for receipt in receipts} == {alone.queue}


async def test_wrong_number_of_ids_in_batch_reply_is_refused() -> None:
    """A reply with another number of ids than messages raises BadReply."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        ext = {"msgId": "A,B,C", "queueId": "0", "queueOffset": "0"}
        cluster.broker().fault(BATCH, lambda command, _: command.reply(ext=ext))

        with pytest.raises(BadReply):
            await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])
