"""Serves a console or the list of groups until Ctrl-C, and prints its address."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import click

from gantry_cli.console.backend import Backend, SidecarSource
from gantry_cli.console.group_console import GroupConsole
from gantry_cli.console.groups_page import GroupDirectory, GroupsPage
from gantry_cli.console.http import SidecarUnavailable
from gantry_cli.errors import CliError

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LINE_BYTES_MAX: Final = 4096
"""The longest line of a terminal."""


class Served(Protocol):
    """A page that is served on a port of this machine."""

    def new_address(self) -> str:
        """Return an address that opens the page in one browser."""

    async def close(self) -> None:
        """Stop serving, and close all connections."""


def report_event(text: str) -> None:
    """Print an event on standard error: standard output has only addresses, for programs."""
    click.echo(text, err=True)


def serve_group(source: SidecarSource, port: int) -> None:
    """Serve the console of one group until Ctrl-C. Raises CliError if no sidecar can be reached at the start."""

    async def serve() -> None:
        backend = Backend(source, report_event)
        try:
            await backend.link()
        except SidecarUnavailable as error:
            raise CliError(f"no sidecar of {source.name} can be reached: {error}", "see `gantry status`") from error
        console = GroupConsole(backend, source.name)
        await _start(console, port)
        await _serve_until_signal(console)

    asyncio.run(serve())


def serve_groups(directory: GroupDirectory, port: int) -> None:
    """Serve the list of groups until Ctrl-C. Raises CliError if it cannot be read at the start."""

    async def serve() -> None:
        page = GroupsPage(directory, report_event)
        await _start(page, port)
        await _serve_until_signal(page)

    asyncio.run(serve())


async def _start(page: GroupConsole | GroupsPage, port: int) -> None:
    try:
        await page.start(port)
    except OSError as error:
        raise CliError(f"cannot listen on port {port}: {error.strerror}", "use another --port, or none") from error


async def _serve_until_signal(page: Served) -> None:
    """Print the address, and return after SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    click.echo(page.new_address())
    hint = "press Enter for another one, and Ctrl-C to stop" if is_foreground() else "press Ctrl-C to stop"
    report_event(f"The address works once, within ten minutes; {hint}")
    try:
        with new_address_on_enter(page):
            await stop.wait()
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
        await page.close()


@contextmanager
def new_address_on_enter(page: Served) -> Iterator[None]:
    """Print another address for each line that the user types during the context, for another browser or tab."""
    if not is_foreground():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read_line() -> None:
        # A process in the background that reads from the terminal is stopped by the kernel.
        if is_foreground() and os.read(descriptor, LINE_BYTES_MAX):
            click.echo(page.new_address())
        else:
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, read_line)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


def is_foreground() -> bool:
    """Return whether standard input is the terminal of the user who runs this command in the foreground."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # standard input may be closed, or not a file
        return False
