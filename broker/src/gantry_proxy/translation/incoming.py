"""Messages for consumers: from a stored record to protocol buffers.

A compressed body is decompressed here if it can be, with any codec that is installed, since the SDKs of other
languages read fewer codecs than Java's. A body that cannot be, such as a gzip file of an SDK, is passed on as it is
stored, with its encoding: then the SDK decompresses it.
"""

import hashlib
from contextlib import suppress
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from gantry_client.messages import ReceivedMessage
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.translation import property_names as own
from gantry_proxy.translation.outgoing import kind_of
from gantry_wire import properties as wire

FIRST_ATTEMPT: Final = 1
"""The delivery attempt of a message that is delivered for the first time."""


def write_message(
    message: ReceivedMessage, *, namespace: str = "", receipt: str | None = None, invisible_ms: int | None = None
) -> pb.Message:
    """Return a message as a consumer receives it."""
    found = pb.Message()
    fill_message(found, message, namespace=namespace, receipt=receipt, invisible_ms=invisible_ms)
    return found


def fill_message(
    target: pb.Message, message: ReceivedMessage, *, namespace: str, receipt: str | None, invisible_ms: int | None
) -> None:
    """Write a message into an empty one.

    Each field is set by itself: a constructor with arguments takes ten times as long, and a receive has 32 messages.
    """
    pairs = message.properties
    topic, users = target.topic, target.user_properties
    topic.resource_namespace, topic.name = namespace, message.topic
    for name, value in pairs.items():
        if name not in wire.RESERVED:
            users[name] = value
    target.body = message.stored_body
    system = target.system_properties
    _fill_system_properties(system, message, pairs)
    if not pairs.keys().isdisjoint(_OPTIONAL):
        _fill_optional_properties(system, pairs)
    if receipt is not None:
        system.receipt_handle = receipt
    if invisible_ms is not None:
        _set_ms(system.invisible_duration, invisible_ms)


def _fill_system_properties(system: pb.SystemProperties, message: ReceivedMessage, pairs: dict[str, str]) -> None:
    """Write the properties that every message has, and its tag and keys."""
    tag, digest = message.tags, system.body_digest
    if tag is not None:
        system.tag = tag
    if wire.KEYS in pairs:
        system.keys.extend(message.keys)
    system.message_id = message.message_id
    digest.type = pb.MD5
    digest.checksum = hashlib.md5(message.stored_body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = pb.IDENTITY if message.body_fault is None else pb.GZIP
    system.message_type = kind_of(pairs)
    _set_ms(system.born_timestamp, message.born_timestamp_ms)
    system.born_host = pairs.get(wire.BORN_HOST) or message.born_host
    _set_ms(system.store_timestamp, message.store_timestamp_ms)
    system.store_host = message.store_host
    system.queue_id = message.queue.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = message.reconsume_times + FIRST_ATTEMPT


_OPTIONAL: Final = frozenset(
    {wire.TIMER_DELIVER_MS, own.SHARDING_KEY, own.PRIORITY, own.TRACE_CONTEXT, own.DEAD_LETTER_TOPIC}
)
"""Properties of a message with fields that most messages lack."""


def _fill_optional_properties(system: pb.SystemProperties, pairs: dict[str, str]) -> None:
    if wire.TIMER_DELIVER_MS in pairs:
        with suppress(ValueError):
            _set_ms(system.delivery_timestamp, int(pairs[wire.TIMER_DELIVER_MS]))
    if own.SHARDING_KEY in pairs:
        system.message_group = pairs[own.SHARDING_KEY]
    if own.PRIORITY in pairs:
        with suppress(ValueError):
            system.priority = int(pairs[own.PRIORITY])
    if own.TRACE_CONTEXT in pairs:
        system.trace_context = pairs[own.TRACE_CONTEXT]
    if own.DEAD_LETTER_TOPIC in pairs and own.DEAD_LETTER_MESSAGE_ID in pairs:
        system.dead_letter_queue.topic = pairs[own.DEAD_LETTER_TOPIC]
        system.dead_letter_queue.message_id = pairs[own.DEAD_LETTER_MESSAGE_ID]


def _set_ms(target: Timestamp | Duration, ms: int) -> None:
    target.seconds, target.nanos = ms // 1000, ms % 1000 * 1_000_000
