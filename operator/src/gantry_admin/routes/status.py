"""One broker at this moment, waiting for it to get somewhere, hearing of what changes, and the whole group.

What changes comes as server-sent events, made from looks:

    id: 17
    event: status                       at most twice a second, when an offset has moved
    data: {"wrote":9000,"committed":8000,"flushed":4000,"acked":null,"confirmed":9000,...}

    id: 18
    event: change                       at once, when one of these words is another one
    data: {"phase":"serving","role":"slave","epoch":7,...}

The first two events say how things are now, so whoever comes back needs no history. Every few seconds of silence are
ended by a comment, so that a connection that is dead is noticed by both sides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gantry_admin.documents import StatusDocument, WaitDocument
from gantry_admin.errors import Problem
from gantry_admin.group_view import GroupDocumentView
from gantry_admin.guard import Scope
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.ranges import OFFSET_MAX
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_admin.sidecar import Sidecar

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

STATUS_INTERVAL_S: Final = 0.5
SILENCE_S: Final = 10.0

Facts = dict[str, object]
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


def offsets_now(sidecar: Sidecar) -> Facts:
    """What moves all the time."""
    reading = sidecar.broker.reading
    status = None if reading is None else reading.status
    return {
        "wrote": status and status.wrote,
        "committed": status and status.committed,
        "flushed": status and status.flushed,
        "acked": sidecar.broker.acked(),
        "confirmed": status and status.confirmed,
        "slaves": [] if status is None else [[one.slave_id, one.received, one.flushed] for one in status.slaves],
        "at_risk": [[risk.loss.value, risk.bytes, risk.seconds] for risk in sidecar.broker.risks()],
        "parked_sends": status and status.parked_sends,
        "connections": status and status.connections,
        "buffers_free": status and status.pool_buffers_free,
    }


def words_now(sidecar: Sidecar) -> Facts:
    """What seldom changes."""
    reading = sidecar.broker.reading
    status = None if reading is None else reading.status
    return {
        "broker": sidecar.broker.motion().state,
        "phase": None if status is None else status.phase.name.lower(),
        "role": None if status is None else status.role.name.lower(),
        "epoch": status and status.epoch,
        "boot_id": None if reading is None else str(reading.origin.boot_id),
        "ready": sidecar.verdict.is_good,
        "is_refusing_sends": status and status.is_refusing_sends,
        "last_error": status and (status.last_error or None),
    }


def line(number: int, kind: str, facts: Facts) -> bytes:
    """One event. JSON has no newline in it, so no data can look like another event."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(facts, separators=(',', ':'))}\n\n".encode()


async def events(sidecar: Sidecar, limit: int | None) -> AsyncIterator[bytes]:
    """Event after event, until whoever listens is gone, or ``limit`` were sent."""
    loop = asyncio.get_running_loop()
    words: Facts | None = None
    offsets: Facts | None = None
    said_at = offsets_at = 0.0
    number = 0
    while limit is None or number < limit:
        out = b""
        if (now := words_now(sidecar)) != words:
            words, number = now, number + 1
            out += line(number, "change", {**now, "reason": sidecar.verdict.reason})
        is_due = loop.time() - offsets_at >= STATUS_INTERVAL_S and (limit is None or number < limit)
        if is_due and (moved := offsets_now(sidecar)) != offsets:
            offsets, offsets_at, number = moved, loop.time(), number + 1
            out += line(number, "status", {**moved, "looked_ms": sidecar.broker.watch.look.at_boottime_ns // 1_000_000})
        if not out and loop.time() - said_at >= SILENCE_S:
            out = b": still here\n\n"
        if out:
            said_at = loop.time()
            yield out
        if limit is None or number < limit:
            await sidecar.broker.watch.next(1.0)
