"""What commands about topics and messages say to programs: one type for each document.

The names of fields are a promise: they stay, and new ones may come. What a document is made of elsewhere (a broker's
status, what is found in a store) is the type of that place, so that no copy of it can lag behind. docs/output.md shows
all of them, and `document_types` knows which command says which.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gantry_cli.cluster_view import GroupView, TopicView


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDocument:
    """One queue of a topic: messages `[min_offset, max_offset)`."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_message_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettingsDocument:
    """What is set for a topic on one broker."""

    broker: str
    write_queues: int
    read_queues: int
    permission: str
    """`rw`, `r`, `w` or `none`."""
    is_ordered: bool
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDocument:
    """`gantry topic describe`: one topic."""

    topic: TopicView
    settings: list[TopicSettingsDocument]
    queues: list[QueueDocument]
    groups: list[GroupView]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreatedDocument:
    """`gantry topic create`: what there is now."""

    topic: str
    queues: int
    brokers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOrderDocument:
    """`gantry topic order`: queues by broker, and what name servers have; null where the topic is in no order."""

    topic: str
    order: str | None
    queues: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletedDocument:
    """`gantry topic delete`: what went."""

    topic: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDocument:
    """`gantry produce`: what became of one message."""

    status: str
    message_id: str
    offset_message_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class MessageDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`gantry consume`: one message. Of the last three fields there is one."""

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
    """A body that is no UTF-8 text."""
    body_fault: str | msgspec.UnsetType = msgspec.UNSET
    """Why the body cannot be unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDocument:
    """`gantry group resend`: where dead letters went."""

    group: str
    is_dry_run: bool
    sent: dict[str, int]
    without_origin: list[str]
    unreadable: list[str]
