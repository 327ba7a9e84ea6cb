"""The command `gantry message resend`: send stored messages again, chosen by their places."""

from __future__ import annotations

from typing import IO

import click

from gantry_cli.completers import complete_topic
from gantry_cli.errors import InvalidInput
from gantry_cli.examples import examples
from gantry_cli.group.resend import ResendReport, report_options, resend_messages
from gantry_cli.messages.places import parse_place
from gantry_cli.options import name_server_option
from gantry_cli.output import OutputFormat, output_option
from gantry_client.resend_plan import Position, ResendRequest


@click.command(
    epilog=examples(
        ("gantry message resend orders/broker-a/3@1200 --dry-run", "show what would be sent"),
        ("gantry message resend orders/broker-a/3@1200", "send this message to its topic again"),
        ("gantry message resend orders/broker-a/3@1200 --to-topic orders-check", "send it to another topic"),
    )
)
@click.argument("places", metavar="PLACE...", nargs=-1, required=True)
@name_server_option
@click.option("--to-topic", shell_complete=complete_topic, help="Send them to this topic [default: their own].")
@click.option("--include-resent", is_flag=True, help="Send messages of which the target has a copy, too.")
@click.option("--dry-run", is_flag=True, help="Send nothing.")
@report_options
@output_option
def resend(
    places: tuple[str, ...], name_server: str, to_topic: str | None, include_resent: bool, dry_run: bool,
    digest: str | None, outcomes: IO[str] | None, verbose: bool, form: OutputFormat,
) -> None:  # fmt: skip
    """Send stored messages again, to their topic or to another one.

    PLACE is TOPIC/BROKER/QUEUE@OFFSET, as `gantry search -v` prints it; all of them are in one topic. Each message is
    sent with its id, keys, tags and properties, and all groups that read the target get it. A message of which the
    target has a later copy with the same id is skipped, except with --include-resent.
    """
    wanted = [parse_place(text) for text in places]
    topics = sorted({place.topic for place in wanted})
    if len(topics) > 1:
        raise InvalidInput(
            f"the places are in several topics, {', '.join(topics)}; resend those of one topic at a time"
        )
    request = ResendRequest(
        topic=topics[0], to_topic=to_topic,
        positions=tuple(Position(place.broker_name, place.queue_id, place.offset) for place in wanted),
        is_from_start=include_resent, keeps_progress=False,
    )  # fmt: skip
    resend_messages(name_server, request, ResendReport(dry_run, verbose, outcomes), digest, form)
