"""What everything that runs here until a signal has in common: the folder is claimed, a signal ends it, once."""

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
from gantry_cli.stack import StackDirectory, StackRunning

NAME: Final = "gantry"


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


async def run_until_stopped(
    work: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[list[str]]], face: Face
) -> None:
    """Run `work` until a signal comes or it fails, then `stop`, which names what had to be killed. Raises CliError."""
    stopped = stop_signal()
    try:
        await until(stopped, work())
    finally:
        face.report("stopping")
        killed = await stop()
    if killed:
        raise CliError(f"had to kill {', '.join(killed)} after waiting in vain", "see the logs")
    face.report("stopped")


def own_name(program: str | None = None) -> str:
    """`gantry` when the shell finds this very program by that name, else a path to it, relative if that is shorter."""
    path = Path(sys.argv[0] if program is None else program)
    if path.name != NAME:
        return f"{sys.executable} -m gantry_cli"
    found = shutil.which(NAME)
    if found is not None and Path(found).resolve() == path.resolve():
        return NAME
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


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


async def is_listening(host: str, port: int) -> bool:
    """Return whether a server takes connections there."""
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


# -- who is shown how it goes ------------------------------------------------------------------------------------------
# Whom `gantry up` talks to: a person at a terminal, a pipe, or a log file while somebody waits for the start.


STATE_INTERVAL_S: Final = 1.0
PLAIN_INTERVAL_S: Final = 10.0


class Face(Protocol):
    """What something that runs until a signal needs to say."""

    @property
    def is_detached(self) -> bool:
        """Whether nobody watches."""

    @property
    def interval_s(self) -> float:
        """How often the state is worth a line."""

    def report(self, text: str) -> None:
        """Something has happened."""

    def ready(self, text: str) -> None:
        """It runs."""

    def show(self, text: str) -> None:
        """How it is now."""


@final
class ForegroundFace:
    """A terminal, where the state is one line that changes, or a pipe that gets a line now and then."""

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
        """The same line of a terminal again. One that does not know its width gets it whole."""
        if not self._is_terminal:
            click.echo(text)
            return
        columns = os.get_terminal_size().columns
        click.echo(f"\r\x1b[2K{text[: columns - 1] if columns else text}", nl=False)
        self._has_state_line = True


@final
class DetachedFace:
    """Nobody watches: reports go to up.log, the outcome of the start to whoever typed --detach."""

    is_detached = True
    interval_s = PLAIN_INTERVAL_S

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, text: str) -> None:
        click.echo(text)

    def ready(self, text: str) -> None:
        self.say({"ready": text})

    def show(self, text: str) -> None:
        """To nobody."""

    def say(self, outcome: dict[str, Any]) -> None:
        """How the start went. Raises OSError when nobody listens any more."""
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(json.dumps(outcome))
