"""`--detach`: the same command again in a session of its own, and waiting here to hear how its start went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.faces import DetachedFace
from gantry_cli.progress import waiting
from gantry_cli.stack import StackDirectory

DETACH_TIMEOUT_S: Final = 180.0


def detach(data: Path, words: Sequence[str]) -> None:
    """Start `gantry up WORDS` behind us. Raises CliError when its start failed."""
    reader, writer = os.pipe()
    directory = StackDirectory(data)
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        log = directory.log("up").open("ab")
    except OSError as error:
        raise CliError(f"cannot use {data}: {error.strerror}", "choose another --data") from error
    command = [sys.executable, "-m", "gantry_cli", "up", "--report-fd", str(writer), "--data", str(directory.path)]
    with log:
        process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    with os.fdopen(reader) as pipe, waiting("starting"):
        outcome = json.loads(pipe.read() or "{}")
    if "ready" in outcome:
        click.echo(outcome["ready"])
        return
    process.wait(DETACH_TIMEOUT_S)
    raise CliError(outcome.get("error", f"the stack did not start; see {directory.log('up')}"))


def run_detached(descriptor: int, run: Callable[[DetachedFace], None]) -> None:
    """The other side: what is started behind."""
    face = DetachedFace(descriptor)
    try:
        run(face)
    except CliError as error:
        click.echo(error.format_message())
        try:
            face.say({"error": error.format_message()})
        except OSError:
            raise error from None  # it failed after it was ready, and nobody listens any more
        raise
