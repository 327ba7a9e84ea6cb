"""What `gantry up` needs to run until a signal: the lock of its folder, the signals, and its output."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, final

import click

from gantry_cli.errors import CliError
from gantry_cli.stack import StackDirectory, StackRunningError

NAME: Final = "gantry"


def claim(data: Path) -> StackDirectory:
    """Lock a folder for this process. Raises CliError that names the process that has it."""
    try:
        return StackDirectory(data).claim()
    except StackRunningError as running:
        record = running.record
        where = f"name server {record.name_server}, pid {record.pid}" if record is not None else "it is starting"
        raise CliError(
            f"a group runs in {data} already ({where})",
            f"see `gantry status`, stop it with `gantry down --data {data}`, or choose another --data",
        ) from running
    except OSError as error:
        raise CliError(f"cannot use {data}: {error.strerror}", "choose another --data") from error


async def run_until_stopped(
    work: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[list[str]]], output: RunOutput
) -> None:
    """Run `work` until a signal comes or it fails, then `stop`. Raises CliError that names the processes it killed."""
    stopped = stop_signal()
    try:
        await run_until(stopped, work())
    finally:
        output.report("stopping")
        killed = await stop()
    if killed:
        raise CliError(f"killed {', '.join(killed)}, which did not stop in time", "see the logs")
    output.report("stopped")


def program_name(program: str | None = None) -> str:
    """Return how the user can run this program: `gantry` if the shell finds it by that name, else its path.

    The path is relative if that is shorter. A program of another name was run as a module, and is returned so.
    """
    path = Path(sys.argv[0] if program is None else program)
    if path.name != NAME:
        return f"{sys.executable} -m gantry_cli"
    found = shutil.which(NAME)
    if found is not None and Path(found).resolve() == path.resolve():
        return NAME
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def stop_signal() -> asyncio.Event:
    """Return an event that SIGINT, SIGTERM or SIGHUP sets."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def run_until(stopped: asyncio.Event, work: Any) -> None:
    """Run `work` until it ends by itself or a signal comes. Raises the error of `work` if it fails by itself."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not working.done():
        working.cancel()
    results = await asyncio.gather(working, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


async def is_listening(host: str, port: int) -> bool:
    """Return whether a server accepts connections on this port."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def first_error(errors: BaseExceptionGroup[CliError]) -> CliError:
    """Return the first error in groups of groups."""
    found: Sequence[BaseException] = errors.exceptions
    while isinstance(found[0], BaseExceptionGroup):
        found = found[0].exceptions
    assert isinstance(found[0], CliError), "nothing else was caught"
    return found[0]


# -- output ------------------------------------------------------------------------------------------------------------
# `gantry up` writes to a terminal or a pipe, or with --detach to a log file while its parent waits for the start.


STATE_INTERVAL_S: Final = 1.0
"""The time between two state lines on a terminal."""

PLAIN_INTERVAL_S: Final = 10.0
"""The time between two state lines in a pipe or a log."""


class RunOutput(Protocol):
    """The output of a process that runs until a signal."""

    @property
    def is_detached(self) -> bool:
        """Whether the process runs in the background, without a terminal."""

    @property
    def interval_s(self) -> float:
        """The interval between two lines with the state, in seconds."""

    def report(self, text: str) -> None:
        """Write a line about an event."""

    def ready(self, text: str) -> None:
        """Report that the start has succeeded."""

    def show(self, text: str) -> None:
        """Show the present state in one line."""


@final
class ForegroundOutput:
    """Output to a terminal, where the state line is replaced in place, or to a pipe, where it is appended."""

    is_detached = False

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._has_state_line = False

    @property
    def interval_s(self) -> float:
        return STATE_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S

    def report(self, text: str) -> None:
        if self._has_state_line:
            click.echo()
            self._has_state_line = False
        click.echo(text)

    def ready(self, text: str) -> None:
        self.report(text)

    def show(self, text: str) -> None:
        """Replace the terminal's last line, cut to its width if that is known. A pipe gets a new line."""
        if not self._is_terminal:
            click.echo(text)
            return
        columns = os.get_terminal_size().columns
        click.echo(f"\r\x1b[2K{text[: columns - 1] if columns else text}", nl=False)
        self._has_state_line = True


@final
class DetachedOutput:
    """Output of a background process: events go to up.log, the outcome of the start to the parent's pipe."""

    is_detached = True
    interval_s = PLAIN_INTERVAL_S

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, text: str) -> None:
        click.echo(text)

    def ready(self, text: str) -> None:
        self.send_outcome({"ready": text})

    def show(self, text: str) -> None:
        """Discard the state line, since there is no terminal."""

    def send_outcome(self, outcome: dict[str, Any]) -> None:
        """Send the outcome of the start to the parent, once. Raises OSError when the parent has ended."""
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(json.dumps(outcome))
