"""`gantry group`: its commands, and the one that sends a consumer group's dead letters again."""

import itertools
import time

import click
from rich.text import Text

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_group, complete_topic
from gantry_cli.errors import Absent, Mistyped
from gantry_cli.examples import examples
from gantry_cli.group.documents import DirectDocument, ResendDocument
from gantry_cli.group.look import describe, list_groups, members, running
from gantry_cli.group.move import clone, reset
from gantry_cli.options import name_server_option, refuse_ignored, run
from gantry_cli.output import Form, output_option, show
from gantry_cli.progress import Tell, count_progress
from gantry_cli.text import HELP, count_text, parse_start, time_text
from gantry_client import Admin, NoRoute, Producer, PullConsumer, ReceivedMessage
from gantry_client.dead_letters import DeadLetters, Resend, Tally, reader_fault
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


PRODUCER_GROUP = "GANTRY_RESEND"


@click.group(
    epilog=examples(
        ("gantry group list", "all groups"),
        ("gantry group describe billing", "how far it is"),
        ("gantry group members billing", "who is in it"),
        ("gantry group running billing", "what its members do"),
        ("gantry group reset billing orders --to 2h", "consume the last two hours again"),
        ("gantry group clone billing billing-v2", "a second group that goes on where the first one is"),
        ("gantry group resend billing --from-dead-letters", "send what it has given up again"),
    )
)
def group() -> None:
    """Look at consumer groups, move them, resend dead letters."""


for _command in (list_groups, describe, members, running, reset, clone, consume):
    group.add_command(_command)
group.add_command(describe, "stats")
group.add_command(members, "connections")


@group.command(
    epilog=examples(
        ("gantry group resend billing --from-dead-letters --dry-run", "count them by topic; changes nothing"),
        ("gantry group resend billing --from-dead-letters", "send those that were not sent again yet"),
        ("gantry group resend billing --from-dead-letters --since 2h --until 1h", "those given up in that hour"),
        ("gantry group resend billing --from-dead-letters --from-start", "all of them, also for the second time"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option(
    "--from-dead-letters", "is_from_dead_letters", is_flag=True, help="Read what the group has given up; must be said."
)
@click.option("--since", metavar="WHEN", help=f"Only what was given up at or after this: {HELP}.")
@click.option("--until", metavar="WHEN", help="Only what was given up before this.")
@click.option("--from-start", is_flag=True, help="Begin at the oldest again, whatever was sent already.")
@click.option("--dry-run", is_flag=True, help="Send nothing and remember nothing.")
@click.option("-v", "--verbose", is_flag=True, help="A line for each message.")
@output_option
def resend(
    name: str, name_server: str, is_from_dead_letters: bool, since: str | None, until: str | None,
    from_start: bool, dry_run: bool, verbose: bool, form: Form,
) -> None:  # fmt: skip
    """Send a group's dead letters to the topics that they came from.

    Each message of %DLQ%GROUP goes to its original topic with the id, keys, tags and properties that it had: all groups
    that read the topic get it. How far this has come is remembered on the brokers, and the next call goes on there; a
    call that dies may send up to 32 messages twice. What --since leaves out is passed over for later calls, too. The
    dead letters themselves stay until they expire.
    """
    if not is_from_dead_letters:
        raise Mistyped("what shall be sent again? write --from-dead-letters")
    if form.is_document:
        refuse_ignored(f"with --output {form}, which is one document", ignored={"verbose"})
    fault = reader_fault(name)
    if fault is not None:
        raise Mistyped(f"no group can be called {fault}")
    wish = Resend(
        group=name, since_ms=_moment("--since", since), until_ms=_moment("--until", until),
        is_from_start=from_start, is_dry=dry_run,
    )  # fmt: skip
    with count_progress("sending again") as tell:
        # On a terminal a line for each message is progress enough.
        work = _resend(name_server, wish, is_verbose=verbose, tell=tell)
        tally = run(work, name_server)
    show(form, _document(tally, wish), lambda: [Text(_text(tally, wish))])


async def _resend(name_server: str, wish: Resend, *, is_verbose: bool, tell: Tell) -> Tally:
    sent = itertools.count(1)

    def said(message: ReceivedMessage, topic: str) -> None:
        if not is_verbose:
            tell(next(sent), None)
        else:
            click.echo(f"{time_text(message.store_timestamp_ms)}  {message.message_id}  {topic}")

    settings = client_settings()
    async with (
        PullConsumer(name_server, wish.reader, client_settings=settings) as reader,
        Producer(name_server, PRODUCER_GROUP, client_settings=settings) as producer,
    ):
        try:
            return await DeadLetters(wish, reader, producer, said=said).run()
        except NoRoute as error:
            if error.topic != wish.topic:
                raise
            # The topic is made with the first of them.
            raise Absent(f"there are no dead letters of {wish.group}", "is it the name of a group?") from error


def _moment(option: str, text: str | None) -> int | None:
    """A point in time, or None where it bounds nothing."""
    if text is None:
        return None
    try:
        start = parse_start(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise Mistyped(f"{option}: {error}") from error
    if start.is_latest:
        raise Mistyped(f"{option}: write a time; `latest` is no bound here")
    return start.timestamp_ms


def _text(tally: Tally, wish: Resend) -> str:
    verb = "would be sent" if wish.is_dry else "sent"
    lines = [f"{verb} to {topic}: {count_text(count)}" for topic, count in sorted(tally.sent.items())]
    if not lines:
        lines = [f"no dead letters of {wish.group} to send"]
    if tally.without_origin:
        lines.append(f"passed over, since they do not say where they came from: {_ids(tally.without_origin)}")
    if tally.unreadable:
        lines.append(f"passed over, since they cannot be unpacked, or sent as they are: {_ids(tally.unreadable)}")
    return "\n".join(lines)


def _ids(ids: list[str]) -> str:
    more = f" and {count_text(len(ids) - 5)} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


def _document(tally: Tally, wish: Resend) -> ResendDocument:
    return ResendDocument(
        group=wish.group,
        is_dry_run=wish.is_dry,
        sent=dict(sorted(tally.sent.items())),
        without_origin=tally.without_origin,
        unreadable=tally.unreadable,
    )
