"""`gantry topic order`: which queues the messages of an order topic are spread over, as name servers keep it.

    ORDER_TOPIC_CONFIG   "orders" -> "broker-a:4;broker-b:4"

RocketMQ's clients get it with the route where `orderMessageEnable=true` of the name server says so, and then see these
queues and no others; brokers mark the topic as ordered. `mqadmin updateOrderConf` keeps the same entry.
"""

import click

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_topic
from gantry_cli.documents import TopicOrderDocument
from gantry_cli.examples import examples
from gantry_cli.options import name_server_option, run
from gantry_cli.output import Form, output_option, print_document
from gantry_client import Admin


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
