"""What a user sees when something fails: one line, what happened and what to do about it. Never a traceback.

Exit codes: 0 done, 1 it could not be done, 2 the command was typed wrongly, 3 what was asked for is not there, 130
interrupted. Commands that tell more by their code say so in their help; docs/exit-codes.md lists all of it.
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

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_ABSENT: Final = 3
EXIT_INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells say it."""


class CliError(click.ClickException):
    """A failure with its remedy. Raise it anywhere in a command."""

    exit_code = EXIT_FAILED

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        super().__init__(" ".join((problem if remedy is None else f"{problem} -- {remedy}").split()))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"gantry: {self.format_message()}", file=file, err=file is None)


@final
class Absent(CliError):
    """What was asked for is not there."""

    exit_code = EXIT_ABSENT


@final
class Mistyped(CliError):
    """What was typed cannot be meant."""

    exit_code = EXIT_USAGE


@contextmanager
def failures_as_exit_codes() -> Iterator[None]:
    """End the process with a line and a code for whatever a command raises, if it is ours or click's."""
    try:
        yield
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # so late that click did not see it
        sys.exit(EXIT_INTERRUPTED)
    except click.Abort as abort:
        is_interrupted = isinstance(abort.__cause__ or abort.__context__, (KeyboardInterrupt, asyncio.CancelledError))
        click.echo("gantry: interrupted" if is_interrupted else "gantry: not done", err=True)
        sys.exit(EXIT_INTERRUPTED if is_interrupted else EXIT_FAILED)


def explain(error: ClientError, name_server: str) -> CliError:
    """A client's error as a line for a person at a terminal."""
    match error:
        case NoMaster():
            return CliError(f"{error}", "a failover may be under way: look at `gantry status`, then try again")
        case NoRoute():
            return Absent(f"{error}", f"see `gantry topic list`, or make it: gantry topic create {error.topic}")
        case Unavailable() if "no name server answers" in str(error) and is_tls_given():
            return CliError(f"{error}", "look at the --tls options, and at the name server's log")
        case Unavailable() if "no name server answers" in str(error):
            remedy = "start one with `gantry up`, or name another with -n HOST:PORT"
            return CliError(f"no name server answers at {name_server}", remedy)
        case Unavailable() if "know no master" in str(error):
            remedy = "start one with `gantry up` or `gantry broker`"
            return CliError(f"no broker is registered at {name_server}", remedy)
        case Unavailable():
            return CliError(f"{error}", "look at `gantry status` and at the broker's log")
        case BrokerRefused(code=17):
            return Absent(f"{error}", "make the topic: gantry topic create NAME")
        case BrokerRefused(code=26):
            return Absent(f"{error}", "the group does not exist and this broker creates none")
        case BrokerRefused(code=16):
            return CliError(f"{error}", "name an account that may do this: gantry --credentials FILE ...")
        case BrokerRefused(code=1) if "consumer to filter" in str(error):
            return CliError(f"{error}", "let it: enablePropertyFilter=true in its broker.conf (docs/filters.md)")
        case BrokerRefused() | BadReply():
            return CliError(f"{error}", "look at the broker's log")
        case RequestTimeout():
            return CliError(f"{error}", "the broker may be busy or stopped; look at `gantry status`")
        case InvalidMessage():
            return Mistyped(f"{error}")
        case SendFailed():
            unknown = " (a broker may have stored it all the same)" if error.is_outcome_unknown else ""
            return CliError(f"{error}{unknown}", "look at `gantry status`")
        case ResendStopped():
            return CliError(f"{error}", "look at `gantry status`; the same command goes on where this one has stopped")
        case _:
            return CliError(f"{error}")
