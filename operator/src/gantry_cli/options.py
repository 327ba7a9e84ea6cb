"""Options that several commands share, and how a command runs its asynchronous half."""

import asyncio
import contextlib
from collections.abc import Callable, Container, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gantry_cli.errors import CliError, explain
from gantry_cli.progress import waiting
from gantry_cli.stack import DEFAULT_DIRECTORY, StackDirectory
from gantry_cli.tls_options import tls_options
from gantry_client import ClientError
from gantry_remoting import split_address

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"


def name_server_option(command: F) -> F:
    """-n / --namesrv, which may be left out, and how to speak with it and with brokers."""
    return click.option(
        "-n",
        "--namesrv",
        "name_server",
        envvar="GANTRY_NAMESRV",
        metavar="HOST:PORT",
        callback=lambda _context, _parameter, value: _checked(value) if value else default_name_server(),
        help=f"Name server, several joined by ';' [default: that of `gantry up` here, else {DEFAULT_NAME_SERVER}].",
    )(tls_options(command))


def data_option(command: F) -> F:
    """--data, the directory of a local stack."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DIRECTORY,
        show_default=True,
        help="Directory of the local stack.",
    )(command)


def read_pairs(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read an option that is repeated as a map; for `callback=` of one whose metavar is KEY=VALUE or the like."""
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r} is not {option.metavar}")
        found[name] = value
    return found


def read_settings(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read settings of a ``broker.conf``, where blanks around names and values mean nothing."""
    return {key.strip(): value.strip() for key, value in read_pairs(context, option, given).items()}


def refuse_ignored(mode: str, *, ignored: Container[str] | None = None, used: Container[str] = ()) -> None:
    """Raise click's UsageError for an option on the command line that has no effect in ``mode``.

    Those are the ``ignored`` ones, by the names of their parameters, or, where these are not named, all that are not
    ``used``. What stands in the environment is for other calls, too, and is never refused.
    """
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        is_ignored = name not in used if ignored is None else name in ignored
        if isinstance(option, click.Option) and is_typed and is_ignored:
            raise click.UsageError(f"{max(option.opts, key=len)} has no effect {mode}: leave it out")


def default_name_server(directory: Path = DEFAULT_DIRECTORY) -> str:
    """The name server of the stack that runs in `directory`, else RocketMQ's port on this machine."""
    record = StackDirectory(directory).running()
    return DEFAULT_NAME_SERVER if record is None else record.name_server


def run(coroutine: Coroutine[Any, Any, T], name_server: str, *, waiting_for: str | None = None) -> T:
    """Run a command's asynchronous half. A client's error becomes one line; Ctrl-C ends it with click's Abort.

    With ``waiting_for`` a terminal says so, if it takes long; not for what prints while it runs.
    """
    try:
        with contextlib.nullcontext() if waiting_for is None else waiting(waiting_for):
            return asyncio.run(coroutine)
    except ClientError as error:
        raise explain(error, name_server) from error
    except ValueError as error:
        raise CliError(str(error)) from error


def _checked(text: str) -> str:
    for part in text.split(";"):
        try:
            split_address(part)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return text
