"""What all commands of `gantry store` share: the directory they look at, and how they end when it cannot be read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import click

from gantry_cli.errors import EXIT_INTERRUPTED, Absent, CliError

NO_STORE_REMEDY: Final = "give the directory that storePathRootDir names"
EXIT_DAMAGED: Final = 1
EXIT_UNREADABLE: Final = 4
"""Neither good nor damaged: nothing can be said, or nothing was done."""


directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
buffers_option = click.option(
    "--buffers", type=click.Path(path_type=Path), help="Where its write buffers are, if not where it says."
)


@final
class CannotRead(CliError):
    """The system does not let us read it, or a broker has it."""

    exit_code = EXIT_UNREADABLE


@contextmanager
def reading(directory: Path) -> Iterator[str]:
    """The store's path, checked. What the system refuses becomes one line, and Ctrl-C an exit code of its own."""
    root = os.path.abspath(directory)
    if not os.path.isdir(root):
        what = "is no directory" if os.path.lexists(root) else "does not exist"
        raise Absent(f"{root} {what}", NO_STORE_REMEDY)
    try:
        yield root
    except PermissionError as error:
        where = error.filename or root
        raise CannotRead(f"{where}: {error.strerror}", "run as the user that owns the store") from error
    except FileNotFoundError as error:
        remedy = "the store is changing while it is read: try again"
        raise CannotRead(f"{error.filename or root}: {error.strerror}", remedy) from error
    except OSError as error:
        raise CannotRead(f"{error.filename or root}: {error.strerror}", "look at the kernel's log: dmesg") from error
    except KeyboardInterrupt:
        click.echo("gantry: interrupted", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def absolute(path: Path | None) -> str | None:
    return None if path is None else os.path.abspath(path)
