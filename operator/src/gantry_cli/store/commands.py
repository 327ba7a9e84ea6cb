"""`gantry store`: look at the files of a store, without a broker, on the day when something is wrong with them."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import click

from gantry_broker.ports.clock import SystemClock
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.inspect.dump import Dumped, dump_log, dump_queue
from gantry_broker.store.inspect.facts import read_facts
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_broker.store.inspect.summary import inspect_store
from gantry_broker.store.inspect.verify import Verifier, VerifyOrder
from gantry_cli.errors import EXIT_INTERRUPTED, Absent
from gantry_cli.examples import examples
from gantry_cli.output import Form, output_option, record_text, show
from gantry_cli.progress import bytes_progress
from gantry_cli.store.documents import dumped_document, summary_document, verify_document
from gantry_cli.store.reading import EXIT_DAMAGED, absolute, buffers_option, directory_argument, reading
from gantry_cli.store.repair import accept_loss, recover_store, repair_plan
from gantry_cli.store.text import dumped_text, summary_text, verify_text
from gantry_store_files.queue_units import queue_ids, queue_place

# -- dump --------------------------------------------------------------------------------------------------------------
# `gantry store dump`: records of a store, whole or damaged, as they lie there.


@click.command(
    epilog=examples(
        ("gantry store dump DIR", "the first ten records"),
        ("gantry store dump DIR --offset 73400320 --count 1", "what a message id or a finding points to"),
        ("gantry store dump DIR --topic orders --queue 3 --from 1200", "messages of a queue, by number"),
        ("gantry store dump DIR --count 0 --body none --output json > records.jsonl", "all of them, a line each"),
    )
)
@directory_argument
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


# -- the other commands ------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        ("gantry store verify /var/lib/gantry/store", "everything"),
        ("gantry store verify DIR --quick", "what was written last, and the ends of the rest"),
        ("gantry store verify DIR --from 73400320 --to 83886080", "ten mebibytes of the log, and what belongs to them"),
        ("gantry store verify DIR --output json | jq '.findings[] | select(.harm == \"lost\")'", "what is gone"),
    )
)
@directory_argument
@click.option("--from", "start", type=click.IntRange(min=0), metavar="OFFSET", help="Begin at this place of the log.")
@click.option("--to", "end", type=click.IntRange(min=0), metavar="OFFSET", help="End at this place of the log.")
@click.option(
    "--quick", is_flag=True, help="Only the log behind the recovery point, and the ends of all files and queues."
)
@output_option
def verify(directory: Path, start: int | None, end: int | None, quick: bool, form: Form) -> None:
    """Compare everything in the store in DIR with everything else.

    Every record of the log: length, magic, its own place, the checksum of its body, the seal over all of it where ours
    wrote it, store times that never fall. Every unit of every queue against the log, both ways. Every index entry, both
    ways. Tables, checkpoint, recovery point. Rot is told from the torn tail that a crash leaves and the next start cuts
    off; the latter, and what a running broker is just writing, is no damage.

    What each finding costs comes first: lost (messages are gone), derived (the log has it, a rebuild brings it back),
    wrong (a contradiction that costs nothing), unsettled (the next start settles it), odd.

    Exit codes: 0 good, 1 damage was found, 2 it was typed wrongly, 3 nothing is there, 4 it cannot be read,
    130 Ctrl-C.
    """
    if start is not None and end is not None and end <= start:
        raise click.BadParameter(f"{end} is not behind --from {start}", param_hint="--to")
    began_s = time.monotonic()
    order = VerifyOrder(start=start, end=end, is_quick=quick, boot_id=SystemClock().boot_id())
    with reading(directory) as root, bytes_progress("verifying") as tell:
        report = Verifier(RealReadingDisk(), root, order, tell).run()
    elapsed_s = time.monotonic() - began_s
    show(form, verify_document(report, elapsed_s), lambda: verify_text(report, elapsed_s))
    if report.is_interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if report.findings.is_damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@click.command(
    epilog=examples(
        ("gantry store inspect /var/lib/gantry/store", "at a glance"),
        ("gantry store inspect DIR --all", "with every queue"),
        ("gantry store inspect DIR --buffers /dev/hugepages/gantry", "its write buffers are here now"),
        ("gantry store inspect DIR --output json | jq .log", "for programs"),
    )
)
@directory_argument
@buffers_option
@click.option("--all", "with_queues", is_flag=True, help="Every queue, not only the sums of topics.")
@output_option
def inspect(directory: Path, buffers: Path | None, with_queues: bool, form: Form) -> None:
    """Show what is in the store in DIR, at a glance.

    Whose it is, how the last run ended, where the log begins and ends and what of it is known to be on the disk, topics
    and queues, index, tables, write buffers, free space, and in one sentence what the next start would do. It reads
    names, sizes and small files, and believes them: `verify` does not.

    Exit codes: 0 it was read, 2 it was typed wrongly, 3 nothing is there, 4 it cannot be read.
    """
    with reading(directory) as root:
        summary = inspect_store(RealReadingDisk(), root, buffers_path=absolute(buffers))
    show(form, summary_document(summary), lambda: summary_text(summary, with_queues=with_queues))


@click.group(
    epilog=examples(
        ("gantry store inspect DIR", "what is here, and what would a start do"),
        ("gantry store verify DIR", "is every byte of it as it must be"),
        ("gantry store dump DIR --offset 73400320", "what is at this place of the log"),
        ("gantry store repair-plan DIR", "what a start would cut, lose and build again"),
        ("gantry store recover DIR", "do it, without a broker"),
        ("gantry store accept-loss DIR", "go on without log files that are gone for good"),
    )
)
def store() -> None:
    """Look into the files of a store, ours or RocketMQ's.

    All of these but `recover` and `accept-loss` only read: nothing is created, locked or changed, whether the store is
    whole, damaged, empty, or in use at this moment.

    Exit codes: 0 good, 1 damage was found, 2 it was typed wrongly, 3 nothing is there, 4 it cannot be read,
    130 Ctrl-C.
    """


for command in (inspect, verify, dump, repair_plan, recover_store, accept_loss):
    store.add_command(command)
