"""Sending messages again: a preview of exactly what would be sent, the order to send it, and one outcome for each.

The messages are those of all brokers of the group, so these requests are never relayed to another shard. An order is
answered when it has begun; its outcomes are read from the job, as often as wanted, also as lines of JSON and as CSV.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gantry_admin.audit import audited, write_audit
from gantry_admin.guard import Caller, Scope
from gantry_admin.resend_documents import (
    ResendJobDocument,
    ResendPreviewBody,
    ResendPreviewDocument,
    ResendsDocument,
    ResendStartBody,
    job_document,
    outcome_csv,
    outcome_lines,
    preview_document,
    resends_document,
)
from gantry_admin.resender import ResendJob
from gantry_admin.routes.common import Orderer, TheSidecar, needs, refusals

READ = [needs(Scope.READ)]
router = APIRouter(prefix="/v1", tags=["messages"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


@router.post(
    "/resend-preview", dependencies=READ, responses=refusals(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504)
)
async def preview(body: ResendPreviewBody, sidecar: TheSidecar) -> ResendPreviewDocument:
    """Return which messages would be sent, to which topic, and which ones not and why. Nothing is sent."""
    return preview_document(await sidecar.resender.preview(body.request(), body.messages_max))


@router.post("/resends", responses=refusals(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504))
async def start(body: ResendStartBody, request: Request, sidecar: TheSidecar, caller: Orderer) -> ResendJobDocument:
    """Send the messages of a preview; 409 if they are not the same any more. The answer has the id of the job."""
    on: dict[str, object] = {"group": body.group, "topic": body.topic, "to_topic": body.to_topic}

    def on_end(job: ResendJob) -> None:
        _audit_end(request, caller, job, on)

    with audited(request, caller, "resend", on):
        job = await sidecar.resender.start(body.request(), body.messages_max, body.digest, on_end)
        on |= {"id": job.id, "messages": len(job.plan.sendable)}
    return job_document(job)


def _audit_end(request: Request, caller: Caller, job: ResendJob, on: dict[str, object]) -> None:
    """Write the audit line with the numbers of outcomes: the first line was written before anything was sent."""
    write_audit(request, caller, "resend ended", on | job.counts() | {"state": job.state.value}, 200, "")


@router.get("/resends", dependencies=READ, responses=refusals(401, 403))
async def resends(sidecar: TheSidecar) -> ResendsDocument:
    """Return the last resends, the newest first, without their outcomes."""
    return resends_document(sidecar.resender.jobs())


@router.get("/resends/{job_id}", dependencies=READ, responses=refusals(401, 403, 404, 422))
async def job(job_id: JobId, sidecar: TheSidecar) -> ResendJobDocument:
    """Return the progress of a resend and the outcomes so far."""
    return job_document(sidecar.resender.job(job_id))


@router.get("/resends/{job_id}/outcomes", dependencies=READ, responses=refusals(401, 403, 404, 422))
async def outcomes(
    job_id: JobId, sidecar: TheSidecar, form: Annotated[Literal["jsonl", "csv"], Query(alias="format")] = "jsonl"
) -> Response:
    """Return the outcomes so far as a file: lines of JSON, or CSV."""
    found = sidecar.resender.job(job_id)
    text, media_type = (
        (outcome_csv(found), "text/csv") if form == "csv" else (outcome_lines(found), "application/jsonl")
    )
    headers = {"Content-Disposition": f'attachment; filename="resend-{job_id}.{form}"'}
    return Response(text, media_type=media_type, headers=headers)


@router.post("/resends/{job_id}/stop", responses=refusals(401, 403, 404, 413, 422))
async def stop(job_id: JobId, request: Request, sidecar: TheSidecar, caller: Orderer) -> ResendJobDocument:
    """Stop a resend. The message whose answer is missing is `unknown`, and the following ones are `skipped`."""
    with audited(request, caller, "resend stop", {"id": job_id}):
        return job_document(await sidecar.resender.stop(job_id))
