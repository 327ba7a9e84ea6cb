"""`gantry ha`: shows which member of a group is the master, and moves that role by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import click

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.ha.group import CannotPromote, Member, MemberSocket, Observation, members_document, observe
from gantry_cli.ha.orders import accept_loss, demote, drain, explain_order, fence, flush, follow, promise, promote_at
from gantry_cli.ha.promote import Promoted, Promotion, PromotionDocument, PromotionOptions, Step
from gantry_cli.ha.text import group_text, promoted_text, step_text
from gantry_cli.options import watch_options, watch_screens
from gantry_cli.output import OutputFormat, output_option, print_document, show
from gantry_cli.progress import spinner
from gantry_cli.stack import DEFAULT_DIRECTORY
from gantry_status.orders import BrokerUnreachable, OrderError, OrderRefused

F = TypeVar("F", bound=Callable[..., Any])
"""The function of a command, which a decorator of options returns."""


def sockets_option(command: F) -> F:
    """Add the option --socket, one for each member of a group."""
    return click.option(
        "--socket",
        "paths",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        callback=lambda _context, _parameter, value: value or default_sockets(),
        help="Control socket of a member; repeat it for each [default: those of `gantry up` here].",
    )(command)


def default_sockets(directory: Path = DEFAULT_DIRECTORY) -> tuple[Path, ...]:
    """Return the control sockets of a local group. Raises click's BadParameter if there are none."""
    found = tuple(sorted(path for path in directory.glob("**/control.sock") if path.is_socket()))
    if not found:
        raise click.BadParameter(f"no broker of `gantry up` has a control socket below {directory}; name one")
    return found


@click.group(
    epilog=examples(
        ("gantry ha status --socket A --socket B", "show the master and the lag of the slaves"),
        ("gantry ha promote --socket A --socket B", "replace a failed master, or one that is to be stopped"),
        ("gantry ha promote --socket A --socket B --to 2", "make member 2 the master"),
        ("gantry ha drain --socket A", "drain a master before its machine stops"),
        ("gantry ha accept-loss --socket A", "accept that files of its log are lost for good"),
    )
)
def ha() -> None:
    """Show a replicated group and move its master role.

    Every broker has a control socket, a file that only its own user may open. Name the members of a group by their
    sockets. A socket is local, so run these commands on the machine of the brokers. `status` and `promote` take several
    sockets; each of the other commands is a single order to one broker.

    Each order that changes a role has an epoch, and brokers refuse epochs older than the one they have promised, so a
    late order can never bring back an old master.
    """


@ha.command(
    epilog=examples(
        ("gantry ha status", "show the brokers of `gantry up` here"),
        ("gantry ha status --socket A --socket B", "show any group"),
        ("gantry ha status --watch", "refresh every second"),
        ("gantry ha status --output json | jq '.members[].status.wrote'", "for programs"),
    )
)
@sockets_option
@watch_options
@output_option
def status(paths: Sequence[Path], interval_s: float | None, form: OutputFormat) -> None:
    """Show the members of a group: roles, epochs, log positions, and what a promotion would need.

    Exit codes: 0 every member answers, 1 a member does not answer.
    """
    if interval_s is not None:
        watch_screens(form, interval_s, lambda: asyncio.run(_observe(paths)), group_text)
        return
    with spinner("asking the members"):
        observation = asyncio.run(_observe(paths))
    members: list[Member] = list(observation.members)
    show(form, members_document(members), lambda: group_text(observation))
    if any(one.status is None for one in members):
        raise click.exceptions.Exit(1)


async def _observe(paths: Sequence[Path]) -> Observation:
    async with AsyncExitStack() as stack:
        return await observe([await stack.enter_async_context(MemberSocket(str(path))) for path in paths])


@ha.command(
    epilog=examples(
        ("gantry ha promote --socket A --socket B", "promote the slave with the longest log"),
        ("gantry ha promote --socket A --socket B --to 2", "promote member 2 once it has caught up"),
        ("gantry ha promote --socket B --electable 1 --electable 2", "A is lost, and member 1 may come back"),
        ("gantry ha promote --socket B --force --yes", "too few members are left, and a loss is accepted"),
    )
)
@sockets_option
@click.option(
    "--to", type=click.IntRange(0), metavar="NUMBER", help="The member to promote, by brokerId [default: longest log]."
)
@click.option(
    "--electable",
    type=click.IntRange(0),
    multiple=True,
    metavar="NUMBER",
    help="A member that may be the master; repeatable. Name the present master, too [default: as members recorded it].",
)
@click.option(
    "--old-master",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="The old master's brokerId, if it does not answer and no member has recorded it.",
)
@click.option("--force", is_flag=True, help="Promote with too few votes, although messages may be lost.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before messages may be lost.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="How long the master may drain, and how long the slave may catch up, in seconds each.",
)
@output_option
def promote(
    paths: Sequence[Path],
    to: int | None,
    electable: Sequence[int],
    old_master: int | None,
    force: bool,
    yes: bool,
    timeout_s: float,
    form: OutputFormat,
) -> None:
    """Make one member of a group its master, in a new epoch, and have the others follow it.

    The command observes the members and decides by the same rules as the operator and `gantry up`.

    If the old master answers, it hands over: it is drained, the slave catches up, the members that answer promise to
    follow no older master, and the slave is promoted. Nothing is lost, in any mode. If the slave does not catch up in
    time, the master takes sends again.

    If the master does not answer, S-k+1 of the S electable slaves must first promise, durably, never to follow it
    again, where an acknowledged send (code 0) needs k acks. Then the old master cannot acknowledge anything any more,
    and the slave with the longest log among them has every acknowledged message. A slave has no vote if its store is
    new or may have lost data. With too few votes the command refuses before it changes anything. In an asynchronous
    group (k = 0) one promise is enough, but messages that only the old master has are lost, and the command reports it.

    If the member that --to names is the master already, all other members are ordered to follow it.

    --force promotes with too few votes. It prints what may be lost, and asks for confirmation. Use it only if the
    missing members are gone for good: a member that still runs as the master could continue to acknowledge.

    Exit codes: 0 promoted, and every member that answers follows; 1 not promoted, or a member does not follow yet;
    2 invalid usage; 3 no member answers.
    """
    options = PromotionOptions(
        to=to,
        electable=frozenset(electable),
        old_master=old_master,
        may_force=force,
        timeout_ms=int(timeout_s * 1000),
    )
    steps: list[Step] = []

    def report(step: Step) -> None:
        steps.append(step)
        click.echo(step_text(step), err=form.is_document)

    def confirm(question: str) -> bool:
        click.echo(question, err=True)
        return yes or click.confirm("Promote anyway?", err=True)

    try:
        promoted = asyncio.run(_promote(paths, options, report, confirm))
    except (CannotPromote, OrderError) as error:
        if form.is_document:
            print_document(form, {"error": str(error), "steps": steps})
        raise _explain(error) from error
    if form.is_document:
        print_document(form, _document(promoted))
    else:
        for line in promoted_text(promoted):
            click.echo(line)
    if not promoted.is_complete:
        raise click.exceptions.Exit(1)


def _document(promoted: Promoted) -> PromotionDocument:
    return PromotionDocument(
        error=None,
        epoch=promoted.epoch,
        master=promoted.master,
        number=promoted.number,
        loss=promoted.loss,
        is_complete=promoted.is_complete,
        steps=promoted.steps,
    )


def _explain(error: CannotPromote | OrderError) -> CliError:
    if isinstance(error, CannotPromote):
        kind = NotFoundError if error.is_unreachable else CliError
        return kind(error.reason, error.remedy)
    if isinstance(error, OrderRefused):
        return CliError(
            f"a step was refused: {error}", "fix the cause that the step reports, then run the command again"
        )
    if isinstance(
        error, BrokerUnreachable
    ):  # the members were observed before, so no path on the command line is wrong
        return CliError(f"a member no longer answers: {error}", "run the command again: it observes the members anew")
    return explain_order(error, "")


async def _promote(
    paths: Sequence[Path], options: PromotionOptions, report: Callable[[Step], None], confirm: Callable[[str], bool]
) -> Promoted:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(MemberSocket(str(path))) for path in paths]
        return await Promotion(clients, options, report=report, confirm=confirm).run()


for command in (promise, promote_at, follow, demote, fence, drain, flush, accept_loss):
    ha.add_command(command)
