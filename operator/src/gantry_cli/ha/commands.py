"""`gantry ha`: who is the master of a group, and moving that role by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import click

from gantry_cli.errors import Absent, CliError
from gantry_cli.examples import examples
from gantry_cli.ha.group import CannotPromote, Member, MemberSocket, Observation, members_document, observe
from gantry_cli.ha.orders import accept_loss, demote, drain, explain_order, fence, flush, follow, promise, promote_at
from gantry_cli.ha.promote import MoveDocument, Promoted, Promotion, Step, Wanted
from gantry_cli.ha.text import group_text, promoted_text, step_text
from gantry_cli.output import Form, output_option, print_document, show
from gantry_cli.progress import waiting
from gantry_cli.stack import DEFAULT_DIRECTORY
from gantry_status.orders import OrderError, OrderRefused

F = TypeVar("F", bound=Callable[..., Any])


def sockets_option(command: F) -> F:
    """--socket of each member of a group."""
    return click.option(
        "--socket",
        "paths",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        callback=lambda _context, _parameter, value: value or default_sockets(),
        help="Control socket of a member; once for each [default: those of `gantry up` here].",
    )(command)


def default_sockets(directory: Path = DEFAULT_DIRECTORY) -> tuple[Path, ...]:
    """The control sockets of a local stack."""
    found = tuple(sorted(path for path in directory.glob("**/control.sock") if path.is_socket()))
    if not found:
        raise click.BadParameter(f"no broker of `gantry up` has a control socket below {directory}; name one")
    return found


@click.group(
    epilog=examples(
        ("gantry ha status --socket A --socket B", "who is the master, how far are the slaves"),
        ("gantry ha promote --socket A --socket B", "the master is dead, or shall rest"),
        ("gantry ha promote --socket A --socket B --to 2", "make member 2 the master"),
        ("gantry ha drain --socket A", "before the machine of a master stops"),
        ("gantry ha accept-loss --socket A", "its log has lost files, and nobody has them any more"),
    )
)
def ha() -> None:
    """Look at a replicated group and move its master role.

    Every broker has a control socket, a file that only its own user may open; members of one group are named by theirs.
    A socket is local, so this runs where the brokers do. `status` and `promote` take several; the other commands are
    single orders to one broker.

    Each order that changes a role carries an epoch, and brokers refuse what is older than what they have promised, so
    no order that comes late can bring back an old master.
    """


@ha.command(
    epilog=examples(
        ("gantry ha status", "the brokers of `gantry up` here"),
        ("gantry ha status --socket A --socket B", "any group"),
        ("gantry ha status --output json | jq '.members[].status.wrote'", "for programs"),
    )
)
@sockets_option
@output_option
def status(paths: Sequence[Path], form: Form) -> None:
    """Show the members of a group: roles, epochs, how far each log is, and what a promotion would need.

    Exit codes: 0 everybody answers, 1 somebody does not.
    """
    with waiting("asking the members"):
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
        ("gantry ha promote --socket A --socket B", "the furthest slave becomes the master"),
        ("gantry ha promote --socket A --socket B --to 2", "member 2 does, once it has everything"),
        ("gantry ha promote --socket B --electable 1 --electable 2", "A is lost, and 1 may come back"),
        ("gantry ha promote --socket B --force --yes", "too few members are left, and a loss is accepted"),
    )
)
@sockets_option
@click.option(
    "--to", type=click.IntRange(0), metavar="NUMBER", help="Which member (its brokerId) [default: the furthest]."
)
@click.option(
    "--electable",
    type=click.IntRange(0),
    multiple=True,
    metavar="NUMBER",
    help="A member that may be the master; once for each, the present master, too [default: as they have recorded].",
)
@click.option(
    "--old-master",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="Who the master was, if it does not answer and nobody has recorded it.",
)
@click.option("--force", is_flag=True, help="Promote though too few can vote, and something may be lost.")
@click.option("--yes", is_flag=True, help="Do not ask before something may be lost.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="For draining the master, and for the slave to catch up, in seconds each.",
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
    form: Form,
) -> None:
    """Make one member of a group its master, in a new epoch, and have the others follow it.

    The command observes the members and decides by the same rules as the operator and `gantry up`.

    While the old master answers, it hands over: it takes no more sends, the slave gets all it has, then all members
    promise to follow no older master, and the slave is promoted. Nothing is lost, in any mode. If the slave does not
    catch up in time, the master takes sends again.

    When the master does not answer, S-k+1 of the S electable slaves must first promise, durably, never to follow it
    again, where code 0 needs k acks. Then the old master can gather no acknowledgement any more, and the furthest of
    those slaves has every acknowledged message. A slave has no vote if its store is new or may have lost something.
    With too few votes the command refuses before it changes anything. In an asynchronous group (k = 0) one promise is
    enough, but what only the old master has is lost, and the command reports that.

    Where the member that --to names is the master already, every member that does not follow it is ordered to.

    --force promotes with too few votes. It prints what may be lost, and asks. Use it only when the missing members are
    gone for good: one that still runs as the master could go on acknowledging.

    Exit codes: 0 done, and every member that answers follows; 1 it could not be done, or a member does not follow yet;
    2 the command was typed wrongly; 3 no member answers.
    """
    wanted = Wanted(
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
        return yes or click.confirm("Promote all the same?", err=True)

    try:
        promoted = asyncio.run(_promote(paths, wanted, report, confirm))
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


def _document(promoted: Promoted) -> MoveDocument:
    return MoveDocument(
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
        kind = Absent if error.is_nobody_there else CliError
        return kind(error.reason, error.remedy)
    if isinstance(error, OrderRefused):
        return CliError(f"a step was refused: {error}", "see the steps, mend what they say, and run it again")
    return explain_order(error, "")


async def _promote(
    paths: Sequence[Path], wanted: Wanted, report: Callable[[Step], None], confirm: Callable[[str], bool]
) -> Promoted:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(MemberSocket(str(path))) for path in paths]
        return await Promotion(clients, wanted, report=report, confirm=confirm).run()


for command in (promise, promote_at, follow, demote, fence, drain, flush, accept_loss):
    ha.add_command(command)
