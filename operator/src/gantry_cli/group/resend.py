"""The command `gantry group resend`, and what it shares with `gantry message resend`: plan, send, report outcomes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeVar

import click
import msgspec
from rich.text import Text

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group, complete_topic
from gantry_cli.errors import CliError, InvalidInput, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.group.documents import ResendDocument, ResendOutcomeDocument
from gantry_cli.options import name_server_option, refuse_ignored, run
from gantry_cli.output import OutputFormat, output_option, show
from gantry_cli.progress import count_progress
from gantry_cli.text import count_text, parse_start_position, time_text
from gantry_client import Admin, InvalidMessage, NoRoute, Producer, PullConsumer, Sql
from gantry_client.resend_plan import (
    OutcomeKind,
    PlannedMessage,
    ResendOutcome,
    ResendPlan,
    ResendRequest,
    Verdict,
    reader_fault,
)
from gantry_client.resend_run import STOPPED, ResendRun
from gantry_client.subscriptions import FilterExpression

PRODUCER_GROUP: Final = "GANTRY_RESEND"
"""The producer group that sends messages again."""

BATCH: Final = 500
"""The messages of one plan where no digest is given, so that any number of dead letters needs little memory."""

PLAN_MAX: Final = 100_000
"""The most messages that a dry run lists, and that a digest covers; each takes a few hundred bytes of memory."""


@dataclass(slots=True)
class ResendReport:
    """The outcomes of a command so far, or the messages of a dry run."""

    is_dry_run: bool
    is_verbose: bool
    file: IO[str] | None
    """Where a line of JSON is written for each message; None for no file."""
    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    by_kind: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the messages that were not sent, by the field of the document that lists them."""
    first_failure: str = ""
    digest: str | None = None
    remaining: int = 0

    def add_outcome(self, outcome: ResendOutcome) -> None:
        """Count one outcome of an execution."""
        message = outcome.message
        if outcome.kind is OutcomeKind.SENT:
            self.sent[message.target or ""] += 1
            self.sent_bytes += message.body_bytes
        elif outcome.kind is OutcomeKind.SKIPPED:
            place = "not_attempted" if outcome.reason == STOPPED else _SKIPPED[message.verdict]
            self._add_id(place, message)
        else:
            self._add_id(outcome.kind.value, message)
            self.first_failure = self.first_failure or f"message {message.message_id}: {outcome.reason}"
        self._write(message, outcome.kind.value, outcome.reason, outcome)

    def add_planned(self, message: PlannedMessage) -> None:
        """Count one message of a dry run."""
        if message.verdict is Verdict.SEND:
            self.sent[message.target or ""] += 1
            self.sent_bytes += message.body_bytes
        else:
            self._add_id(_SKIPPED[message.verdict], message)
        self._write(message, message.verdict.value, message.reason, None)

    def _add_id(self, place: str, message: PlannedMessage) -> None:
        self.by_kind.setdefault(place, []).append(message.message_id)

    def _write(self, message: PlannedMessage, outcome: str, reason: str, result: ResendOutcome | None) -> None:
        if self.is_verbose:
            why = f": {reason}" if reason else ""
            click.echo(f"{time_text(message.stored_ms)}  {message.message_id}  {message.target or '-'}  {outcome}{why}")
        if self.file is not None:
            document = ResendOutcomeDocument(
                broker=message.position.broker_name, queue_id=message.position.queue_id,
                offset=message.position.offset, message_id=message.message_id, target=message.target,
                bytes=message.body_bytes, outcome=outcome, reason=reason, resent_ms=message.resent_ms,
                new_offset_message_id=result and result.new_offset_message_id, new_broker=result and result.broker_name,
                new_queue_id=result and result.queue_id, new_offset=result and result.queue_offset,
            )  # fmt: skip
            self.file.write(msgspec.json.encode(document).decode() + "\n")


_SKIPPED: Final = {
    Verdict.NO_ORIGIN: "without_origin",
    Verdict.UNSENDABLE: "unreadable",
    Verdict.RESENT: "resent_before",
    Verdict.NO_TARGET: "failed",
}


F = TypeVar("F", bound=Callable[..., Any])


def report_options(command: F) -> F:
    """Add the options --digest, --outcomes and --verbose of a command that resends messages."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Print a line for each message."),
        click.option("--outcomes", type=click.File("w", encoding="utf-8", lazy=False), metavar="FILE",
                     help="Write what became of each message to this file, as lines of JSON."),
        click.option("--digest", help="Send only if a dry run still has this digest."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog=examples(
        ("gantry group resend billing --from-dead-letters --dry-run", "count them by topic, and change nothing"),
        ("gantry group resend billing --from-dead-letters", "send those that were not resent yet"),
        ("gantry group resend billing --from-dead-letters --since 2h --until 1h", "send those of that hour"),
        ("gantry group resend billing --from-dead-letters --from-start", "send all, also those resent before"),
        ("gantry group resend billing --from-dead-letters --sql \"region = 'eu'\"", "send those with a property"),
        ("gantry group resend billing --from-dead-letters --to-topic orders-check", "send them to another topic"),
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
@click.option("--tags", help="Only dead letters with one of these tags: new || paid.")
@click.option("--sql", help="Only dead letters whose properties match this SQL92 expression.")
@click.option("--key", help="Only dead letters with this key.")
@click.option("--to-topic", shell_complete=complete_topic, help="Send them to this topic [default: the original one].")
@click.option("--from-start", is_flag=True, help="Start at the oldest dead letter, also if it was resent before.")
@click.option("--dry-run", is_flag=True, help="Send nothing, and do not advance the position.")
@report_options
@output_option
def resend(
    name: str, name_server: str, is_from_dead_letters: bool, since: str | None, until: str | None, tags: str | None,
    sql: str | None, key: str | None, to_topic: str | None, from_start: bool, dry_run: bool, digest: str | None,
    outcomes: IO[str] | None, verbose: bool, form: OutputFormat,
) -> None:  # fmt: skip
    """Send a group's dead letters again to their original topics, or to another one.

    Each message of %DLQ%GROUP is sent with its id, keys, tags and properties: all groups that read the topic get it.
    The progress is stored on the brokers as an offset, and the next call continues there; a call that is killed may
    send up to 32 messages twice. Messages that --since skips are skipped for later calls, too. With --tags, --sql,
    --key or --to-topic no progress is kept; then messages of which the target has a copy are skipped, except with
    --from-start. The dead letters themselves stay until they expire.
    """
    if not is_from_dead_letters:
        raise InvalidInput("missing required option --from-dead-letters")
    fault = reader_fault(name)
    if fault is not None:
        raise InvalidInput(f"invalid group name {fault}")
    chosen = filter_of(tags, sql)
    request = ResendRequest(
        group=name, since_ms=_parse_bound("--since", since), until_ms=_parse_bound("--until", until),
        is_from_start=from_start, to_topic=to_topic, filter=chosen, key=key,
        keeps_progress=chosen == "*" and key is None and to_topic is None,
    )  # fmt: skip
    resend_messages(name_server, request, ResendReport(dry_run, verbose, outcomes), digest, form)


def filter_of(tags: str | None, sql: str | None) -> FilterExpression:
    """Return the filter of the options --tags and --sql."""
    if tags is not None and sql is not None:
        raise click.UsageError("--tags and --sql are mutually exclusive")
    return Sql(sql) if sql is not None else tags or "*"


def resend_messages(
    name_server: str, request: ResendRequest, report: ResendReport, digest: str | None, form: OutputFormat
) -> None:
    """Plan, and unless it is a dry run send, what a request selects; then show the report.

    Raises CliError, after the report, if a message could not be sent.
    """
    if form.is_document:
        refuse_ignored(f"with --output {form}, which is one document", ignored={"verbose"})
    try:
        request.check()
    except InvalidMessage as error:
        raise InvalidInput(str(error)) from error
    run(_resend(name_server, request, report, digest), name_server)
    show(form, _document(report, request), lambda: [Text(_text(report, request))])
    if report.first_failure:
        raise CliError(
            f"not all messages were sent: {report.first_failure}", "correct the cause, then run the command again"
        )


async def _resend(name_server: str, request: ResendRequest, report: ResendReport, digest: str | None) -> None:
    settings = client_settings()
    with count_progress("sending again") as show_progress:

        def on_outcome(outcome: ResendOutcome) -> None:
            report.add_outcome(outcome)
            if not report.is_verbose:  # the line of each message shows the progress
                show_progress(report.sent.total(), None)

        async with (
            PullConsumer(name_server, request.reader, client_settings=settings) as reader,
            Producer(name_server, PRODUCER_GROUP, client_settings=settings) as producer,
            Admin(name_server, client_settings=settings) as admin,
        ):
            resending = ResendRun(request, reader, producer, admin)
            try:
                plan = await resending.plan(PLAN_MAX if report.is_dry_run or digest is not None else BATCH)
            except NoRoute as error:
                if error.topic != request.source or request.group is None:
                    raise
                # A broker creates the dead-letter topic with the first dead letter: without a route there is none.
                raise NotFoundError(
                    f"no dead letters of {request.group} found", "check the name of the group"
                ) from error
            if report.is_dry_run:
                _report_plan(report, plan)
                return
            if digest is not None and plan.digest != digest:
                raise CliError("the messages to send have changed since the dry run", "run it again with --dry-run")
            while plan.messages and not report.first_failure:
                await resending.execute(plan, on_outcome)
                if digest is not None or request.positions:
                    break
                plan = await resending.plan(BATCH)


def _report_plan(report: ResendReport, plan: ResendPlan) -> None:
    for message in plan.messages:
        report.add_planned(message)
    report.digest, report.remaining = plan.digest, plan.remaining


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


_LINES: Final = {
    "without_origin": "skipped, without an original topic",
    "unreadable": "skipped, cannot be decompressed or sent unchanged",
    "resent_before": "skipped, resent before",
    "failed": "not sent",
    "unknown": "unknown, may be stored",
    "not_attempted": "not attempted",
}
"""The line of the report for each list of ids."""


def _text(report: ResendReport, request: ResendRequest) -> str:
    verb = "would be sent" if report.is_dry_run else "sent"
    lines = [f"{verb} to {topic}: {count_text(count)}" for topic, count in sorted(report.sent.items())]
    if not lines:
        source = f"dead letters of {request.group}" if request.group is not None else f"messages of {request.topic}"
        lines = [f"No {source} to send"]
    lines += [f"{words}: {_ids(report.by_kind[place])}" for place, words in _LINES.items() if place in report.by_kind]
    if report.remaining:
        lines.append(f"not examined: {count_text(report.remaining)}")
    if report.digest is not None and report.sent:
        lines.append(f"digest: {report.digest}")
    return "\n".join(lines)


def _ids(ids: list[str]) -> str:
    more = f" and {count_text(len(ids) - 5)} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


def _document(report: ResendReport, request: ResendRequest) -> ResendDocument:
    ids = {place: report.by_kind.get(place, []) for place in _LINES}
    return ResendDocument(
        group=request.group, topic=request.topic, is_dry_run=report.is_dry_run, digest=report.digest,
        sent=dict(sorted(report.sent.items())), sent_bytes=report.sent_bytes, remaining=report.remaining, **ids,
    )  # fmt: skip
