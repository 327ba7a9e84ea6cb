"""The commands `gantry group reset` and `clone`: set the offsets of a group, after a summary and a confirmation."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import CliError, InvalidInput, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.group.documents import CloneDocument, OffsetChangeDocument, ResetDocument
from gantry_cli.options import name_server_option, run
from gantry_cli.output import OutputFormat, output_option, show, table
from gantry_cli.text import START_POSITION_HELP, StartPosition, count_text, parse_start_position
from gantry_client import Admin, MessageQueue
from gantry_client.offset_reset import OffsetChange, OffsetPlan, ResetRefused, ResetTarget, plan_reset
from gantry_wire.names import is_retry_or_dead_letter

NOW = "now"
"""A synonym of `latest` for --to: `--to now` skips all messages that are not consumed yet."""


# -- reset -------------------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        ("gantry group reset billing orders --to earliest --dry-run", "show what would be consumed again"),
        ("gantry group reset billing orders --to earliest", "consume everything again; asks first"),
        ("gantry group reset billing orders --to now --yes", "skip unconsumed messages, in a script"),
        ("gantry group reset billing orders --to 2h", "consume the messages of the last two hours"),
        ("gantry group reset billing orders --by -100", "consume the last 100 messages of each queue again"),
        ("gantry group reset billing orders --to-offset 1200 --queue broker-a:3", "reset one queue to an offset"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("topic", shell_complete=complete_topic)
@name_server_option
@click.option(
    "--to", "when", metavar="WHEN", help=f"Reset to the first message at or after a time: now, {START_POSITION_HELP}."
)
@click.option(
    "--to-offset", type=click.IntRange(0), metavar="OFFSET", help="Reset to this offset; requires one --queue."
)
@click.option(
    "--by", "shift", type=int, metavar="COUNT", help="Move each offset by this many messages; back, if negative."
)
@click.option("--queue", "queues", multiple=True, metavar="BROKER:NUMBER", help="Reset only this queue; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show the new offsets, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def reset(
    name: str, topic: str, name_server: str, when: str | None, to_offset: int | None, shift: int | None,
    queues: tuple[str, ...], dry_run: bool, yes: bool, form: OutputFormat,
) -> None:  # fmt: skip
    """Reset the offsets of a consumer group in TOPIC.

    Running members continue at the new offsets with their next pull, and discard messages in flight; a group without
    members continues there when it starts. A running handler finishes its message. The group's retry topic is not
    changed. Brokers with useServerSideResetOffset=false, and those older than RocketMQ 5, have the members reset their
    offsets, which takes about ten seconds; there --queue is refused while the group has members.
    """
    start = _parse_start(when, to_offset, shift, queues)
    chosen = [_parse_queue(topic, text) for text in queues]
    plan = run(
        _plan_reset(name_server, name, topic, start, to_offset, shift, chosen),
        name_server,
        waiting_for="reading offsets",
    )
    if not dry_run:
        _confirm(f"Reset offsets of {name}?", plan, form, yes=yes)
        changed = run(
            _reset(name_server, name, topic, start, plan, chosen or _exact(shift, plan)),
            name_server,
            waiting_for=f"resetting {name}",
        )
        plan = OffsetPlan(changes=changed, members=plan.members)
    document = ResetDocument(group=name, is_dry_run=dry_run, members=plan.members, queues=_rows(plan.changes))
    show(form, document, lambda: _render(f"{'New offsets' if dry_run else 'Offsets'} of {name}", plan))


def _parse_start(when: str | None, to_offset: int | None, shift: int | None, queues: tuple[str, ...]) -> StartPosition:
    """Return the position that --to gives; with --to-offset, the end, which is not used. Raises InvalidInput."""
    if [when, to_offset, shift].count(None) != 2:
        raise InvalidInput("give one of --to WHEN, --to-offset OFFSET and --by COUNT")
    if to_offset is not None and len(queues) != 1:
        raise InvalidInput("--to-offset is an offset in one queue: name it with --queue BROKER:NUMBER")
    try:
        return (
            StartPosition(is_latest=True)
            if when in (None, NOW)
            else parse_start_position(str(when), time.time_ns() // 1_000_000)
        )
    except ValueError as error:
        raise InvalidInput(f"--to: {error}") from error


def _exact(shift: int | None, plan: OffsetPlan) -> list[MessageQueue]:
    """Return the queues that are reset one by one, to the offsets of the plan: all of a shift."""
    return [] if shift is None else [change.queue for change in plan.changes]


def _parse_queue(topic: str, text: str) -> MessageQueue:
    broker, separator, number = text.rpartition(":")
    if not separator or not broker or not number.isdecimal():
        raise InvalidInput(f"--queue: {text!r} is not a queue; expected BROKER:NUMBER, for example broker-a:3")
    return MessageQueue(topic=topic, broker_name=broker, queue_id=int(number))


def _timestamp_ms(start: StartPosition) -> int:
    """Return the time of a position as the admin client takes it: -1 is the end of each queue, 0 the beginning."""
    return -1 if start.is_latest else start.timestamp_ms or 0


async def _plan_reset(
    name_server: str,
    group: str,
    topic: str,
    start: StartPosition,
    to_offset: int | None,
    shift: int | None,
    chosen: Sequence[MessageQueue],
) -> OffsetPlan:
    target = (
        ResetTarget(offset=to_offset)
        if to_offset is not None
        else ResetTarget(shift=shift)
        if shift is not None
        else ResetTarget(timestamp_ms=_timestamp_ms(start))
    )
    async with Admin(name_server, client_settings=client_settings()) as admin:
        try:
            return await plan_reset(admin, group, topic, target, chosen)
        except ResetRefused as error:
            if error.is_not_found:
                seen = "`gantry group list`" if "group" in str(error) else f"`gantry topic describe {topic}`"
                raise NotFoundError(str(error), f"see {seen}") from error
            raise InvalidInput(f"--to-offset: {error}" if to_offset is not None else str(error)) from error


async def _reset(
    name_server: str, group: str, topic: str, start: StartPosition, plan: OffsetPlan, chosen: Sequence[MessageQueue]
) -> tuple[OffsetChange, ...]:
    """Reset the offsets. Return the changes as brokers report them: messages may have expired since the plan."""
    before = {change.queue: change.before for change in plan.changes}
    async with Admin(name_server, client_settings=client_settings()) as admin:
        if not chosen:
            return _offset_changes(await admin.groups.reset_offsets(group, topic, _timestamp_ms(start)), before)
        wanted = {change.queue: change.after for change in plan.changes}
        return _offset_changes(
            {queue: await admin.groups.reset_queue(group, queue, wanted[queue]) for queue in chosen}, before
        )


# -- clone -------------------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        ("gantry group clone billing billing-v2 --dry-run", "show the offsets of the second group"),
        ("gantry group clone billing billing-v2", "clone the offsets of all topics; asks first"),
        ("gantry group clone billing billing-v2 --topic orders --yes", "clone one topic, in a script"),
        ("gantry group clone billing billing-v2 --force", "also reset running members of the second group"),
    )
)
@click.argument("source", shell_complete=complete_group)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option("--topic", shell_complete=complete_topic, help="Clone the offsets of this topic only.")
@click.option("--force", is_flag=True, help="Clone although GROUP has members; they continue at the new offsets.")
@click.option("--dry-run", is_flag=True, help="Show the new offsets, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def clone(
    source: str,
    name: str,
    name_server: str,
    topic: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    form: OutputFormat,
) -> None:
    """Set the offsets of consumer group GROUP to those of group SOURCE.

    A group that does not exist is created with the settings of SOURCE. The retry topic of SOURCE is not cloned.
    """
    if source == name:
        raise InvalidInput(f"SOURCE and GROUP are both {name}: name two groups")
    plan = run(_plan_clone(name_server, source, name, topic), name_server, waiting_for=f"reading group {source}")
    if plan.members and not force and not dry_run:
        raise CliError(
            f"{name} has {plan.members} members, which would keep their offsets", "stop them, or use --force"
        )
    if not dry_run:
        _confirm(f"Set offsets of {name}?", plan, form, yes=yes)
        run(_clone(name_server, source, name, plan), name_server, waiting_for=f"setting offsets of {name}")
    document = CloneDocument(
        source=source, group=name, is_dry_run=dry_run, is_new_group=plan.is_new_group, members=plan.members,
        queues=_rows(plan.changes),
    )  # fmt: skip
    show(form, document, lambda: _render(f"{'New offsets' if dry_run else 'Offsets'} of {name}, from {source}", plan))


async def _plan_clone(name_server: str, source: str, target: str, topic: str | None) -> OffsetPlan:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        groups = await admin.groups.all()
        if source not in groups:
            raise NotFoundError(f"group {source} not found", "see `gantry group list`")
        topics = [topic] if topic is not None else await admin.groups.topics(source)
        changes: list[OffsetChange] = []
        for one in topics:
            if topic is None and is_retry_or_dead_letter(one):
                continue
            after, before = await asyncio.gather(
                admin.groups.committed(source, one), admin.groups.committed(target, one)
            )
            changes += _offset_changes({queue: offset for queue, offset in after.items() if offset is not None}, before)
        if not changes:
            raise NotFoundError(f"{source} has no committed offsets{'' if topic is None else f' in {topic}'}")
        members = await admin.consumers.connections(target)
        return OffsetPlan(changes=tuple(changes), members=len(members), is_new_group=target not in groups)


async def _clone(name_server: str, source: str, target: str, plan: OffsetPlan) -> None:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        if plan.is_new_group:
            config = (await admin.groups.all())[source]
            await admin.groups.create(msgspec.structs.replace(config, group_name=target))
        for topic in sorted({change.queue.topic for change in plan.changes}):
            await admin.groups.clone(source, target, topic)
        if plan.members:
            for change in plan.changes:
                await admin.groups.reset_queue(target, change.queue, change.after)


# -- output ------------------------------------------------------------------------------------------------------------


def _offset_changes(
    after: Mapping[MessageQueue, int], before: Mapping[MessageQueue, int | None]
) -> tuple[OffsetChange, ...]:
    queues = sorted(after, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))
    return tuple(OffsetChange(queue, before.get(queue), after[queue]) for queue in queues)


def _rows(changes: Sequence[OffsetChange]) -> list[OffsetChangeDocument]:
    return [
        OffsetChangeDocument(
            topic=change.queue.topic,
            broker=change.queue.broker_name,
            queue_id=change.queue.queue_id,
            before=change.before,
            after=change.after,
        )
        for change in changes
    ]


def _confirm(question: str, plan: OffsetPlan, form: OutputFormat, *, yes: bool) -> None:
    if yes:
        return
    if not form.is_document:
        for line in _summary_lines(plan):
            click.echo(line)
    click.confirm(question, abort=True, err=form.is_document)


def _summary_lines(plan: OffsetPlan) -> Iterator[str]:
    again = sum(max(0, (change.before or 0) - change.after) for change in plan.changes if change.before is not None)
    skipped = sum(max(0, change.after - change.before) for change in plan.changes if change.before is not None)
    fresh = sum(change.before is None for change in plan.changes)
    yield f"consumed again: {count_text(again)} messages; skipped: {count_text(skipped)}"
    if fresh:
        yield f"queues without a committed offset: {fresh}"
    if plan.members:
        yield f"running members: {plan.members}"


def _render(title: str, plan: OffsetPlan) -> Iterator[RenderableType]:
    columns = ("topic", "broker", "queue", "before", "after", "change")
    rows = (
        (
            change.queue.topic,
            change.queue.broker_name,
            str(change.queue.queue_id),
            "-" if change.before is None else count_text(change.before),
            count_text(change.after),
            _change_text(change),
        )
        for change in plan.changes
    )
    yield table(title, columns, rows, right=columns[2:5])
    yield from _summary_lines(plan)


def _change_text(change: OffsetChange) -> str:
    if change.before is None or change.before == change.after:
        return "starts here" if change.before is None else "unchanged"
    if change.after < change.before:
        return f"{count_text(change.before - change.after)} again"
    return f"{count_text(change.after - change.before)} skipped"
