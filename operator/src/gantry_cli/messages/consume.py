"""The command `gantry consume`: read a topic, without a group or as a member of one."""

import asyncio
import base64
import contextlib
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import click

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import InvalidInput
from gantry_cli.examples import examples
from gantry_cli.messages.documents import MessageDocument
from gantry_cli.messages.reading import Delivery, GroupSubscription, TopicReader, consume_as_member
from gantry_cli.options import name_server_option, refuse_ignored, run
from gantry_cli.output import OutputFormat, output_option, record_text
from gantry_cli.round_trip import READER_GROUP
from gantry_cli.text import START_POSITION_HELP, StartPosition, parse_start_position, time_text
from gantry_client import InvalidMessage, PullConsumer, ReceivedMessage, Sql, UnreadableBody
from gantry_client.subscriptions import make_filter

MessageFormatter = Callable[[ReceivedMessage], str]


def body_text(message: ReceivedMessage) -> str:
    """Return the body as text. Bytes that are not UTF-8 are escaped, so that they cannot disturb the terminal."""
    try:
        return message.body.decode("utf-8", "backslashreplace")
    except UnreadableBody as error:
        return f"<{error}>"


def line_text(message: ReceivedMessage) -> str:
    """Return a message as one line: store time, queue and offset, tag, keys, retries and body."""
    queue = message.queue
    marks = [f"tag={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    marks += [f"retries={message.reconsume_times}"] if message.reconsume_times else []
    place = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{message.queue_offset}"
    return "  ".join([time_text(message.store_timestamp_ms), place, *marks, body_text(message)])


def message_document(message: ReceivedMessage) -> MessageDocument:
    """Return all fields of a message as a document."""
    document = MessageDocument(
        topic=message.topic,
        broker=message.queue.broker_name,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        store_timestamp_ms=message.store_timestamp_ms,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        tags=message.tags,
        keys=list(message.keys),
        reconsume_times=message.reconsume_times,
        properties=dict(message.properties),
    )
    try:
        document.body = message.body.decode()
    except UnicodeDecodeError:
        document.body_base64 = base64.b64encode(message.body).decode()
    except UnreadableBody as error:
        document.body_fault = str(error)
    return document


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
@click.option("--count", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages, until Ctrl-C.")
@click.option("-v", "--verbose", is_flag=True, help="Print time, queue, offset, tag and keys before each body.")
@output_option
def consume(
    topic: str, name_server: str, group: str | None, begin: str, tags: str | None, sql: str | None, count: int | None,
    follow: bool, verbose: bool, form: OutputFormat,
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
    format_message: MessageFormatter = line_text if verbose else body_text
    if form.is_document:
        refuse_ignored(f"with --output {form}, which prints all fields", ignored={"verbose"})
        format_message = lambda message: record_text(form, message_document(message))  # noqa: E731 -- one of three
    request = ConsumeRequest(
        topic=topic, group=group, start=start, tags=wanted, count=count, follow=follow, format_message=format_message
    )
    run(_run_until_interrupted(_consume(name_server, request)), name_server)


async def _consume(name_server: str, request: ConsumeRequest) -> None:
    printed = 0
    async with contextlib.aclosing(_open_deliveries(name_server, request)) as deliveries:
        async for delivery in deliveries:
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


async def _run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run until ``work`` ends, or until Ctrl-C or SIGTERM, which are normal ends of reading."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
