"""`gantry store inspect`: a store at a glance."""

from pathlib import Path

import click

from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.inspect.summary import inspect_store
from gantry_cli.examples import examples
from gantry_cli.output import Form, output_option, show
from gantry_cli.store_json import summary_document
from gantry_cli.store_reading import absolute, reading
from gantry_cli.store_summary_text import summary_text


@click.command(
    epilog=examples(
        ("gantry store inspect /var/lib/gantry/store", "at a glance"),
        ("gantry store inspect DIR --all", "with every queue"),
        ("gantry store inspect DIR --buffers /dev/hugepages/gantry", "its write buffers are here now"),
        ("gantry store inspect DIR --output json | jq .log", "for programs"),
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--buffers", type=click.Path(path_type=Path), help="Where its write buffers are, if not where it says.")
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
