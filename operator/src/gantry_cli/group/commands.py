"""The command group `gantry group`, and its commands `consume` and `resend`."""

import itertools
import time

import click
from rich.text import Text

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import InvalidInput, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.group.documents import DirectConsumeDocument, ResendDocument
from gantry_cli.group.offset_changes import clone, reset
from gantry_cli.group.queries import describe, list_groups, members, running
from gantry_cli.options import name_server_option, refuse_ignored, run
from gantry_cli.output import OutputFormat, output_option, show
from gantry_cli.progress import ReportProgress, count_progress
from gantry_cli.text import count_text, parse_start_position, time_text
from gantry_client import Admin, NoRoute, Producer, PullConsumer, ReceivedMessage
from gantry_client.dead_letters import ResendRequest, ResendResult, ResendRun, reader_fault
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


PRODUCER_GROUP = "GANTRY_RESEND"
"""The producer group that sends dead letters again."""


@click.group(
    epilog=examples(
        ("gantry group list", "list all groups"),
        ("gantry group describe billing", "show offsets and lag"),
        ("gantry group members billing", "show its members"),
        ("gantry group running billing", "show the state of its members"),
        ("gantry group reset billing orders --to 2h", "consume the last two hours again"),
        ("gantry group clone billing billing-v2", "start a second group at the offsets of the first"),
        ("gantry group resend billing --from-dead-letters", "send its dead letters again"),
    )
)
def group() -> None:
    """Show consumer groups, reset their offsets, and resend dead letters."""


for _command in (list_groups, describe, members, running, reset, clone, consume):
    group.add_command(_command)
group.add_command(describe, "stats")
group.add_command(members, "connections")


@group.command(
    epilog=examples(
        ("gantry group resend billing --from-dead-letters --dry-run", "count them by topic, and change nothing"),
        ("gantry group resend billing --from-dead-letters", "send those that were not resent yet"),
        ("gantry group resend billing --from-dead-letters --since 2h --until 1h", "send those of that hour"),
        ("gantry group resend billing --from-dead-letters --from-start", "send all, also those resent before"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option(
    "--from-dead-letters", "is_from_dead_letters", is_flag=True, help="Read the group's dead letters. Required."
)
@click.option("--since", metavar="WHEN",
              help="Only dead letters stored at or after this time: an age (10m, 2h, 1d) or a local time"
              " (2025-01-31T12:00).")  # fmt: skip
@click.option("--until", metavar="WHEN", help="Only dead letters stored before this time.")
@click.option("--from-start", is_flag=True, help="Start at the oldest dead letter, also if it was resent before.")
@click.option("--dry-run", is_flag=True, help="Send nothing, and do not advance the position.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each message.")
@output_option
def resend(
    name: str, name_server: str, is_from_dead_letters: bool, since: str | None, until: str | None,
    from_start: bool, dry_run: bool, verbose: bool, form: OutputFormat,
) -> None:  # fmt: skip
    """Send a group's dead letters again to their original topics.

    Each message of %DLQ%GROUP is sent to its original topic with its id, keys, tags and properties: all groups that
    read the topic get it. The progress is stored on the brokers as an offset, and the next call continues there; a call
    that is killed may send up to 32 messages twice. Messages that --since skips are skipped for later calls, too. The
    dead letters themselves stay until they expire.
    """
    if not is_from_dead_letters:
        raise InvalidInput("missing required option --from-dead-letters")
    if form.is_document:
        refuse_ignored(f"with --output {form}, which is one document", ignored={"verbose"})
    fault = reader_fault(name)
    if fault is not None:
        raise InvalidInput(f"invalid group name {fault}")
    request = ResendRequest(
        group=name, since_ms=_parse_bound("--since", since), until_ms=_parse_bound("--until", until),
        is_from_start=from_start, is_dry_run=dry_run,
    )  # fmt: skip
    with count_progress("sending again") as show_progress:
        # With --verbose the line of each message shows the progress.
        work = _resend(name_server, request, is_verbose=verbose, show_progress=show_progress)
        result = run(work, name_server)
    show(form, _document(result, request), lambda: [Text(_text(result, request))])


async def _resend(
    name_server: str, request: ResendRequest, *, is_verbose: bool, show_progress: ReportProgress
) -> ResendResult:
    sent = itertools.count(1)

    def report_sent(message: ReceivedMessage, topic: str) -> None:
        if not is_verbose:
            show_progress(next(sent), None)
        else:
            click.echo(f"{time_text(message.store_timestamp_ms)}  {message.message_id}  {topic}")

    settings = client_settings()
    async with (
        PullConsumer(name_server, request.reader, client_settings=settings) as reader,
        Producer(name_server, PRODUCER_GROUP, client_settings=settings) as producer,
    ):
        try:
            return await ResendRun(request, reader, producer, on_sent=report_sent).run()
        except NoRoute as error:
            if error.topic != request.topic:
                raise
            # A broker creates the dead-letter topic with the first dead letter: without a route there is none.
            raise NotFoundError(f"no dead letters of {request.group} found", "check the name of the group") from error


def _parse_bound(option: str, text: str | None) -> int | None:
    """Return the time that an option gives in milliseconds, or None if it sets no bound. Raises InvalidInput."""
    if text is None:
        return None
    try:
        start = parse_start_position(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from error
    if start.timestamp_ms is None:
        position = "latest" if start.is_latest else "earliest"
        raise InvalidInput(f"{option}: `{position}` is not a valid bound; give a time, or leave the option out")
    return start.timestamp_ms


def _text(result: ResendResult, request: ResendRequest) -> str:
    verb = "would be sent" if request.is_dry_run else "sent"
    lines = [f"{verb} to {topic}: {count_text(count)}" for topic, count in sorted(result.sent.items())]
    if not lines:
        lines = [f"No dead letters of {request.group} to send"]
    if result.without_origin:
        lines.append(f"skipped, without an original topic: {_ids(result.without_origin)}")
    if result.unreadable:
        lines.append(f"skipped, cannot be decompressed or sent unchanged: {_ids(result.unreadable)}")
    return "\n".join(lines)


def _ids(ids: list[str]) -> str:
    more = f" and {count_text(len(ids) - 5)} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


def _document(result: ResendResult, request: ResendRequest) -> ResendDocument:
    return ResendDocument(
        group=request.group,
        is_dry_run=request.is_dry_run,
        sent=dict(sorted(result.sent.items())),
        without_origin=result.without_origin,
        unreadable=result.unreadable,
    )
