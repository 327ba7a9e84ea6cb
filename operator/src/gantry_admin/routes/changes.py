"""Changes to topics, groups and offsets: first a preview, then its execution by token; both need a token that may."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from gantry_admin.audit import audited
from gantry_admin.change_bodies import DeleteGroupBody, DeleteTopicBody, ExecuteBody, GroupBody, ResetBody, TopicBody
from gantry_admin.change_plans import ChangePlan
from gantry_admin.changes import LIFETIME_S
from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.routes.common import Orderer, TheSidecar, refusals

router = APIRouter(prefix="/v1/changes", tags=["topics and groups"])

AUDITED_ROWS_MAX = 20
"""The most changed values in an audit line, whose length is limited."""

Change = Annotated[
    ResetBody | TopicBody | DeleteTopicBody | GroupBody | DeleteGroupBody, Field(discriminator="kind")
]  # fmt: skip
REFUSALS = refusals(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504)


class ChangeRowDocument(Document):
    """One value that would be changed."""

    place: str = Field(description="The broker, or the queue as `broker:queue`.")
    setting: str
    before: str | None = Field(description="The present value; null if there is none.")
    after: str | None = Field(description="The new value; null if it is deleted.")
    effect: str = Field(description="What it means for clients.")


class ChangePreviewDocument(Document):
    """What would be changed, and the token for its execution."""

    token: str
    lifetime_s: int
    kind: str
    name: str
    rows: list[ChangeRowDocument]
    warnings: list[str]
    needs_name: bool = Field(description="Whether the execution must repeat the name, because messages are lost.")


class StepDocument(Document):
    """What became of one step."""

    place: str
    is_done: bool
    reason: str


class ChangedDocument(Document):
    """The outcome of a change: whether each of its steps was executed."""

    kind: str
    name: str
    is_done: bool = Field(description="Whether all steps were executed.")
    steps: list[StepDocument]


@router.post("/preview", responses=REFUSALS)
async def preview(body: Change, sidecar: TheSidecar, caller: Orderer) -> ChangePreviewDocument:
    """Return what a change would do. Nothing is changed."""
    token, plan = await sidecar.changes.preview(body)
    return ChangePreviewDocument(
        token=token, lifetime_s=int(LIFETIME_S), kind=plan.kind, name=plan.name, warnings=list(plan.warnings),
        rows=[ChangeRowDocument(**row._asdict()) for row in plan.rows], needs_name=plan.needs_name,
    )  # fmt: skip


@router.post("", responses=REFUSALS)
async def execute(body: ExecuteBody, request: Request, sidecar: TheSidecar, caller: Orderer) -> ChangedDocument:
    """Execute the change of a preview; 409 if what it depends on has changed."""
    on: dict[str, object] = {}
    with audited(request, caller, "change", on):
        plan = sidecar.changes.planned(body.token)
        on |= {"kind": plan.kind, "name": plan.name, "values": _values(plan)}
        steps = await sidecar.changes.execute(body.token, body.name)
        failed = [one for one in steps if not one.is_done]
        on["failed"] = len(failed)
        if failed and len(failed) == len(steps):
            raise Problem(502, f"{failed[0].place}: {failed[0].reason}")
    return ChangedDocument(
        kind=plan.kind, name=plan.name, is_done=not failed, steps=[StepDocument(**one._asdict()) for one in steps]
    )  # fmt: skip


def _values(plan: ChangePlan) -> str:
    """Return the changed values for the audit line, as `place setting before -> after`."""
    texts = [f"{row.place} {row.setting} {row.before} -> {row.after}" for row in plan.rows[:AUDITED_ROWS_MAX]]
    return "; ".join(texts)
