"""Errors of the command line: each is shown as one line with the problem and, if there is one, the remedy.

click's usage errors also show the usage of the command.

Exit codes: 0 success, 1 failure, 2 invalid usage, 3 not found, 130 interrupted. The help of a command lists its further
codes; docs/exit-codes.md lists all of them.
"""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, final

import click
from click.core import ParameterSource

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
    RouteProblem,
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
        text = problem if remedy is None else f"{problem} -- {for_same_cluster(remedy)}"
        super().__init__(" ".join(text.split()))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"gantry: {self.format_message()}", file=file, err=file is None)


QUERIES: Final = re.compile(
    r"gantry (?:status(?! bg/)|doctor(?! bg/)|(?:topic|group) list|"
    r"(?:topic (?:describe|create)|group members|message (?:describe|resend)) [^\s`]+)"
)
"""The commands in hints that query the same cluster as the command that shows the hint."""


def for_same_cluster(hint: str) -> str:
    """Return a hint whose commands have the option -n of the present command, if it was typed.

    Without -n they would query another cluster.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.get_parameter_source("name_server") is not ParameterSource.COMMANDLINE:
        return hint
    return QUERIES.sub(lambda match: f"{match[0]} -n {shlex.quote(context.params['name_server'])}", hint)


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


# -- hints -------------------------------------------------------------------------------------------------------------
# A remedy names a command only where that command can help:
#
#     no broker is registered               start one, or set namesrvAddr: creating a topic would fail, too
#     brokers are registered, no master     wait for the failover
#     the topic is unknown for certain      create it
#     the topic is unknown, and the account may not list brokers: either of the last two
#     the topic exists without permission   change its permission
#     no name server connects               start one, or another address; only then `gantry up`
#     the connection was closed             the port is of another server, or TLS is used on one side only
#     a broker answers at that address      another address
#     the account is refused                an account, or its secret; never a topic


def error_for_client(error: ClientError, name_server: str) -> CliError:
    """Return the error of a client as an error of the command line, with a remedy."""
    match error:
        case NoRoute():
            return _error_without_route(error)
        case Unavailable():
            return _error_of_unavailable(str(error), name_server)
        case BrokerRefused():
            return _error_of_refusal(error, name_server)
        case BadReply():
            return CliError(f"{error}", "check which server has this address: gantry doctor")
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


NO_BROKER_REMEDY: Final = "start one (`gantry up`, `gantry broker -n ADDRESS`), or check namesrvAddr of one that runs"
FAILOVER_REMEDY: Final = "a failover may be in progress: check `gantry status`, then try again"


def _error_without_route(error: NoRoute) -> CliError:
    match error.problem:
        case RouteProblem.NO_MASTER:
            has_brokers = not isinstance(error, NoMaster) or error.broker_names
            return CliError(f"{error}", FAILOVER_REMEDY if has_brokers else NO_BROKER_REMEDY)
        case RouteProblem.NOT_REGISTERED:
            return CliError(f"{error}", FAILOVER_REMEDY)
        case RouteProblem.NO_PERMISSION:
            return CliError(f"{error}", f"see `gantry topic describe {error.topic}`, and its permission")
        case RouteProblem.UNDECIDED:
            remedy = "check its name; if it exists, its brokers may have no master now: try again"
            return NotFoundError(f"{error}", f"{remedy}; else create it: gantry topic create {error.topic}")
        case RouteProblem.UNKNOWN_TOPIC:
            remedy = f"list topics with `gantry topic list`, or create it: gantry topic create {error.topic}"
            return NotFoundError(f"{error}", remedy)


def _error_of_unavailable(text: str, name_server: str) -> CliError:
    if "no broker is registered" in text:
        return CliError(f"no broker is registered at {name_server}", NO_BROKER_REMEDY)
    if "no master of cluster" in text:
        return CliError(text, "check the name of the cluster with `gantry status`; a failover may be in progress")
    if "no master of" in text:
        return CliError(text, FAILOVER_REMEDY)
    if "no name server answers" not in text:
        return CliError(text, "check `gantry status` and the broker's log")
    if is_tls_given():
        return CliError(text, "check the --tls options and the name server's log; `gantry doctor` names the cause")
    if any(word in text for word in ("was lost", "closed")):  # it has accepted the connection
        problem = f"the server at {name_server} closed the connection"
        return CliError(problem, "it may require TLS (--tls-ca FILE), or be no name server: see `gantry doctor`")
    remedy = "start one with `gantry up`, or set another address with -n HOST:PORT"
    return CliError(f"no name server answers at {name_server}", remedy)


def _error_of_refusal(error: BrokerRefused, name_server: str) -> CliError:
    match error.code:
        case ResponseCode.TOPIC_NOT_EXIST:
            return NotFoundError(f"{error}", "create the topic: gantry topic create NAME")
        case ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            remedy = "the group does not exist, and the broker does not create groups automatically"
            return NotFoundError(f"{error}", remedy)
        case ResponseCode.NO_PERMISSION if "signature failed" in (error.remark or "").lower():
            return CliError(f"{error}", "check accessKey and secretKey in the file of --credentials")
        case ResponseCode.NO_PERMISSION:
            return CliError(f"{error}", "use an account with this permission: gantry --credentials FILE ...")
        case ResponseCode.SYSTEM_ERROR if "consumer to filter" in str(error):
            return CliError(f"{error}", "set enablePropertyFilter=true in its broker.conf (docs/filters.md)")
        case ResponseCode.REQUEST_CODE_NOT_SUPPORTED if error.address in name_server.split(";"):
            remedy = "set the address of a name server with -n HOST:PORT; its port is 9876 by default"
            return CliError(f"the server at {error.address} is no name server ({error})", remedy)
        case ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return CliError(f"{error}", "this version of the broker does not have this request: see `gantry doctor`")
        case _:
            return CliError(f"{error}", "check the broker's log")
