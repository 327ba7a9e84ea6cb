"""The producer: messages to brokers, with a deadline, retries that change the broker, and a bound on what is under way.

A send that returns a receipt with SEND_OK is acknowledged: the broker keeps the promise of its mode. Everything else
raises, or says in its status which promise is missing. Retries carry the same message id but may store the message
twice, when an answer is lost; consumers that cannot bear this compare ids. Sends with a fixed queue (a queue, a
selector or a sharding key) are not retried elsewhere, because another queue would break their order.

Many sends may be under way at once, on one connection per broker; `outstanding_max` of them, then `send` waits. On one
connection messages reach the broker in the order of the calls.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from gantry_client.client import ProducerClient
from gantry_client.clock import Deadline, wall_ms
from gantry_client.errors import BadReply, InvalidMessage
from gantry_client.messages import SHARDING_KEY, Message, ReceivedMessage, SendReceipt
from gantry_client.outgoing import check_batch, packed_batch, prepare, prepare_batch, prepare_entry
from gantry_client.replies import Reply, ReplyingClient, Requests
from gantry_client.selection import queue_for_key
from gantry_client.settings import ClientSettings, NameServerAddresses, ProducerSettings
from gantry_wire import properties as names
from gantry_wire.batch import ENTRY_BYTES_MIN, BatchEntry
from gantry_wire.commands.clients import MessageQueue

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues for a message."""

DEFAULT_GROUP: Final = "GANTRY_PRODUCER"

_ARGUMENTS: Final = frozenset({names.KEYS, names.TAGS, names.WAIT_STORE, names.DELAY_LEVEL, names.UNIQUE_KEY})
"""What is an argument of the new message, or its id."""

_OF_THE_JOURNEY: Final = frozenset(
    {
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.ORIGIN_MESSAGE_ID,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.MESSAGE_REGION,
        names.TRACE_ON,
        names.CLUSTER,
        names.RECORD_CRC,
        names.POP_CHECKPOINT,
        names.TRANSACTION_PREPARED,
        names.PRODUCER_GROUP,
        names.TIMER_DELAY_SECONDS,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.BORN_HOST,
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "CONSUME_START_TIME",
        "1ST_POP_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
    }
)


@final
class Producer(ProducerClient, ReplyingClient):
    """Sends messages. Use it inside `async with`; it belongs to the event loop that starts it."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str = DEFAULT_GROUP,
        *,
        settings: ProducerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        super().__init__(name_servers, group, settings, client_settings)
        self._requests = Requests(self._session)
        self._reply_settings = self.settings

    @property
    def outstanding(self) -> int:
        """Sends that have no answer yet."""
        return self._sender.outstanding

    async def _leave(self) -> None:
        self._requests.close()

    async def send(
        self, message: Message, *, queue: MessageQueue | Selector | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send one message and wait for the broker's answer.

        `queue` fixes the queue or chooses it; so does the message's sharding key. Raises SendTimeout, SendFailed,
        BrokerRefused, NoRoute or InvalidMessage.
        """
        self._session.require_open()
        outgoing = prepare(message, self._session.unique_ids.next(wall_ms()), self.settings)
        deadline = Deadline(timeout_ms or self.settings.send_timeout_ms)
        return await self._sender.send(outgoing, await self._fixed_queue(message, queue), deadline)

    async def send_again(
        self, received: ReceivedMessage, *, topic: str | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send a received message once more, to its own topic or to `topic`: as its sender sent it, with the same id.

        Its delay and what retries wrote on it are left out. Raises as `send`, and UnreadableBody.
        """
        self._session.require_open()
        message = message_again(received, topic or received.topic)
        outgoing = prepare(message, received.message_id, self.settings)
        deadline = Deadline(timeout_ms or self.settings.send_timeout_ms)
        return await self._sender.send(outgoing, await self._fixed_queue(message, None), deadline)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | Selector | None = None) -> None:
        """Send one message and do not wait for the broker: it may be lost, and nobody will say so.

        Waits at most for a route, a connection and room in it. Raises NoRoute, Unavailable or InvalidMessage.
        """
        self._session.require_open()
        outgoing = prepare(message, self._session.unique_ids.next(wall_ms()), self.settings)
        await self._sender.send_oneway(outgoing, await self._fixed_queue(message, queue))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together: one request up to `batch_bytes_max`, above it several, one by one.

        One receipt per message, in order. A request is stored whole or not at all; when a later one fails, the earlier
        ones are stored. `message_ids` are those of messages that were sent before and keep theirs.
        """
        self._session.require_open()
        check_batch(messages)
        if message_ids is not None and len(message_ids) != len(messages):
            raise InvalidMessage(f"{len(message_ids)} ids are given for {len(messages)} messages")
        deadline = Deadline(timeout_ms or self.settings.send_timeout_ms)
        batches = list(self._split(messages, message_ids))
        fixed = await self._fixed_queue(messages[0], queue)
        receipts: list[SendReceipt] = []
        for entries, ids in batches:
            outgoing = prepare_batch(messages[0], entries, ids)
            receipts += _receipts_of_batch(await self._sender.send(outgoing, fixed, deadline), ids)
        return receipts

    async def send_packed(
        self,
        topic: str,
        entries: Sequence[BatchEntry],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send messages that the caller has packed, their ids among their properties, in one request.

        It is stored whole or not at all. The receipt has the place of the first one, and as its broker's id all of
        them, joined by commas. Raises as `send`.
        """
        self._session.require_open()
        outgoing = packed_batch(topic, entries, self.settings)
        return await self._sender.send(outgoing, queue, Deadline(timeout_ms or self.settings.send_timeout_ms))

    async def request(
        self, message: Message, *, queue: MessageQueue | Selector | None = None, timeout_ms: int | None = None
    ) -> Reply:
        """Send one message and wait for what its consumer replies; one deadline for all of it.

        Raises NoReply when nobody did in time, UnreadableBody for a reply that cannot be unpacked, and what `send`
        raises.
        """
        self._session.require_open()
        deadline = Deadline(timeout_ms or self.settings.send_timeout_ms)
        return await self._requests.request(
            message,
            deadline,
            lambda asked: self.send(asked, queue=queue, timeout_ms=max(1, deadline.remaining_ms)),
        )

    def _split(
        self, messages: Sequence[Message], message_ids: Sequence[str] | None
    ) -> Iterator[tuple[list[BatchEntry], list[str]]]:
        """Groups of messages that fit `batch_bytes_max`; every message is checked before the first is sent."""
        entries: list[BatchEntry] = []
        ids: list[str] = []
        size = 0
        for number, message in enumerate(messages):
            message_id = message_ids[number] if message_ids is not None else self._session.unique_ids.next(wall_ms())
            entry = prepare_entry(message, message_id, self.settings)
            entry_bytes = ENTRY_BYTES_MIN + len(entry.body) + len(entry.properties)
            if entries and size + entry_bytes > self.settings.batch_bytes_max:
                yield entries, ids
                entries, ids, size = [], [], 0
            entries.append(entry)
            ids.append(message_id)
            size += entry_bytes
        yield entries, ids

    async def _fixed_queue(self, message: Message, queue: MessageQueue | Selector | None) -> MessageQueue | None:
        """The one queue that `message` must go to, or None when any will do."""
        if queue is None and message.sharding_key is None:
            return None
        if isinstance(queue, MessageQueue):
            if queue.topic != message.topic:
                raise InvalidMessage(f"the queue belongs to topic {queue.topic!r}, the message to {message.topic!r}")
            return queue
        route = await self._session.routes.for_sending(message.topic)
        if queue is not None:
            return queue(route.write_queues, message)
        assert message.sharding_key is not None, "the first line returned for neither"
        return queue_for_key(route, message.sharding_key)


def _receipts_of_batch(receipt: SendReceipt, ids: Sequence[str]) -> list[SendReceipt]:
    offset_ids = receipt.offset_message_id.split(",")
    if len(offset_ids) != len(ids):
        raise BadReply(f"a broker answered {len(offset_ids)} ids to a batch of {len(ids)}")
    return [
        SendReceipt(
            status=receipt.status,
            message_id=message_id,
            offset_message_id=offset_id,
            queue=receipt.queue,
            queue_offset=receipt.queue_offset + index,
        )
        for index, (message_id, offset_id) in enumerate(zip(ids, offset_ids, strict=True))
    ]


def message_again(received: ReceivedMessage, topic: str) -> Message:
    """What `received` was when it was sent: the same keys, tags, body and properties. Raises UnreadableBody.

    What clients, brokers and retries have written beside them is about the old journey and is left behind: most of it
    would merely be wrong, some of it would send the new message somewhere else (a delay, a half of a transaction).
    """
    left_out = _ARGUMENTS | _OF_THE_JOURNEY | {SHARDING_KEY}
    return Message(
        topic,
        received.body,
        tags=received.tags,
        keys=received.keys,
        properties={name: value for name, value in received.properties.items() if name not in left_out},
        sharding_key=received.properties.get(SHARDING_KEY),
        flag=received.flag,
    )
