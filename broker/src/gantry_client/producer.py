"""The producer: sends messages with a deadline, retries on other brokers, and a limit on outstanding sends.

A send that returns a receipt with SEND_OK is acknowledged: the broker keeps the promise of its mode. Any other outcome
raises, or its status names the missing promise. Retries carry the same message id but may store the message twice when
a reply is lost; consumers that cannot tolerate this compare ids. Sends to a fixed queue (a queue, a selector or a
sharding key) are not retried: another queue would break their order.

Many sends may be outstanding at once, on one connection per broker; beyond `outstanding_max`, `send` waits. On one
connection messages reach the broker in the order of the calls, also of those that wait for a slot, as long as none of
them has to wait for a route or the connection: a later send may find it open before the waiting ones run. So await the
first send to a queue before you start others whose order matters.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from gantry_client.calls import parse_header
from gantry_client.client import ProducerClient
from gantry_client.clock import Deadline, deadline_after, wall_ms
from gantry_client.errors import BadReply, InvalidMessage
from gantry_client.messages import SHARDING_KEY, Message, ReceivedMessage, SendReceipt
from gantry_client.outgoing import check_batch, prepare_batch, prepare_entry, prepare_message, prepare_packed_batch
from gantry_client.replies import Reply, ReplyingClient, Requests
from gantry_client.selection import queue_for_key
from gantry_client.settings import ClientSettings, NameServerAddresses, ProducerSettings
from gantry_wire import RequestCode
from gantry_wire import properties as property_names
from gantry_wire.batch import ENTRY_BYTES_MIN, BatchEntry
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.timers import RecallMessage, RecallResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.recall_handle import RecallHandle

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of the queues of a topic for a message."""

DEFAULT_GROUP: Final = "GANTRY_PRODUCER"

_ARGUMENT_PROPERTIES: Final = frozenset(
    {
        property_names.KEYS,
        property_names.TAGS,
        property_names.WAIT_STORE,
        property_names.DELAY_LEVEL,
        property_names.UNIQUE_KEY,
    }
)
"""Properties that become arguments of the rebuilt message, or its id."""

_TRANSPORT_PROPERTIES: Final = frozenset(
    {
        property_names.RETRY_TOPIC,
        property_names.REAL_TOPIC,
        property_names.REAL_QUEUE_ID,
        property_names.ORIGIN_MESSAGE_ID,
        property_names.RECONSUME_TIME,
        property_names.MAX_RECONSUME_TIMES,
        property_names.MIN_OFFSET,
        property_names.MAX_OFFSET,
        property_names.MESSAGE_REGION,
        property_names.TRACE_ON,
        property_names.CLUSTER,
        property_names.RECORD_CRC,
        property_names.POP_CHECKPOINT,
        property_names.TRANSACTION_PREPARED,
        property_names.PRODUCER_GROUP,
        property_names.TIMER_DELAY_SECONDS,
        property_names.TIMER_DELAY_MS,
        property_names.TIMER_DELIVER_MS,
        property_names.TIMER_OUT_MS,
        property_names.TIMER_ENQUEUE_MS,
        property_names.TIMER_DEQUEUE_MS,
        property_names.TIMER_ROLL_TIMES,
        property_names.BORN_HOST,
        property_names.TRANSACTION_ID,
        property_names.TRANSACTION_CHECK_TIMES,
        property_names.CHECK_IMMUNITY_SECONDS,
        "CONSUME_START_TIME",
        property_names.FIRST_POP_TIME,
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
    }
)
"""Properties that clients, brokers and retries add; a rebuilt message has none of them."""


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
        """The number of sends that have no reply yet."""
        return self._sender.outstanding

    async def _leave(self) -> None:
        self._requests.close()

    async def send(
        self, message: Message, *, queue: MessageQueue | Selector | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send one message and wait for the reply of the broker.

        `queue` is the target queue or a function that selects it; a sharding key selects it, too. Raises SendTimeout,
        SendFailed, BrokerRefused, NoRoute or InvalidMessage, and Unavailable if no name server returns the route.
        """
        self._session.require_open()
        outgoing = prepare_message(message, self._session.unique_ids.next(wall_ms()), self.settings)
        deadline = deadline_after(timeout_ms, self.settings.send_timeout_ms)
        return await self._sender.send(outgoing, await self._fixed_queue(message, queue, deadline), deadline)

    async def recall(self, handle: str, *, timeout_ms: int | None = None) -> str:
        """Recall a message that waits for its delay or time; `handle` is in its receipt. Return its message id.

        A recalled message is never delivered. Raises BrokerRefused if it was delivered already, or was not found, and
        InvalidMessage for a handle of another format; also NoRoute, NoMaster, Unavailable and RequestTimeout.
        """
        self._session.require_open()
        try:
            parts = RecallHandle.decode(handle)
        except RemoteProtocolError as error:
            raise InvalidMessage(str(error)) from error
        deadline = deadline_after(timeout_ms, self.settings.send_timeout_ms)
        route = await self._session.routes.for_sending_until(parts.topic, deadline)
        address = route.require_master(parts.broker_name)
        header = RecallMessage(topic=parts.topic, recall_handle=handle, producer_group=self.group)
        reply = await self._session.calls.request_success(
            address, RequestCode.RECALL_MESSAGE, header, timeout_ms=max(1, deadline.remaining_ms)
        )
        return parse_header(reply, RecallResult, address).msg_id

    async def send_again(
        self, received: ReceivedMessage, *, topic: str | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send a received message again, to its topic or to `topic`, as its sender sent it and with the same id.

        Its delay and the properties that retries added are removed. Raises like `send`, and UnreadableBody.
        """
        self._session.require_open()
        message = rebuild_message(received, topic or received.topic)
        outgoing = prepare_message(message, received.message_id, self.settings)
        deadline = deadline_after(timeout_ms, self.settings.send_timeout_ms)
        return await self._sender.send(outgoing, await self._fixed_queue(message, None, deadline), deadline)

    def resend_bytes(self, received: ReceivedMessage, *, topic: str) -> int:
        """Return the size of the body as `send_again` sends it. Raises UnreadableBody and InvalidMessage as it does."""
        return len(prepare_message(rebuild_message(received, topic), received.message_id, self.settings).body)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of an existing topic that accept messages now. Raises NoRoute and NoMaster."""
        self._session.require_open()
        await self._session.routes.get(topic)
        return (await self._session.routes.for_sending(topic)).write_queues

    async def send_oneway(self, message: Message, *, queue: MessageQueue | Selector | None = None) -> None:
        """Send one message without waiting for the reply of the broker: it may be lost without an error.

        Waits at most for a route, a connection and room in its buffer. Raises NoRoute, Unavailable, RequestTimeout or
        InvalidMessage.
        """
        self._session.require_open()
        outgoing = prepare_message(message, self._session.unique_ids.next(wall_ms()), self.settings)
        await self._sender.send_oneway(outgoing, await self._fixed_queue(message, queue, None))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as batches: one request up to `batch_bytes_max`, beyond it several in sequence.

        Returns one receipt per message, in order. A request is stored as a whole or not at all; when a later request
        fails, the earlier ones are stored. `message_ids` keeps the ids of messages that were sent before. Without
        `queue`, all messages must have the same sharding key, or none: it selects the queue. A function as `queue` gets
        the first message.
        """
        self._session.require_open()
        check_batch(messages, is_queue_given=queue is not None)
        if message_ids is not None and len(message_ids) != len(messages):
            raise InvalidMessage(f"message_ids has {len(message_ids)} ids for {len(messages)} messages")
        deadline = deadline_after(timeout_ms, self.settings.send_timeout_ms)
        batches = list(self._split(messages, message_ids))
        fixed_queue = await self._fixed_queue(messages[0], queue, deadline)
        receipts: list[SendReceipt] = []
        for entries, ids in batches:
            outgoing = prepare_batch(messages[0], entries, ids)
            receipts += _split_receipt(await self._sender.send(outgoing, fixed_queue, deadline), ids)
        return receipts

    async def send_packed(
        self,
        topic: str,
        entries: Sequence[BatchEntry],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send messages that the caller has encoded, with their ids in their properties, in one request.

        The request is stored as a whole or not at all. The receipt has the offset of the first message, an empty
        `message_id`, and the broker's ids of all messages, joined by commas. Raises like `send`.
        """
        self._session.require_open()
        outgoing = prepare_packed_batch(topic, entries, self.settings)
        return await self._sender.send(outgoing, queue, deadline_after(timeout_ms, self.settings.send_timeout_ms))

    async def request(
        self, message: Message, *, queue: MessageQueue | Selector | None = None, timeout_ms: int | None = None
    ) -> Reply:
        """Send one message and wait for the reply of its consumer, with one deadline for both.

        Raises NoReply when no reply arrives in time, UnreadableBody for a reply that cannot be decompressed, and what
        `send` raises.
        """
        self._session.require_open()
        deadline = deadline_after(timeout_ms, self.settings.send_timeout_ms)
        return await self._requests.request(
            message,
            deadline,
            lambda request: self.send(request, queue=queue, timeout_ms=max(1, deadline.remaining_ms)),
        )

    def _split(
        self, messages: Sequence[Message], message_ids: Sequence[str] | None
    ) -> Iterator[tuple[list[BatchEntry], list[str]]]:
        """Split messages into batches of `batch_bytes_max`; every message is checked before the first is sent."""
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

    async def _fixed_queue(
        self, message: Message, queue: MessageQueue | Selector | None, deadline: Deadline | None
    ) -> MessageQueue | None:
        """Return the queue to which `message` must go, or None if any queue is allowed.

        Raises SendTimeout if the deadline passes while the route is queried; a one-way send has none.
        """
        if queue is None and message.sharding_key is None:
            return None
        if isinstance(queue, MessageQueue):
            if queue.topic != message.topic:
                raise InvalidMessage(
                    f"the queue belongs to topic {queue.topic!r}, but the message to {message.topic!r}"
                )
            return queue
        if deadline is None:
            route = await self._session.routes.for_sending(message.topic)
        else:
            route = await self._sender.find_route(message.topic, deadline)
        if queue is not None:
            return queue(route.write_queues, message)
        assert message.sharding_key is not None, "without both, None was returned above"
        return queue_for_key(route, message.sharding_key)


def _split_receipt(receipt: SendReceipt, ids: Sequence[str]) -> list[SendReceipt]:
    offset_ids = receipt.offset_message_id.split(",")
    if len(offset_ids) != len(ids):
        raise BadReply(f"a broker returned {len(offset_ids)} ids for a batch of {len(ids)} messages")
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


def rebuild_message(received: ReceivedMessage, topic: str) -> Message:
    """Rebuild the message that was sent: the same keys, tags, body and properties. Raises UnreadableBody.

    Properties that clients, brokers and retries added during the first delivery are removed: most would be wrong, and
    some would send the new message to another place (a delay, a half message of a transaction).
    """
    excluded = _ARGUMENT_PROPERTIES | _TRANSPORT_PROPERTIES | {SHARDING_KEY}
    return Message(
        topic,
        received.body,
        tags=received.tags,
        keys=received.keys,
        properties={name: value for name, value in received.properties.items() if name not in excluded},
        sharding_key=received.properties.get(SHARDING_KEY),
        flag=received.flag,
    )
