"""Progress displays on the terminal: bars, spinners, and tables that refresh.

In a pipe or a file there are no bars and spinners, and a refreshing table is printed again at each interval.

Every operation that may take longer than two seconds shows its progress: a bar if its work is counted, a spinner with
the elapsed time otherwise. The display starts after a delay, so that a short command does not flicker. It goes to
standard error, so that standard output holds only the result, and is removed at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self, final

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
from gantry_cli.text import count_text, rate_text

ReportProgress = Callable[[int, int | None], None]
"""Called with the work that is done and the total, which is None if it is not known."""

DISPLAY_DELAY_S: Final = 1.0
"""The delay before a display starts; users begin to wait consciously after two seconds."""


@contextmanager
def bytes_progress(what: str) -> Iterator[ReportProgress]:
    """Show a progress bar of bytes."""
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with _progress_display(what, columns) as report:
        yield report


@contextmanager
def count_progress(what: str) -> Iterator[ReportProgress]:
    """Show a number of items with a progress bar, which moves without a measure if the total is not known."""
    with _progress_display(what, (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())) as report:
        yield report


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Show a spinner with the elapsed time while another process is waited for."""
    with _progress_display(what, (SpinnerColumn(), TimeElapsedColumn())):
        yield


@contextmanager
def _progress_display(what: str, columns: tuple[ProgressColumn, ...]) -> Iterator[ReportProgress]:
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # Rich must not redirect what a command prints meanwhile: standard output may be a file or a pipe.
    progress = Progress(
        TextColumn("{task.description}", markup=False), *columns,
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    task = progress.add_task(what, total=None)
    starter = threading.Timer(DISPLAY_DELAY_S, progress.start)
    starter.daemon = True
    starter.start()
    try:
        yield lambda done, total: progress.update(task, completed=done, total=total)
    finally:
        starter.cancel()
        starter.join()  # if the timer has started the display, it is stopped here
        progress.stop()


@final
class SearchLine:
    """The progress of a search in one line of the terminal, which is cleared before a hit is printed.

    Hits and progress may share the terminal, so this is no bar of ``rich``, which redraws lines above the cursor.
    """

    interval_s: Final = 0.2
    """The time between two updates, in seconds."""

    def __init__(self) -> None:
        self._is_shown = False
        self._is_terminal: Final = sys.stderr.isatty()
        self._began_s: Final = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, scanned: int, total: int, hits: int) -> None:
        """Show the share of the messages that was scanned, the rate, and the number of hits."""
        elapsed_s = time.monotonic() - self._began_s
        if not self._is_terminal or elapsed_s < DISPLAY_DELAY_S:
            return
        share = scanned / total if total else 1.0
        text = f"{share:6.1%} of {count_text(total)} messages, {rate_text(scanned / elapsed_s)}/s, {hits} found"
        click.echo(f"\r\x1b[2K{text}", nl=False, err=True)
        self._is_shown = True

    def clear(self) -> None:
        """Clear the line, so that something else can be printed there."""
        if self._is_shown:
            click.echo("\r\x1b[2K", nl=False, err=True)
            self._is_shown = False


# -- refreshing output (`--watch`) -------------------------------------------------------------------------------------


INTERVAL_S: Final = 1.0
"""The time between two refreshes, in seconds."""


def watch(screen: Callable[[], Iterable[RenderableType]], interval_s: float = INTERVAL_S) -> None:
    """Show the screen until Ctrl-C: refreshed in place on a terminal, one below the other in a pipe or a file."""
    out = console()
    with suppress(KeyboardInterrupt):
        if not sys.stdout.isatty():
            while True:
                for part in screen():
                    out.print(part)
                click.echo()
                sys.stdout.flush()  # the reader of a pipe gets each screen when it is made
                time.sleep(interval_s)
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(Group(*screen()), refresh=True)
                time.sleep(interval_s)
