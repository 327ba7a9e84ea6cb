"""`gantry group list`, `describe`, `members`, `running`: how far a group is, who is in it, and what these do."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import click
from rich.console import RenderableType
from rich.text import Text

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_group, complete_topic
from gantry_cli.errors import Absent
from gantry_cli.examples import examples
from gantry_cli.group.documents import (
    GroupDocument,
    GroupQueueDocument,
    InHandDocument,
    MemberDocument,
    MembersOfGroupDocument,
    PaceDocument,
    RunningDocument,
)
from gantry_cli.options import name_server_option, run
from gantry_cli.output import Form, output_option, show, show_names, table
from gantry_cli.text import count_text, rate_text, time_text
from gantry_client import Admin, ClientError, ConsumerConnections, MessageQueue, QueueProgress
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.consumers import ConsumerRunningInfo
from gantry_wire.names import is_system_group

ASKED_AT_ONCE = 16
"""Members of one group."""


@click.command(
    "list",
    epilog=examples(
        ("gantry group list", "the groups of applications"),
        ("gantry group list --all", "with those of the system"),
    ),
)
@name_server_option
@click.option("--all", "with_internal", is_flag=True, help="Show the system's groups, too.")
@output_option
def list_groups(name_server: str, with_internal: bool, form: Form) -> None:
    """List consumer groups by name, one a line."""

    async def ask() -> list[str]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            return [name for name in await admin.groups.all() if with_internal or not is_system_group(name)]

    names = run(ask(), name_server, waiting_for="asking for the groups")
    show_names(form, names, "no consumer groups yet -- a group is made by its first consumer")


@dataclass(frozen=True, slots=True)
class _Progress:
    config: SubscriptionGroupConfig | None
    members: int
    per_s: float
    queues: dict[MessageQueue, QueueProgress]


@click.command(
    epilog=examples(
        ("gantry group describe billing", "queue by queue"),
        ("gantry group describe billing --topic orders", "of one topic"),
        ("gantry group describe billing --output json", "for programs"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option("--topic", shell_complete=complete_topic, help="Only this topic.")
@output_option
def describe(name: str, name_server: str, topic: str | None, form: Form) -> None:
    """Show how far a consumer group is in every queue, and what its members have in hand.

    While a group has members, topics that it does not subscribe to any more are left out.
    """

    async def ask() -> _Progress:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            config = (await admin.groups.all()).get(name)
            stats = await admin.groups.stats(name, topic)
            members = await admin.groups.members(name)
            return _Progress(config, _count(members), stats.consume_tps, dict(stats.offset_table))

    found = run(ask(), name_server, waiting_for=f"looking at {name}")
    if found.config is None and not found.queues:
        raise Absent(f"there is no group {name}", "see `gantry group list`")
    document = _group_document(name, found)
    show(form, document, lambda: group_screen(document))


@click.command(
    epilog=examples(
        ("gantry group members billing", "clients, and what they subscribe to"),
        ("gantry group members billing --output json", "for programs"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@output_option
def members(name: str, name_server: str, form: Form) -> None:
    """Show who consumes for a group now, from where, and what of which topics."""

    async def ask() -> ConsumerConnections | None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            return await admin.groups.members(name)

    found = run(ask(), name_server, waiting_for=f"looking at {name}")
    document = MembersOfGroupDocument(
        group=name,
        message_model=None if found is None else found.message_model,
        consume_type=None if found is None else found.consume_type,
        consume_from=None if found is None else found.consume_from_where,
        subscriptions={} if found is None else _wanted(found),
        members=[] if found is None else _clients(found),
    )
    show(form, document, lambda: members_screen(document))


@click.command(
    epilog=examples(
        ("gantry group running billing", "what every member has in hand, and how it gets on"),
        ("gantry group running billing 10.0.0.7@4711", "one of them, by its client id"),
        ("gantry group running billing 10.0.0.7@4711 --stacks", "and where it stands in its code"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("client_id", metavar="[CLIENT]", required=False)
@name_server_option
@click.option("--stacks", "has_stacks", is_flag=True, help="With the stacks of its threads and tasks.")
@output_option
def running(name: str, client_id: str | None, name_server: str, has_stacks: bool, form: Form) -> None:
    """Ask the members of a group what they do.

    A broker passes the question on over each member's own connection; one that does not answer in ten seconds is
    named with the reason.
    """

    async def ask() -> list[RunningDocument]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            known = sorted(await admin.members.connections(name))
            limit = asyncio.Semaphore(ASKED_AT_ONCE)

            async def one(member: str) -> RunningDocument:
                async with limit:
                    try:
                        return running_document(
                            member, await admin.members.running_info(name, member, has_stacks=has_stacks)
                        )
                    except ClientError as error:
                        return _unknown(member, str(error))

            if client_id is not None and client_id not in known:
                raise Absent(f"{client_id} is no member of {name} now", f"see `gantry group members {name}`")
            return list(await asyncio.gather(*(one(member) for member in known if client_id in (None, member))))

    found = run(ask(), name_server, waiting_for=f"asking the members of {name}")
    show(form, found, lambda: running_screen(name, found))


# -- documents ---------------------------------------------------------------------------------------------------------


def running_document(client_id: str, info: ConsumerRunningInfo) -> RunningDocument:
    """What a member said."""
    return RunningDocument(
        client_id=client_id,
        properties=dict(sorted(info.properties.items())),
        subscriptions={one.topic: one.sub_string or "*" for one in info.subscription_set},
        queues=[
            InHandDocument(
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                committed_offset=held.commit_offset,
                messages=held.cached_msg_count,
                is_locked=held.locked,
                last_pull_ms=held.last_pull_timestamp,
                last_consume_ms=held.last_consume_timestamp,
            )
            for queue, held in sorted(info.mq_table.items(), key=lambda item: _order(item[0]))
        ],
        topics=[
            PaceDocument(
                topic=topic,
                fetched_per_s=pace.pull_tps,
                consumed_per_s=pace.consume_ok_tps,
                failed_per_s=pace.consume_failed_tps,
                fetch_ms=pace.pull_rt,
                consume_ms=pace.consume_rt,
                failed_in_hour=pace.consume_failed_msgs,
            )
            for topic, pace in sorted(info.status_table.items())
        ],
        stacks=info.jstack,
    )


def _unknown(client_id: str, failure: str) -> RunningDocument:
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
            last_consumed_ms=progress.last_timestamp or None,
        )
        for queue, progress in sorted(found.queues.items(), key=lambda item: _order(item[0]))
    ]
    return GroupDocument(
        group=name,
        settings=found.config,
        members=found.members,
        lag=sum(queue.lag for queue in queues),
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


def _wanted(found: ConsumerConnections) -> dict[str, str]:
    return {topic: data.sub_string or "*" for topic, data in sorted(found.subscription_table.items())}


def _count(found: ConsumerConnections | None) -> int:
    return 0 if found is None else len(found.connection_set)


def _order(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


# -- screens -----------------------------------------------------------------------------------------------------------
# Consumer groups for people: how far they are, who is in them, what these do.


def group_screen(document: GroupDocument) -> Iterator[RenderableType]:
    """How far a group is."""
    members = f"{document.members} member{'' if document.members == 1 else 's'}"
    yield f"group {document.group}: {members}, {count_text(document.lag)} messages behind"
    if not document.queues:
        yield "it has consumed nothing yet"
        return
    columns = ("topic", "broker", "queue", "consumed", "in hand", "end", "lag", "last consumed")
    rows = (
        (
            queue.topic,
            queue.broker,
            str(queue.queue_id),
            count_text(queue.consumed_offset),
            count_text(max(0, queue.fetched_offset - queue.consumed_offset)),
            count_text(queue.end_offset),
            count_text(queue.lag),
            time_text(queue.last_consumed_ms) if queue.last_consumed_ms else "never",
        )
        for queue in document.queues
    )
    yield table(None, columns, rows, right=columns[2:7])


def members_screen(document: MembersOfGroupDocument) -> Iterator[RenderableType]:
    """Who is in it."""
    if not document.members:
        yield f"nobody consumes for {document.group} now"
        return
    rows = ((one.client_id, one.address, one.language or "", str(one.version)) for one in document.members)
    yield table(f"Members of {document.group}", ("client", "address", "language", "version"), rows, right=("version",))
    yield table("Subscriptions", ("topic", "wanted"), document.subscriptions.items())


def running_screen(name: str, found: list[RunningDocument]) -> Iterator[RenderableType]:
    """What they do."""
    if not found:
        yield f"nobody consumes for {name} now"
    for one in found:
        if one.failure is not None:
            yield Text(f"{one.client_id} says nothing: {one.failure}")
            continue
        columns = ("topic", "broker", "queue", "committed", "in hand", "last pull", "last consumed")
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
        paces = (
            (
                pace.topic,
                rate_text(pace.fetched_per_s),
                rate_text(pace.consumed_per_s),
                rate_text(pace.failed_per_s),
                rate_text(pace.fetch_ms),
                rate_text(pace.consume_ms),
                count_text(pace.failed_in_hour),
            )
            for pace in one.topics
        )
        yield table(None, columns, paces, right=columns[1:])
        if one.stacks is not None:
            yield Text(one.stacks)
