"""The commands `gantry group list`, `describe`, `members` and `running`, which query groups and their members."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import click
from rich.console import RenderableType
from rich.text import Text

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import NotFoundError
from gantry_cli.examples import examples
from gantry_cli.group.documents import (
    ConsumeRateDocument,
    GroupDocument,
    GroupLagDocument,
    GroupQueueDocument,
    MemberDocument,
    MembersOfGroupDocument,
    ProcessQueueDocument,
    RunningDocument,
)
from gantry_cli.options import name_server_option, run, watch_options, watch_screens
from gantry_cli.output import OutputFormat, output_option, show, show_names, table
from gantry_cli.text import count_text, rate_text, time_text, wait_text
from gantry_client import Admin, ClientError, ConsumerConnections, MessageQueue, QueueProgress
from gantry_client.documents import longest_wait
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.consumers import ConsumerRunningInfo
from gantry_wire.names import is_system_group

CONCURRENT_QUERIES_MAX = 16
"""The number of members of a group that are queried concurrently."""


@click.command(
    "list",
    epilog=examples(
        ("gantry group list", "list the groups of applications"),
        ("gantry group list --all", "include the groups of the system"),
        ("gantry group list --lag", "show how far each group is behind, the longest wait first"),
    ),
)
@name_server_option
@click.option("--all", "with_internal", is_flag=True, help="Include the groups of the system.")
@click.option("--lag", "has_lag", is_flag=True, help="Show the lag of each group in messages and in seconds.")
@watch_options
@output_option
def list_groups(
    name_server: str, with_internal: bool, has_lag: bool, interval_s: float | None, form: OutputFormat
) -> None:
    """List the names of consumer groups, one per line.

    With --lag or --output wide it shows a table with members and lag, the longest wait first. `waiting` is the age of
    the oldest message that the group has not consumed, as the brokers report it.
    """
    with_lag = has_lag or form.is_wide

    async def query() -> _GroupListing:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            names = [name for name in await admin.groups.all() if with_internal or not is_system_group(name)]
            return _GroupListing(names, await _lags(admin, names) if with_lag else [])

    if interval_s is not None:
        watch_screens(form, interval_s, lambda: run(query(), name_server), _listing_screen)
        return
    listing = run(query(), name_server, waiting_for="listing groups")
    if with_lag and (listing.lags or form.is_document):
        show(form, listing.lags, lambda: _listing_screen(listing))
    else:
        show_names(form, listing.names, NO_GROUPS)


NO_GROUPS = "No consumer groups; the first consumer of a group creates it"


class _GroupListing(NamedTuple):
    """The consumer groups of a cluster."""

    names: list[str]
    lags: list[GroupLagDocument]
    """Members and lag of each group; empty if they are not wanted."""


def _listing_screen(listing: _GroupListing) -> Iterator[RenderableType]:
    if listing.lags:
        yield lags_table(listing.lags)
    else:
        yield Text("\n".join(listing.names) or NO_GROUPS)


async def _lags(admin: Admin, names: list[str]) -> list[GroupLagDocument]:
    """Return the lag of these groups, the longest wait first."""
    limit = asyncio.Semaphore(CONCURRENT_QUERIES_MAX)

    async def one(name: str) -> GroupLagDocument:
        async with limit:
            try:
                members = _count(await admin.groups.members(name))
                progress = await admin.groups.progress(name)
                waits = await admin.groups.lag_seconds(name, progress)
            except ClientError:  # a group that has never consumed has no progress
                return GroupLagDocument(group=name, members=None, topics=0, lag=None, lag_s=None)
        return GroupLagDocument(
            group=name,
            members=members,
            topics=len({queue.topic for queue in progress}),
            lag=sum(queue.lag for queue in progress.values()),
            lag_s=longest_wait(waits[queue] for queue, found in progress.items() if found.lag > 0),
        )

    found = await asyncio.gather(*(one(name) for name in names))
    return sorted(found, key=lambda row: (-(row.lag_s or 0.0), -(row.lag or 0), row.group))


@dataclass(frozen=True, slots=True)
class _Progress:
    """The settings, members and offsets of one group, as brokers report them."""

    config: SubscriptionGroupConfig | None
    members: int
    per_s: float
    """The number of messages that the group consumes in a second."""

    queues: dict[MessageQueue, QueueProgress]
    waits: dict[MessageQueue, float | None]
    """The lag in seconds of each queue."""


@click.command(
    epilog=examples(
        ("gantry group describe billing", "show all queues"),
        ("gantry group describe billing --topic orders", "show one topic"),
        ("gantry group describe billing --output json", "print JSON"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option("--topic", shell_complete=complete_topic, help="Only this topic.")
@watch_options
@output_option
def describe(name: str, name_server: str, topic: str | None, interval_s: float | None, form: OutputFormat) -> None:
    """Show a consumer group's offsets, lag and messages in flight in every queue.

    `waiting` is the lag in seconds: the age of the oldest message that the group has not consumed, as the brokers
    report it. A broker that does not report it gives an upper limit, the time since the last consumed message was
    stored. While a group has members, topics that it does not subscribe to any more are left out.
    """

    async def query() -> _Progress:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            config = (await admin.groups.all()).get(name)
            stats = await admin.groups.stats(name, topic)
            members = await admin.groups.members(name)
            queues = dict(stats.offset_table)
            waits = await admin.groups.lag_seconds(name, queues)
            return _Progress(config, _count(members), stats.consume_tps, queues, waits)

    def observe(waiting_for: str | None = None) -> GroupDocument:
        found = run(query(), name_server, waiting_for=waiting_for)
        if found.config is None and not found.queues:
            raise NotFoundError(f"group {name} not found", "see `gantry group list`")
        return _group_document(name, found)

    if interval_s is not None:
        watch_screens(form, interval_s, observe, lambda one: group_screen(one, is_wide=form.is_wide))
        return
    document = observe(f"reading group {name}")
    show(form, document, lambda: group_screen(document, is_wide=form.is_wide))


@click.command(
    epilog=examples(
        ("gantry group members billing", "show clients and subscriptions"),
        ("gantry group members billing --output json", "print JSON"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@output_option
def members(name: str, name_server: str, form: OutputFormat) -> None:
    """Show the present members of a consumer group, their addresses and subscriptions."""

    async def query() -> ConsumerConnections | None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            connections = await admin.groups.members(name)
            if not _count(connections):
                await _require_group(admin, name)
            return connections

    found = run(query(), name_server, waiting_for=f"reading group {name}")
    document = MembersOfGroupDocument(
        group=name,
        message_model=None if found is None else found.message_model,
        consume_type=None if found is None else found.consume_type,
        consume_from=None if found is None else found.consume_from_where,
        subscriptions={} if found is None else _subscriptions_of(found),
        members=[] if found is None else _clients(found),
    )
    show(form, document, lambda: members_screen(document))


@click.command(
    epilog=examples(
        ("gantry group running billing", "show the queues and rates of all members"),
        ("gantry group running billing 10.0.0.7@4711", "show one member, by its client id"),
        ("gantry group running billing 10.0.0.7@4711 --stacks", "show its stack traces, too"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("client_id", metavar="[CLIENT]", required=False)
@name_server_option
@click.option("--stacks", "has_stacks", is_flag=True, help="Show the stack traces of each member's threads and tasks.")
@output_option
def running(name: str, client_id: str | None, name_server: str, has_stacks: bool, form: OutputFormat) -> None:
    """Show the state of a group's members: their queues and consume rates.

    A broker requests the state over the member's connection. For a member that does not answer within ten seconds, the
    error is shown.
    """

    async def query() -> list[RunningDocument]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            known = sorted(await admin.consumers.connections(name))
            if not known:
                await _require_group(admin, name)
            limit = asyncio.Semaphore(CONCURRENT_QUERIES_MAX)

            async def query_member(member: str) -> RunningDocument:
                async with limit:
                    try:
                        return running_document(
                            member, await admin.consumers.running_info(name, member, has_stacks=has_stacks)
                        )
                    except ClientError as error:
                        return _failed_document(member, str(error))

            if client_id is not None and client_id not in known:
                raise NotFoundError(f"{client_id} is not a member of {name}", f"see `gantry group members {name}`")
            return list(
                await asyncio.gather(*(query_member(member) for member in known if client_id in (None, member)))
            )

    found = run(query(), name_server, waiting_for=f"querying the members of {name}")
    show(form, found, lambda: running_screen(name, found))


async def _require_group(admin: Admin, name: str) -> None:
    """Raise NotFoundError if no broker has settings or offsets of a group, by the rule of `describe`.

    Offsets come first: only an administrator may list the groups.
    """
    if not (await admin.groups.stats(name)).offset_table and name not in await admin.groups.all():
        raise NotFoundError(f"group {name} not found", "see `gantry group list`")


# -- documents ---------------------------------------------------------------------------------------------------------


def running_document(client_id: str, info: ConsumerRunningInfo) -> RunningDocument:
    """Convert a member's response to a document."""
    return RunningDocument(
        client_id=client_id,
        properties=dict(sorted(info.properties.items())),
        subscriptions={one.topic: one.sub_string or "*" for one in info.subscription_set},
        queues=[
            ProcessQueueDocument(
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                committed_offset=state.commit_offset,
                messages=state.cached_msg_count,
                is_locked=state.locked,
                last_pull_ms=state.last_pull_timestamp,
                last_consume_ms=state.last_consume_timestamp,
            )
            for queue, state in sorted(info.mq_table.items(), key=lambda item: _queue_order(item[0]))
        ],
        topics=[
            ConsumeRateDocument(
                topic=topic,
                fetched_per_s=rates.pull_tps,
                consumed_per_s=rates.consume_ok_tps,
                failed_per_s=rates.consume_failed_tps,
                fetch_ms=rates.pull_rt,
                consume_ms=rates.consume_rt,
                failed_in_hour=rates.consume_failed_msgs,
            )
            for topic, rates in sorted(info.status_table.items())
        ],
        stacks=info.jstack,
    )


def _failed_document(client_id: str, failure: str) -> RunningDocument:
    return RunningDocument(
        client_id=client_id, properties={}, subscriptions={}, queues=[], topics=[], stacks=None, failure=failure
    )


def _group_document(name: str, found: _Progress) -> GroupDocument:
    queues = [
        GroupQueueDocument(
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            consumed_offset=progress.consumer_offset,
            fetched_offset=progress.pull_offset,
            end_offset=progress.broker_offset,
            lag=progress.lag,
            lag_s=found.waits[queue],
            last_consumed_ms=progress.last_timestamp or None,
        )
        for queue, progress in sorted(found.queues.items(), key=lambda item: _queue_order(item[0]))
    ]
    return GroupDocument(
        group=name,
        settings=found.config,
        members=found.members,
        lag=sum(queue.lag for queue in queues),
        lag_s=longest_wait(queue.lag_s for queue in queues if queue.lag > 0),
        consumed_per_s=found.per_s,
        queues=queues,
    )


def _clients(found: ConsumerConnections) -> list[MemberDocument]:
    return sorted(
        (
            MemberDocument(client_id=one.client_id, address=one.client_addr, language=one.language, version=one.version)
            for one in found.connection_set
        ),
        key=lambda one: (one.client_id, one.address),
    )


def _subscriptions_of(found: ConsumerConnections) -> dict[str, str]:
    return {topic: data.sub_string or "*" for topic, data in sorted(found.subscription_table.items())}


def _count(found: ConsumerConnections | None) -> int:
    return 0 if found is None else len(found.connection_set)


def _queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


# -- screens -----------------------------------------------------------------------------------------------------------
# The text output of consumer groups: progress, members and their state.


def group_screen(document: GroupDocument, *, is_wide: bool = False) -> Iterator[RenderableType]:
    """Render the progress of a group, with its settings and further columns if the screen is wide."""
    members = f"{document.members} member{'' if document.members == 1 else 's'}"
    wait = f", the oldest waiting for {wait_text(document.lag_s)}" if document.lag > 0 else ""
    yield f"group {document.group}: {members}, lag of {count_text(document.lag)} messages{wait}"
    if is_wide and document.settings is not None:
        settings = document.settings
        yield (
            f"consumption {'enabled' if settings.consume_enable else 'disabled'}, "
            f"{settings.retry_queue_nums} retry queues, at most {settings.retry_max_times} retries; "
            f"{rate_text(document.consumed_per_s)} messages/s"
        )
    if not document.queues:
        yield "No committed offsets"
        return
    common = ("topic", "broker", "queue", "consumed", "in flight", "end", "lag", "waiting", "last consumed")
    columns = (*common, *(("fetched",) if is_wide else ()))
    rows = (_queue_row(queue) + ((count_text(queue.fetched_offset),) if is_wide else ()) for queue in document.queues)
    yield table(None, columns, rows, right=(*columns[2:8], "fetched"))


def _queue_row(queue: GroupQueueDocument) -> tuple[str, ...]:
    return (
        queue.topic,
        queue.broker,
        str(queue.queue_id),
        count_text(queue.consumed_offset),
        count_text(max(0, queue.fetched_offset - queue.consumed_offset)),
        count_text(queue.end_offset),
        count_text(queue.lag),
        wait_text(queue.lag_s),
        time_text(queue.last_consumed_ms) if queue.last_consumed_ms else "never",
    )


def lags_table(lags: list[GroupLagDocument]) -> RenderableType:
    """Render the members and the lag of groups."""
    rows = (
        (one.group, "none" if one.members is None else count_text(one.members), str(one.topics),
         "none" if one.lag is None else count_text(one.lag), "none" if one.lag is None else wait_text(one.lag_s))
        for one in lags
    )  # fmt: skip
    columns = ("group", "members", "topics", "lag", "waiting")
    return table(None, columns, rows, right=columns[1:])


def members_screen(document: MembersOfGroupDocument) -> Iterator[RenderableType]:
    """Render the members and subscriptions of a group."""
    if not document.members:
        yield f"No members in group {document.group}"
        return
    rows = ((one.client_id, one.address, one.language or "", str(one.version)) for one in document.members)
    yield table(f"Members of {document.group}", ("client", "address", "language", "version"), rows, right=("version",))
    yield table("Subscriptions", ("topic", "filter"), document.subscriptions.items())


def running_screen(name: str, found: list[RunningDocument]) -> Iterator[RenderableType]:
    """Render the state of a group's members."""
    if not found:
        yield f"No members in group {name}"
    for one in found:
        if one.failure is not None:
            yield Text(f"{one.client_id} does not answer: {one.failure}")
            continue
        columns = ("topic", "broker", "queue", "committed", "in flight", "last pull", "last consumed")
        rows = (
            (
                queue.topic,
                queue.broker,
                str(queue.queue_id),
                count_text(queue.committed_offset),
                count_text(queue.messages),
                time_text(queue.last_pull_ms),
                time_text(queue.last_consume_ms),
            )
            for queue in one.queues
        )
        yield table(one.client_id, columns, rows, right=columns[2:5])
        columns = ("topic", "fetched/s", "consumed/s", "failed/s", "fetch ms", "consume ms", "failed in the last hour")
        rate_rows = (
            (
                rates.topic,
                rate_text(rates.fetched_per_s),
                rate_text(rates.consumed_per_s),
                rate_text(rates.failed_per_s),
                rate_text(rates.fetch_ms),
                rate_text(rates.consume_ms),
                count_text(rates.failed_in_hour),
            )
            for rates in one.topics
        )
        yield table(None, columns, rate_rows, right=columns[1:])
        if one.stacks is not None:
            yield Text(one.stacks)
