"""Errors of the harness: they show no fault of a broker. Each ends the command in the same way, except that of a
failover or flow, which is reported as broken, and the next one is run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console


class InteropError(Exception):
    """The harness could not do its work. The broker may be correct."""


class MissingTool(InteropError):
    """A program that this harness needs is not installed."""


class DeadlineExceeded(InteropError):
    """An event did not happen in time; the message names the log of the process on which it depends, if it is one."""


@contextmanager
def harness_errors(console: Console) -> Iterator[None]:
    """Print errors of the harness as one text and exit with code 2; a termination signal still ends every child."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except InteropError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    finally:
        signal.signal(signal.SIGTERM, previous)
