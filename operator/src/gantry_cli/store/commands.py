"""The commands of `gantry store`, which read and repair the files of a store without a broker."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import click

from gantry_broker.ports.clock import SystemClock
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.inspect.dump import DumpEntry, dump_log, dump_queue
from gantry_broker.store.inspect.facts import read_facts
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_broker.store.inspect.summary import inspect_store
from gantry_broker.store.inspect.verify import Verifier, VerifyOptions
from gantry_cli.errors import EXIT_INTERRUPTED, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.output import OutputFormat, output_option, record_text, show
from gantry_cli.progress import bytes_progress
from gantry_cli.store.documents import dump_document, verify_document
from gantry_cli.store.options import EXIT_DAMAGED, absolute_path, buffers_option, directory_argument, open_store_root
from gantry_cli.store.repair import accept_loss, recover_store, repair_plan
from gantry_cli.store.text import dump_text, summary_text, verify_text
from gantry_store_files.queue_units import queue_ids, queue_location

# -- dump --------------------------------------------------------------------------------------------------------------
# `gantry store dump` prints records of a store, intact or damaged.


@click.command(
    epilog=examples(
        ("gantry store dump DIR", "print the first ten records"),
        (
            "gantry store dump DIR --offset 73400320 --count 1",
            "print the record at an offset, from a message id or a finding",
        ),
        ("gantry store dump DIR --topic orders --queue 3 --from 1200", "print messages of a queue from a queue offset"),
        (
            "gantry store dump DIR --count 0 --body none --output json > records.jsonl",
            "print all records as JSON lines",
        ),
    )
)
@directory_argument
@click.option("--offset", type=click.IntRange(min=0), help="Start at this offset of the log. [default: its first]")
@click.option("--topic", help="Read a queue of this topic instead of the log.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Queue of --topic. [default: 0]")
@click.option("--from", "number", type=click.IntRange(min=0), help="Start at this queue offset. [default: its first]")
@click.option(
    "--count", type=click.IntRange(min=0), default=10, show_default=True, help="Number of records; 0 for all."
)
@click.option(
    "--body", type=click.Choice(["text", "hex", "none"]), default="text", show_default=True, help="Format of bodies."
)
@output_option
def dump(
    directory: Path, offset: int | None, topic: str | None, queue_id: int | None, number: int | None, count: int,
    body: Literal["text", "hex", "none"], form: OutputFormat,
) -> None:  # fmt: skip
    """Print records of the store in DIR.

    For a damaged record, the reason, the surrounding bytes, and the message according to its header or its queue are
    shown; then the output continues with the next intact record. With --output json each record is one line.

    Exit codes: 0 no damage, 1 a damaged record was found, 2 invalid usage, 3 not found, 4 the store cannot be read,
    130 interrupted.
    """
    if topic is not None and offset is not None:
        raise click.UsageError("--offset (of the log) and --topic (a queue) are mutually exclusive")
    if topic is None and (queue_id is not None or number is not None):
        raise click.UsageError("--queue and --from require --topic")
    is_damaged = False
    with open_store_root(directory) as root:
        found = _dump_log(root, offset) if topic is None else _dump_queue(root, topic, queue_id or 0, number or 0)
        for one in islice(found, count or None):
            document = dump_document(one, body)
            is_damaged = is_damaged or bool(document.get("damaged"))
            click.echo(record_text(form, document) if form.is_document else dump_text(document))
    if is_damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


def _dump_log(root: str, offset: int | None) -> Iterator[DumpEntry]:
    disk = RealReadingDisk()
    facts = read_facts(disk, root)
    reader = LogReader(disk, facts.log, facts.ownership_at)
    return dump_log(reader, facts, facts.log_start if offset is None else offset)


def _dump_queue(root: str, topic: str, queue_id: int, number: int) -> Iterator[DumpEntry]:
    disk = RealReadingDisk()
    if queue_id not in queue_ids(disk, root, topic):
        remedy = "list queues with `gantry store inspect DIR --all`, or read the log with --offset"
        raise NotFoundError(f"queue {topic}/{queue_id} not found in {root}", remedy)
    facts = read_facts(disk, root)
    reader = LogReader(disk, facts.log, facts.ownership_at)
    return dump_queue(disk, reader, facts, queue_location(root, topic, queue_id), number)


# -- the other commands ------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        ("gantry store verify /var/lib/gantry/store", "verify the whole store"),
        ("gantry store verify DIR --quick", "verify only recent data and the ends of files"),
        ("gantry store verify DIR --from 73400320 --to 83886080", "verify ten MiB of the log with their queue units"),
        ("gantry store verify DIR --output json | jq '.findings[] | select(.harm == \"lost\")'", "list lost messages"),
    )
)
@directory_argument
@click.option("--from", "start", type=click.IntRange(min=0), metavar="OFFSET", help="Start at this offset of the log.")
@click.option("--to", "end", type=click.IntRange(min=0), metavar="OFFSET", help="End at this offset of the log.")
@click.option(
    "--quick", is_flag=True, help="Verify only the log after the recovery point, and the ends of all files and queues."
)
@output_option
def verify(directory: Path, start: int | None, end: int | None, quick: bool, form: OutputFormat) -> None:
    """Verify the log, queues, index and tables of the store in DIR.

    Every record of the log is checked: length, magic, offset, checksum of the body, the seal of the whole record if
    Gantry wrote it, and that store times never decrease. Queue units and index entries are compared with the log in
    both directions. Tables, checkpoint and recovery point are checked. A torn tail, which a crash leaves and the next
    start truncates, and data that a running broker is still writing do not count as damage.

    Each finding has a severity: lost (messages are lost), derived (a rebuild from the log restores it), wrong (an
    inconsistency without loss), unsettled (the next start resolves it), or odd (harmless).

    Exit codes: 0 no damage, 1 damage was found, 2 invalid usage, 3 not found, 4 the store cannot be read,
    130 interrupted.
    """
    if start is not None and end is not None and end <= start:
        raise click.BadParameter(f"{end} is not greater than --from {start}", param_hint="--to")
    began_s = time.monotonic()
    options = VerifyOptions(start=start, end=end, is_quick=quick, boot_id=SystemClock().boot_id())
    with open_store_root(directory) as root, bytes_progress("verifying") as report_progress:
        report = Verifier(RealReadingDisk(), root, options, report_progress).run()
    elapsed_s = time.monotonic() - began_s
    show(form, verify_document(report, elapsed_s), lambda: verify_text(report, elapsed_s))
    if report.is_interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if report.findings.is_damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@click.command(
    epilog=examples(
        ("gantry store inspect /var/lib/gantry/store", "show a summary"),
        ("gantry store inspect DIR --all", "include every queue"),
        ("gantry store inspect DIR --buffers /dev/hugepages/gantry", "use write buffers that were moved"),
        ("gantry store inspect DIR --output json | jq .log", "print JSON"),
    )
)
@directory_argument
@buffers_option
@click.option("--all", "with_queues", is_flag=True, help="List every queue, not only the sums of topics.")
@output_option
def inspect(directory: Path, buffers: Path | None, with_queues: bool, form: OutputFormat) -> None:
    """Show a summary of the store in DIR.

    The summary shows which broker wrote the store, how the last run ended, the start and end of the log and its flushed
    position, topics and queues, index, tables, write buffers, free space, and what the next start would do. It reads
    only names, sizes and small files; use `gantry store verify` to check the data.

    Exit codes: 0 success, 2 invalid usage, 3 not found, 4 the store cannot be read.
    """
    with open_store_root(directory) as root:
        summary = inspect_store(RealReadingDisk(), root, buffers_path=absolute_path(buffers))
    show(form, summary, lambda: summary_text(summary, with_queues=with_queues))


@click.group(
    epilog=examples(
        ("gantry store inspect DIR", "show a summary, and what a start would do"),
        ("gantry store verify DIR", "check every byte"),
        ("gantry store dump DIR --offset 73400320", "print the record at an offset of the log"),
        ("gantry store repair-plan DIR", "show what a start would truncate, rebuild and lose"),
        ("gantry store recover DIR", "recover without a broker"),
        ("gantry store accept-loss DIR", "accept that missing log data is lost"),
    )
)
def store() -> None:
    """Inspect, verify and repair the files of a store.

    The store may have been written by Gantry or by RocketMQ. All commands except `recover` and `accept-loss` only read:
    they create, lock and change nothing, and work on stores that are damaged, empty or in use.

    Exit codes: 0 no damage, 1 damage was found, 2 invalid usage, 3 not found, 4 the store cannot be read,
    130 interrupted.
    """


for command in (inspect, verify, dump, repair_plan, recover_store, accept_loss):
    store.add_command(command)
