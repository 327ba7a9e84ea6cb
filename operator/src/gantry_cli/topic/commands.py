"""`gantry topic`: list, create, delete, describe."""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

import click
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_topic
from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.options import name_server_option, read_pairs, run
from gantry_cli.output import Form, output_option, print_document, show, show_names, table
from gantry_cli.status.cluster_view import GroupView, summarize_topic, view_group
from gantry_cli.text import count_text, time_text
from gantry_cli.topic.documents import (
    QueueDocument,
    TopicCreatedDocument,
    TopicDeletedDocument,
    TopicDocument,
    TopicOrderDocument,
    TopicSettingsDocument,
)
from gantry_client import Admin, MessageQueue, NoRoute, QueueOffsets
from gantry_wire.commands.admin import TopicConfig

# -- the order of a topic ----------------------------------------------------------------------------------------------
# `gantry topic order`: which queues the messages of an order topic are spread over, as name servers keep it.
#
#     ORDER_TOPIC_CONFIG   "orders" -> "broker-a:4;broker-b:4"
#
# RocketMQ's clients get it with the route where `orderMessageEnable=true` of the name server says so, and then see
# these queues and no others; brokers mark the topic as ordered. `mqadmin updateOrderConf` keeps the same entry.


@click.command(
    epilog=examples(
        ("gantry topic order ledger", "what name servers have of it"),
        ("gantry topic order ledger --set", "over all its queues, as many as each broker takes messages in"),
        ("gantry topic order ledger --set --value 'broker-a:4;broker-b:2'", "over these"),
        ("gantry topic order ledger --remove", "in no order any more"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@click.option("--set", "is_set", is_flag=True, help="Keep an order on every name server.")
@click.option("--value", help="Which, for --set: broker:queues;broker:queues. Default: all queues of the topic.")
@click.option("--remove", "is_removed", is_flag=True, help="Let no name server keep one.")
@output_option
def order(name: str, name_server: str, is_set: bool, value: str | None, is_removed: bool, form: Form) -> None:
    """Show, set or remove the order of topic NAME."""
    if is_set and is_removed:
        raise click.UsageError("--set and --remove contradict each other")
    if value is not None and not is_set:
        raise click.UsageError("--value is for --set")
    if value is not None:
        _check(value)

    async def ask() -> str | None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            if is_removed:
                await admin.topics.remove_order(name)
            elif is_set:
                await admin.topics.set_order(name, value or await _all_queues(admin, name))
            return await admin.topics.order(name)

    found = run(ask(), name_server, waiting_for=f"looking at {name}")
    if form.is_document:
        print_document(form, TopicOrderDocument(topic=name, order=found, queues=queues_in(found)))
        return
    click.echo(f"topic {name}: {'in no order' if found is None else found}")


async def _all_queues(admin: Admin, name: str) -> str:
    """As many of each broker as it takes messages in."""
    settings = await admin.topics.settings(name)
    return ";".join(f"{broker}:{config.write_queue_nums}" for broker, config in sorted(settings.items()))


def queues_in(text: str | None) -> dict[str, int]:
    """Queues by broker; what cannot be read is left out, for anybody may have written it."""
    parts = [part.rpartition(":") for part in (text or "").split(";")]
    return {broker: int(count) for broker, _, count in parts if broker and count.isascii() and count.isdigit()}


def _check(value: str) -> None:
    if len(queues_in(value)) != len(value.split(";")):
        raise click.UsageError(f"{value!r} is not broker:queues;broker:queues, for example broker-a:4;broker-b:4")


# -- list, create, delete, describe ------------------------------------------------------------------------------------


PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
SHOW_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05


def _read_attributes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read them as a map. An attribute has a value."""
    found = read_pairs(context, parameter, given)
    if empty := [name for name, value in found.items() if not value]:
        raise click.BadParameter(f"{empty[0]} has no value: write NAME=VALUE, for example message.type=FIFO")
    return found


@click.group(
    epilog=examples(
        ("gantry topic list", "all topics"),
        ("gantry topic create orders --queues 16", "a new one, or more queues for an old one"),
        ("gantry topic describe orders", "its queues, and who reads them"),
        ("gantry topic delete orders", "with its messages; asks first"),
    )
)
def topic() -> None:
    """List, create, delete and describe topics."""


@topic.command(
    "list",
    epilog=examples(
        ("gantry topic list", "the topics that applications made"),
        ("gantry topic list --all", "with retry, dead letter and system topics"),
        ("gantry topic list --output yaml", "for programs, or as JSON: --output json"),
    ),
)
@name_server_option
@click.option("--all", "with_internal", is_flag=True, help="Show retry, dead letter and system topics, too.")
@output_option
def list_topics(name_server: str, with_internal: bool, form: Form) -> None:
    """List topics by name, one a line."""

    async def ask() -> list[str]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            return await admin.topics.all(with_internal=with_internal)

    names = run(ask(), name_server, waiting_for="asking for the topics")
    show_names(form, names, "no topics yet -- make one: gantry topic create NAME")


@topic.command(
    epilog=examples(
        ("gantry topic create orders", "8 queues on every master"),
        ("gantry topic create orders --queues 16", "again, with more queues: the topic is changed"),
        ("gantry topic create orders --permission r", "nobody can send any more; reading goes on"),
        ("gantry topic create ledger --ordered --cluster east", "in one cluster only"),
        ("gantry topic create orders --queues 2 --read-queues 8", "drain six queues before they are taken away"),
        ("gantry topic create ledger --attribute message.type=FIFO", "what a proxy of RocketMQ's checks"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@click.option("--queues", type=click.IntRange(1, 1024), default=8, show_default=True, help="Queues on each master.")
@click.option(
    "--read-queues", type=click.IntRange(1, 1024), help="Queues that can be read, when it is more than --queues."
)
@click.option("--permission", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True,
              help="Who may: read and write, read only, write only, nobody.")  # fmt: skip
@click.option("--ordered", is_flag=True, help="Mark the topic as ordered.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", callback=_read_attributes,
              help="Set an attribute; can be given more than once.")  # fmt: skip
@click.option("--no-attribute", "dropped", multiple=True, metavar="NAME", help="Take an attribute away.")
@click.option("--cluster", help="Only the brokers of this cluster.")
@output_option
def create(
    name: str, name_server: str, queues: int, read_queues: int | None, permission: str, ordered: bool,
    attributes: dict[str, str], dropped: tuple[str, ...], cluster: str | None, form: Form,
) -> None:  # fmt: skip
    """Create topic NAME, or change it when it exists.

    Done when every master has it and the name server shows it, so that whoever comes next finds it.
    """

    if both := sorted(attributes.keys() & set(dropped)):
        raise click.UsageError(f"--attribute and --no-attribute contradict each other: both name {', '.join(both)}")

    async def make() -> set[str]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            await admin.topics.create(
                name,
                queues=queues,
                read_queues=read_queues,
                permission=PERMISSIONS[permission],
                is_ordered=ordered,
                attributes={**attributes, **dict.fromkeys(dropped)},
                cluster=cluster,
            )
            masters = {broker.name for broker in await admin.brokers.masters(cluster)}
            await _wait_shown(admin, name, masters)
            return masters

    masters = run(make(), name_server, waiting_for=f"making {name}")
    if form.is_document:
        print_document(form, TopicCreatedDocument(topic=name, queues=queues, brokers=sorted(masters)))
        return
    where = f"{len(masters)} broker{'s' if len(masters) > 1 else ''}"
    click.echo(f"topic {name}: {queues} queue{'s' if queues > 1 else ''} on {where}")


@topic.command(
    epilog=examples(
        ("gantry topic delete orders", "asks first"),
        ("gantry topic delete orders --yes", "in a script"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def delete(name: str, name_server: str, cluster: str | None, yes: bool, form: Form) -> None:
    """Delete topic NAME with all its messages."""

    async def count() -> int:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            return summarize_topic(name, await admin.topics.stats(name)).messages

    async def remove() -> None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            await admin.topics.delete(name, cluster=cluster)

    messages = run(count(), name_server, waiting_for=f"looking at {name}")
    if not yes:
        click.confirm(f"delete topic {name} with {count_text(messages)} messages?", abort=True, err=form.is_document)
    run(remove(), name_server, waiting_for=f"deleting {name}")
    if form.is_document:
        print_document(form, TopicDeletedDocument(topic=name, messages=messages))
        return
    click.echo(f"deleted topic {name}")


@topic.command(
    epilog=examples(
        ("gantry topic describe orders", "queues, offsets, groups"),
        ("gantry topic describe orders --output json", "for programs"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@output_option
def describe(name: str, name_server: str, form: Form) -> None:
    """Show the queues of topic NAME, and the groups that read them."""

    async def ask() -> TopicDocument:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            stats = await admin.topics.stats(name)
            settings = await admin.topics.settings(name)
            return _document(name, stats, settings, await _groups_of(admin, name))

    document = run(ask(), name_server, waiting_for=f"looking at {name}")
    show(form, document, lambda: _render(document))


topic.add_command(describe, "stats")
topic.add_command(order)


async def _groups_of(admin: Admin, name: str) -> list[GroupView]:
    views = await asyncio.gather(*(view_group(admin, group, name) for group in await admin.topics.groups(name)))
    return [view for of_group in views for view in of_group if view.topic == name]


async def _wait_shown(admin: Admin, name: str, masters: set[str]) -> None:
    """Wait until the name server shows the topic on all `masters`. Raises CliError."""
    deadline = time.monotonic() + SHOW_TIMEOUT_S
    while True:
        try:
            if masters <= set((await admin.topics.route(name)).brokers):
                return
        except NoRoute:
            pass  # not yet; that is what we wait for
        if time.monotonic() > deadline:
            raise CliError(
                f"the topic {name} is made, but the name server does not show it on all brokers",
                "look at the brokers' logs for failed registrations",
            )
        await asyncio.sleep(POLL_S)


def _render(document: TopicDocument) -> Iterator[RenderableType]:
    view = document.topic
    where = f"{view.queues} queues on {', '.join(view.brokers)}"
    yield f"topic {view.name}: {count_text(view.messages)} messages in {where}"
    columns = ("broker", "queue", "first offset", "end offset", "messages", "last message")
    rows = (
        (
            queue.broker,
            str(queue.queue_id),
            count_text(queue.min_offset),
            count_text(queue.max_offset),
            count_text(queue.max_offset - queue.min_offset),
            time_text(queue.last_message_ms) if queue.last_message_ms else "never",
        )
        for queue in document.queues
    )
    yield table(None, columns, rows, right=columns[1:5])
    settings_columns = ("broker", "write queues", "read queues", "permission", "ordered", "attributes")
    settings_rows = (
        (
            one.broker,
            str(one.write_queues),
            str(one.read_queues),
            one.permission,
            "yes" if one.is_ordered else "no",
            ", ".join(f"{name}={value}" for name, value in one.attributes.items()),
        )
        for one in document.settings
    )
    yield table("Settings", settings_columns, settings_rows, right=settings_columns[1:3])
    if document.groups:
        group_columns = ("group", "members", "consumed", "lag")
        group_rows = (
            (g.name, str(g.members), count_text(g.consumed_offset_total), count_text(g.lag)) for g in document.groups
        )
        yield table("Groups", group_columns, group_rows, right=group_columns[1:])


def _document(
    name: str,
    stats: dict[MessageQueue, QueueOffsets],
    settings: dict[str, TopicConfig],
    groups: list[GroupView],
) -> TopicDocument:
    queues = [
        QueueDocument(
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            min_offset=offsets.min_offset,
            max_offset=offsets.max_offset,
            last_message_ms=offsets.last_update_timestamp or None,
        )
        for queue, offsets in stats.items()
    ]
    by_broker = [
        TopicSettingsDocument(
            broker=broker,
            write_queues=config.write_queue_nums,
            read_queues=config.read_queue_nums,
            permission=_permission_text(config.perm),
            is_ordered=config.order,
            attributes=dict(sorted(config.attributes.items())),
        )
        for broker, config in settings.items()
    ]
    return TopicDocument(topic=summarize_topic(name, stats), settings=by_broker, queues=queues, groups=groups)


def _permission_text(permission: int) -> str:
    """As the option says it; inheritance is for templates only."""
    return next(text for text, number in PERMISSIONS.items() if number == permission & PERMISSIONS["rw"])
