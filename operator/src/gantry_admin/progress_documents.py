"""Documents of the progress of one message through its consumer groups, and of the clients of a group."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gantry_admin.documents import Document


class RedeliveryDocument(Document):
    """A copy of a message in the retry topic or among the dead letters of a group."""

    topic: str
    queue_id: int
    queue_offset: int
    stored_wall_ms: int
    reconsume_times: int
    is_passed: bool | None = Field(description="Whether the group's committed offset is beyond this copy; null for a "
                                   "dead letter, or if the group has committed no offset there.")  # fmt: skip


class GroupReadingDocument(Document):
    """How the consumers of a group that are connected to this broker read the topic of a message."""

    clients: int
    filter: str | None = Field(description="Type and expression of their filter, such as `TAG paid`; null without a "
                               "consumer or a subscription to the topic.")  # fmt: skip
    is_accepted: bool | None = Field(description="Whether the filter accepts the message; null without a filter.")


class GroupProgressDocument(Document):
    """The progress of one consumer group at one message.

    A committed offset shows that the group has passed a message, not that its handler succeeded: a failed message is
    passed, too, and has a copy in the retry topic or among the dead letters.
    """

    group: str
    state: Literal["passed", "waiting", "unknown"] = Field(
        description="`unknown`: the group consumes the topic, but has committed no offset in this queue."
    )
    consumed: int | None = Field(description="The next offset of the queue that the group consumes.")
    waiting_before: int | None = Field(description="Messages of the queue before this one that the group has not "
                                       "passed; null unless `waiting`.")  # fmt: skip
    retries: list[RedeliveryDocument] = Field(description="Copies for redelivery on this broker, the oldest first. A "
                                              "copy whose delay has not elapsed is not among them.")  # fmt: skip
    dead_letters: list[RedeliveryDocument]
    reading: GroupReadingDocument | None = Field(description="Null if the broker does not answer: only it knows its "
                                                 "clients.")  # fmt: skip
    is_search_complete: bool = Field(description="Whether all messages of the retry and dead letter topics since this "
                                     "message were searched; if not, there may be further copies.")  # fmt: skip


class TraceStepDocument(Document):
    """One step of a message that a client reported in its trace."""

    step: Literal["sent", "delivered", "consumed", "transaction ended"]
    group: str
    wall_ms: int | None
    client_host: str
    is_success: bool | None
    cost_ms: int | None
    attempt: int | None = Field(description="How often it was delivered before; null unless `delivered`.")


class TraceDocument(Document):
    """The trace of a message, as far as clients have sent it to this broker."""

    state: Literal["found", "none", "off", "unavailable"] = Field(
        description="`none`: the broker has the topic of traces, but none of this message. `off`: it has no such topic."
    )
    reason: str | None
    steps: list[TraceStepDocument]


class MessageProgressDocument(Document):
    """The progress of all consumer groups of a topic at one message."""

    topic: str
    queue_id: int
    queue_offset: int
    groups: list[GroupProgressDocument]
    groups_left_out: int
    source: Literal["broker", "disk"] = Field(description="The source of the committed offsets.")
    age_ms: int
    reason: str | None
    trace: TraceDocument


class GroupClientDocument(Document):
    """One client that is connected to this broker as a consumer of a group."""

    client_id: str
    address: str
    language: str | None
    version: int = Field(description="RocketMQ's number of the client's version.")


class SubscriptionDocument(Document):
    """The subscription of a group to a topic."""

    topic: str
    expression: str | None
    expression_type: str | None


class GroupClientsDocument(Document):
    """The consumers of a group that are connected to this broker now."""

    group: str
    clients: list[GroupClientDocument]
    left_out: int
    consume_type: str | None
    message_model: str | None
    subscriptions: list[SubscriptionDocument]
