"""Messages, dead letters and rates as the console and programs get them. Bodies are shown, never handed out whole.

Of a body its beginning is shown, as text or hex, and never a byte more than was asked for. Whatever is in a message
comes from somebody else. Nothing here trusts it: text is text only if it is UTF-8 without control characters, an
unpacked body is bounded before it is unpacked, and whoever shows it must not take it for markup.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.order_documents import WHOLE, OrderBody
from gantry_remoting import join_address
from gantry_wire import properties as names
from gantry_wire.compress import beginning
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import FLAG_COMPRESSED, StoredMessage, decode_host

RESEND_MAX: Final = 500
SHOWN_BYTES: Final = 2_048
SHOWN_BYTES_MAX: Final = 65_536
PROPERTY_CHARACTERS_MAX: Final = 4_096
_ALLOWED_CONTROLS: Final = frozenset("\t\n\r")


class BodyDocument(Document):
    """The beginning of a body, as people can read it."""

    form: Literal["text", "hex"] = Field(description="`text` if these bytes are UTF-8 without control characters.")
    shown: str
    is_cut: bool = Field(description="There is more of it.")
    is_compressed: bool = Field(description="What is shown is unpacked.")
    fault: str | None = Field(description="Why it could not be unpacked; what is shown is as it is stored.")


class MessageDocument(Document):
    """One message as it lies in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    bytes: int = Field(description="Of the whole record.")
    body_bytes: int = Field(description="As it is stored.")
    message_id: str = Field(description="The sender's, or the broker's where the sender gave none.")
    offset_message_id: str = Field(description="The broker's.")
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    flag: int
    reconsume_times: int
    born_wall_ms: int
    born_host: str
    stored_wall_ms: int
    store_host: str
    body: BodyDocument


class MessagesDocument(Document):
    """Messages of one queue, which holds `[begin, end)`; the newest last."""

    topic: str
    queue_id: int
    begin: int
    end: int
    messages: list[MessageDocument]
    left_out: int = Field(description="Asked for, and not in this answer since it would be too long.")


class FoundDocument(Document):
    """What a search found."""

    messages: list[MessageDocument]
    source: Literal["broker", "disk"] = Field(description="Ids that name an offset are looked up in the log's files, "
                                              "keys in the broker's index.")  # fmt: skip


class DeadLetterQueueDocument(MessagesDocument):
    """One queue of dead letters."""

    sent_again_end: int | None = Field(description="What lies before it was sent again already; null if not known.")


class DeadLettersDocument(Document):
    """The dead letters of a group on this broker, by queue."""

    group: str
    broker_name: str
    queues: list[DeadLetterQueueDocument]


class ResendBody(OrderBody):
    """How many at most."""

    messages_max: Annotated[int, Field(ge=1, le=RESEND_MAX), WHOLE] = 200


class ResentDocument(Document):
    """What became of dead letters that were to be sent again."""

    group: str
    sent: dict[str, int] = Field(description="By topic.")
    passed_over: list[str] = Field(description="Ids of those that cannot be sent as they are, or that do not say where "
                                   "they came from; 20 of them.")  # fmt: skip
    passed_over_count: int
    left: int = Field(description="Not looked at yet; the same request goes on with them.")


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
        keys=list(names.split_keys(properties.get(names.KEYS, ""))),
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
