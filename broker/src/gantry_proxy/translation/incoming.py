"""Messages for consumers: from a stored record to protocol buffers.

A compressed body is decompressed here if it can be, with any codec that is installed, since the SDKs of other
languages read fewer codecs than Java's. A body that cannot be, such as a gzip file of an SDK, is passed on as it is
stored, with its encoding: then the SDK decompresses it.
"""

import hashlib
from contextlib import suppress
from typing import Final

from gantry_client.messages import ReceivedMessage
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.translation import property_names as own
from gantry_proxy.translation.outgoing import kind_of
from gantry_proxy.translation.times import to_duration, to_timestamp
from gantry_wire import properties as wire

FIRST_ATTEMPT: Final = 1
"""The delivery attempt of a message that is delivered for the first time."""


def write_message(
    message: ReceivedMessage, *, namespace: str = "", receipt: str | None = None, invisible_ms: int | None = None
) -> pb.Message:
    """Return a message as a consumer receives it."""
    pairs = message.properties
    return pb.Message(
        topic=pb.Resource(resource_namespace=namespace, name=message.topic),
        user_properties={name: value for name, value in pairs.items() if name not in own.RESERVED},
        system_properties=_system_properties(message, pairs, receipt, invisible_ms),
        body=message.stored_body,
    )


def _system_properties(
    message: ReceivedMessage, pairs: dict[str, str], receipt: str | None, invisible_ms: int | None
) -> pb.SystemProperties:
    body = message.stored_body
    system = pb.SystemProperties(
        keys=message.keys,
        message_id=message.message_id,
        body_digest=pb.Digest(type=pb.MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=pb.IDENTITY if message.body_fault is None else pb.GZIP,
        message_type=kind_of(pairs),
        born_timestamp=to_timestamp(message.born_timestamp_ms),
        born_host=pairs.get(wire.BORN_HOST) or message.born_host,
        store_timestamp=to_timestamp(message.store_timestamp_ms),
        store_host=message.store_host,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=message.reconsume_times + FIRST_ATTEMPT,
    )
    if message.tags is not None:
        system.tag = message.tags
    if wire.TIMER_DELIVER_MS in pairs:
        with suppress(ValueError):
            system.delivery_timestamp.CopyFrom(to_timestamp(int(pairs[wire.TIMER_DELIVER_MS])))
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
    if receipt is not None:
        system.receipt_handle = receipt
    if invisible_ms is not None:
        system.invisible_duration.CopyFrom(to_duration(invisible_ms))
    return system
