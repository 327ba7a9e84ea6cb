"""The documents of commands about topics. The names of fields are stable, as in `document_types`."""

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
    """The settings of a topic on one broker."""

    broker: str
    write_queues: int
    read_queues: int
    permission: str
    """`rw`, `r`, `w` or `none`."""
    is_ordered: bool
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDocument:
    """`gantry topic describe`: one topic, its settings, queues and groups."""

    topic: TopicView
    settings: list[TopicSettingsDocument]
    queues: list[QueueDocument]
    groups: list[GroupView]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreatedDocument:
    """`gantry topic create`: the topic, its queues on each broker, and its brokers."""

    topic: str
    queues: int
    brokers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChangeDocument:
    """One setting that would change."""

    place: str
    """The broker."""
    setting: str
    before: str | None
    """The present value; null if there is none."""
    after: str | None
    """The new value; null if it is removed."""
    effect: str
    """What it means for clients; empty if nothing else happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlanDocument:
    """`gantry topic create --dry-run`: the settings that would change on each broker."""

    topic: str
    changes: list[TopicChangeDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOrderDocument:
    """`gantry topic order`: the order configuration on the name servers, or null, and its queues by broker."""

    topic: str
    order: str | None
    queues: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletedDocument:
    """`gantry topic delete`: the topic and the number of its messages that were deleted."""

    topic: str
    messages: int
