"""The bodies of requests that preview changes to topics, groups and offsets. Each is validated strictly."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gantry_admin.order_documents import WHOLE, OrderBody

NAME: Final = r"^[%|a-zA-Z0-9_-]+$"
BROKER_NAME: Final = r"^[%|a-zA-Z0-9._-]+$"
OFFSET_MAX: Final = 1 << 53
"""The largest offset: JavaScript cannot represent all integers above it."""
QUEUES_MAX: Final = 1024
"""The most queues of a topic on a broker, as in the manifest."""
RETRIES_MAX: Final = 1000
"""The most redeliveries, as in the manifest."""

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=NAME)]
Queues = Annotated[int, Field(ge=1, le=QUEUES_MAX), WHOLE]


class QueueBody(OrderBody):
    """One queue of the topic."""

    broker_name: Annotated[str, Field(min_length=1, max_length=255, pattern=BROKER_NAME)]
    queue_id: Annotated[int, Field(ge=0, lt=QUEUES_MAX), WHOLE]


class ResetBody(OrderBody):
    """A reset of a group's offsets in a topic. Exactly one of `to`, `timestamp_ms`, `offset` and `shift` is set."""

    kind: Literal["reset-offsets"]
    group: Name
    topic: Name
    to: Literal["earliest", "latest"] | None = None
    timestamp_ms: Annotated[int, Field(ge=0, le=OFFSET_MAX), WHOLE] | None = None
    offset: Annotated[int, Field(ge=0, le=OFFSET_MAX), WHOLE] | None = None
    shift: Annotated[int, Field(ge=-OFFSET_MAX, le=OFFSET_MAX), WHOLE] | None = None
    queues: Annotated[tuple[QueueBody, ...], Field(max_length=QUEUES_MAX)] = ()
    """Only these queues; an offset needs exactly one."""

    def fault(self) -> str:
        """Return why the target is invalid; empty if it is valid."""
        if [self.to, self.timestamp_ms, self.offset, self.shift].count(None) != 3:
            return "set one of to, timestamp_ms, offset and shift"
        return "an offset needs exactly one queue" if self.offset is not None and len(self.queues) != 1 else ""


class TopicBody(OrderBody):
    """Settings of a topic, which is created on all brokers if it does not exist. Others are unchanged."""

    kind: Literal["topic"]
    topic: Name
    write_queues: Queues | None = None
    read_queues: Queues | None = None
    permission: Literal["rw", "r", "w", "none"] | None = None


class DeleteTopicBody(OrderBody):
    """The deletion of a topic with all its messages."""

    kind: Literal["delete-topic"]
    topic: Name


class GroupBody(OrderBody):
    """Settings of a consumer group. Others are unchanged."""

    kind: Literal["group"]
    group: Name
    retry_max: Annotated[int, Field(ge=0, le=RETRIES_MAX), WHOLE] | None = None
    consume_enabled: Annotated[bool, Field(strict=True)] | None = None


class DeleteGroupBody(OrderBody):
    """The deletion of a consumer group with its offsets and its waiting retries. Dead letters stay."""

    kind: Literal["delete-group"]
    group: Name


class ExecuteBody(OrderBody):
    """The token of a preview, and where the preview requires it, the name of what is deleted."""

    token: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    name: Annotated[str, Field(max_length=255)] = ""
