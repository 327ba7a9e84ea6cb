"""The client's requests of pop consumption, against a broker that answers as RocketMQ does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from gantry_client import BadReply, BrokerRefused
from gantry_client.pop import PopClient, PopRequest, PopStatus, make_batch_ack
from gantry_client.session import Session
from gantry_remoting.server import Connection
from gantry_testing.client import FakeCluster
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.pop import AckMessage, BatchAckMessages, ChangeInvisibleTime, PopMessage, PopResult
from gantry_wire.message import StoredMessage, encode_record
from gantry_wire.pop_receipts import ORDER_REVIVE_QUEUE, ReceiptError
from gantry_wire.properties import FIRST_POP_TIME, POP_CHECKPOINT, encode_properties

REQUEST = PopRequest(topic="orders", group="billing", broker_name="broker-a", poll_ms=10)
RESULT = PopResult(
    pop_time=1000, invisible_time=60_000, revive_qid=3, rest_num=7, start_offset_info="0 1 4", msg_offset_info="0 1 4,6"
)
FIRST = StoredMessage(topic="orders", queue_id=1, queue_offset=4, body=b"first")
SECOND = msgspec.structs.replace(FIRST, queue_offset=6, body=b"second")


@asynccontextmanager
async def open_session(cluster: FakeCluster) -> AsyncIterator[Session]:
    session = Session(cluster.name_server)
    await session.start()
    try:
        yield session
    finally:
        await session.close()


class Answer:
    """Answers every pop with the same messages."""

    def __init__(self, header: PopResult, *records: StoredMessage) -> None:
        self._header, self._records = header, records

    def __call__(self, command: Command, connection: Connection) -> Command:
        return command.reply(ext=self._header.write(), body=b"".join(map(encode_record, self._records)))


async def test_popped_messages_have_receipts() -> None:
    """Each message has a receipt with its queue, its offset, and the start of the pop in this queue."""
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker = cluster.broker()
        broker.fault(RequestCode.POP_MESSAGE, Answer(RESULT, FIRST, SECOND))

        reply = await PopClient(session).pop(broker.address, REQUEST)

        sent = PopMessage.read(broker.requests[-1].ext)
    assert (sent.queue_id, sent.max_msg_nums, sent.exp) == (-1, 32, "*")
    assert (reply.status, reply.pop_time_ms, reply.rest_count) == (PopStatus.FOUND, 1000, 7)
    assert [popped.message.body for popped in reply.messages] == [b"first", b"second"]
    assert [popped.receipt for popped in reply.messages] == [
        "4 1000 60000 3 0 broker-a 1 4",
        "4 1000 60000 3 0 broker-a 1 6",
    ]
    assert reply.messages[0].message.properties[FIRST_POP_TIME] == "1000"


async def test_redelivered_message_has_receipt_of_its_retry_queue() -> None:
    """A redelivered message has the topic to which it was sent, and the receipt from its property."""
    own = "9 1000 60000 3 1 broker-a 0 9"
    retried = msgspec.structs.replace(
        FIRST, properties_bytes=encode_properties({POP_CHECKPOINT: own}), reconsume_times=2
    )
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker, client = cluster.broker(), PopClient(session)
        broker.fault(RequestCode.POP_MESSAGE, Answer(RESULT, retried))
        broker.fault(RequestCode.ACK_MESSAGE, lambda command, _: command.reply())

        [popped] = (await client.pop(broker.address, REQUEST)).messages
        await client.ack(broker.address, "orders", "billing", popped.receipt)

        ack = AckMessage.read(broker.requests[-1].ext)
    assert (popped.receipt, popped.message.topic, popped.message.reconsume_times) == (own, "orders", 2)
    assert POP_CHECKPOINT not in popped.message.properties
    assert (ack.topic, ack.queue_id, ack.offset, ack.extra_info) == ("%RETRY%billing_orders", 0, 9, own)


async def test_ordered_messages_have_delivery_counts_of_reply() -> None:
    """Messages that are consumed in order have their delivery count from the reply."""
    header = PopResult(
        pop_time=1000, invisible_time=60_000, revive_qid=ORDER_REVIVE_QUEUE, rest_num=0, start_offset_info="0 1 4",
        msg_offset_info="0 1 4,6", order_count_info="0 qo1%4 0;0 qo1%6 3;0 1 3",
    )  # fmt: skip
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker = cluster.broker()
        broker.fault(RequestCode.POP_MESSAGE, Answer(header, FIRST, SECOND))

        reply = await PopClient(session).pop(broker.address, replace(REQUEST, is_order=True, attempt_id="a1"))

    assert [popped.message.reconsume_times for popped in reply.messages] == [0, 3]


@pytest.mark.parametrize(
    ("code", "status"),
    [(ResponseCode.POLLING_TIMEOUT, PopStatus.NO_NEW), (ResponseCode.POLLING_FULL, PopStatus.FULL)],
)
async def test_pop_without_messages_has_a_status(code: ResponseCode, status: PopStatus) -> None:
    """A poll that ends without messages, or that the broker cannot hold, is no error."""
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker = cluster.broker()
        broker.refuse(RequestCode.POP_MESSAGE, code)
        reply = await PopClient(session).pop(broker.address, REQUEST)
    assert (reply.status, reply.messages) == (status, ())


async def test_refused_and_malformed_replies_raise() -> None:
    """A refusal raises BrokerRefused; messages that the reply has no receipt for raise BadReply."""
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker, client = cluster.broker(), PopClient(session)
        broker.refuse(RequestCode.POP_MESSAGE, ResponseCode.NO_PERMISSION)
        with pytest.raises(BrokerRefused):
            await client.pop(broker.address, REQUEST)
        broker.fault(RequestCode.POP_MESSAGE, Answer(RESULT, msgspec.structs.replace(FIRST, queue_offset=5)))
        with pytest.raises(BadReply, match="no receipt for offset 5"):
            await client.pop(broker.address, REQUEST)


async def test_changed_invisible_time_gives_new_receipt() -> None:
    """The new receipt has the times of the reply, and a checkpoint of its own that begins at the message."""
    header = {"popTime": "2000", "invisibleTime": "5000", "reviveQid": "2"}
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker = cluster.broker()
        broker.fault(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda command, _: command.reply(ext=header))

        receipt = await PopClient(session).change_invisible(
            broker.address, "orders", "billing", "4 1000 60000 3 0 broker-a 1 6", invisible_ms=5000
        )

        sent = ChangeInvisibleTime.read(broker.requests[-1].ext)
    assert receipt == "6 2000 5000 2 0 broker-a 1 6"
    assert (sent.offset, sent.invisible_time, sent.topic) == (6, 5000, "orders")


async def test_batch_ack_groups_receipts_by_checkpoint() -> None:
    """Acks of one checkpoint are one entry, whose bits are the distances from its start."""
    acked = ["4 1000 60000 3 0 broker-a 1 4", "4 1000 60000 3 0 broker-a 1 13", "9 1000 60000 3 1 broker-a 0 9"]
    async with FakeCluster() as cluster, open_session(cluster) as session:
        broker = cluster.broker()
        broker.fault(RequestCode.BATCH_ACK_MESSAGE, lambda command, _: command.reply())
        await PopClient(session).batch_ack(broker.address, "orders", "billing", acked)
        body = broker.requests[-1].body

    parsed = read_document(body, BatchAckMessages)
    assert b'"b":"AQI="' in body, "RocketMQ reads the bits as base64"
    assert (parsed.broker_name, len(parsed.acks)) == ("broker-a", 2)
    assert [(ack.start_offset, ack.queue_id, ack.retry, ack.bit_set) for ack in parsed.acks] == [
        (4, 1, "0", b"\x01\x02"),
        (9, 0, "1", b"\x01"),
    ]


@pytest.mark.parametrize("receipt", ["4 1000 60000 3 0 broker-a", "4 1000 60000 3 0 broker-a 1 3", "x"])
def test_incomplete_receipt_is_refused_before_sending(receipt: str) -> None:
    """A receipt that does not name its message, or a message before the pop, raises ReceiptError."""
    with pytest.raises(ReceiptError):
        make_batch_ack("orders", "billing", [receipt])
