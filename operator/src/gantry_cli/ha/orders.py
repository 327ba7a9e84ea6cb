"""`gantry ha drain|flush|accept-loss` and the hidden `promise|promote-at|follow|demote|fence`: one order to one broker.

The hidden commands are single steps of a promotion, for emergencies: only the broker checks them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.ha.text import promised_text, status_text
from gantry_cli.output import OutputFormat, output_option, show
from gantry_cli.progress import spinner
from gantry_remoting import split_address
from gantry_status.broker_state import document_of
from gantry_status.order_client import order_once
from gantry_status.orders import (
    EPOCH_MAX,
    AcceptLoss,
    AnyOrder,
    BrokerUnreachable,
    Drain,
    Fence,
    Flush,
    Follow,
    HaStatus,
    OrderError,
    OrderRefused,
    OrderUnanswered,
    Promised,
    PromiseRequest,
    Promote,
    StatusRequest,
)

F = TypeVar("F", bound=Callable[..., Any])
EPOCH: Final = click.IntRange(1, EPOCH_MAX)


def socket_option(command: F) -> F:
    """Add the option --socket of one broker."""
    return click.option(
        "--socket",
        "path",
        required=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="The broker's control socket: its controlSocketPath, or control.sock in its storePathRootDir.",
    )(command)


def explain_order(error: OrderError, path: str | Path) -> CliError:
    """Return the failure of an order as an error for the terminal."""
    match error:
        case BrokerUnreachable():
            remedy = "name the controlSocketPath of a broker that runs as this user"
            return NotFoundError(f"{error}", remedy)
        case OrderRefused():
            return CliError(f"the broker at {path} refused: {error}", "it was not executed; see `gantry ha status`")
        case OrderUnanswered():
            return CliError(f"{error}", "the order may have been executed: see `gantry ha status`, or repeat it")
        case _:
            return CliError(f"{error}", "see the broker's log")


def send_order(path: Path, order: AnyOrder) -> HaStatus | Promised:
    """Send an order and return the broker's answer. Raises CliError if it fails."""
    try:
        with spinner(f"waiting for the broker at {path}"):
            return order_once(str(path), order)
    except OrderError as error:
        raise explain_order(error, path) from error


def show_answer(answer: HaStatus | Promised, form: OutputFormat) -> None:
    """Print a broker's answer to an order, as text or as a document."""
    if isinstance(answer, Promised):
        show(form, answer, lambda: promised_text(answer))
    else:
        show(form, document_of(answer), lambda: status_text(answer))


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha promise --socket PATH --epoch 8", "before a member is promoted in epoch 8"),
        ("gantry ha promise --socket PATH --epoch 8 --to ann --output json", "for programs"),
    ),
)
@socket_option
@click.option("--epoch", required=True, type=EPOCH, help="Lower epochs are refused from now on.")
@click.option("--to", default="", metavar="NAME", help="Who requested the promise; recorded with it.")
@output_option
def promise(path: Path, epoch: int, to: str, form: OutputFormat) -> None:
    """Make a broker promise, durably, to follow no master and grant nothing below an epoch.

    A promise cannot be revoked. A promotion needs promises: after enough of them the old master can never
    acknowledge anything again. `gantry ha promote` makes all steps; this command makes only this one.
    """
    show_answer(send_order(path, PromiseRequest(epoch=epoch, to=to)), form)


@click.command(
    "promote-at",
    hidden=True,
    epilog=examples(
        ("gantry ha promote-at --socket PATH --epoch 8002 --electable 1 --electable 3", "make member 2 the master"),
    ),
)
@socket_option
@click.option("--epoch", required=True, type=EPOCH, help="An epoch above those of all members.")
@click.option(
    "--electable",
    type=click.IntRange(0),
    multiple=True,
    metavar="NUMBER",
    help="A slave that may be promoted after it; repeat for each.",
)
@click.option("--force", is_flag=True, help="Accept its log as it is, although messages may be lost.")
@output_option
def promote_at(path: Path, epoch: int, electable: Sequence[int], force: bool, form: OutputFormat) -> None:
    """Make a broker the master of an epoch, without contacting any other member.

    The command does not check whether another member has a longer log, or is the master of the same epoch. `gantry ha
    promote` does.
    """
    show_answer(send_order(path, Promote(epoch=epoch, electable=sorted(electable), force=force)), form)


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        split_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def follow_options(command: F) -> F:
    """Add the options of `follow` and `demote`."""
    for option in (
        output_option,
        click.option(
            "--master", required=True, callback=_address, metavar="HOST:PORT", help="Replication address of the master."
        ),
        click.option("--epoch", required=True, type=EPOCH, help="Epoch of the master."),
        socket_option,
    ):
        command = option(command)
    return command


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha follow --socket PATH --epoch 8 --master 192.0.2.20:10912", "follow the master of epoch 8"),
    ),
)
@follow_options
def follow(path: Path, epoch: int, master: str, form: OutputFormat) -> None:
    """Make a broker follow a master.

    It compares its log with the master's and truncates, durably, what diverges; if that is not possible the master
    refuses it, and its status has the reason. A master that follows another one is demoted: it closes its clients'
    connections, so that they reconnect to the new master at once.
    """
    show_answer(send_order(path, Follow(epoch=epoch, master=master)), form)


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha demote --socket PATH --epoch 8 --master 192.0.2.20:10912", "follow the new master 192.0.2.20"),
    ),
)
@follow_options
def demote(path: Path, epoch: int, master: str, form: OutputFormat) -> None:
    """Make a master follow another one: the same order as `gantry ha follow`.

    This does not move the role: the other broker must be the master of that epoch already. To move the role, use
    `gantry ha promote`, which drains the old master first.
    """
    show_answer(send_order(path, Follow(epoch=epoch, master=master)), form)


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha fence --socket PATH", "fence it in the next epoch"),
        ("gantry ha fence --socket PATH --epoch 8", "fence it below epoch 8"),
    ),
)
@socket_option
@click.option("--epoch", type=EPOCH, help="It refuses roles below this epoch [default: the next one].")
@output_option
def fence(path: Path, epoch: int | None, form: OutputFormat) -> None:
    """Remove a broker's role and close its clients' connections.

    The broker is unassigned then: it is withdrawn from the routes, and answers sends with code 14, which clients retry
    on another broker. It neither flushes nor waits for slaves; `gantry ha drain` does.
    """
    if epoch is None:
        status = send_order(path, StatusRequest())
        assert isinstance(status, HaStatus), "the answer to a status request is a status"
        epoch = max(status.epoch, status.promised_epoch, status.last_epoch) + 1
    show_answer(send_order(path, Fence(epoch=epoch)), form)


@click.command(
    epilog=examples(
        ("gantry ha drain --socket PATH", "drain a master before its machine stops"),
        ("gantry ha drain --socket PATH --timeout 60", "wait longer for a slave that lags"),
    )
)
@socket_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400),
    default=30.0,
    show_default=True,
    help="How long to wait, in seconds.",
)
@output_option
def drain(path: Path, timeout_s: float, form: OutputFormat) -> None:
    """Stop sends to a master, and wait until its log is flushed and acknowledged by its slaves.

    Sends are answered with code 14 and are not stored. A drained broker stays so until it is promoted again, follows,
    or is fenced. If it takes longer than the timeout the order is refused, and the broker takes sends again.
    """
    show_answer(send_order(path, Drain(timeout_ms=int(timeout_s * 1000))), form)


@click.command(
    epilog=examples(
        ("gantry ha flush --socket PATH", "flush the log"),
        ("gantry ha flush --socket PATH --backup nightly-7", "before a copy of the volume is made"),
    )
)
@socket_option
@click.option("--backup", default="", metavar="NAME", help="Also write all tables, and record the point of a backup.")
@output_option
def flush(path: Path, backup: str, form: OutputFormat) -> None:
    """Flush all that a broker has written to disk.

    With --backup a copy of the volume that is made afterwards has everything up to the position `flushed`, and the
    file backup-point.json in it names that position.
    """
    show_answer(send_order(path, Flush(backup=backup)), form)


@click.command(
    "accept-loss",
    epilog=examples(
        ("gantry ha accept-loss --socket PATH", "show the missing ranges, and ask for confirmation"),
        ("gantry ha accept-loss --socket PATH --yes", "in a script"),
    ),
)
@socket_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def accept_loss(path: Path, yes: bool, form: OutputFormat) -> None:
    """Accept that lost log data of a broker is lost for good, so that it takes sends again.

    A broker whose log lacks bytes that were on its disk serves reads and answers sends with code 14. First try to
    restore the files or the volume and restart it, or let it follow a master that has them. After this order its log
    continues after the lost ranges, and no offset is used twice. The order covers all ranges that are missing when the
    broker executes it, and is recorded in loss.json and in the audit log. A slave refuses it, and so does a master that
    still tries to recover the ranges from its slaves.
    """
    status = send_order(path, StatusRequest())
    assert isinstance(status, HaStatus), "the answer to a status request is a status"
    if status.missing and not yes:
        for lost in status.missing:
            click.echo(f"missing: [{lost.start}, {lost.end}), {lost.end - lost.start} bytes ({lost.cause})", err=True)
        if not click.confirm("Accept that it is lost for good?", err=True):
            raise CliError("not confirmed; nothing was changed", "give --yes, or answer y")
    show_answer(send_order(path, AcceptLoss(by=f"gantry ha accept-loss, user {os.getuid()}")), form)
