"""The same screen again and again, for `gantry status --watch`: until Ctrl-C, or until nothing runs any more."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.live import Live

from gantry_cli.tables import console

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
