"""The commands `gantry topic list`, `create`, `delete`, `describe` and `order`."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import click
from rich.console import RenderableType
from rich.text import Text

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_topic
from gantry_cli.errors import CliError, for_same_cluster
from gantry_cli.examples import examples
from gantry_cli.options import name_server_option, read_pairs, run, watch_options, watch_screens
from gantry_cli.output import OutputFormat, output_option, print_document, show, show_names, table
from gantry_cli.status.cluster_view import (
    GroupView,
    TopicView,
    no_topics_text,
    summarize_topic,
    view_group,
    view_topics,
)
from gantry_cli.status.commands import topic_table
from gantry_cli.text import count_text, plural, time_text, wait_text
from gantry_cli.topic.documents import (
    QueueDocument,
    TopicCreatedDocument,
    TopicDeletedDocument,
    TopicDocument,
    TopicOrderDocument,
    TopicSettingsDocument,
)
from gantry_cli.topic.plan import plan_topic, render_plan
from gantry_client import Admin, MessageQueue, NoRoute, QueueOffsets
from gantry_wire.commands.admin import TopicConfig

# -- order -------------------------------------------------------------------------------------------------------------
# The order configuration of a topic fixes the brokers and queues to which its messages are sent. Name servers store it:
#
#     ORDER_TOPIC_CONFIG   "orders" -> "broker-a:4;broker-b:4"
#
# A name server with `orderMessageEnable=true` sends it to clients with the route; they then use only these queues, and
# brokers mark the topic as ordered. `mqadmin updateOrderConf` writes the same entry.


@click.command(
    epilog=examples(
        ("gantry topic order ledger", "show the order configuration"),
        ("gantry topic order ledger --set", "set it to all write queues of the topic"),
        ("gantry topic order ledger --set --value 'broker-a:4;broker-b:2'", "set it to these queues"),
        ("gantry topic order ledger --remove", "remove it"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@click.option("--set", "is_set", is_flag=True, help="Set the order configuration on every name server.")
@click.option("--value", help="Value for --set: broker:queues;broker:queues. Default: all queues of the topic.")
@click.option("--remove", "is_removed", is_flag=True, help="Remove the order configuration from every name server.")
@output_option
def order(name: str, name_server: str, is_set: bool, value: str | None, is_removed: bool, form: OutputFormat) -> None:
    """Show, set or remove the order configuration of topic NAME."""
    if is_set and is_removed:
        raise click.UsageError("--set and --remove are mutually exclusive")
    if value is not None and not is_set:
        raise click.UsageError("--value requires --set")
    if value is not None:
        _check_order(value)

    async def query() -> str | None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            if is_removed:
                await admin.topics.remove_order(name)
            elif is_set:
                await admin.topics.set_order(name, value or await _all_queues(admin, name))
            return await admin.topics.order(name)

    found = run(query(), name_server, waiting_for=f"querying topic {name}")
    if form.is_document:
        print_document(form, TopicOrderDocument(topic=name, order=found, queues=parse_queue_counts(found)))
        return
    click.echo(f'Topic "{name}": {"no order configuration" if found is None else f"order {found}"}')


async def _all_queues(admin: Admin, name: str) -> str:
    """Return the order configuration with all write queues of each broker."""
    settings = await admin.topics.settings(name)
    return ";".join(f"{broker}:{config.write_queue_nums}" for broker, config in sorted(settings.items()))


def parse_queue_counts(text: str | None) -> dict[str, int]:
    """Return the number of queues by broker. Invalid parts are left out, since other tools can write the value, too."""
    parts = [part.rpartition(":") for part in (text or "").split(";")]
    return {broker: int(count) for broker, _, count in parts if broker and count.isascii() and count.isdigit()}


def _check_order(value: str) -> None:
    if len(parse_queue_counts(value)) != len(value.split(";")):
        raise click.UsageError(
            f"invalid order {value!r}: expected broker:queues;broker:queues, for example broker-a:4;broker-b:4"
        )


# -- list, create, delete, describe ------------------------------------------------------------------------------------


PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
ROUTE_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05


def _read_attributes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse attributes as a mapping. Raises BadParameter for one without a value."""
    found = read_pairs(context, parameter, given)
    if empty := [name for name, value in found.items() if not value]:
        raise click.BadParameter(f"{empty[0]} has no value: expected NAME=VALUE, for example message.type=FIFO")
    return found


@click.group(
    epilog=examples(
        ("gantry topic list", "list all topics"),
        ("gantry topic create orders --queues 16", "create a topic, or change its number of queues"),
        ("gantry topic describe orders", "show its queues and consumer groups"),
        ("gantry topic delete orders", "delete a topic with its messages; asks first"),
    )
)
def topic() -> None:
    """List, create, delete and describe topics."""


@topic.command(
    "list",
    epilog=examples(
        ("gantry topic list", "list topics of applications"),
        ("gantry topic list --all", "include retry, dead-letter and system topics"),
        ("gantry topic list -o wide", "show their brokers, queues and messages"),
        ("gantry topic list -o yaml", "print YAML, or JSON with -o json"),
        ("gantry topic list -o wide --watch --interval 5", "refresh every five seconds"),
    ),
)
@name_server_option
@click.option("--all", "with_internal", is_flag=True, help="Include retry, dead-letter and system topics.")
@watch_options
@output_option
def list_topics(name_server: str, with_internal: bool, interval_s: float | None, form: OutputFormat) -> None:
    """List topics, one name per line.

    With --output wide, also shows the brokers, queues and messages of the first 200 topics.
    """

    async def query() -> _Listing:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            names = await admin.topics.all(with_internal=with_internal)
            hint = "" if names else for_same_cluster(no_topics_text(await admin.brokers.all()))
            return _Listing(names, await view_topics(admin, names) if form.is_wide else (), hint)

    if interval_s is not None:
        watch_screens(form, interval_s, lambda: run(query(), name_server), _listing_screen)
        return
    listing = run(query(), name_server, waiting_for="listing topics")
    if listing.views:
        show(form, listing.names, lambda: _listing_screen(listing))
    else:
        show_names(form, listing.names, listing.hint)


class _Listing(NamedTuple):
    """The topics of a cluster."""

    names: list[str]
    views: Sequence[TopicView]
    """What is shown of the first ones with --output wide; empty for another format."""
    hint: str
    """What to show if there are no topics."""


def _listing_screen(listing: _Listing) -> Iterator[RenderableType]:
    if not listing.views:
        yield Text("\n".join(listing.names) or listing.hint)
        return
    yield topic_table(listing.views)
    if len(listing.names) > len(listing.views):
        yield f"{plural(len(listing.names) - len(listing.views), 'topic')} not shown"


@topic.command(
    epilog=examples(
        ("gantry topic create orders", "create a topic with 8 queues on every master"),
        ("gantry topic create orders --queues 16", "change the number of queues"),
        ("gantry topic create orders --permission r", "make the topic read-only"),
        ("gantry topic create orders --queues 16 --dry-run", "show what would change"),
        ("gantry topic create ledger --ordered --cluster east", "create an ordered topic in one cluster"),
        (
            "gantry topic create orders --queues 2 --read-queues 8",
            "stop sends to six queues, so that they can be drained",
        ),
        (
            "gantry topic create ledger --attribute message.type=FIFO",
            "set the message type that RocketMQ's proxy checks",
        ),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@click.option(
    "--queues", type=click.IntRange(1, 1024), default=8, show_default=True, help="Write queues on each master."
)
@click.option("--read-queues", type=click.IntRange(1, 1024), help="Read queues on each master, if more than --queues.")
@click.option("--permission", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True,
              help="Permission of clients: read and write, read, write, or none.")  # fmt: skip
@click.option("--ordered", is_flag=True, help="Mark the topic as ordered.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", callback=_read_attributes,
              help="Set an attribute; repeatable.")  # fmt: skip
@click.option("--no-attribute", "dropped", multiple=True, metavar="NAME", help="Remove an attribute; repeatable.")
@click.option("--cluster", help="Create the topic only on brokers of this cluster.")
@click.option("--dry-run", is_flag=True, help="Show which settings would change on each broker, and change nothing.")
@output_option
def create(
    name: str, name_server: str, queues: int, read_queues: int | None, permission: str, ordered: bool,
    attributes: dict[str, str], dropped: tuple[str, ...], cluster: str | None, dry_run: bool, form: OutputFormat,
) -> None:  # fmt: skip
    """Create topic NAME, or update it if it exists.

    An update sets all settings of the topic: an option that you leave out gets its default, such as 8 queues. Only
    attributes that you do not name are kept. The command returns when every master has the topic and the name
    server has its routes.
    """

    if both := sorted(attributes.keys() & set(dropped)):
        raise click.UsageError(f"--attribute and --no-attribute are contradictory: both name {', '.join(both)}")

    if dry_run:
        wanted = TopicConfig(
            topic_name=name, read_queue_nums=read_queues or queues, write_queue_nums=queues,
            perm=PERMISSIONS[permission], order=ordered,
        )  # fmt: skip
        work = plan_topic(name_server, wanted, {**attributes, **dict.fromkeys(dropped)}, cluster)
        plan = run(work, name_server, waiting_for=f"querying topic {name}")
        show(form, plan, lambda: render_plan(plan))
        return

    async def create_topic() -> tuple[set[str], bool]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            before = await _brokers_of(admin, name)
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
            await _wait_until_routed(admin, name, masters)
            return masters, not before.isdisjoint(masters)

    masters, is_update = run(create_topic(), name_server, waiting_for=f"creating topic {name}")
    if form.is_document:
        print_document(form, TopicCreatedDocument(topic=name, queues=queues, brokers=sorted(masters)))
        return
    done = "updated" if is_update else "created"
    click.echo(f'Topic "{name}" {done} ({plural(queues, "queue")} on {plural(len(masters), "broker")})')


@topic.command(
    epilog=examples(
        ("gantry topic delete orders", "ask, then delete"),
        ("gantry topic delete orders --yes", "delete without a question, in a script"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@click.option("--cluster", help="Delete the topic only on brokers of this cluster.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def delete(name: str, name_server: str, cluster: str | None, yes: bool, form: OutputFormat) -> None:
    """Delete topic NAME with all its messages."""

    async def count() -> int:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            stats = await admin.topics.stats(name)
            if cluster is not None:
                masters = {broker.name for broker in await admin.brokers.masters(cluster)}
                stats = {queue: offsets for queue, offsets in stats.items() if queue.broker_name in masters}
            return summarize_topic(name, stats).messages

    async def remove() -> None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            await admin.topics.delete(name, cluster=cluster)

    messages = run(count(), name_server, waiting_for=f"querying topic {name}")
    if not yes:
        where = "" if cluster is None else f' in cluster "{cluster}"'
        question = f'Delete topic "{name}"{where} with {plural(messages, "message")}?'
        click.confirm(question, abort=True, err=form.is_document)
    run(remove(), name_server, waiting_for=f"deleting topic {name}")
    if form.is_document:
        print_document(form, TopicDeletedDocument(topic=name, messages=messages))
        return
    click.echo(f'Topic "{name}" deleted')


@topic.command(
    epilog=examples(
        ("gantry topic describe orders", "show queues, offsets and groups"),
        ("gantry topic describe orders --output json", "print JSON"),
    )
)
@click.argument("name", shell_complete=complete_topic)
@name_server_option
@watch_options
@output_option
def describe(name: str, name_server: str, interval_s: float | None, form: OutputFormat) -> None:
    """Show the queues, settings and consumer groups of topic NAME."""

    async def query() -> TopicDocument:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            stats = await admin.topics.stats(name)
            settings = await admin.topics.settings(name)
            return _document(name, stats, settings, await _groups_of(admin, name))

    if interval_s is not None:
        watch_screens(form, interval_s, lambda: run(query(), name_server), _render)
        return
    document = run(query(), name_server, waiting_for=f"querying topic {name}")
    show(form, document, lambda: _render(document))


topic.add_command(describe, "stats")
topic.add_command(order)


async def _groups_of(admin: Admin, name: str) -> list[GroupView]:
    views = await asyncio.gather(*(view_group(admin, group, name) for group in await admin.topics.groups(name)))
    return [view for of_group in views for view in of_group if view.topic == name]


async def _brokers_of(admin: Admin, name: str) -> frozenset[str]:
    """Return the names of the brokers that have the topic; empty if it does not exist."""
    try:
        return frozenset((await admin.topics.route(name)).brokers)
    except NoRoute:
        return frozenset()


async def _wait_until_routed(admin: Admin, name: str, masters: set[str]) -> None:
    """Wait until the name server has routes of the topic to all `masters`. Raises CliError after a timeout."""
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    while True:
        if masters <= await _brokers_of(admin, name):
            return
        if time.monotonic() > deadline:
            raise CliError(
                f"the brokers have topic {name}, but the name server has no routes to it on some of them",
                "check the brokers' logs for failed registrations",
            )
        await asyncio.sleep(POLL_S)


def _render(document: TopicDocument) -> Iterator[RenderableType]:
    view = document.topic
    where = f"{plural(view.queues, 'queue')} on {', '.join(view.brokers)}"
    yield f'Topic "{view.name}": {plural(view.messages, "message")} in {where}'
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
        group_columns = ("group", "members", "consumed", "lag", "waiting")
        group_rows = (
            (g.name, str(g.members), count_text(g.consumed_offset_total), count_text(g.lag), wait_text(g.lag_s))
            for g in document.groups
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
    """Return the permission as a value of --permission. The inherit bit, which only templates use, is ignored."""
    return next(text for text, number in PERMISSIONS.items() if number == permission & PERMISSIONS["rw"])
