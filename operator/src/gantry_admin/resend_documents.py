"""Orders to send messages again, their previews and their outcomes, as JSON, as lines of JSON, and as CSV."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Any, Final

from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.message_documents import RESEND_MAX
from gantry_admin.order_documents import WHOLE, OrderBody
from gantry_admin.resender import ResendJob
from gantry_client import InvalidMessage, Sql
from gantry_client.resend_plan import PlannedMessage, Position, ResendOutcome, ResendPlan, ResendRequest

FILTER_CHARACTERS_MAX: Final = 4_096
"""The longest filter expression: as long as a header of a request can carry without harm."""

NAME: Final = r"^[%|a-zA-Z0-9_-]+$"
BROKER_NAME: Final = r"^[%|a-zA-Z0-9._-]+$"
OFFSET_MAX: Final = 1 << 53
"""The largest offset: JavaScript cannot represent all integers above it."""

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
"""The beginnings of cells that spreadsheets evaluate. Reasons and ids come from others, so such a cell gets a quote."""

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=NAME)]
Milliseconds = Annotated[int, Field(ge=0, le=OFFSET_MAX), WHOLE]


class PositionBody(OrderBody):
    """The place of one message."""

    broker_name: Annotated[str, Field(min_length=1, max_length=255, pattern=BROKER_NAME)]
    queue_id: Annotated[int, Field(ge=0, le=1 << 31), WHOLE]
    offset: Annotated[int, Field(ge=0, le=OFFSET_MAX), WHOLE]


class ResendPreviewBody(OrderBody):
    """Which messages to send again: dead letters of `group`, or those of `topic` at `positions`."""

    group: Name | None = None
    topic: Name | None = None
    to_topic: Name | None = None
    """The target; by default the topic to which the producer sent a message."""

    positions: Annotated[tuple[PositionBody, ...], Field(max_length=RESEND_MAX)] = ()
    since_ms: Milliseconds | None = None
    until_ms: Milliseconds | None = None
    tags: Annotated[str, Field(max_length=FILTER_CHARACTERS_MAX)] | None = None
    sql: Annotated[str, Field(max_length=FILTER_CHARACTERS_MAX)] | None = None
    key: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    include_resent: Annotated[bool, Field(strict=True)] = False
    """Whether to send messages of which the target has a copy, too."""

    messages_max: Annotated[int, Field(ge=1, le=RESEND_MAX), WHOLE] = RESEND_MAX

    def request(self) -> ResendRequest:
        """Return the request. Raises ``Problem`` 400 if its parts contradict each other."""
        if self.tags and self.sql:
            raise Problem(400, "set either tags or sql, not both")
        request = ResendRequest(
            group=self.group, topic=self.topic, to_topic=self.to_topic,
            positions=tuple(Position(one.broker_name, one.queue_id, one.offset) for one in self.positions),
            since_ms=self.since_ms, until_ms=self.until_ms, filter=Sql(self.sql) if self.sql else self.tags or "*",
            key=self.key, is_from_start=self.include_resent, keeps_progress=False,
        )  # fmt: skip
        try:
            request.check()
        except InvalidMessage as error:
            raise Problem(400, str(error)[:500]) from error
        return request


class ResendStartBody(ResendPreviewBody):
    """The same selection, and the digest of its preview."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PlannedDocument(Document):
    """One message of a preview."""

    broker_name: str
    queue_id: int
    offset: int
    message_id: str = Field(description="The id that its producer assigned; empty if the message cannot be read.")
    target: str | None = Field(description="The topic to which it is sent; null if unknown.")
    bytes: int = Field(description="Size of the body that is sent.")
    stored_wall_ms: int
    verdict: str = Field(description="`send`, or why it is not sent: `resent before`, `no original topic`, `cannot be "
                         "sent`, `target not available`.")  # fmt: skip
    reason: str
    resent_wall_ms: int | None = Field(description="When the newest copy in the target was stored; null if none was "
                                       "found.")  # fmt: skip


class ResendPreviewDocument(Document):
    """What would be sent now, in order, and the digest that an order to send it must name."""

    digest: str
    messages: list[PlannedDocument]
    send_count: int
    send_bytes: int
    remaining: int = Field(description="Messages that were not examined, because of a limit.")


class OutcomeDocument(PlannedDocument):
    """What became of one message."""

    outcome: str = Field(description="`sent`: acknowledged; `failed`: not stored; `unknown`: may be stored; `skipped`: "
                         "no attempt was made.")  # fmt: skip
    new_offset_message_id: str | None = Field(description="The id that the broker assigned to the copy.")
    new_broker_name: str | None
    new_queue_id: int | None
    new_offset: int | None


class ResendSummaryDocument(Document):
    """One resend, without its outcomes."""

    id: str
    group: str | None = Field(description="The group whose dead letters were sent; null for messages of a topic.")
    topic: str | None
    to_topic: str | None = Field(description="The target, if it was not the original topic.")
    state: str = Field(description="`running`, `complete` or `stopped`.")
    started_wall_ms: int
    ended_wall_ms: int | None
    message_count: int = Field(description="Messages of the preview.")
    counts: dict[str, int] = Field(description="The number of outcomes of each kind.")


class ResendJobDocument(ResendSummaryDocument):
    """The progress of a resend, with one outcome for each message that was processed, in the order of the preview."""

    outcomes: list[OutcomeDocument]


class ResendsDocument(Document):
    """The resends whose outcomes are kept, the newest first."""

    resends: list[ResendSummaryDocument]


def preview_document(plan: ResendPlan) -> ResendPreviewDocument:
    """Return the document of a plan."""
    sendable = plan.sendable
    return ResendPreviewDocument(
        digest=plan.digest, messages=[PlannedDocument(**_planned(one)) for one in plan.messages],
        send_count=len(sendable), send_bytes=sum(one.body_bytes for one in sendable), remaining=plan.remaining,
    )  # fmt: skip


def job_document(job: ResendJob) -> ResendJobDocument:
    """Return the document of a job with its outcomes."""
    return ResendJobDocument(**_summary(job), outcomes=[outcome_document(one) for one in job.outcomes])


def resends_document(jobs: list[ResendJob]) -> ResendsDocument:
    """Return the document of all jobs."""
    return ResendsDocument(resends=[ResendSummaryDocument(**_summary(job)) for job in jobs])


def _summary(job: ResendJob) -> dict[str, Any]:
    return {
        "id": job.id, "group": job.request.group, "topic": job.request.topic, "to_topic": job.request.to_topic,
        "state": job.state.value, "started_wall_ms": job.started_wall_ms, "ended_wall_ms": job.ended_wall_ms,
        "message_count": len(job.plan.messages), "counts": job.counts(),
    }  # fmt: skip


def outcome_document(outcome: ResendOutcome) -> OutcomeDocument:
    """Return the document of one outcome."""
    return OutcomeDocument(
        **_planned(outcome.message) | {"reason": outcome.reason}, outcome=outcome.kind.value,
        new_offset_message_id=outcome.new_offset_message_id, new_broker_name=outcome.broker_name,
        new_queue_id=outcome.queue_id, new_offset=outcome.queue_offset,
    )  # fmt: skip


def outcome_lines(job: ResendJob) -> str:
    """Return the outcomes of a job as lines of JSON."""
    return "".join(f"{outcome_document(one).model_dump_json()}\n" for one in job.outcomes)


def outcome_csv(job: ResendJob) -> str:
    """Return the outcomes of a job as CSV with a header."""
    columns = list(OutcomeDocument.model_fields)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for one in job.outcomes:
        row = outcome_document(one).model_dump()
        writer.writerow([_cell(row[name]) for name in columns])
    return text.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _planned(message: PlannedMessage) -> dict[str, Any]:
    return {
        "broker_name": message.position.broker_name, "queue_id": message.position.queue_id,
        "offset": message.position.offset, "message_id": message.message_id, "target": message.target,
        "bytes": message.body_bytes, "stored_wall_ms": message.stored_ms, "verdict": message.verdict.value,
        "reason": message.reason, "resent_wall_ms": message.resent_ms,
    }  # fmt: skip
