"""Options that several commands share, and the execution of the asynchronous part of a command."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from rich.console import RenderableType
from rich.text import Text

from gantry_cli.errors import CliError, error_for_client
from gantry_cli.output import OutputFormat
from gantry_cli.progress import INTERVAL_S, spinner, watch
from gantry_cli.stack import DEFAULT_DIRECTORY, StackDirectory
from gantry_cli.tls_options import tls_options
from gantry_client import ClientError
from gantry_remoting import split_address

T = TypeVar("T")
D = TypeVar("D")
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


# -- watching ----------------------------------------------------------------------------------------------------------


INTERVAL_S_MIN: Final = 0.1
"""The shortest interval of --watch; an observation makes several requests to each broker."""
INTERVAL_S_MAX: Final = 3600.0


def watch_options(command: F) -> F:
    """Add --watch and --interval to a command, which receives the argument ``interval_s``; None without --watch."""

    @functools.wraps(command)
    def with_interval(*arguments: Any, is_watching: bool, interval_s: float | None, **others: Any) -> Any:
        if interval_s is not None and not is_watching:
            raise click.UsageError("--interval has no effect without --watch: set both or neither")
        chosen = (INTERVAL_S if interval_s is None else interval_s) if is_watching else None
        return command(*arguments, interval_s=chosen, **others)

    decorated = click.option(
        "--interval",
        "interval_s",
        type=click.FloatRange(INTERVAL_S_MIN, INTERVAL_S_MAX),
        metavar="SECONDS",
        help=f"Time between two refreshes of --watch, in seconds  [default: {INTERVAL_S:g}].",
    )(with_interval)
    decorated = click.option("-w", "--watch", "is_watching", is_flag=True, help="Refresh until Ctrl-C.")(decorated)
    return decorated  # type: ignore[return-value]  # the same command, called with an interval


def watch_screens(
    form: OutputFormat, interval_s: float, observe: Callable[[], D], screen: Callable[[D], Iterable[RenderableType]]
) -> None:
    """Observe and show again and again, until Ctrl-C.

    A failure of the first observation ends the command, as without --watch. A later one is shown instead of the
    screen: a server may only be restarting. Raises click's UsageError for a format of documents.
    """
    if form.is_document:
        raise click.UsageError(f"--watch cannot be combined with --output {form}")
    first = [observe()]

    def screens() -> Iterator[RenderableType]:
        try:
            yield from screen(first.pop() if first else observe())
        except CliError as error:
            yield Text(f"not available: {error.message}")

    watch(screens, interval_s)


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
