"""Errors of the command line: each is shown as one line with the problem and, if there is one, the remedy.

click's usage errors also show the usage of the command.

Exit codes: 0 success, 1 failure, 2 invalid usage, 3 not found, 130 interrupted. The help of a command lists its further
codes; docs/exit-codes.md lists all of them.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, final

import click

from gantry_cli.tls_options import is_tls_given
from gantry_client import (
    BadReply,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    NoMaster,
    NoRoute,
    RequestTimeout,
    ResendStopped,
    SendFailed,
    Unavailable,
)
from gantry_wire.codes import ResponseCode

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_INTERRUPTED: Final = 130
"""128 plus the number of SIGINT, the convention of shells."""


class CliError(click.ClickException):
    """A failure of a command, with an optional remedy. Any part of a command may raise it."""

    exit_code = EXIT_FAILED

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        super().__init__(" ".join((problem if remedy is None else f"{problem} -- {remedy}").split()))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"gantry: {self.format_message()}", file=file, err=file is None)


@final
class NotFoundError(CliError):
    """What the command line names does not exist, or does not run: a topic, a group, a member, a store, a socket ..."""

    exit_code = EXIT_NOT_FOUND


@final
class InvalidInput(CliError):
    """An argument or option of the command line is invalid."""

    exit_code = EXIT_USAGE


@contextmanager
def failures_as_exit_codes() -> Iterator[None]:
    """Show each error of this module or of click, and end the process with the exit code of the error.

    An interruption that click has not handled ends the process without a line.
    """
    try:
        yield
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # raised outside of click's own handler
        sys.exit(EXIT_INTERRUPTED)
    except click.Abort as abort:
        is_interrupted = isinstance(abort.__cause__ or abort.__context__, (KeyboardInterrupt, asyncio.CancelledError))
        click.echo("gantry: interrupted" if is_interrupted else "gantry: canceled", err=True)
        sys.exit(EXIT_INTERRUPTED if is_interrupted else EXIT_FAILED)


def error_for_client(error: ClientError, name_server: str) -> CliError:
    """Return the error of a client as an error of the command line, with a remedy."""
    match error:
        case NoMaster():
            return CliError(f"{error}", "a failover may be in progress: check `gantry status`, then try again")
        case NoRoute():
            return NotFoundError(
                f"{error}", f"list topics with `gantry topic list`, or create it: gantry topic create {error.topic}"
            )
        case Unavailable() if "no name server answers" in str(error) and is_tls_given():
            return CliError(f"{error}", "check the --tls options and the name server's log")
        case Unavailable() if "no name server answers" in str(error):
            remedy = "start one with `gantry up`, or set another address with -n HOST:PORT"
            return CliError(f"no name server answers at {name_server}", remedy)
        case Unavailable() if "is registered with the name servers" in str(error):
            remedy = "start one with `gantry up` or `gantry broker`"
            return CliError(f"no broker is registered at {name_server}", remedy)
        case Unavailable():
            return CliError(f"{error}", "check `gantry status` and the broker's log")
        case BrokerRefused(code=ResponseCode.TOPIC_NOT_EXIST):
            return NotFoundError(f"{error}", "create the topic: gantry topic create NAME")
        case BrokerRefused(code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return NotFoundError(
                f"{error}", "the group does not exist, and the broker does not create groups automatically"
            )
        case BrokerRefused(code=ResponseCode.NO_PERMISSION):
            return CliError(f"{error}", "use an account with this permission: gantry --credentials FILE ...")
        case BrokerRefused(code=ResponseCode.SYSTEM_ERROR) if "consumer to filter" in str(error):
            return CliError(f"{error}", "set enablePropertyFilter=true in its broker.conf (docs/filters.md)")
        case BrokerRefused() | BadReply():
            return CliError(f"{error}", "check the broker's log")
        case RequestTimeout():
            return CliError(f"{error}", "the broker may be busy or stopped: check `gantry status`")
        case InvalidMessage():
            return InvalidInput(f"{error}")
        case SendFailed():
            unknown = " (a broker may have stored the message nevertheless)" if error.is_outcome_unknown else ""
            return CliError(f"{error}{unknown}", "check `gantry status`")
        case ResendStopped():
            return CliError(f"{error}", "check `gantry status`, then run the same command again to continue from there")
        case _:
            return CliError(f"{error}")
