"""What moves on the terminal while something long goes on; nothing where nobody watches.

Everything that may last longer than two seconds shows something: a bar where it is known how much there is to do, a
spinner with the seconds where it is not. It comes late, so that a short command does not flicker; it goes to standard
error, so that standard output stays what programs read; it is gone when it is over.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from gantry_cli.output import console

Tell = Callable[[int, int | None], None]
"""(done, to do if that is known)"""

LATE_S: Final = 1.0
"""Only then something is shown; a person begins to wonder at two seconds."""


@contextmanager
def bytes_progress(what: str) -> Iterator[Tell]:
    """A bar of bytes."""
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with _moving(what, columns) as tell:
        yield tell


@contextmanager
def count_progress(what: str) -> Iterator[Tell]:
    """A bar of things, or their number where nobody knows how many will come."""
    with _moving(what, (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())) as tell:
        yield tell


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner with the seconds: somebody else is at it."""
    with _moving(what, (SpinnerColumn(), TimeElapsedColumn())):
        yield


@contextmanager
def _moving(what: str, columns: tuple[ProgressColumn, ...]) -> Iterator[Tell]:
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # What a command prints meanwhile is not taken over: standard output may be a file or a pipe.
    progress = Progress(
        TextColumn("{task.description}"), *columns,
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    task = progress.add_task(what, total=None)
    starter = threading.Timer(LATE_S, progress.start)
    starter.daemon = True
    starter.start()
    try:
        yield lambda done, total: progress.update(task, completed=done, total=total)
    finally:
        starter.cancel()
        starter.join()  # whatever it began is there now, and ends here
        progress.stop()


# -- the same screen again and again -----------------------------------------------------------------------------------
# The same screen again and again, for `gantry status --watch`: until Ctrl-C, or until nothing runs any more.


INTERVAL_S: Final = 1.0


def watch(screen: Callable[[], Iterable[RenderableType]], interval_s: float = INTERVAL_S) -> None:
    """Show it until Ctrl-C. Into a pipe, one after another."""
    out = console()
    with suppress(KeyboardInterrupt):
        if not sys.stdout.isatty():
            while True:
                for part in screen():
                    out.print(part)
                click.echo()
                time.sleep(interval_s)
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(Group(*screen()), refresh=True)
                time.sleep(interval_s)
