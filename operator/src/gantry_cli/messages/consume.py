"""`gantry consume`: read a topic, as an onlooker or as a member of a group."""

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
from gantry_cli.completing import complete_group, complete_topic
from gantry_cli.errors import Mistyped
from gantry_cli.examples import examples
from gantry_cli.messages.documents import MessageDocument
from gantry_cli.messages.reading import Delivery, Membership, TopicReader, group_messages
from gantry_cli.options import name_server_option, refuse_ignored, run
from gantry_cli.output import Form, output_option, record_text
from gantry_cli.round_trip import READER_GROUP
from gantry_cli.text import HELP, Start, parse_start, time_text
from gantry_client import InvalidMessage, PullConsumer, ReceivedMessage, Sql, UnreadableBody
from gantry_client.subscriptions import make_filter

Write = Callable[[ReceivedMessage], str]


def body_text(message: ReceivedMessage) -> str:
    """The body; bytes that are no UTF-8 are escaped, so that they cannot upset a terminal's encoding."""
    try:
        return message.body.decode("utf-8", "backslashreplace")
    except UnreadableBody as error:
        return f"<{error}>"


def line_text(message: ReceivedMessage) -> str:
    """When and where it was stored, what it is marked with, and the body."""
    queue = message.queue
    marks = [f"tag={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    marks += [f"retries={message.reconsume_times}"] if message.reconsume_times else []
    place = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{message.queue_offset}"
    return "  ".join([time_text(message.store_timestamp_ms), place, *marks, body_text(message)])


def message_document(message: ReceivedMessage) -> MessageDocument:
    """Everything, for programs."""
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
class Wish:
    """What was typed."""

    topic: str
    group: str | None
    start: Start
    tags: str | Sql
    count: int | None
    follow: bool
    write: Write


@click.command(
    epilog=examples(
        ("gantry consume orders", "everything that is there, oldest first; changes nothing"),
        ("gantry consume orders --from latest --follow", "what comes from now on, until Ctrl-C"),
        (
            "gantry consume orders --from 10m --tag 'paid || sent' --output json",
            "the last ten minutes, filtered, for programs",
        ),
        ("gantry consume orders --sql \"region = 'eu' AND price > 100\"", "only messages with such properties"),
        ("gantry consume orders --count 5 --verbose", "five messages with their places and times"),
        ("gantry consume orders --group billing", "what the group has left; it counts as consumed"),
    )
)
@click.argument("topic", shell_complete=complete_topic)
@name_server_option
@click.option(
    "--group",
    shell_complete=complete_group,
    help="Be a member of this group: go on where it is, and commit what is printed.",
)
@click.option(
    "--from", "begin", default="earliest", show_default=True, metavar="WHERE", help=f"Where to begin: {HELP}."
)
@click.option("--tag", "tags", help="Only messages with this tag; `a || b` takes both.")
@click.option(
    "--sql",
    metavar="FILTER",
    help="Only messages whose properties meet this condition (docs/filters.md); needs enablePropertyFilter.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("-v", "--verbose", is_flag=True, help="A line with time, place, tag and keys before each body.")
@output_option
def consume(
    topic: str, name_server: str, group: str | None, begin: str, tags: str | None, sql: str | None, count: int | None,
    follow: bool, verbose: bool, form: Form,
) -> None:  # fmt: skip
    """Read messages.

    Prints the bodies of TOPIC, one a line, the oldest first. Without --group this only looks: no offset is committed,
    and no consumer notices. With --group the messages are shared with the group's other members, begin at its committed
    offset (--from counts only where there is none), and are done when they are printed. Without --follow it ends when
    everything is read that was there at the start.
    """
    if tags is not None and sql is not None:
        raise Mistyped("--tag and --sql do not go together: a filter may ask for the tag, as TAGS = 'paid'")
    wanted = (tags or "*") if sql is None else Sql(sql)
    try:
        make_filter(wanted)
        start = parse_start(begin, time.time_ns() // 1_000_000)
    except (ValueError, InvalidMessage) as error:
        raise Mistyped(str(error)) from error
    write: Write = line_text if verbose else body_text
    if form.is_document:
        refuse_ignored(f"with --output {form}, which holds all of it", ignored={"verbose"})
        write = lambda message: record_text(form, message_document(message))  # noqa: E731 -- one of three ways to write
    wish = Wish(topic=topic, group=group, start=start, tags=wanted, count=count, follow=follow, write=write)
    run(_until_interrupted(_consume(name_server, wish)), name_server)


async def _consume(name_server: str, wish: Wish) -> None:
    printed = 0
    async with contextlib.aclosing(_messages(name_server, wish)) as deliveries:
        async for delivery in deliveries:
            click.echo(wish.write(delivery.message))
            delivery.done()
            printed += 1
            if printed == wish.count:
                return


def _messages(name_server: str, wish: Wish) -> AsyncGenerator[Delivery, None]:
    if wish.group is None:
        return _as_onlooker(name_server, wish)
    member = Membership(group=wish.group, topic=wish.topic, tags=wish.tags, start=wish.start)
    return group_messages(name_server, member, follow=wish.follow)


async def _as_onlooker(name_server: str, wish: Wish) -> AsyncGenerator[Delivery, None]:
    async with PullConsumer(name_server, READER_GROUP, client_settings=client_settings()) as consumer:
        reader = TopicReader(consumer, wish.topic, tags=wish.tags, warn=lambda text: click.echo(text, err=True))
        cursors = await reader.open(wish.start)
        async for delivery in reader.present(cursors):
            yield delivery
        if wish.follow:
            async with contextlib.aclosing(reader.following(cursors)) as following:
                async for delivery in following:
                    yield delivery


async def _until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C and SIGTERM are ordinary ends of reading, not failures."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
