"""The argument of all commands of `gantry store`, the option --buffers of some, and their errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import click

from gantry_cli.errors import EXIT_INTERRUPTED, CliError, NotFoundError

NO_STORE_REMEDY: Final = "use the directory in the setting storePathRootDir"
EXIT_DAMAGED: Final = 1
EXIT_UNAVAILABLE: Final = 4
"""The store could not be read, or a command that writes did not do so; whether it is damaged is unknown."""


directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
buffers_option = click.option(
    "--buffers", type=click.Path(path_type=Path), help="Directory of the write buffers, if they were moved."
)


@final
class StoreUnavailable(CliError):
    """The store cannot be read or changed: the system refuses, a broker has it open, or the user declined."""

    exit_code = EXIT_UNAVAILABLE


@contextmanager
def open_store_root(directory: Path) -> Iterator[str]:
    """Yield the absolute path of a directory that may have a store. Raises NotFoundError if it is none.

    Raises StoreUnavailable for errors of the system in the block, and Exit on Ctrl-C.
    """
    root = os.path.abspath(directory)
    if not os.path.isdir(root):
        what = "is not a directory" if os.path.lexists(root) else "does not exist"
        raise NotFoundError(f"{root} {what}", NO_STORE_REMEDY)
    try:
        yield root
    except PermissionError as error:
        where = error.filename or root
        raise StoreUnavailable(f"{where}: {error.strerror}", "run as the user that owns the store") from error
    except FileNotFoundError as error:
        remedy = "the store changed while it was read: try again"
        raise StoreUnavailable(f"{error.filename or root}: {error.strerror}", remedy) from error
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or root}: {error.strerror}", "check the kernel log: dmesg") from error
    except KeyboardInterrupt:
        click.echo("gantry: interrupted", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def absolute_path(path: Path | None) -> str | None:
    """Return the absolute path as text, or None."""
    return None if path is None else os.path.abspath(path)
