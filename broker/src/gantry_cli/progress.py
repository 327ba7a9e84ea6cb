"""A bar on the terminal while something long goes on; nothing where nobody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

Tell = Callable[[int, int], None]
"""(bytes done, bytes to do)"""


@contextmanager
def bytes_progress(what: str) -> Iterator[Tell]:
    """A bar on standard error, so that standard output stays what programs read. Gone when it is over."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
