"""`gantry store dump`: records of a store, whole or damaged, as they lie there."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import click

from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.inspect.dump import Dumped, dump_log, dump_queue
from gantry_broker.store.inspect.facts import read_facts
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_cli.errors import Absent
from gantry_cli.examples import examples
from gantry_cli.output import Form, output_option, record_text
from gantry_cli.store_json import dumped_document
from gantry_cli.store_reading import EXIT_DAMAGED, reading
from gantry_cli.store_text import dumped_text
from gantry_store_files.queue_units import queue_ids, queue_place


@click.command(
    epilog=examples(
        ("gantry store dump DIR", "the first ten records"),
        ("gantry store dump DIR --offset 73400320 --count 1", "what a message id or a finding points to"),
        ("gantry store dump DIR --topic orders --queue 3 --from 1200", "messages of a queue, by number"),
        ("gantry store dump DIR --count 0 --body none --output json > records.jsonl", "all of them, a line each"),
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--offset", type=click.IntRange(min=0), help="Begin at this place of the log. [default: its first]")
@click.option("--topic", help="Read a queue of this topic instead, in its order.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="The queue. [default: 0]")
@click.option(
    "--from", "number", type=click.IntRange(min=0), help="Begin at this number of the queue. [default: its first]"
)
@click.option("--count", type=click.IntRange(min=0), default=10, show_default=True, help="How many; 0 for all.")
@click.option(
    "--body", type=click.Choice(["text", "hex", "none"]), default="text", show_default=True, help="How to show bodies."
)
@output_option
def dump(
    directory: Path, offset: int | None, topic: str | None, queue_id: int | None, number: int | None, count: int,
    body: Literal["text", "hex", "none"], form: Form,
) -> None:  # fmt: skip
    """Print records of the store in DIR, one after the other.

    Where no whole record is, it shows why, the bytes around, and what the head or the queue says was there; then it
    goes on with the next whole record. With --output json every record is a line.

    Exit codes: 0 good, 1 a damaged place was met, 2 it was typed wrongly, 3 nothing is there, 4 it cannot be
    read, 130 Ctrl-C.
    """
    if topic is not None and offset is not None:
        raise click.UsageError("--offset is a place of the log, --topic asks for a queue: give one of them")
    if topic is None and (queue_id is not None or number is not None):
        raise click.UsageError("--queue and --from ask for a queue: name its --topic, too")
    is_damaged = False
    with reading(directory) as root:
        found = _in_log(root, offset) if topic is None else _in_queue(root, topic, queue_id or 0, number or 0)
        for one in islice(found, count or None):
            document = dumped_document(one, body)
            is_damaged = is_damaged or bool(document.get("damaged"))
            click.echo(record_text(form, document) if form.is_document else dumped_text(document))
    if is_damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


def _in_log(root: str, offset: int | None) -> Iterator[Dumped]:
    disk = RealReadingDisk()
    facts = read_facts(disk, root)
    reader = LogReader(disk, facts.log, facts.ours_from)
    return dump_log(reader, facts, facts.log_start if offset is None else offset)


def _in_queue(root: str, topic: str, queue_id: int, number: int) -> Iterator[Dumped]:
    disk = RealReadingDisk()
    if queue_id not in queue_ids(disk, root, topic):
        remedy = "see `gantry store inspect DIR --all`; --offset reads the log without queues"
        raise Absent(f"there is no queue {topic}/{queue_id} in {root}", remedy)
    facts = read_facts(disk, root)
    reader = LogReader(disk, facts.log, facts.ours_from)
    return dump_queue(disk, reader, facts, queue_place(root, topic, queue_id), number)
