"""The command group `gantry group`, and its command `consume`."""

import click

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import InvalidInput, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.group.deletion import delete
from gantry_cli.group.documents import DirectConsumeDocument
from gantry_cli.group.offset_changes import clone, reset
from gantry_cli.group.queries import describe, list_groups, members, running
from gantry_cli.group.resend import resend
from gantry_cli.options import name_server_option, run
from gantry_cli.output import OutputFormat, output_option, show
from gantry_client import Admin
from gantry_wire.commands.consumers import ConsumeResult

SUCCEEDED = frozenset({"CR_SUCCESS", "CR_COMMIT"})
"""The results of a handler that has consumed the message."""

EXIT_NOT_CONSUMED = 1
"""The exit code where the handler did not consume it."""


@click.command(
    epilog=examples(
        ("gantry group consume billing 7F00000100002A9F0000000000000C80", "consume a message by any member"),
        (
            "gantry group consume billing 7F00000100002A9F0000000000000C80 --client 10.0.0.7@4711",
            "consume it by this member",
        ),
        ("gantry group consume billing order-17 --topic orders", "find the message by its producer's id"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("message_id", metavar="MESSAGE")
@name_server_option
@click.option("--client", "client_id", help="Client id of the member [default: any]; see `gantry group members`.")
@click.option(
    "--topic", shell_complete=complete_topic, help="Topic of the message; required if MESSAGE is the producer's id."
)
@output_option
@click.pass_context
def consume(
    context: click.Context, name: str, message_id: str, name_server: str, client_id: str | None, topic: str | None,
    form: OutputFormat,
) -> None:  # fmt: skip
    """Make a member of GROUP consume one stored message now.

    The member's handler is called as for any message, without other effects: no offset changes, and a failed message is
    not retried. The broker waits ten seconds for the result. MESSAGE is the message id that the broker assigned, or
    with --topic the id that the producer assigned. The exit code is 1 if the handler did not consume it.
    """

    async def request() -> tuple[str, str, ConsumeResult]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            known = sorted(await admin.consumers.connections(name))
            if not known or (client_id is not None and client_id not in known):
                problem = f"{client_id} is not a member of {name}" if known else f"group {name} has no members now"
                raise NotFoundError(problem, f"see `gantry group members {name}`")
            stored_id = message_id
            if topic is not None:
                found = await admin.messages.by_id(topic, message_id)
                stored_id = found[0].offset_message_id if found else message_id
            member = client_id or known[0]
            return stored_id, member, await admin.consumers.consume(name, member, stored_id, topic=topic)

    if topic is None and not _is_hexadecimal(message_id):
        raise InvalidInput(
            f"{message_id!r} is not a message id that a broker assigned", "for the id of a producer, give --topic"
        )
    stored_id, member, result = run(request(), name_server, waiting_for=f"waiting for a member of {name}")
    document = DirectConsumeDocument(
        group=name,
        client_id=member,
        message_id=stored_id,
        result=result.consume_result,
        remark=result.remark,
        took_ms=result.spent_time_mills,
    )
    remark = f": {result.remark}" if result.remark else ""
    show(form, document, lambda: [f"{member}: {result.consume_result} in {result.spent_time_mills} ms{remark}"])
    if result.consume_result not in SUCCEEDED:
        context.exit(EXIT_NOT_CONSUMED)


def _is_hexadecimal(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True


@click.group(
    epilog=examples(
        ("gantry group list", "list all groups"),
        ("gantry group describe billing", "show offsets and lag"),
        ("gantry group members billing", "show its members"),
        ("gantry group running billing", "show the state of its members"),
        ("gantry group reset billing orders --to 2h", "consume the last two hours again"),
        ("gantry group clone billing billing-v2", "start a second group at the offsets of the first"),
        ("gantry group resend billing --from-dead-letters", "send its dead letters again"),
        ("gantry group delete billing", "delete a group; asks first"),
    )
)
def group() -> None:
    """Show, reset and delete consumer groups; resend dead letters."""


for _command in (list_groups, describe, members, running, reset, clone, consume, resend, delete):
    group.add_command(_command)
group.add_command(describe, "stats")
group.add_command(members, "connections")
