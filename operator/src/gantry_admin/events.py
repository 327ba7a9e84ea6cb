"""Server-sent events, made from looks.

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
from typing import Final

from gantry_admin.sidecar import Sidecar

STATUS_INTERVAL_S: Final = 0.5
SILENCE_S: Final = 10.0

Facts = dict[str, object]


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
