"""Options that several commands share, and the execution of the asynchronous part of a command."""

import asyncio
import contextlib
from collections.abc import Callable, Container, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gantry_cli.errors import CliError, error_for_client
from gantry_cli.progress import spinner
from gantry_cli.stack import DEFAULT_DIRECTORY, StackDirectory
from gantry_cli.tls_options import tls_options
from gantry_client import ClientError
from gantry_remoting import split_address

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"


def name_server_option(command: F) -> F:
    """Add the option -n / --namesrv, which has a default, and the TLS options."""
    return click.option(
        "-n",
        "--namesrv",
        "name_server",
        envvar="GANTRY_NAMESRV",
        metavar="HOST:PORT",
        callback=lambda _context, _parameter, value: _validate_addresses(value) if value else default_name_server(),
        help=f"Name server, several separated by ';' [default: that of `gantry up` here, else {DEFAULT_NAME_SERVER}].",
    )(tls_options(command))


def data_option(command: F) -> F:
    """Add the option --data, the directory of a local group."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DIRECTORY,
        show_default=True,
        help="Directory of the local group.",
    )(command)


def read_pairs(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse a repeatable KEY=VALUE option as a mapping; a `callback=` of click."""
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r} does not have the form {option.metavar}")
        found[name] = value
    return found


def read_settings(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse settings of a ``broker.conf``, in which spaces around names and values are ignored."""
    return {key.strip(): value.strip() for key, value in read_pairs(context, option, given).items()}


def refuse_ignored(mode: str, *, ignored: Container[str] | None = None, used: Container[str] = ()) -> None:
    """Raise click's UsageError for an option on the command line that has no effect.

    ``mode`` says when, with its preposition: "with --page", "for NAME".

    These are the parameters named in ``ignored`` or, if that is None, all parameters except those in ``used``. A value
    from the environment is never refused, since it is meant for other commands, too.
    """
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        is_ignored = name not in used if ignored is None else name in ignored
        if isinstance(option, click.Option) and is_typed and is_ignored:
            raise click.UsageError(f"{max(option.opts, key=len)} has no effect {mode}: remove it")


def default_name_server(directory: Path = DEFAULT_DIRECTORY) -> str:
    """Return the name server of the group that runs in `directory`, else RocketMQ's default port on this machine."""
    record = StackDirectory(directory).running()
    return DEFAULT_NAME_SERVER if record is None else record.name_server


def run(coroutine: Coroutine[Any, Any, T], name_server: str, *, waiting_for: str | None = None) -> T:
    """Run the asynchronous part of a command. Raises CliError for an error of the client or a ValueError.

    Ctrl-C raises KeyboardInterrupt, which click turns into its Abort. ``waiting_for`` is the text of a spinner; a
    command that prints while it runs passes None.
    """
    try:
        with contextlib.nullcontext() if waiting_for is None else spinner(waiting_for):
            return asyncio.run(coroutine)
    except ClientError as error:
        raise error_for_client(error, name_server) from error
    except ValueError as error:
        raise CliError(str(error)) from error


def _validate_addresses(text: str) -> str:
    for part in text.split(";"):
        try:
            split_address(part)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return text
