"""Documents of messages and dead letters, for the console and for programs. A long body is cut.

The beginning of a body is shown, as text or hex, and never more bytes than requested. The content of a message is
untrusted: it is shown as text only if it is UTF-8 without control characters (except tabs and line breaks), the
decompressed size is bounded before decompression, and a client that displays it must not interpret it as markup.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.order_documents import WHOLE, OrderBody
from gantry_remoting import join_address
from gantry_wire import properties as names
from gantry_wire.compress import inflate_prefix
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import FLAG_COMPRESSED, StoredMessage, decode_host

RESEND_MAX: Final = 500
"""The most dead letters of one resend order."""

SHOWN_BYTES: Final = 2_048
"""How many bytes of a body are shown by default."""

SHOWN_BYTES_MAX: Final = 65_536
"""How many bytes of a body a caller may request."""

PROPERTY_CHARACTERS_MAX: Final = 4_096
"""The length at which the value of a property is cut."""

_ALLOWED_CONTROLS: Final = frozenset("\t\n\r")


class BodyDocument(Document):
    """The beginning of a body in a readable form."""

    form: Literal["text", "hex"] = Field(description="`text` if these bytes are UTF-8 without control "
                                        "characters other than tabs and line breaks.")  # fmt: skip
    shown: str
    is_cut: bool = Field(description="Whether the body is longer than what is shown.")
    is_compressed: bool = Field(description="Whether the body is stored compressed and shown decompressed.")
    fault: str | None = Field(description="Why it could not be decompressed; it is shown as stored then.")


class MessageDocument(Document):
    """One message as it is stored in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    bytes: int = Field(description="Size of the whole record.")
    body_bytes: int = Field(description="Size of the body as stored.")
    message_id: str = Field(description="The sender's message id, or the broker's if the sender set none.")
    offset_message_id: str = Field(description="The broker's message id.")
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
    left_out: int = Field(description="Requested messages that were left out, because the answer would be too long.")


class TopicQueueDocument(Document):
    """One queue of a topic, which holds `[begin, end)`."""

    queue_id: int
    begin: int
    end: int


class TopicMessagesDocument(Document):
    """Messages of all queues of a topic on one broker, the newest first."""

    topic: str
    broker_name: str
    queues: list[TopicQueueDocument]
    queues_left_out: int
    messages: list[MessageDocument]
    older: int | None = Field(description="Pass it as `before` for the next page; null if there are no older messages.")
    unreadable: int = Field(description="Damaged messages of this page, which were left out.")


class FoundDocument(Document):
    """The result of a search."""

    messages: list[MessageDocument]
    source: Literal["broker", "disk"] = Field(description="Ids that name an offset are looked up in the log's files, "
                                              "keys and senders' ids in the broker's index.")  # fmt: skip


class DeadLetterQueueDocument(MessagesDocument):
    """One queue of dead letters."""

    resent_end: int | None = Field(
        description="The offset before which all were resent; null if none were, or unknown."
    )


class DeadLettersDocument(Document):
    """The dead letters of a group on this broker, by queue; of the first eight queues, if there are more."""

    group: str
    broker_name: str
    queues: list[DeadLetterQueueDocument]


class ResendBody(OrderBody):
    """The limits of one resend order."""

    messages_max: Annotated[int, Field(ge=1, le=RESEND_MAX), WHOLE] = 200


class ResentDocument(Document):
    """The result of resending dead letters."""

    group: str
    sent: dict[str, int] = Field(description="Messages that were resent, by topic.")
    passed_over: list[str] = Field(description="Ids of skipped dead letters: without an original topic, or not "
                                   "sendable unchanged; at most 20.")  # fmt: skip
    passed_over_count: int
    left: int = Field(description="Dead letters not processed yet; the same request continues with them.")


class _Beginning(NamedTuple):
    """The first bytes of a body, as they are shown."""

    data: bytes
    """The first bytes of the body."""

    is_cut: bool
    fault: str | None
    """Why the body could not be decompressed; None if it was."""


def message_document(message: StoredMessage, body_bytes: int = SHOWN_BYTES) -> MessageDocument:
    """Return the document of a message, with at most ``body_bytes`` of its body."""
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
    """Return the document of the first ``bytes_max`` bytes of a body."""
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
    """Return the bytes as text, or None if they are not readable text. A character cut off at the end is left out."""
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
    """Return the decompressed beginning of a body; no more is decompressed than is shown."""
    try:
        return _cut(inflate_prefix(message.body, message.sys_flag, bytes_max + 1), bytes_max)
    except RemoteProtocolError as error:
        return _cut(message.body, bytes_max, str(error))
