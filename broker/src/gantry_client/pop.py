"""Pop consumption: the broker chooses the messages, and they stay invisible to the group until they are acked.

    pop               -> messages, each with a receipt
    ack               the message is done; the broker never returns it to the group again
    change_invisible  -> a new receipt; the old one is void

A message whose invisible time ends before its ack is delivered again, with a new receipt and one more in
`reconsume_times`. All requests go to the broker at an address that the caller chooses, since a receipt is valid only at
the broker that issued it. Nothing here is automatic: the caller extends invisible times and repeats failed requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_client.calls import parse_header, require_success
from gantry_client.clock import wall_ms
from gantry_client.errors import BadReply, BrokerRefused
from gantry_client.messages import ReceivedMessage, to_received_message
from gantry_client.session import Session
from gantry_client.subscriptions import expression_type
from gantry_wire import pop_receipts as receipts
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.pop import (
    START_AT_MAX,
    START_AT_MIN,
    AckMessage,
    BatchAck,
    BatchAckMessages,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResult,
    PopMessage,
    PopResult,
)
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.filters import MessageFilter, parse_tag_filter
from gantry_wire.message import StoredMessage, decode_records
from gantry_wire.pop_receipts import QueueKey, Receipt, ReceiptError, parse_receipt
from gantry_wire.properties import FIRST_POP_TIME, POP_CHECKPOINT

POLL_MARGIN_MS: Final = 10_000
"""How much longer than its poll time a pop may take, before it counts as timed out."""

BATCH_BITS_MAX: Final = 1 << 20
"""The limit of the distance of a message from the start of its pop: filters skip messages, but a read is bounded."""

ANY_QUEUE: Final = -1
"""The queue id of a pop from any queue of the topic."""


class PopStatus(Enum):
    """The outcome of a pop."""

    FOUND = "found"
    NO_NEW = "no message arrived within the poll time"
    FULL = "too many requests wait at the broker; poll again later"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PopRequest:
    """What to pop, and for how long."""

    topic: str
    group: str
    broker_name: str
    """The name of the broker, which is a part of receipts."""

    queue_id: int = ANY_QUEUE
    messages_max: int = 32
    """How many messages to return; brokers refuse more than 32."""

    invisible_ms: int = 60_000
    """For how long the messages stay invisible."""

    poll_ms: int = 0
    """For how long the broker may hold the request if there are no messages."""

    filter: MessageFilter = field(default_factory=lambda: parse_tag_filter(None))
    is_order: bool = False
    """Whether the messages of a queue are consumed in their order, with no other in between."""

    attempt_id: str | None = None
    """With ``is_order``: repeats the request of a lost reply, if it has the same id."""

    is_from_newest: bool = False
    """Whether a group that is new to a queue starts with the newest message instead of the oldest."""


@final
class PoppedMessage(NamedTuple):
    """One message that stays invisible to its group until its receipt expires."""

    message: ReceivedMessage
    receipt: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PopReply:
    """The result of a pop."""

    status: PopStatus
    messages: tuple[PoppedMessage, ...] = ()
    pop_time_ms: int = 0
    """When the messages became invisible, by the broker's clock."""

    invisible_ms: int = 0
    rest_count: int = 0
    """The number of messages that remain in the queues, at the time of the pop."""


@final
class PopClient:
    """Requests of pop consumption to brokers. Belongs to the event loop of its session."""

    def __init__(self, session: Session, *, body_bytes_max: int | None = None) -> None:
        """A body that is larger than ``body_bytes_max`` after decompression is returned as it is stored.

        With 0, compressed bodies are left for `inflate_message`.
        """
        self._session: Final = session
        self._decode_options: Final = {} if body_bytes_max is None else {"body_bytes_max": body_bytes_max}

    async def pop(self, address: str, request: PopRequest) -> PopReply:
        """Pop messages at the broker at ``address``. Raises a RequestFailed, for example BrokerRefused."""
        header = PopMessage(
            consumer_group=request.group,
            topic=request.topic,
            queue_id=request.queue_id,
            max_msg_nums=request.messages_max,
            invisible_time=request.invisible_ms,
            poll_time=request.poll_ms,
            init_mode=START_AT_MAX if request.is_from_newest else START_AT_MIN,
            born_time=wall_ms(),
            exp_type=expression_type(request.filter),
            exp=request.filter.expression,
            order=request.is_order,
            attempt_id=request.attempt_id,
        )
        timeout_ms = request.poll_ms + POLL_MARGIN_MS
        reply = await self._session.calls.request(address, RequestCode.POP_MESSAGE, header, timeout_ms=timeout_ms)
        return self._parse_reply(reply, request, address)

    async def ack(self, address: str, topic: str, group: str, receipt: str) -> None:
        """Ack one message that was sent to ``topic``. Raises ReceiptError, and a RequestFailed.

        An ack with a receipt that has expired succeeds, too.
        """
        parsed = _parse_full(receipt)
        header = AckMessage(
            consumer_group=group,
            topic=parsed.queue_topic(topic, group),
            queue_id=parsed.queue_id,
            extra_info=receipt,
            offset=parsed.queue_offset,
        )
        await self._session.calls.request_success(address, RequestCode.ACK_MESSAGE, header)

    async def batch_ack(self, address: str, topic: str, group: str, acked: Sequence[str]) -> None:
        """Ack several messages that were sent to ``topic``, by their receipts. Raises as ``ack``."""
        body = make_batch_ack(topic, group, acked)
        await self._session.calls.request_success(address, RequestCode.BATCH_ACK_MESSAGE, None, body)

    async def change_invisible(
        self, address: str, topic: str, group: str, receipt: str, *, invisible_ms: int, is_suspended: bool = False
    ) -> str:
        """Make a message invisible for ``invisible_ms`` from now on; return its new receipt. Raises as ``ack``.

        ``is_suspended``: the next delivery does not count as one after a failure.
        """
        parsed = _parse_full(receipt)
        header = ChangeInvisibleTime(
            consumer_group=group,
            topic=parsed.queue_topic(topic, group),
            queue_id=parsed.queue_id,
            extra_info=receipt,
            offset=parsed.queue_offset,
            invisible_time=invisible_ms,
            suspend=is_suspended,
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        reply = require_success(await self._session.calls.request(address, code, header), address)
        result = parse_header(reply, ChangeInvisibleTimeResult, address)
        return parsed._replace(
            start_offset=parsed.queue_offset,
            pop_time_ms=result.pop_time,
            invisible_ms=result.invisible_time,
            revive_queue=result.revive_qid,
        ).text

    def _parse_reply(self, reply: Command, request: PopRequest, address: str) -> PopReply:
        if reply.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            return PopReply(status=PopStatus.NO_NEW)
        if reply.code == ResponseCode.POLLING_FULL:
            return PopReply(status=PopStatus.FULL)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark, address)
        header = parse_header(reply, PopResult, address)
        pop_time = str(header.pop_time)
        try:
            records = decode_records(reply.body)
            popped = tuple(
                PoppedMessage(self._to_received(record, request, pop_time, _order_count(receipt, counts)), receipt.text)
                for record, receipt, counts in _with_receipts(records, header, request.broker_name)
            )
        except (RemoteProtocolError, ReceiptError) as error:
            raise BadReply(f"{address} answered a pop with invalid messages: {error}") from error
        return PopReply(
            status=PopStatus.FOUND,
            messages=popped,
            pop_time_ms=header.pop_time,
            invisible_ms=header.invisible_time,
            rest_count=header.rest_num,
        )

    def _to_received(
        self, record: StoredMessage, request: PopRequest, pop_time: str, order_count: int | None
    ) -> ReceivedMessage:
        properties = {FIRST_POP_TIME: pop_time, **record.properties}
        properties.pop(POP_CHECKPOINT, None)
        return to_received_message(
            record, request.broker_name, topic=request.topic, properties=properties, reconsume_times=order_count,
            **self._decode_options,
        )  # fmt: skip


_OrderCounts = dict[tuple[str, str], int]


def _with_receipts(
    records: Iterable[StoredMessage], header: PopResult, broker_name: str
) -> Iterable[tuple[StoredMessage, Receipt, _OrderCounts]]:
    """Yield each message of a reply with its receipt, and the delivery counts of the reply. Raises ReceiptError."""
    starts = receipts.parse_start_offsets(header.start_offset_info)
    offsets = receipts.parse_offsets(header.msg_offset_info)
    counts = receipts.parse_order_counts(header.order_count_info)
    for record in records:
        own = record.properties.get(POP_CHECKPOINT)
        if own:  # a redelivered message, which names its retry queue only here
            yield record, _parse_full(own), counts
            continue
        key: QueueKey = receipts.retry_flag_of(record.topic), record.queue_id
        if key not in starts or record.queue_offset not in offsets.get(key, ()):
            raise ReceiptError(f"the reply has no receipt for offset {record.queue_offset} of queue {key}")
        receipt = Receipt(
            starts[key], header.pop_time, header.invisible_time, header.revive_qid, key[0], broker_name,
            record.queue_id, record.queue_offset,
        )  # fmt: skip
        yield record, receipt, counts


def _order_count(receipt: Receipt, counts: _OrderCounts) -> int | None:
    """Return the delivery count of a message, if it is consumed in order: then its record has none."""
    if not counts:
        return None
    flag = receipt.retry_flag
    count = counts.get(
        (flag, f"qo{receipt.queue_id}%{receipt.queue_offset}"), counts.get((flag, str(receipt.queue_id)))
    )
    return count or None


def make_batch_ack(topic: str, group: str, acked: Sequence[str]) -> BatchAckMessages:
    """Return the body that acks these receipts of messages that were sent to ``topic``. Raises ReceiptError."""
    receipts = [_parse_full(text) for text in acked]
    for receipt in receipts:
        distance = receipt.queue_offset - receipt.start_offset
        if not 0 <= distance < BATCH_BITS_MAX:
            raise ReceiptError(
                f"{receipt.text!r}: the message is {distance} after the start, but at most {BATCH_BITS_MAX - 1}"
            )
    return batch_of_receipts((topic, group, receipt) for receipt in receipts)


def batch_of_receipts(acked: Iterable[tuple[str, str, Receipt]]) -> BatchAckMessages:
    """Return the body that acks messages of one broker, each with the topic to which it was sent, and its group.

    Each receipt has the offset of its message, at most `BATCH_BITS_MAX` after the start of its pop.
    """
    bits: dict[tuple[str, str, int, int, int, int, str, int], int] = {}
    broker_name: str | None = None
    for topic, group, (start, pop_ms, invisible_ms, revive, flag, issuer, queue_id, offset) in acked:
        broker_name = issuer
        key = topic, group, start, pop_ms, invisible_ms, revive, flag, queue_id
        bits[key] = bits.get(key, 0) | 1 << offset - start
    acks = [
        BatchAck(
            consumer_group=group, topic=topic, retry=flag, start_offset=start, queue_id=queue_id,
            revive_queue_id=revive, pop_time=pop_ms, invisible_time=invisible_ms,
            bit_set=value.to_bytes((value.bit_length() + 7) // 8, "little"),
        )
        for (topic, group, start, pop_ms, invisible_ms, revive, flag, queue_id), value in bits.items()
    ]  # fmt: skip
    return BatchAckMessages(broker_name=broker_name, acks=acks)


def _parse_full(text: str) -> Receipt:
    receipt = parse_receipt(text)
    if receipt.queue_id < 0 or receipt.queue_offset < 0:
        raise ReceiptError(f"{text[:128]!r} lacks the queue or the offset of its message")
    return receipt
