"""The documents of commands about messages. The names of fields are stable, as in `document_types`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDocument:
    """`gantry produce`: the receipt of one message."""

    status: str
    message_id: str
    offset_message_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class MessageDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`gantry consume`: one message. Exactly one of the last three fields is present."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    store_timestamp_ms: int
    born_timestamp_ms: int
    born_host: str
    tags: str | None
    keys: list[str]
    reconsume_times: int
    properties: dict[str, str]
    body: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    """The body, if it is not UTF-8 text."""
    body_fault: str | msgspec.UnsetType = msgspec.UNSET
    """Why the body cannot be decompressed."""
