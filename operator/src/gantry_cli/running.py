"""What everything that runs here until a signal has in common: the folder is claimed, a signal ends it, once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from gantry_cli.errors import CliError
from gantry_cli.stack import StackDirectory, StackRunning


def claim(data: Path) -> StackDirectory:
    """Make a folder ours. Raises CliError that names who has it."""
    try:
        return StackDirectory(data).claim()
    except StackRunning as running:
        record = running.record
        where = f"name server {record.name_server}, pid {record.pid}" if record is not None else "it is just starting"
        raise CliError(
            f"a stack runs on {data} already ({where})",
            f"see `gantry status`, stop it with `gantry down --data {data}`, or choose another --data",
        ) from running
    except OSError as error:
        raise CliError(f"cannot use {data}: {error.strerror}", "choose another --data") from error


def stop_signal() -> asyncio.Event:
    """Set by SIGINT, SIGTERM or SIGHUP."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def until(stopped: asyncio.Event, work: Any) -> None:
    """Run `work` until it ends by itself (then its error counts) or a signal comes."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not working.done():
        working.cancel()
    results = await asyncio.gather(working, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
