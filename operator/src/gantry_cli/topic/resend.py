"""The command `gantry topic resend`: send stored messages again, chosen by their positions."""

from __future__ import annotations

from typing import IO

import click

from gantry_cli.completers import complete_topic
from gantry_cli.errors import InvalidInput
from gantry_cli.examples import examples
from gantry_cli.group.resend import ResendReport, resend_messages
from gantry_cli.options import name_server_option
from gantry_cli.output import OutputFormat, output_option
from gantry_client.resend_plan import Position, ResendRequest


@click.command(
    epilog=examples(
        ("gantry topic resend orders --message broker-a:3:1200 --dry-run", "show what would be sent"),
        ("gantry topic resend orders --message broker-a:3:1200", "send this message to its topic again"),
        ("gantry topic resend orders --message broker-a:3:1200 --to-topic orders-check", "send it to another topic"),
    )
)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@name_server_option
@click.option("--message", "messages", multiple=True, required=True, metavar="BROKER:QUEUE:OFFSET",
              help="Position of a message; repeatable.")  # fmt: skip
@click.option("--to-topic", shell_complete=complete_topic, help="Send them to this topic [default: TOPIC].")
@click.option("--include-resent", is_flag=True, help="Send messages of which the target has a copy, too.")
@click.option("--dry-run", is_flag=True, help="Send nothing.")
@click.option("--digest", help="Send only if a dry run still has this digest.")
@click.option("--outcomes", type=click.File("w", encoding="utf-8", lazy=False), metavar="FILE",
              help="Write what became of each message to this file, as lines of JSON.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each message.")
@output_option
def resend(
    name: str, name_server: str, messages: tuple[str, ...], to_topic: str | None, include_resent: bool, dry_run: bool,
    digest: str | None, outcomes: IO[str] | None, verbose: bool, form: OutputFormat,
) -> None:  # fmt: skip
    """Send messages of TOPIC again, to TOPIC or to another topic.

    Each message is sent with its id, keys, tags and properties, and all groups that read the target get it. A message
    of which the target has a later copy with the same id is skipped, except with --include-resent.
    """
    request = ResendRequest(
        topic=name, to_topic=to_topic, positions=tuple(_parse_position(text) for text in messages),
        is_from_start=include_resent, keeps_progress=False,
    )  # fmt: skip
    resend_messages(name_server, request, ResendReport(dry_run, verbose, outcomes), digest, form)


def _parse_position(text: str) -> Position:
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or not all(part.isascii() and part.isdigit() for part in parts[1:]):
        raise InvalidInput(
            f"--message: {text!r} is not a position; expected BROKER:QUEUE:OFFSET, as in broker-a:3:1200"
        )
    return Position(parts[0], int(parts[1]), int(parts[2]))
