"""`gantry ha drain|flush|accept-loss` and the hidden `promise|promote-at|follow|demote|fence`: one order to one broker.

The hidden ones are the steps of a promotion, for emergencies: nothing checks them but the broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gantry_cli.errors import Absent, CliError
from gantry_cli.examples import examples
from gantry_cli.ha.text import promised_text, status_text
from gantry_cli.output import Form, output_option
from gantry_cli.output import show as show_form
from gantry_cli.progress import waiting
from gantry_remoting import split_address
from gantry_status.broker_state import document_of
from gantry_status.order_client import order_once
from gantry_status.orders import (
    EPOCH_MAX,
    AcceptLoss,
    AnyOrder,
    AskPromise,
    AskStatus,
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
    Promote,
)

F = TypeVar("F", bound=Callable[..., Any])
EPOCH: Final = click.IntRange(1, EPOCH_MAX)


def socket_option(command: F) -> F:
    """--socket of one broker."""
    return click.option(
        "--socket",
        "path",
        required=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="The broker's control socket: its controlSocketPath, or control.sock in its storePathRootDir.",
    )(command)


def explain_order(error: OrderError, path: str | Path) -> CliError:
    """An order's failure as a line for a person at a terminal."""
    match error:
        case BrokerUnreachable():
            return Absent(f"{error}", "is this the controlSocketPath of a broker that runs, and is it yours?")
        case OrderRefused():
            return CliError(f"the broker at {path} refuses: {error}", "nothing has changed; see `gantry ha status`")
        case OrderUnanswered():
            return CliError(f"{error}", "it may have been done: see `gantry ha status`, or give the order again")
        case _:
            return CliError(f"{error}", "see the broker's log")


def give(path: Path, order: AnyOrder) -> HaStatus | Promised:
    """Have it done, or end with a line."""
    try:
        with waiting(f"the broker at {path} is at it"):
            return order_once(str(path), order)
    except OrderError as error:
        raise explain_order(error, path) from error


def show(answer: HaStatus | Promised, form: Form) -> None:
    """Print what a broker has answered."""
    if isinstance(answer, Promised):
        show_form(form, answer, lambda: promised_text(answer))
    else:
        show_form(form, document_of(answer), lambda: status_text(answer))


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha promise --socket PATH --epoch 8", "before somebody is promoted in epoch 8"),
        ("gantry ha promise --socket PATH --epoch 8 --to ann --output json", "for programs"),
    ),
)
@socket_option
@click.option("--epoch", required=True, type=EPOCH, help="Below it, nobody is followed any more.")
@click.option("--to", default="", metavar="NAME", help="To whom it is promised; it is kept with the promise.")
@output_option
def promise(path: Path, epoch: int, to: str, form: Form) -> None:
    """Make a broker promise, durably, to follow nobody and grant nothing below an epoch.

    A promise is never taken back. It is the first half of a promotion: enough of them, and the old master can never
    acknowledge anything again. `gantry ha promote` does all of it; this is for doing it step by step.
    """
    show(give(path, AskPromise(epoch=epoch, to=to)), form)


@click.command(
    "promote-at",
    hidden=True,
    epilog=examples(
        ("gantry ha promote-at --socket PATH --epoch 8002 --electable 1 --electable 3", "member 2 is the master"),
    ),
)
@socket_option
@click.option("--epoch", required=True, type=EPOCH, help="Above every epoch that any member has.")
@click.option(
    "--electable",
    type=click.IntRange(0),
    multiple=True,
    metavar="NUMBER",
    help="A slave that may be promoted after it; once for each.",
)
@click.option("--force", is_flag=True, help="Take its log as it is, though something may be lost.")
@output_option
def promote_at(path: Path, epoch: int, electable: Sequence[int], force: bool, form: Form) -> None:
    """Make a broker the master of an epoch, without asking any other member.

    Nothing checks whether another member has more, or is the master of the same epoch. `gantry ha promote` does.
    """
    show(give(path, Promote(epoch=epoch, electable=sorted(electable), force=force)), form)


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        split_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def follow_options(command: F) -> F:
    """What `follow` and `demote` are told."""
    for option in (
        output_option,
        click.option("--master", required=True, callback=_address, metavar="HOST:PORT", help="Its replication port."),
        click.option("--epoch", required=True, type=EPOCH, help="The epoch of that master."),
        socket_option,
    ):
        command = option(command)
    return command


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha follow --socket PATH --epoch 8 --master 192.0.2.20:10912", "be a slave of the master of epoch 8"),
    ),
)
@follow_options
def follow(path: Path, epoch: int, master: str, form: Form) -> None:
    """Have a broker follow a master.

    It compares its history with the master's and cuts off, durably, what the group has left behind; where that is not
    possible the master refuses it, and its status says why. A master that is told to follow is demoted: it closes its
    clients' connections, so that they come back to the new master at once.
    """
    show(give(path, Follow(epoch=epoch, master=master)), form)


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha demote --socket PATH --epoch 8 --master 192.0.2.20:10912", "the master is 192.0.2.20 now"),
    ),
)
@follow_options
def demote(path: Path, epoch: int, master: str, form: Form) -> None:
    """Have a master follow another one: the same order as `gantry ha follow`.

    This moves nothing by itself: the other one has to be the master of that epoch already. To move the role, use
    `gantry ha promote`, which drains the old master first.
    """
    show(give(path, Follow(epoch=epoch, master=master)), form)


@click.command(
    hidden=True,
    epilog=examples(
        ("gantry ha fence --socket PATH", "take its role away, in the next epoch"),
        ("gantry ha fence --socket PATH --epoch 8", "and none below 8 any more"),
    ),
)
@socket_option
@click.option("--epoch", type=EPOCH, help="Below it, it takes no role any more [default: one more than it knows].")
@output_option
def fence(path: Path, epoch: int | None, form: Form) -> None:
    """Take a broker's role away and close its clients' connections.

    It is unassigned then: out of the routes, sends are answered 14, which clients retry elsewhere. Nothing is flushed
    or waited for; `gantry ha drain` does that.
    """
    if epoch is None:
        status = give(path, AskStatus())
        assert isinstance(status, HaStatus), "a status is answered with a status"
        epoch = max(status.epoch, status.promised_epoch, status.last_epoch) + 1
    show(give(path, Fence(epoch=epoch)), form)


@click.command(
    epilog=examples(
        ("gantry ha drain --socket PATH", "before the machine is stopped"),
        ("gantry ha drain --socket PATH --timeout 60", "a slave is far behind"),
    )
)
@socket_option
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, 86_400), default=30.0, show_default=True, help="In seconds."
)
@output_option
def drain(path: Path, timeout_s: float, form: Form) -> None:
    """Have a master take no more sends, and wait until all it has is flushed and acknowledged by its slaves.

    Sends are answered 14, unstored. In time, that stays so until the broker is promoted again, follows, or is fenced.
    If it takes longer than the timeout the order is refused, and sends are taken again.
    """
    show(give(path, Drain(timeout_ms=int(timeout_s * 1000))), form)


@click.command(epilog=examples(("gantry ha flush --socket PATH", "before a snapshot of the volume is taken")))
@socket_option
@output_option
def flush(path: Path, form: Form) -> None:
    """Have on disk what a broker has written up to now."""
    show(give(path, Flush()), form)


@click.command(
    "accept-loss",
    epilog=examples(
        ("gantry ha accept-loss --socket PATH", "shows what is missing, and asks"),
        ("gantry ha accept-loss --socket PATH --yes", "in a script"),
    ),
)
@socket_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def accept_loss(path: Path, yes: bool, form: Form) -> None:
    """Accept that log data which a broker has lost is lost for good, so that it takes sends again.

    A broker whose log lacks bytes that were on its disk serves reads and answers sends with 14. First try to bring the
    files or the volume back and restart it, or let it follow a master that has them. After this order its log goes on
    behind what is lost, and no offset is used twice. The order is for exactly the ranges that the broker reports, and
    is recorded in loss.json and in the audit log. A slave refuses it, and so does a master that still asks its slaves.
    """
    status = give(path, AskStatus())
    assert isinstance(status, HaStatus), "a status is answered with a status"
    if status.missing and not yes:
        for lost in status.missing:
            click.echo(f"missing: [{lost.start}, {lost.end}), {lost.end - lost.start} bytes ({lost.cause})", err=True)
        if not click.confirm("Accept that it is lost for good?", err=True):
            raise CliError("nothing was done", "give --yes, or answer y")
    show(give(path, AcceptLoss(by=f"gantry ha accept-loss, user {os.getuid()}")), form)
