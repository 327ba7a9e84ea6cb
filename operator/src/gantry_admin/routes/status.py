"""One broker at this moment, waiting for it to get somewhere, hearing of what changes, and the whole group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gantry_admin.documents import StatusDocument, WaitDocument
from gantry_admin.durability import wait_for
from gantry_admin.errors import Problem
from gantry_admin.events import events
from gantry_admin.group_documents import GroupDocumentView
from gantry_admin.group_view import group_view
from gantry_admin.guard import Scope
from gantry_admin.ranges import OFFSET_MAX
from gantry_admin.routes.common import TheSidecar, needs, refusals

WAITERS_MAX: Final = 64
STREAMS_MAX: Final = 32
EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string", "enum": ["change", "status"]},
        "data": {"type": "string", "description": "A JSON object."},
    },
    "required": ["event", "data"],
}
"""Each of the events, as those who read event streams have it."""

router = APIRouter(tags=["status"], dependencies=[needs(Scope.LOOK)], responses=refusals(401, 403))


@router.get("/v1/status")
async def status(sidecar: TheSidecar) -> StatusDocument:
    """Everything about this broker, at this moment; also while it stands still, and after it is gone."""
    return sidecar.status()


@router.get("/v1/durability/wait", responses=refusals(422, 429, 503))
async def wait(
    sidecar: TheSidecar,
    offset: Annotated[int, Query(ge=0, le=OFFSET_MAX, description="In the whole log: the end of the bytes.")],
    level: Annotated[Literal["flushed", "acked", "confirmed"], Query()] = "confirmed",
    timeout_ms: Annotated[int, Query(ge=0, le=60_000)] = 10_000,
) -> WaitDocument:
    """Wait until `level` has reached `offset`, or the time is over, or the broker no longer moves."""
    if sidecar.waiters >= WAITERS_MAX:
        raise Problem(429, f"{WAITERS_MAX} callers wait already", headers={"Retry-After": "1"})
    sidecar.waiters += 1
    try:
        return await wait_for(sidecar, offset, level, timeout_ms)
    finally:
        sidecar.waiters -= 1


@router.get(
    "/v1/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": EVENT}}}, **refusals(422, 429)},
)
async def event_stream(
    sidecar: TheSidecar,
    limit: Annotated[int | None, Query(ge=1, le=1_000_000, description="End after so many events.")] = None,
) -> StreamingResponse:
    """Server-sent events: `status` when an offset moved, `change` when role, epoch, phase, motion or readiness did."""
    if sidecar.streams >= STREAMS_MAX:
        raise Problem(429, f"{STREAMS_MAX} streams are open already", headers={"Retry-After": "5"})

    async def body() -> AsyncIterator[bytes]:
        sidecar.streams += 1
        try:
            async for event in events(sidecar, limit):
                yield event
        finally:
            sidecar.streams -= 1

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


@router.get("/v1/group")
async def group(sidecar: TheSidecar) -> GroupDocumentView:
    """This broker and those of the --peer sidecars, in one picture."""
    return group_view(sidecar)
