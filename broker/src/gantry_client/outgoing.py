"""Prepares messages for sending: properties, compression, and checks.

Pure functions. A message that is refused here was never sent. Most rules are those of RocketMQ's brokers and clients;
the others protect the properties that arguments of Message set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from gantry_client.errors import InvalidMessage
from gantry_client.messages import SHARDING_KEY, Message
from gantry_client.settings import ProducerSettings
from gantry_wire import properties as property_names
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.send import SendMessageV2
from gantry_wire.compress import compress_body
from gantry_wire.errors import LocalProtocolError
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, group_fault, is_sendable, topic_fault
from gantry_wire.properties import format_properties

_RESERVED = frozenset(
    {
        property_names.KEYS,
        property_names.TAGS,
        property_names.WAIT_STORE,
        property_names.DELAY_LEVEL,
        property_names.UNIQUE_KEY,
        SHARDING_KEY,
    }
)
"""Properties that the client sets, from arguments of Message or as its id; not allowed in its `properties`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """One message or batch that is ready to be sent; every retry carries the same id."""

    topic: str
    body: bytes
    properties: str
    """The properties in RocketMQ's text form."""

    flag: int
    sys_flag: int
    """RocketMQ's system flags, such as those of compression and of half messages."""

    message_id: str
    """The unique id; the ids of a batch are joined by commas. Empty for a batch that the caller has encoded."""
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    def header(self, group: str, queue: MessageQueue, now_ms: int, *, default_topic_queues: int) -> SendMessageV2:
        """Build the header of the request that sends this message from `group` to `queue`."""
        return SendMessageV2(
            producer_group=group,
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times,
            unit_mode=False,
            max_reconsume_times=self.max_reconsume_times,
            batch=self.is_batch,
            broker_name=queue.broker_name,
        )


def check_topic(topic: str) -> None:
    """Raise InvalidMessage for a topic to which no client can send."""
    fault = topic_fault(topic)
    if fault is not None:
        raise InvalidMessage(f"topic {topic[:64]!r}: {fault.value}")
    if not is_sendable(topic):
        raise InvalidMessage(f"topic {topic!r} is an internal topic of the broker")


def check_group(group: str) -> None:
    """Raise InvalidMessage for a group name that brokers refuse."""
    fault = group_fault(group)
    if fault is not None:
        raise InvalidMessage(f"group {group[:64]!r}: {fault.value}")


def prepare_message(message: Message, message_id: str, settings: ProducerSettings) -> OutgoingMessage:
    """Prepare one message; a large body is compressed. Raises InvalidMessage."""
    check_topic(message.topic)
    body, sys_flag = _check_body(message, settings.message_bytes_max), 0
    if len(body) > settings.compress_above_bytes:
        try:
            body = compress_body(body, settings.compress_codec, settings.compress_level)
        except LocalProtocolError as error:
            raise InvalidMessage(f"the body cannot be compressed: {error}") from error
        sys_flag = settings.compress_codec.flags
    return OutgoingMessage(
        topic=message.topic,
        body=body,
        properties=_format_properties(message, message_id),
        flag=message.flag,
        sys_flag=sys_flag,
        message_id=message_id,
    )


def prepare_entry(message: Message, message_id: str, settings: ProducerSettings) -> BatchEntry:
    """Prepare one message of a batch; batches are not compressed. Raises InvalidMessage."""
    if message.is_delayed:
        raise InvalidMessage("a delayed message cannot be part of a batch; send it alone")
    body = _check_body(message, settings.message_bytes_max)
    return BatchEntry(message.flag, body, _format_properties(message, message_id).encode())


def prepare_batch(first: Message, entries: Sequence[BatchEntry], ids: Sequence[str]) -> OutgoingMessage:
    """Prepare a batch of `entries`, whose topic and options are those of `first`."""
    return OutgoingMessage(
        topic=first.topic,
        body=encode_batch(entries),
        properties=format_properties({property_names.WAIT_STORE: _java_boolean(first.waits_for_store)}),
        flag=0,
        sys_flag=0,
        message_id=",".join(ids),
        is_batch=True,
    )


def prepare_packed_batch(topic: str, entries: Sequence[BatchEntry], settings: ProducerSettings) -> OutgoingMessage:
    """Prepare a batch of entries that the caller has encoded. Raises InvalidMessage."""
    check_topic(topic)
    if not entries or topic.startswith(RETRY_PREFIX):
        raise InvalidMessage("the batch is empty" if not entries else "batches cannot be sent to retry topics")
    try:
        body = encode_batch(entries)
    except LocalProtocolError as error:
        raise InvalidMessage(str(error)) from error
    if len(body) > settings.message_bytes_max:
        raise InvalidMessage(f"the batch has {len(body)} bytes, but the limit is {settings.message_bytes_max}")
    return OutgoingMessage(
        topic=topic, body=body, properties=format_properties({property_names.WAIT_STORE: _java_boolean(True)}), flag=0,
        sys_flag=0, message_id="", is_batch=True,
    )  # fmt: skip


def check_batch(messages: Sequence[Message], *, is_queue_given: bool) -> None:
    """Raise InvalidMessage for messages that cannot form one batch; without a given queue, their keys select it."""
    if not messages:
        raise InvalidMessage("the batch is empty")
    first = messages[0]
    check_topic(first.topic)
    if first.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage("batches cannot be sent to retry topics")
    for message in messages:
        if message.topic != first.topic:
            raise InvalidMessage("the messages of a batch must go to one topic")
        if message.waits_for_store != first.waits_for_store:
            raise InvalidMessage("the messages of a batch must agree on waits_for_store")
        if message.sharding_key != first.sharding_key and not is_queue_given:
            raise InvalidMessage(
                f"the messages of a batch go to one queue, but have the sharding keys {first.sharding_key!r} and "
                f"{message.sharding_key!r}; make a batch for each key, or give a queue"
            )


def _check_body(message: Message, bytes_max: int) -> bytes:
    if not message.body:
        raise InvalidMessage("the body is empty")
    if len(message.body) > bytes_max:
        raise InvalidMessage(f"the body has {len(message.body)} bytes, but the limit is {bytes_max}")
    return message.body


def _format_properties(message: Message, message_id: str) -> str:
    reserved = _RESERVED.intersection(message.properties)
    if reserved:
        raise InvalidMessage(
            f"properties {sorted(reserved)} are reserved: the client sets them, most from arguments of Message"
        )
    pairs = dict(message.properties)
    pairs[property_names.UNIQUE_KEY] = message_id
    pairs[property_names.WAIT_STORE] = _java_boolean(message.waits_for_store)
    if message.tags:
        pairs[property_names.TAGS] = message.tags.strip()
    if message.keys:
        if isinstance(message.keys, str) or any(not key or key.split() != [key] for key in message.keys):
            raise InvalidMessage("keys must be a list of strings without spaces")
        pairs[property_names.KEYS] = property_names.KEY_SEPARATOR.join(message.keys)
    pairs.update(_delay_properties(message))
    if message.sharding_key is not None:
        pairs[SHARDING_KEY] = message.sharding_key
    try:
        text = format_properties(pairs)
        size = len(text.encode())
    except LocalProtocolError as error:
        raise InvalidMessage(str(error)) from error
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"a property, tag or key is not valid Unicode: {error}") from error
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"the properties have more than {PROPERTIES_BYTES_MAX} bytes")
    return text


def _delay_properties(message: Message) -> dict[str, str]:
    """Return the property that delays a message. Raises InvalidMessage if there is more than one."""
    given = {
        property_names.DELAY_LEVEL: message.delay_level,
        property_names.TIMER_DELAY_MS: message.delay_ms,
        property_names.TIMER_DELIVER_MS: message.deliver_at_ms,
    }
    pairs = {name: str(value) for name, value in given.items() if value}
    if len(pairs) > 1:
        raise InvalidMessage("a message has one of delay_level, delay_ms and deliver_at_ms, not several")
    if any(value < 0 for value in given.values()):
        raise InvalidMessage(
            f"delay level {message.delay_level}, delay_ms {message.delay_ms} or deliver_at_ms "
            f"{message.deliver_at_ms} is below 1"
        )
    return pairs


def _java_boolean(value: bool) -> str:
    return "true" if value else "false"
