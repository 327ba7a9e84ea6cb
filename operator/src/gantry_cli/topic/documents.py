"""What commands about topics tell programs. The names of fields are a promise, as in `document_types`."""

from __future__ import annotations

from dataclasses import dataclass

from gantry_cli.status.cluster_view import GroupView, TopicView


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
