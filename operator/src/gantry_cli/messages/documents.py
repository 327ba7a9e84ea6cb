"""The documents of commands about messages. The names of fields are stable, as in `document_types`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDocument:
    """`gantry produce`: the receipt of one message."""

    status: str
    """RocketMQ's send status, such as `SEND_OK`."""

    message_id: str
    """The id that the producer assigned."""

    offset_message_id: str
    """The id that the broker assigned: its address and the offset in its log."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None
    """The handle by which a producer recalls a message with `--delay` or `--deliver-at`."""


class MessageDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`gantry consume` and `gantry search`: one message. Exactly one of the last three fields is present."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    """The id that the producer assigned."""
    offset_message_id: str
    """The id that the broker assigned: its address and the offset in its log."""
    store_timestamp_ms: int
    born_timestamp_ms: int
    born_host: str
    tags: str | None
    keys: list[str]
    reconsume_times: int
    """How often the message was delivered again after a failure."""
    properties: dict[str, str]
    body: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    """The body, if it is not UTF-8 text."""
    body_fault: str | msgspec.UnsetType = msgspec.UNSET
    """Why the body cannot be decompressed."""
