"""The document of `gantry message describe`. The names of fields are stable, as in `document_types`."""

from __future__ import annotations

import msgspec

from gantry_cli.messages.documents import MessageDocument


class CopyDocument(msgspec.Struct, kw_only=True):
    """A copy of a message that a broker made after a failed delivery."""

    topic: str
    """The retry topic, the topic of dead letters, or SCHEDULE_TOPIC_XXXX while the delay of a retry lasts."""
    broker: str
    queue_id: int
    queue_offset: int
    stored_ms: int
    failures: int
    """The number of failed deliveries until the copy was made."""


class GroupDeliveryDocument(msgspec.Struct, kw_only=True):
    """What became of a message in one consumer group."""

    group: str
    outcome: str
    """`waiting`, `consumed`, `left out` by the group's filter, `retrying`, `dead letter` or `unknown`."""
    why: str
    """The reason in words; they may change from release to release."""
    consumed: int | None
    """The group's next offset in the queue of the message."""
    members: int
    """The consumers that are connected now."""
    filter: str | None
    """The filter of these consumers, such as `TAG paid`."""
    is_accepted: bool | None
    """Whether that filter accepts the message."""
    copies: list[CopyDocument]


class MessageDescriptionDocument(msgspec.Struct, kw_only=True):
    """`gantry message describe`: one message, and what became of it in each group."""

    message: MessageDocument
    groups: list[GroupDeliveryDocument]
    sent_again: list[str]
    """The places of later messages of the topic with the same id of the producer."""
