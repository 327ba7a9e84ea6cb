"""A message as people are shown it: the beginning of its body as text or hex, and never a byte more than was asked for.

Whatever is in a message comes from somebody else. Nothing here trusts it: text is text only if it is UTF-8 without
control characters, an unpacked body is bounded before it is unpacked, and whoever shows it must not take it for markup.
"""

from __future__ import annotations

import codecs
from typing import Final, NamedTuple

from gantry_admin.message_documents import BodyDocument, MessageDocument
from gantry_remoting import join_address
from gantry_wire import properties as names
from gantry_wire.compress import beginning
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import FLAG_COMPRESSED, StoredMessage, decode_host

SHOWN_BYTES: Final = 2_048
SHOWN_BYTES_MAX: Final = 65_536
PROPERTY_CHARACTERS_MAX: Final = 4_096
_ALLOWED_CONTROLS: Final = frozenset("\t\n\r")


class _Beginning(NamedTuple):
    data: bytes
    is_cut: bool
    fault: str | None


def message_document(message: StoredMessage, body_bytes: int = SHOWN_BYTES) -> MessageDocument:
    """The message with so many bytes of its body."""
    properties = message.properties
    return MessageDocument(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        bytes=message.size,
        body_bytes=len(message.body),
        message_id=properties.get(names.UNIQUE_KEY) or message.offset_message_id,
        offset_message_id=message.offset_message_id,
        tags=properties.get(names.TAGS),
        keys=properties.get(names.KEYS, "").split(),
        properties={name: value[:PROPERTY_CHARACTERS_MAX] for name, value in properties.items()},
        flag=message.flag,
        reconsume_times=message.reconsume_times,
        born_wall_ms=message.born_timestamp_ms,
        born_host=join_address(*decode_host(message.born_host)),
        stored_wall_ms=message.store_timestamp_ms,
        store_host=join_address(*decode_host(message.store_host)),
        body=body_document(message, body_bytes),
    )


def body_document(message: StoredMessage, bytes_max: int) -> BodyDocument:
    """So many bytes of a body."""
    is_compressed = bool(message.sys_flag & FLAG_COMPRESSED)
    shown = _unpacked(message, bytes_max) if is_compressed else _cut(message.body, bytes_max)
    text = as_text(shown.data, shown.is_cut)
    return BodyDocument(
        form="hex" if text is None else "text",
        shown=shown.data.hex() if text is None else text,
        is_cut=shown.is_cut,
        is_compressed=is_compressed and shown.fault is None,
        fault=shown.fault,
    )


def as_text(data: bytes, is_cut: bool) -> str | None:
    """The bytes as text, if people would call them so. A character that was cut at the end is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")("strict").decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None
    has_controls = any(
        (one < " " and one not in _ALLOWED_CONTROLS) or "\x7f" <= one <= "\x9f" for one in text
    )  # fmt: skip
    return None if has_controls else text


def _cut(body: bytes, bytes_max: int, fault: str | None = None) -> _Beginning:
    return _Beginning(body[:bytes_max], len(body) > bytes_max, fault)


def _unpacked(message: StoredMessage, bytes_max: int) -> _Beginning:
    """The beginning of what is packed; no more is unpacked than is shown."""
    try:
        return _cut(beginning(message.body, message.sys_flag, bytes_max + 1), bytes_max)
    except RemoteProtocolError as error:
        return _cut(message.body, bytes_max, str(error))
