"""`gantry down`: stop the stack of a directory, wherever it was started."""

import os
import signal
import time
from pathlib import Path
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.options import data_option
from gantry_cli.progress import waiting
from gantry_cli.stack import StackDirectory

STOP_TIMEOUT_S: Final = 75.0
"""Both servers may take 30 s."""
POLL_S: Final = 0.05


@click.command(
    epilog=examples(
        ("gantry down", "stop what `gantry up --detach` started here"),
        ("gantry down --data /tmp/second", "stop the stack of another directory"),
    )
)
@data_option
def down(data: Path) -> None:
    """Stop what `gantry up` started.

    The broker stops first and writes everything to disk. Messages stay in the directory. When nothing runs there, that
    is said, and it is no error.
    """
    directory = StackDirectory(data)
    if not directory.is_running():
        click.echo(f"nothing is running on {data}")
        return
    record = directory.running()
    if record is None:
        raise CliError(f"the stack on {data} is just starting or stopping", "try again in a moment")
    try:
        os.kill(record.pid, signal.SIGTERM)
    except PermissionError as error:
        raise CliError(
            f"the stack on {data} belongs to another user (pid {record.pid})", "stop it as that user"
        ) from error
    except ProcessLookupError:
        pass  # it is gone already; its lock goes with it
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with waiting("stopping: what is in memory goes to disk"):
        while directory.is_running():
            if time.monotonic() > deadline:
                raise CliError(f"the stack (pid {record.pid}) is still running", f"see {directory.path / 'logs'}")
            time.sleep(POLL_S)
    click.echo(f"stopped the name server {record.name_server} and the broker {record.broker}")
