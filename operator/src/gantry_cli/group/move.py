"""`gantry group reset` and `clone`: where a group goes on. Both show what would happen first, and ask."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import click
import msgspec
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_group, complete_topic
from gantry_cli.errors import Absent, CliError, Mistyped
from gantry_cli.examples import examples
from gantry_cli.group.documents import CloneDocument, MovedQueueDocument, ResetDocument
from gantry_cli.options import name_server_option, run
from gantry_cli.output import Form, output_option, show, table
from gantry_cli.text import HELP, Start, count_text, parse_start
from gantry_client import Admin, MessageQueue
from gantry_wire.names import is_retry_or_dead_letter

NOW = "now"
"""Another word for `latest`, which is a better one for a group that skips what it has not read."""


@dataclass(frozen=True, slots=True)
class Move:
    """One queue: what is committed, and where the group would go on."""

    queue: MessageQueue
    before: int | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be moved, and who runs meanwhile."""

    moves: tuple[Move, ...]
    members: int
    is_made: bool = False


# -- reset -------------------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        ("gantry group reset billing orders --to earliest --dry-run", "what would be consumed again"),
        ("gantry group reset billing orders --to earliest", "everything that is still there; asks first"),
        ("gantry group reset billing orders --to now --yes", "skip what has not been consumed, in a script"),
        ("gantry group reset billing orders --to 2h", "what was stored within the last two hours"),
        ("gantry group reset billing orders --to-offset 1200 --queue broker-a:3", "one queue, to one place"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("topic", shell_complete=complete_topic)
@name_server_option
@click.option("--to", "when", metavar="WHEN", help=f"The first message stored then or later: now, {HELP}.")
@click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="This place; needs one --queue.")
@click.option(
    "--queue", "queues", multiple=True, metavar="BROKER:NUMBER", help="Only this queue; may be given several times."
)
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def reset(
    name: str, topic: str, name_server: str, when: str | None, to_offset: int | None, queues: tuple[str, ...],
    dry_run: bool, yes: bool, form: Form,
) -> None:  # fmt: skip
    """Have a consumer group go on elsewhere in TOPIC.

    Members that run are sent there with their next pull, and drop what they have in hand; a group without members goes
    on there when it comes back. What a handler is doing at this moment it finishes. The group's retry topic stays as it
    is. Brokers older than RocketMQ 5 tell the members themselves, which takes some ten seconds.
    """
    start = _start(when, to_offset, queues)
    chosen = [_queue(topic, text) for text in queues]
    plan = run(_reset_plan(name_server, name, topic, start, to_offset, chosen), name_server, waiting_for="looking")
    if not dry_run:
        _confirm(f"move {name}?", plan, form, yes=yes)
        moved = run(_reset(name_server, name, topic, start, plan, chosen), name_server, waiting_for=f"moving {name}")
        plan = Plan(moves=moved, members=plan.members)
    document = ResetDocument(group=name, is_dry_run=dry_run, members=plan.members, queues=_rows(plan.moves))
    show(form, document, lambda: _screen(f"{name} {'would go' if dry_run else 'goes'} on here", plan))


def _start(when: str | None, to_offset: int | None, queues: tuple[str, ...]) -> Start:
    """What is meant by --to; the end where --to-offset says it all. Raises Mistyped."""
    if (when is None) == (to_offset is None):
        raise Mistyped("where to? write --to WHEN or --to-offset OFFSET, one of them")
    if to_offset is not None and len(queues) != 1:
        raise Mistyped("--to-offset is a place in one queue: name it with --queue BROKER:NUMBER")
    try:
        return Start(is_latest=True) if when in (None, NOW) else parse_start(str(when), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise Mistyped(f"--to: {error}") from error


def _queue(topic: str, text: str) -> MessageQueue:
    broker, separator, number = text.rpartition(":")
    if not separator or not broker or not number.isdecimal():
        raise Mistyped(f"{text!r} is no queue: write BROKER:NUMBER, for example broker-a:3")
    return MessageQueue(topic=topic, broker_name=broker, queue_id=int(number))


def _timestamp_ms(start: Start) -> int:
    return -1 if start.is_latest else start.timestamp_ms or 0


async def _reset_plan(
    name_server: str, group: str, topic: str, start: Start, to_offset: int | None, chosen: Sequence[MessageQueue]
) -> Plan:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        if group not in await admin.groups.all():
            raise Absent(f"there is no group {group}", "see `gantry group list`")
        places = await admin.groups.places(topic, _timestamp_ms(start))
        before = await admin.groups.committed(group, topic)
        members = await admin.members.connections(group)
        if to_offset is not None:
            stats = await admin.topics.stats(topic)
    for queue in chosen:
        if queue not in places:
            name = f"{queue.broker_name}:{queue.queue_id}"
            raise Absent(f"{topic} has no queue {name}", f"see `gantry topic describe {topic}`")
    if to_offset is not None:
        ends = stats[chosen[0]]
        if not ends.min_offset <= to_offset <= ends.max_offset:
            raise Mistyped(f"the queue holds [{ends.min_offset}, {ends.max_offset}), and {to_offset} is no place in it")
        places = {chosen[0]: to_offset}
    wanted = chosen or list(places)
    return Plan(moves=_moves({queue: places[queue] for queue in wanted}, before), members=len(members))


async def _reset(
    name_server: str, group: str, topic: str, start: Start, plan: Plan, chosen: Sequence[MessageQueue]
) -> tuple[Move, ...]:
    """What was moved, as the brokers say it: a time may lead further on by now."""
    before = {move.queue: move.before for move in plan.moves}
    async with Admin(name_server, client_settings=client_settings()) as admin:
        if not chosen:
            return _moves(await admin.groups.reset_offsets(group, topic, _timestamp_ms(start)), before)
        wanted = {move.queue: move.after for move in plan.moves}
        return _moves({queue: await admin.groups.reset_queue(group, queue, wanted[queue]) for queue in chosen}, before)


# -- clone -------------------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        ("gantry group clone billing billing-v2 --dry-run", "where the second group would begin"),
        ("gantry group clone billing billing-v2", "in all topics of the first one; asks first"),
        ("gantry group clone billing billing-v2 --topic orders --yes", "in one topic, in a script"),
        ("gantry group clone billing billing-v2 --force", "although the second group is running: it is moved"),
    )
)
@click.argument("source", shell_complete=complete_group)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option("--topic", shell_complete=complete_topic, help="Only this topic.")
@click.option("--force", is_flag=True, help="Also while GROUP has members; they are moved.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def clone(
    source: str, name: str, name_server: str, topic: str | None, force: bool, dry_run: bool, yes: bool, form: Form
) -> None:
    """Have consumer group GROUP go on where group SOURCE is.

    A group that does not exist is made, with the settings of SOURCE. What SOURCE has in its retry topic stays there.
    """
    if source == name:
        raise Mistyped("a group is where it is: name two groups")
    plan = run(_clone_plan(name_server, source, name, topic), name_server, waiting_for=f"looking at {source}")
    if plan.members and not force and not dry_run:
        raise CliError(
            f"{name} has {plan.members} members, which would go on where they are", "stop them, or move them: --force"
        )
    if not dry_run:
        _confirm(f"have {name} go on there?", plan, form, yes=yes)
        run(_clone(name_server, source, name, plan), name_server, waiting_for=f"moving {name}")
    document = CloneDocument(
        source=source, group=name, is_dry_run=dry_run, is_made=plan.is_made, members=plan.members,
        queues=_rows(plan.moves),
    )  # fmt: skip
    show(form, document, lambda: _screen(f"{name} {'would go' if dry_run else 'goes'} on where {source} is", plan))


async def _clone_plan(name_server: str, source: str, target: str, topic: str | None) -> Plan:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        groups = await admin.groups.all()
        if source not in groups:
            raise Absent(f"there is no group {source}", "see `gantry group list`")
        topics = [topic] if topic is not None else await admin.groups.topics(source)
        moves: list[Move] = []
        for one in topics:
            if topic is None and is_retry_or_dead_letter(one):
                continue
            here, there = await asyncio.gather(admin.groups.committed(source, one), admin.groups.committed(target, one))
            moves += _moves({queue: offset for queue, offset in here.items() if offset is not None}, there)
        if not moves:
            raise Absent(f"{source} has consumed nothing{'' if topic is None else f' of {topic}'} yet")
        members = await admin.members.connections(target)
        return Plan(moves=tuple(moves), members=len(members), is_made=target not in groups)


async def _clone(name_server: str, source: str, target: str, plan: Plan) -> None:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        if plan.is_made:
            config = (await admin.groups.all())[source]
            await admin.groups.create(msgspec.structs.replace(config, group_name=target))
        for topic in sorted({move.queue.topic for move in plan.moves}):
            await admin.groups.clone(source, target, topic)
        if plan.members:
            for move in plan.moves:
                await admin.groups.reset_queue(target, move.queue, move.after)


# -- what both show ----------------------------------------------------------------------------------------------------


def _moves(after: Mapping[MessageQueue, int], before: Mapping[MessageQueue, int | None]) -> tuple[Move, ...]:
    queues = sorted(after, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))
    return tuple(Move(queue, before.get(queue), after[queue]) for queue in queues)


def _rows(moves: Sequence[Move]) -> list[MovedQueueDocument]:
    return [
        MovedQueueDocument(
            topic=move.queue.topic,
            broker=move.queue.broker_name,
            queue_id=move.queue.queue_id,
            before=move.before,
            after=move.after,
        )
        for move in moves
    ]


def _confirm(question: str, plan: Plan, form: Form, *, yes: bool) -> None:
    if yes:
        return
    if not form.is_document:
        for line in _sums(plan):
            click.echo(line)
    click.confirm(question, abort=True, err=form.is_document)


def _sums(plan: Plan) -> Iterator[str]:
    again = sum(max(0, (move.before or 0) - move.after) for move in plan.moves if move.before is not None)
    skipped = sum(max(0, move.after - move.before) for move in plan.moves if move.before is not None)
    fresh = sum(move.before is None for move in plan.moves)
    yield f"consumed again: {count_text(again)} messages; skipped: {count_text(skipped)}"
    if fresh:
        yield f"queues that it had not begun: {fresh}"
    if plan.members:
        yield f"members that are running now: {plan.members}"


def _screen(title: str, plan: Plan) -> Iterator[RenderableType]:
    columns = ("topic", "broker", "queue", "before", "after", "change")
    rows = (
        (
            move.queue.topic,
            move.queue.broker_name,
            str(move.queue.queue_id),
            "-" if move.before is None else count_text(move.before),
            count_text(move.after),
            _change(move),
        )
        for move in plan.moves
    )
    yield table(title, columns, rows, right=columns[2:5])
    yield from _sums(plan)


def _change(move: Move) -> str:
    if move.before is None or move.before == move.after:
        return "begins here" if move.before is None else "stays"
    if move.after < move.before:
        return f"{count_text(move.before - move.after)} again"
    return f"{count_text(move.after - move.before)} skipped"
