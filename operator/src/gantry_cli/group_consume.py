"""`gantry group consume`: have one member consume one stored message now, and see how that goes."""

import click

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_group, complete_topic
from gantry_cli.consumer_documents import DirectDocument
from gantry_cli.errors import Absent, Mistyped
from gantry_cli.examples import examples
from gantry_cli.options import name_server_option, run
from gantry_cli.output import Form, output_option, show
from gantry_client import Admin
from gantry_wire.commands.consumers import ConsumeResult

SUCCEEDED = frozenset({"CR_SUCCESS", "CR_COMMIT"})
EXIT_NOT_CONSUMED = 1


@click.command(
    epilog=examples(
        ("gantry group consume billing 7F00000100002A9F0000000000000C80", "by any member"),
        ("gantry group consume billing 7F00000100002A9F0000000000000C80 --client 10.0.0.7@4711", "by this one"),
        ("gantry group consume billing order-17 --topic orders", "the message that its sender gave this id"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("message_id", metavar="MESSAGE")
@name_server_option
@click.option("--client", "client_id", help="The member that shall consume it; see `gantry group members`.")
@click.option("--topic", shell_complete=complete_topic, help="Where MESSAGE is; needed for the id of its sender.")
@output_option
@click.pass_context
def consume(
    context: click.Context, name: str, message_id: str, name_server: str, client_id: str | None, topic: str | None,
    form: Form,
) -> None:  # fmt: skip
    """Have a member of GROUP consume one stored message now.

    The member's handler is called as for any message, and nothing else happens: no offset moves, and a message that
    fails is not delivered again. Its broker waits ten seconds for the answer. MESSAGE is the id that the broker gave
    the message, or with --topic that of its sender. The exit code is 1 if the handler did not consume it.
    """

    async def ask() -> tuple[str, str, ConsumeResult]:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            known = sorted(await admin.members.connections(name))
            if not known or (client_id is not None and client_id not in known):
                who = f"{client_id} is no member of {name}" if known else f"nobody consumes for {name} now"
                raise Absent(who, f"see `gantry group members {name}`")
            stored_id = message_id
            if topic is not None:
                found = await admin.messages.by_id(topic, message_id)
                stored_id = found[0].offset_message_id if found else message_id
            member = client_id or known[0]
            return stored_id, member, await admin.members.consume(name, member, stored_id, topic=topic)

    if topic is None and not _is_hexadecimal(message_id):
        raise Mistyped(f"{message_id!r} is no id that a broker gave; with --topic it may be that of the sender")
    stored_id, member, result = run(ask(), name_server, waiting_for=f"{name} consumes")
    document = DirectDocument(
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
