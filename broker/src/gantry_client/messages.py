"""The messages of applications: what they send, the receipt of the broker, and what they receive."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

import msgspec

from gantry_client.errors import UnreadableBody
from gantry_remoting.addresses import join_address
from gantry_wire import properties as property_names
from gantry_wire.codes import ResponseCode
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.compress import inflate_body
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.message import FLAG_COMPRESSED, StoredMessage, decode_host
from gantry_wire.names import RETRY_PREFIX

HOSTS_KEPT: Final = 4_096
"""How many hosts are kept as texts: messages have those of a few brokers and of their senders."""
SHARDING_KEY = "__SHARDINGKEY"
"""RocketMQ's property that holds the sharding key."""


@dataclass(slots=True)
class Message:
    """One message to send. Options are given by keyword; `properties` belong to the application."""

    topic: str
    body: bytes
    tags: str | None = field(default=None, kw_only=True)
    """The tag by which subscriptions filter."""
    keys: Sequence[str] = field(default=(), kw_only=True)
    """The keys under which the message is indexed."""
    properties: dict[str, str] = field(default_factory=dict, kw_only=True)
    delay_level: int = field(default=0, kw_only=True)
    """The delay of the delivery: 1 is 1 s, 18 is 2 h, 0 is none."""
    delay_ms: int = field(default=0, kw_only=True)
    """The delay of the delivery in milliseconds, if it is no level. Brokers have a limit (`timerMaxDelaySec`)."""
    deliver_at_ms: int = field(default=0, kw_only=True)
    """When the message is delivered, in milliseconds since 1970 by the broker's clock."""
    sharding_key: str | None = field(default=None, kw_only=True)
    """Messages with equal sharding keys go to one queue, in the order of their sends, as long as the topic has the same
    queues for sending. A broker without a master has none, unless the topic has an order configuration. A given queue
    replaces this choice; batches of different keys and transactions need one."""
    waits_for_store: bool = field(default=True, kw_only=True)
    """Whether the reply waits for the flush and the replication that the broker's mode promises."""
    flag: int = field(default=0, kw_only=True)
    """A number for use by the application."""

    @property
    def is_delayed(self) -> bool:
        """Whether the message is delivered later."""
        return bool(self.delay_level or self.delay_ms or self.deliver_at_ms)


class SendStatus(IntEnum):
    """The status of a stored message. Only SEND_OK is an acknowledgement."""

    SEND_OK = ResponseCode.SUCCESS
    """Stored as safely as the broker's mode promises."""

    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    """Stored, but not flushed in time."""
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    """Stored, but fewer slaves are connected than the broker's mode needs."""
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    """Stored, but not replicated in time to as many slaves as the broker's mode needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceipt:
    """Where a message is stored, and how safely."""

    status: SendStatus
    message_id: str
    """The unique id that the client assigned to the message."""
    offset_message_id: str
    """The id that the broker assigned, which contains its address and the physical offset."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    """The unique id in the broker's reply; for a half message it names the transaction."""
    recall_handle: str | None = None
    """The handle for `Producer.recall`, if the message waits for a delay or a time of its own."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether the broker kept its full promise. Otherwise the message is stored, but a failure may lose it."""
        return self.status is SendStatus.SEND_OK


class TaggedMessage:
    """The tags and keys of a message, which are stored in its properties."""

    __slots__ = ()
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        return self.properties.get(property_names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return property_names.split_keys(self.properties.get(property_names.KEYS, ""))


class ReceivedMessage(TaggedMessage, msgspec.Struct, frozen=True, kw_only=True):
    """One message that a consumer received. A frozen dataclass takes three times as long to make."""

    topic: str
    """The topic to which the message was sent, also if it was redelivered through a retry topic."""
    queue: MessageQueue
    """The queue from which the message was read; a redelivered message has a queue of the retry topic."""
    queue_offset: int
    stored_body: bytes
    """The decompressed body, or the stored bytes if `body_fault` is set."""
    body_fault: str | None = None
    """Why the body could not be decompressed; None if it was."""
    compression: int = 0
    """The flags of a body that `inflate_message` has yet to decompress; 0 for every other body."""
    properties: dict[str, str]
    flag: int = 0
    reconsume_times: int = 0
    """How often consuming the message has failed before."""
    born_timestamp_ms: int = 0
    """When the sender created the message, by its clock."""

    born_host: str = ""
    """The address of the sender."""

    store_timestamp_ms: int = 0
    """When the broker stored the message."""

    store_host: str = ""
    physical_offset: int = 0
    """The offset of the message in the broker's log."""

    offset_message_id: str = ""
    """The broker's id, which contains its address and the physical offset."""

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage {self.message_id} topic={self.topic} queue={self.queue} offset={self.queue_offset} "
            f"bytes={len(self.stored_body)}>"
        )

    @property
    def body(self) -> bytes:
        """The body as it was sent. Raises UnreadableBody if a compressed body is damaged or exceeds the limit."""
        if self.body_fault is not None:
            raise UnreadableBody(f"message {self.message_id}: {self.body_fault}")
        return self.stored_body

    @property
    def message_id(self) -> str:
        """The unique id that the sender assigned, or the broker's id if the sender assigned none."""
        return self.properties.get(property_names.UNIQUE_KEY) or self.offset_message_id


def to_received_message(
    record: StoredMessage, broker_name: str, *, body_bytes_max: int = BODY_INFLATED_BYTES_MAX, topic: str | None = None,
    properties: dict[str, str] | None = None, reconsume_times: int | None = None,
) -> ReceivedMessage:  # fmt: skip
    """Build the received message from a record that `broker_name` returned.

    ``topic``, ``properties`` and ``reconsume_times`` replace those of the record. With a ``body_bytes_max`` of 0 a
    compressed body is left for `inflate_message`.
    """
    if properties is None:
        properties = dict(record.properties)
    if topic is None:
        is_retry = record.topic.startswith(RETRY_PREFIX)
        topic = properties.get(property_names.RETRY_TOPIC, record.topic) if is_retry else record.topic
    is_deferred = body_bytes_max == 0 and bool(record.sys_flag & FLAG_COMPRESSED)
    body, fault = record.body, "the body is not decompressed yet" if is_deferred else None
    if not is_deferred:
        body, fault = _inflate(record.body, record.sys_flag, body_bytes_max)
    return ReceivedMessage(
        topic=topic,
        queue=MessageQueue(topic=record.topic, broker_name=broker_name, queue_id=record.queue_id),
        queue_offset=record.queue_offset,
        stored_body=body,
        body_fault=fault,
        compression=record.sys_flag if is_deferred else 0,
        properties=properties,
        flag=record.flag,
        reconsume_times=record.reconsume_times if reconsume_times is None else reconsume_times,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=_host(record.born_host),
        store_timestamp_ms=record.store_timestamp_ms,
        store_host=_host(record.store_host),
        physical_offset=record.physical_offset,
        offset_message_id=record.offset_message_id,
    )


def inflate_message(message: ReceivedMessage, body_bytes_max: int) -> ReceivedMessage:
    """Return a message with the body decompressed that was left compressed, or with the fault that prevents it."""
    body, fault = _inflate(message.stored_body, message.compression, body_bytes_max)
    return msgspec.structs.replace(message, stored_body=body, body_fault=fault, compression=0)


def _inflate(body: bytes, sys_flag: int, bytes_max: int) -> tuple[bytes, str | None]:
    """Return the body decompressed, and None; or as it is, and why it cannot be decompressed."""
    try:
        return inflate_body(body, sys_flag, bytes_max), None
    except RemoteProtocolError as error:
        return body, str(error)


@lru_cache(HOSTS_KEPT)
def _host(raw: bytes) -> str:
    return join_address(*decode_host(raw))
