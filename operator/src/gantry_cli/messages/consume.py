"""The command `gantry consume`: read a topic, without a group or as a member of one."""

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import click

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import InvalidInput
from gantry_cli.examples import examples
from gantry_cli.messages.content import accepts, content_options, make_matcher
from gantry_cli.messages.formatting import MessageFormatter, choose_formatter, format_option
from gantry_cli.messages.reading import (
    Delivery,
    GroupSubscription,
    TopicReader,
    consume_as_member,
    run_until_interrupted,
)
from gantry_cli.options import name_server_option, run
from gantry_cli.output import OutputFormat, output_option
from gantry_cli.round_trip import READER_GROUP
from gantry_cli.text import START_POSITION_HELP, StartPosition, parse_start_position
from gantry_client import InvalidMessage, PullConsumer, Sql
from gantry_client.subscriptions import make_filter
from gantry_wire.search import MessageMatcher, SearchCriteria


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeRequest:
    """The options of one call of the command."""

    topic: str
    group: str | None
    """The consumer group; None to read without a group."""

    start: StartPosition
    tags: str | Sql
    count: int | None
    """After how many messages reading ends; None for no limit."""

    follow: bool
    """Whether to continue with new messages at the end."""

    matcher: MessageMatcher
    """The conditions on the content of messages, which are tested here."""

    format_message: MessageFormatter


@click.command(
    epilog=examples(
        ("gantry consume orders", "read all existing messages; commits no offset"),
        ("gantry consume orders --from latest --follow", "read new messages until Ctrl-C"),
        (
            "gantry consume orders --from 10m --tag 'paid || sent' --output json",
            "read the last ten minutes, filtered by tag, as JSON",
        ),
        (
            "gantry consume orders --follow --json-path '$.state = \"paid\"' --format '{time} {json.order.id}'",
            "print parts of new messages whose JSON body matches",
        ),
        (
            "gantry consume orders --sql \"region = 'eu' AND price > 100\"",
            "read only messages with matching properties",
        ),
        ("gantry consume orders --count 5 --verbose", "read five messages, with their offsets and times"),
        ("gantry consume orders --group billing", "consume what the group has not consumed yet"),
    )
)
@click.argument("topic", shell_complete=complete_topic)
@name_server_option
@click.option(
    "--group",
    shell_complete=complete_group,
    help="Consume as a member of this group: start at its offset, and commit what is printed.",
)
@click.option(
    "--from",
    "begin",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help=f"Where to start: {START_POSITION_HELP}.",
)
@click.option("--tag", "tags", help="Only messages with this tag; `a || b` matches both.")
@click.option(
    "--sql",
    metavar="FILTER",
    help="Only messages whose properties match this filter (docs/filters.md); requires enablePropertyFilter.",
)
@content_options
@click.option("--count", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages, until Ctrl-C.")
@click.option("-v", "--verbose", is_flag=True, help="Print time, queue, offset, tag and keys before each body.")
@format_option
@output_option
def consume(
    topic: str, name_server: str, group: str | None, begin: str, tags: str | None, sql: str | None, count: int | None,
    text: str | None, ignore_case: bool, json_paths: tuple[str, ...], follow: bool, verbose: bool,
    template: str | None, form: OutputFormat,
) -> None:  # fmt: skip
    """Read messages.

    Prints the bodies of the messages of TOPIC, one per line. Without --group, existing messages are printed in the
    order of their store times, no offset is committed, and no consumer is affected. With --group the command consumes
    as a member: it shares the messages with the other members, starts at the group's committed offsets (--from applies
    only to queues without one), and commits each message after it is printed. Without --follow the command ends when
    all messages that existed at its start are read, with --group by any member of the group.
    """
    if tags is not None and sql is not None:
        raise InvalidInput("--tag and --sql are mutually exclusive: filter by tag in SQL with TAGS = 'paid'")
    wanted = (tags or "*") if sql is None else Sql(sql)
    try:
        make_filter(wanted)
        start = parse_start_position(begin, time.time_ns() // 1_000_000)
    except (ValueError, InvalidMessage) as error:
        raise InvalidInput(str(error)) from error
    matcher = make_matcher(SearchCriteria(text=text, ignores_case=ignore_case, json_paths=json_paths))
    if group is not None and matcher.needs_body:
        raise InvalidInput("--text and --json-path cannot be used with --group, which would commit what they leave out")
    request = ConsumeRequest(
        topic=topic, group=group, start=start, tags=wanted, count=count, follow=follow, matcher=matcher,
        format_message=choose_formatter(form, template, is_verbose=verbose),
    )  # fmt: skip
    run(run_until_interrupted(_consume(name_server, request)), name_server)


async def _consume(name_server: str, request: ConsumeRequest) -> None:
    printed = 0
    async with contextlib.aclosing(_open_deliveries(name_server, request)) as deliveries:
        async for delivery in deliveries:
            if not accepts(request.matcher, delivery.message):
                delivery.acknowledge()
                continue
            click.echo(request.format_message(delivery.message))
            delivery.acknowledge()
            printed += 1
            if printed == request.count:
                return


def _open_deliveries(name_server: str, request: ConsumeRequest) -> AsyncGenerator[Delivery, None]:
    if request.group is None:
        return _read_without_group(name_server, request)
    subscription = GroupSubscription(group=request.group, topic=request.topic, tags=request.tags, start=request.start)
    return consume_as_member(name_server, subscription, follow=request.follow)


async def _read_without_group(name_server: str, request: ConsumeRequest) -> AsyncGenerator[Delivery, None]:
    async with PullConsumer(name_server, READER_GROUP, client_settings=client_settings()) as consumer:
        reader = TopicReader(consumer, request.topic, tags=request.tags, warn=lambda text: click.echo(text, err=True))
        cursors = await reader.open(request.start)
        async for delivery in reader.read_existing(cursors):
            yield delivery
        if request.follow:
            async with contextlib.aclosing(reader.read_new(cursors)) as read_new:
                async for delivery in read_new:
                    yield delivery
