"""Whom `gantry up` talks to: a person at a terminal, a pipe, or a log file while somebody waits for the start."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final, Protocol, final

import click

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
