"""The command `gantry search`: find messages of a topic by key, id, time, tag, property and content."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import click
import msgspec

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_topic
from gantry_cli.errors import EXIT_INTERRUPTED, InvalidInput, for_same_cluster
from gantry_cli.examples import examples
from gantry_cli.messages.content import accepts, content_options, make_matcher
from gantry_cli.messages.formatting import MessageFormatter, choose_formatter, format_option
from gantry_cli.messages.places import Place, place_of
from gantry_cli.messages.reading import run_until_interrupted
from gantry_cli.messages.topic_search import TopicSearch
from gantry_cli.options import name_server_option, run
from gantry_cli.output import OutputFormat, output_option
from gantry_cli.progress import SearchLine
from gantry_cli.round_trip import READER_GROUP
from gantry_cli.text import StartPosition, count_text, parse_start_position, plural, rate_text
from gantry_client import Admin, BrokerRefused, InvalidMessage, PullConsumer, ReceivedMessage, Sql
from gantry_client.subscriptions import FilterExpression
from gantry_wire.search import MessageMatcher, SearchCriteria

INDEX_MESSAGES_MAX: Final = 32
"""The most messages of one answer of a broker's index; RocketMQ's brokers return up to 64."""

TIME_HELP: Final = "an age (10m, 2h, 1d) or a local time (2025-01-31T12:00)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOrder:
    """The options of one call of the command."""

    topic: str
    start: StartPosition
    end: StartPosition
    matcher: MessageMatcher
    scans: bool
    """Whether messages are pulled for a key or an id, too."""

    limit: int
    format_message: MessageFormatter


@dataclass(slots=True)
class _Outcome:
    """What the search has done, for the last line, which is printed also after an interruption."""

    began_s: float = field(default_factory=time.monotonic)
    hits: int = 0
    search: TopicSearch | None = None
    """The scan; None while, and after, the index was queried."""

    is_interrupted: bool = True
    is_limited: bool = False
    first: Place | None = None
    """The place of the first hit."""

    def text(self, limit: int) -> str:
        """Return the last line: the hits, the exact share that was scanned, and why the search ended."""
        found = f"{plural(self.hits, 'message')} found" if self.hits else "No messages found"
        why = "interrupted" if self.is_interrupted else f"limit of {limit} reached" if self.is_limited else "complete"
        if self.search is None:
            return f"{found} in the index ({why})"
        elapsed_s = max(time.monotonic() - self.began_s, 0.001)
        scan = self.search
        gone = f", {count_text(scan.deleted)} deleted meanwhile" if scan.deleted else ""
        return (
            f"{found}; scanned {count_text(scan.scanned)} of {count_text(scan.total)} messages "
            f"({scan.share:.1%}{gone}) at {rate_text(scan.scanned / elapsed_s)}/s ({why})"
        )


@click.command(
    epilog=examples(
        ("gantry search orders --key order-481007", "find the messages with a key, in the brokers' indexes"),
        ("gantry search orders --from 2h --sql \"region = 'eu'\"", "find messages of the last two hours by a property"),
        ("gantry search orders --text 'SKU-0042' --limit 5", "find the newest five whose body has this text"),
        (
            "gantry search orders --json-path '$.order.id = 17' --format '{offset} {json.customer}'",
            "find by a field of JSON bodies, and print parts of them",
        ),
    )
)
@click.argument("topic", shell_complete=complete_topic)
@name_server_option
@click.option("--key", metavar="KEY", help="One of the message's keys; looked up in the brokers' indexes.")
@click.option("--id", "message_id", metavar="ID", help="The producer's or the broker's message id.")
@click.option("--from", "begin", metavar="WHEN", help=f"Only messages stored since then: {TIME_HELP}.")
@click.option("--to", "end", metavar="WHEN", help=f"Only messages stored before: {TIME_HELP}.")
@click.option("--tag", "tags", help="Only messages with this tag; `a || b` matches both.")
@click.option("--sql", metavar="FILTER", help="Only messages whose properties match this filter (docs/filters.md).")
@content_options
@click.option("--scan", is_flag=True, help="Read all messages for --key and --id, too, instead of using the indexes.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Stop after this many hits.")
@click.option("-v", "--verbose", is_flag=True, help="Print time, queue, offset, tag and keys before each body.")
@format_option
@output_option
def search(
    topic: str, name_server: str, key: str | None, message_id: str | None, begin: str | None, end: str | None,
    tags: str | None, sql: str | None, text: str | None, ignore_case: bool, json_paths: tuple[str, ...], scan: bool,
    limit: int, verbose: bool, template: str | None, form: OutputFormat,
) -> None:  # fmt: skip
    """Search the messages of a topic.

    Prints the messages of TOPIC that meet all conditions as they are found, newest first within each step of it.
    Offsets are neither used nor committed, so no consumer is affected. A key or an id is looked up in the brokers'
    indexes; otherwise all messages in the time range are pulled. The brokers filter by tag, and by SQL92 if they have
    enablePropertyFilter; if not, it is done here. The last lines go to standard error: the exact share of the messages
    that was scanned, also after Ctrl-C, and the command that says what became of the first hit.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        start, until = _time_of(begin, now_ms), _time_of(end, now_ms)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    criteria = SearchCriteria(
        from_ms=start.timestamp_ms, to_ms=until.timestamp_ms, tag=tags, key=key, id=message_id, sql=sql, text=text,
        ignores_case=ignore_case, json_paths=json_paths,
    )  # fmt: skip
    if tags is not None and sql is not None:
        raise InvalidInput("--tag and --sql are mutually exclusive: filter by tag in SQL with TAGS = 'paid'")
    order = SearchOrder(
        topic=topic, start=start, end=until, matcher=make_matcher(criteria), scans=scan, limit=limit,
        format_message=choose_formatter(form, template, is_verbose=verbose),
    )  # fmt: skip
    outcome = _Outcome()
    run(run_until_interrupted(_search(name_server, order, outcome)), name_server)
    click.echo(outcome.text(limit), err=True)
    if outcome.first is not None and not form.is_document:
        next_command = f"gantry message describe {outcome.first}"
        click.echo(for_same_cluster(f"What became of the first one in each group: {next_command}"), err=True)
    if outcome.is_interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _time_of(text: str | None, now_ms: int) -> StartPosition:
    """Return the position of a time; without a time, or with `earliest` or `latest`, no limit."""
    return StartPosition() if text is None else parse_start_position(text, now_ms)


async def _search(name_server: str, order: SearchOrder, outcome: _Outcome) -> None:
    criteria = order.matcher.criteria
    uses_index = not order.scans and (criteria.key is not None or criteria.id is not None)
    with SearchLine() as line:
        found = _in_index(name_server, order) if uses_index else _by_scan(name_server, order, outcome, line)
        async with contextlib.aclosing(found) as messages:
            async for message in messages:
                line.clear()
                click.echo(order.format_message(message))
                outcome.hits += 1
                outcome.first = outcome.first or place_of(message)
                if outcome.hits >= order.limit:
                    outcome.is_limited = True
                    break
    outcome.is_interrupted = False


async def _by_scan(
    name_server: str, order: SearchOrder, outcome: _Outcome, line: SearchLine
) -> AsyncGenerator[ReceivedMessage, None]:
    criteria = order.matcher.criteria
    async with PullConsumer(name_server, READER_GROUP, client_settings=client_settings()) as consumer:
        if criteria.sql is not None and await _brokers_filter(consumer, order.topic, criteria.sql):
            # The brokers apply the SQL filter; a name of a property may differ in what a client sees of it.
            matcher = make_matcher(msgspec.structs.replace(criteria, sql=None))
            server_filter: FilterExpression = Sql(criteria.sql)
        else:
            matcher, server_filter = order.matcher, criteria.tag or "*"
        found = TopicSearch(consumer, order.topic, matcher, server_filter=server_filter)
        await found.open(order.start, order.end)
        outcome.search = found

        async def show_progress() -> None:
            while True:
                line.show(found.scanned, found.total, outcome.hits)
                await asyncio.sleep(line.interval_s)

        shown = asyncio.create_task(show_progress())
        try:
            async with contextlib.aclosing(found.hits()) as hits:
                async for message in hits:
                    yield message
        finally:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)


async def _brokers_filter(consumer: PullConsumer, topic: str, sql: str) -> bool:
    """Return whether the brokers of a topic apply an SQL92 filter; those without `enablePropertyFilter` refuse it."""
    for queue in {one.broker_name: one for one in await consumer.queues(topic)}.values():
        try:
            await consumer.fetch(queue, await consumer.max_offset(queue), tags=Sql(sql), messages_max=1)
        except BrokerRefused as error:
            if "SQL92" in str(error):
                return False
            raise
    return True


async def _in_index(name_server: str, order: SearchOrder) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield the messages that the brokers' indexes have for the key or id, newest first."""
    async with Admin(name_server, client_settings=client_settings()) as admin:
        records = [message async for message in _look_up(admin, order)]
        if len(records) >= INDEX_MESSAGES_MAX:
            click.echo("The index returns no more messages than these; use --scan to find all", err=True)
        for message in reversed(records):
            if accepts(order.matcher, message):
                yield message


async def _look_up(admin: Admin, order: SearchOrder) -> AsyncIterator[ReceivedMessage]:
    """Yield what the indexes have, oldest first; for an id also the message that a broker's id names."""
    wanted = order.matcher.criteria
    if wanted.id is None:
        assert wanted.key is not None, "the index is queried for a key or an id"
        found = await admin.messages.by_key(order.topic, wanted.key, messages_max=INDEX_MESSAGES_MAX)
    else:
        found = await admin.messages.by_id(order.topic, wanted.id)
        if not found:
            with contextlib.suppress(InvalidMessage, BrokerRefused):
                found = [await admin.messages.view(wanted.id, order.topic)]
    for message in found:
        yield message
