"""One broker at this moment, waiting for it to get somewhere, hearing of what changes, and the whole group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gantry_admin.documents import StatusDocument, WaitDocument
from gantry_admin.errors import Problem
from gantry_admin.events import events
from gantry_admin.group_documents import GroupDocumentView
from gantry_admin.guard import Scope
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.ranges import OFFSET_MAX
from gantry_admin.routes.common import TheSidecar, needs, refusals

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

Level = Literal["flushed", "acked", "confirmed"]

router = APIRouter(tags=["status"], dependencies=[needs(Scope.LOOK)], responses=refusals(401, 403))


@router.get("/v1/status")
async def status(sidecar: TheSidecar) -> StatusDocument:
    """Everything about this broker, at this moment; also while it stands still, and after it is gone."""
    return sidecar.status()


@router.get("/v1/durability/wait", responses=refusals(422, 429, 503))
async def wait(
    sidecar: TheSidecar,
    offset: Annotated[int, Query(ge=0, le=OFFSET_MAX, description="In the whole log: the end of the bytes.")],
    level: Annotated[Level, Query()] = "confirmed",
    timeout_ms: Annotated[int, Query(ge=0, le=60_000)] = 10_000,
) -> WaitDocument:
    """Wait until `level` has reached `offset`, or the time is over, or the broker no longer moves."""
    sidecar.waiters.check()
    with sidecar.waiters.hold():
        return await _wait_for(sidecar.broker, offset, level, timeout_ms)


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
    sidecar.streams.check()

    async def body() -> AsyncIterator[bytes]:
        with sidecar.streams.hold():
            async for event in events(sidecar, limit):
                yield event

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


@router.get("/v1/group")
async def group(sidecar: TheSidecar) -> GroupDocumentView:
    """This broker and those of the --peer sidecars, in one picture."""
    return sidecar.group()


def _position(broker: ObservedBroker, level: Level) -> int | None:
    """How far ``level`` is now."""
    reading = broker.reading
    if reading is None:
        return None
    if level == "acked":
        return broker.acked()
    return reading.status.flushed if level == "flushed" else reading.status.confirmed


async def _wait_for(broker: ObservedBroker, offset: int, level: Level, timeout_ms: int) -> WaitDocument:
    """Until it is reached, the time is over, or the broker will not get there because it no longer moves.

    A broker that merely stands still is waited for: it may go on. Raises ``Problem`` 503 when there is no page at all.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + timeout_ms / 1000
    if _position(broker, level) is None and broker.look.reading is None:
        raise Problem(503, f"nobody knows how far this broker is: {broker.look.fault}")
    if level == "acked":
        broker.link.hurry()
    try:
        while True:
            now, motion = _position(broker, level), broker.motion()
            is_over = loop.time() >= deadline or motion.state in ("absent", "gone", "ended")
            if is_over or (now is not None and now >= offset):
                break
            await broker.watch.next(deadline - loop.time())
    finally:
        if level == "acked":
            broker.link.relax()
    last = broker.reading
    return WaitDocument(
        reached=now is not None and now >= offset,
        level=level,
        offset=offset,
        position=now,
        epoch=None if last is None else last.status.epoch,
        boot_id=None if last is None else str(last.origin.boot_id),
        waited_ms=int((loop.time() - began) * 1000),
        broker=motion,
    )
