"""Processes of a local group for which the machine has no room: a disk that is full, no process to be had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gantry_cli.local.child import Child
from gantry_cli.local.clock import now_ms


async def test_a_full_disk_costs_one_process_and_not_the_group(tmp_path: Path) -> None:
    """Its settings cannot be written: it is told, tried again, and runs when there is room; nobody else is stopped."""
    told: list[str] = []
    tries: list[int] = []

    def arguments() -> Sequence[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return ["-c", "pass"]

    child = Child("master-0", "timeit", arguments, tmp_path / "log", now_ms, told.append, lambda: None)
    child.start()
    task = asyncio.create_task(child.run())
    try:
        async with asyncio.timeout(30):
            while len(tries) < 2 and not task.done():  # noqa: ASYNC110 - a process starts
                await asyncio.sleep(0.05)
    finally:
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(result, asyncio.CancelledError), "whoever keeps it goes on"
    assert told[0] == "master-0 cannot be started: [Errno 28] No space left on device"
