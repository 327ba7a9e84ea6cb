"""Messages for consumers as bytes: what `incoming.write_message` makes as an object, encoded without one.

A receive has up to 32 messages, and the objects of protocol buffers for them would cost more than all else of it. This
module knows the fields that almost every message has; a message with another property is written by `write_message`.

    ReceiveMessageResponse  message 2
    Message                 topic 1, user_properties 2 (name 1, value 2), system_properties 3, body 4
    SystemProperties        tag 1, keys 2, message_id 3, body_digest 4, body_encoding 5, message_type 6,
                            born_timestamp 7, born_host 8, store_timestamp 9, store_host 10, receipt_handle 12,
                            queue_id 13, queue_offset 14, invisible_duration 15, delivery_attempt 16, message_group 17

A field begins with its number and its kind: 0 is a number, 2 is content whose length comes first.
"""

import hashlib
from functools import lru_cache
from typing import Final, final

from gantry_client.messages import ReceivedMessage
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.translation import property_names as own
from gantry_proxy.translation.incoming import FIRST_ATTEMPT, write_message
from gantry_proxy.translation.outgoing import kind_of
from gantry_proxy.translation.times import to_duration, to_timestamp
from gantry_wire import properties as wire

_RARE: Final = frozenset(
    {wire.TIMER_DELIVER_MS, own.PRIORITY, own.TRACE_CONTEXT, own.DEAD_LETTER_TOPIC, own.DEAD_LETTER_MESSAGE_ID}
)
"""Properties with fields that this module does not write."""
_INT32_MAX: Final = (1 << 31) - 1
_CACHED: Final = 1_024
"""How many encoded times and hosts are kept: the messages of one moment have few."""
_DIGEST: Final = b"\x22\x24\x08" + bytes((pb.MD5,)) + b"\x12\x20"
"""The digest of a body up to its 32 characters."""
_IDENTITY: Final = b"\x28" + bytes((pb.IDENTITY,))
_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


@final
class MessageEncoder:
    """Encodes the messages of one receive, which share their namespace and invisible time."""

    __slots__ = ("_invisible", "_invisible_ms", "_namespace", "_topics")

    def __init__(self, namespace: str, invisible_ms: int) -> None:
        self._namespace: Final = namespace
        self._invisible_ms: Final = invisible_ms
        self._invisible: Final = _content(b"\x7a", to_duration(invisible_ms).SerializeToString())
        self._topics: Final[dict[str, bytes]] = {}
        """The encoded topics of the messages."""

    def encode(self, message: ReceivedMessage, receipt: str) -> bytes:
        """Return the bytes of a ReceiveMessageResponse with a message."""
        if not _is_common(message):
            content = write_message(
                message, namespace=self._namespace, receipt=receipt, invisible_ms=self._invisible_ms
            ).SerializeToString()
            return _content(b"\x12", content)
        pairs, body = message.properties, message.stored_body
        users = b"".join(
            [
                _content(b"\x12", _text(b"\x0a", name) + _text(b"\x12", value))
                for name, value in pairs.items()
                if name not in own.RESERVED
            ]
        )
        system = self._system_properties(message, pairs, receipt)
        head = b"".join((self._topic(message.topic), users, b"\x1a", _number(len(system)), system))
        before_body = b"\x22" + _number(len(body)) if body else b""
        size = len(head) + len(before_body) + len(body)
        return b"".join((b"\x12", _number(size), head, before_body, body))

    def _system_properties(self, message: ReceivedMessage, pairs: dict[str, str], receipt: str) -> bytes:
        tag, keys, group = message.tags, message.keys, pairs.get(own.SHARDING_KEY)
        queue_id, identity, host = message.queue.queue_id, message.message_id, pairs.get(wire.BORN_HOST)
        return b"".join(
            (
                b"" if tag is None else _text(b"\x0a", tag),
                b"".join([_text(b"\x12", key) for key in keys]) if keys else b"",
                _text(b"\x1a", identity) if identity else b"",
                _DIGEST, hashlib.md5(message.stored_body, usedforsecurity=False).hexdigest().upper().encode(),
                _IDENTITY, b"\x30", _BYTE[kind_of(pairs)],
                _timestamp(b"\x3a", message.born_timestamp_ms), _host(b"\x42", host or message.born_host),
                _timestamp(b"\x4a", message.store_timestamp_ms), _host(b"\x52", message.store_host),
                _text(b"\x62", receipt),
                b"\x68" + _number(queue_id) if queue_id else b"",
                b"\x70", _number(message.queue_offset),
                self._invisible,
                b"\x80\x01", _number(message.reconsume_times + FIRST_ATTEMPT),
                b"" if group is None else _text(b"\x8a\x01", group),
            )
        )  # fmt: skip

    def _topic(self, name: str) -> bytes:
        found = self._topics.get(name)
        if found is None:
            resource = pb.Resource(resource_namespace=self._namespace, name=name)
            found = self._topics[name] = _content(b"\x0a", resource.SerializeToString())
        return found


def _is_common(message: ReceivedMessage) -> bool:
    """Return whether all of a message can be written here; numbers below 0 have another form."""
    return (
        message.body_fault is None
        and message.properties.keys().isdisjoint(_RARE)
        and message.queue.queue_id >= 0
        and message.queue_offset >= 0
        and 0 <= message.reconsume_times < _INT32_MAX
    )


def _number(value: int) -> bytes:
    """Return a number, 7 bits in each byte, the lowest first."""
    if value < 0x80:
        return _BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _content(key: bytes, content: bytes) -> bytes:
    """Return a field with content of any length, which may be 0."""
    return key + _number(len(content)) + content


def _text(key: bytes, text: str) -> bytes:
    return _content(key, text.encode())


@lru_cache(_CACHED)
def _host(key: bytes, text: str) -> bytes:
    """Return a field that is left out if it is empty."""
    return _text(key, text) if text else b""


@lru_cache(_CACHED)
def _timestamp(key: bytes, ms: int) -> bytes:
    return _content(key, to_timestamp(ms).SerializeToString())
