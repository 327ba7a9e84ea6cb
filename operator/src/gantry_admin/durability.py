"""Waiting until bytes are safe: look by look, never by asking the broker."""

from __future__ import annotations

import asyncio
from typing import Literal

from gantry_admin.documents import WaitDocument
from gantry_admin.errors import Problem
from gantry_admin.sidecar import Sidecar

Level = Literal["flushed", "acked", "confirmed"]


def position(sidecar: Sidecar, level: Level) -> int | None:
    """How far ``level`` is now."""
    reading = sidecar.reading
    if reading is None:
        return None
    if level == "acked":
        return sidecar.acked()
    return reading.status.flushed if level == "flushed" else reading.status.confirmed


async def wait_for(sidecar: Sidecar, offset: int, level: Level, timeout_ms: int) -> WaitDocument:
    """Until it is reached, the time is over, or the broker will not get there because it no longer moves.

    A broker that merely stands still is waited for: it may go on. Raises ``Problem`` 503 when there is no page at all.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + timeout_ms / 1000
    if position(sidecar, level) is None and sidecar.look.reading is None:
        raise Problem(503, f"nobody knows how far this broker is: {sidecar.look.fault}")
    if level == "acked":
        sidecar.link.hurry()
    try:
        while True:
            now, motion = position(sidecar, level), sidecar.motion()
            is_over = loop.time() >= deadline or motion.state in ("absent", "gone", "ended")
            if is_over or (now is not None and now >= offset):
                break
            await sidecar.watch.next(deadline - loop.time())
    finally:
        if level == "acked":
            sidecar.link.relax()
    last = sidecar.reading
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
