"""The status of one broker, waiting for an offset, the event stream, and the view of the whole group.

Changes are sent as server-sent events, made from the observations of the status page:

    id: 17
    event: status                       at most twice a second, when an offset or another of its values has changed
    data: {"wrote":9000,"committed":8000,"flushed":4000,"acked":null,"confirmed":9000,...}

    id: 18
    event: change                       at once, when one of these values has changed
    data: {"phase":"serving","role":"slave","epoch":7,...}

The first two events have the current state, so a client that reconnects needs no history. A comment is sent after a few
seconds of silence, so that both sides detect a dead connection.
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
from gantry_admin.group_view import BrokerGroupDocument
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
"""The schema of an event, as readers of event streams get it."""

STATUS_INTERVAL_S: Final = 0.5
"""The least time between two events with offsets."""

SILENCE_S: Final = 10.0
"""The time without an event after which a comment is sent."""

Facts = dict[str, object]
"""The values of an event by their names."""

Level = Literal["flushed", "acked", "confirmed"]
"""The log position that a caller waits for."""

router = APIRouter(tags=["status"], dependencies=[needs(Scope.VIEW)], responses=refusals(401, 403))


@router.get("/v1/status")
async def status(
    sidecar: TheSidecar,
    rates: Annotated[bool, Query(description="Whether to measure the broker's rates for some seconds.")] = True,
) -> StatusDocument:
    """Return the complete status of this broker, also while it is stalled, and after its process is gone."""
    if rates:
        sidecar.request_rates(of_peers=False)
    return sidecar.status()


@router.get("/v1/durability/wait", responses=refusals(422, 429, 503))
async def wait(
    sidecar: TheSidecar,
    offset: Annotated[int, Query(ge=0, le=OFFSET_MAX, description="In the whole log: the end of the bytes.")],
    level: Annotated[Level, Query()] = "confirmed",
    timeout_ms: Annotated[int, Query(ge=0, le=60_000)] = 10_000,
) -> WaitDocument:
    """Wait until `level` has reached `offset`, the time is over, or the broker's process has ended."""
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
    limit: Annotated[
        int | None, Query(ge=1, le=1_000_000, description="Number of events after which the stream ends.")
    ] = None,
) -> StreamingResponse:
    """Stream events: `status` when an offset moved, `change` when role, epoch, phase, loop state or readiness did."""
    sidecar.streams.check()

    async def body() -> AsyncIterator[bytes]:
        with sidecar.streams.hold():
            async for event in events(sidecar, limit):
                yield event

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


@router.get("/v1/group")
async def group(sidecar: TheSidecar) -> BrokerGroupDocument:
    """Return this broker and those of the --peer sidecars, by shard, and the gRPC proxies."""
    sidecar.request_rates(of_peers=True)
    sidecar.proxies.request()
    return sidecar.group()


def _position(broker: ObservedBroker, level: Level) -> int | None:
    """Return the offset that ``level`` has reached now; None if unknown."""
    reading = broker.reading
    if reading is None:
        return None
    if level == "acked":
        return broker.acked()
    return reading.status.flushed if level == "flushed" else reading.status.confirmed


async def _wait_for(broker: ObservedBroker, offset: int, level: Level, timeout_ms: int) -> WaitDocument:
    """Wait until the offset is reached, the time is over, or it cannot be reached because the broker's process ended.

    A stalled broker is waited for, because it may continue. Raises ``Problem`` 503 without a status page.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + timeout_ms / 1000
    if _position(broker, level) is None and broker.observation.reading is None:
        raise Problem(503, f"the broker's offsets are unknown: {broker.observation.fault}")
    if level == "acked":
        broker.link.start_fast_polling()
    try:
        while True:
            now, loop_state = _position(broker, level), broker.loop_state()
            is_over = loop.time() >= deadline or loop_state.state in ("absent", "crashed", "ended")
            if is_over or (now is not None and now >= offset):
                break
            await broker.watch.next(deadline - loop.time())
    finally:
        if level == "acked":
            broker.link.stop_fast_polling()
    last = broker.reading
    return WaitDocument(
        reached=now is not None and now >= offset,
        level=level,
        offset=offset,
        position=now,
        epoch=None if last is None else last.status.epoch,
        boot_id=None if last is None else str(last.origin.boot_id),
        waited_ms=int((loop.time() - began) * 1000),
        broker=loop_state,
    )


def current_offsets(sidecar: Sidecar) -> Facts:
    """Return the values that change all the time."""
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
        "held_sends": status and status.held_sends,
        "connections": status and status.connections,
        "buffers_free": status and status.pool_buffers_free,
    }


def current_state(sidecar: Sidecar) -> Facts:
    """Return the values that seldom change."""
    reading = sidecar.broker.reading
    status = None if reading is None else reading.status
    return {
        "broker": sidecar.broker.loop_state().state,
        "phase": None if status is None else status.phase.name.lower(),
        "role": None if status is None else status.role.name.lower(),
        "epoch": status and status.epoch,
        "boot_id": None if reading is None else str(reading.origin.boot_id),
        "ready": sidecar.verdict.is_good,
        "is_refusing_sends": status and status.is_refusing_sends,
        "last_error": status and (status.last_error or None),
    }


def format_event(number: int, kind: str, facts: Facts) -> bytes:
    """Return one event of the stream. JSON contains no newline, so no data can be mistaken for another event."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(facts, separators=(',', ':'))}\n\n".encode()


async def events(sidecar: Sidecar, limit: int | None) -> AsyncIterator[bytes]:
    """Yield events until the client disconnects, or ``limit`` events were sent."""
    loop = asyncio.get_running_loop()
    shown_state: Facts | None = None
    shown_offsets: Facts | None = None
    sent_at = offsets_at = 0.0
    number = 0
    while limit is None or number < limit:
        out = b""
        if (now := current_state(sidecar)) != shown_state:
            shown_state, number = now, number + 1
            out += format_event(number, "change", {**now, "reason": sidecar.verdict.reason})
        is_due = loop.time() - offsets_at >= STATUS_INTERVAL_S and (limit is None or number < limit)
        if is_due and (moved := current_offsets(sidecar)) != shown_offsets:
            shown_offsets, offsets_at, number = moved, loop.time(), number + 1
            out += format_event(
                number, "status", {**moved, "observed_ms": sidecar.broker.watch.observation.at_boottime_ns // 1_000_000}
            )
        if not out and loop.time() - sent_at >= SILENCE_S:
            out = b": still here\n\n"
        if out:
            sent_at = loop.time()
            yield out
        if limit is None or number < limit:
            await sidecar.broker.watch.next(1.0)
