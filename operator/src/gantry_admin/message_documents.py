"""Messages, dead letters and rates as the console and programs get them. Bodies are shown, never handed out whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.order_documents import WHOLE, OrderBody

RESEND_MAX = 500


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
