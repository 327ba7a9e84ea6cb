"""`gantry store repair-plan`, `recover` and `accept-loss`: what a start would do, and doing it without a broker."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from gantry_broker.ports.clock import SystemClock
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store import offline
from gantry_broker.store.inspect.repair import RepairPlanner
from gantry_broker.store.inspect.summary import StoreSummary, inspect_store
from gantry_broker.store.loss import describe_missing
from gantry_broker.store.offline import CannotRecover, recover
from gantry_cli.errors import Absent
from gantry_cli.examples import examples
from gantry_cli.output import Form, output_option, show
from gantry_cli.progress import Tell, bytes_progress
from gantry_cli.store.reading import (
    EXIT_DAMAGED,
    NO_STORE_REMEDY,
    CannotRead,
    absolute,
    buffers_option,
    directory_argument,
    reading,
)
from gantry_cli.store.text import accepted_text, plan_text, recovery_text

T = TypeVar("T")


@click.command(
    "repair-plan",
    epilog=examples(
        ("gantry store repair-plan /var/lib/gantry/store", "before you start it again"),
        ("gantry store repair-plan DIR --buffers /dev/hugepages/gantry", "its write buffers are here now"),
        ("gantry store repair-plan DIR --output json | jq .cut_bytes", "for programs"),
    ),
)
@directory_argument
@buffers_option
@output_option
def repair_plan(directory: Path, buffers: Path | None, form: Form) -> None:
    """Say what a start would do to the store in DIR, without doing it.

    Where it would begin to read and how much, where the log would end and what is cut off behind that, what is rotten
    and stepped over, which queues and whether the index are built again, which write buffers are replayed or set aside
    and why, and what is lost. The decisions come from the functions that a start itself asks.

    Exit codes: 0 a start loses nothing, 1 it would lose something or refuse, 2 it was typed wrongly, 3 nothing is
    there, 4 it cannot be read, 130 Ctrl-C.
    """
    with reading(directory) as root, bytes_progress("reading") as tell:
        plan = RepairPlanner(RealReadingDisk(), root, tell, boot_id=SystemClock().boot_id()).run(absolute(buffers))
    show(form, plan, lambda: plan_text(plan))
    if plan.refusal or not plan.is_lossless:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@click.command(
    "recover",
    epilog=examples(
        ("gantry store recover /var/lib/gantry/store", "asks first"),
        ("gantry store recover DIR --yes", "in a script"),
        ("gantry store recover DIR --buffers /dev/hugepages/gantry", "its write buffers are here now"),
    ),
)
@directory_argument
@buffers_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def recover_store(directory: Path, buffers: Path | None, yes: bool, form: Form) -> None:
    """Recover the store in DIR without a broker, and leave it cleanly stopped. This one writes.

    It does what a start does: what only write buffers hold is put into the log and the buffers are given back, a torn
    tail is cut off, queues and index are brought up to the log's end, everything is synced, `abort` goes. Afterwards
    RocketMQ may open the store, too. It refuses while a broker runs. Interrupted, it can be run again: it converges.

    Exit codes: 0 done and nothing lost, 1 done, and something was lost or set aside, 2 it was typed wrongly, 3 no store
    is there, 4 it could not be done, 130 Ctrl-C.
    """
    with reading(directory) as root:
        summary = _stopped_store(root, buffers, "stop it first")
        if not yes:
            _confirm(summary.next_start, "Do it now?")
        report = _recovering(lambda tell: recover(root, absolute(buffers), tell))
    show(form, report, lambda: recovery_text(root, report))
    if report.damaged or report.lost_flushed_bytes or report.set_aside:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@click.command(
    "accept-loss",
    epilog=examples(
        ("gantry store accept-loss /var/lib/gantry/store", "shows what is missing, and asks"),
        ("gantry store accept-loss DIR --yes", "in a script"),
    ),
)
@directory_argument
@buffers_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def accept_loss(directory: Path, buffers: Path | None, yes: bool, form: Form) -> None:
    """Accept that log data which is missing in the store in DIR is lost for good. This one writes.

    A broker takes no sends while its log lacks bytes that were on the disk. Put the files back, or let the broker
    follow a master that has them, if you can. If you cannot, this has the log go on behind what is lost: offsets that
    were in use are never used again. The decision is for exactly the ranges that are shown, and is kept in loss.json.
    While a broker runs this refuses: use `gantry ha accept-loss` then.

    Exit codes: 0 done, or nothing is missing, 1 nothing was done, 2 it was typed wrongly, 3 no store is there, 4 it
    could not be done, 130 Ctrl-C.
    """
    with reading(directory) as root:
        summary = _stopped_store(root, buffers, "stop it first, or use `gantry ha accept-loss`")
        if not yes:
            missing = describe_missing(summary.missing) if summary.missing else "No missing log data is known yet."
            _confirm(missing, "Accept that it is lost for good?")
        by = "gantry store accept-loss"
        record = _recovering(lambda tell: offline.accept_loss(root, by, absolute(buffers), tell))
    show(form, record, lambda: accepted_text(root, record))


def _stopped_store(root: str, buffers: Path | None, remedy: str) -> StoreSummary:
    """Return what is in a store that no broker has open. Raises CannotRead with ``remedy`` if one has, and Absent."""
    summary = inspect_store(RealReadingDisk(), root, buffers_path=absolute(buffers))
    if not summary.is_store:
        raise Absent(f"there is no store in {root}", NO_STORE_REMEDY)
    if summary.holder_pid is not None:
        raise CannotRead(f"a broker has {root} open (pid {summary.holder_pid or 'unknown'})", remedy)
    return summary


def _confirm(text: str, question: str) -> None:
    """Show what would happen, and ask. Raises CannotRead if the answer is no."""
    click.echo(text, err=True)
    if not click.confirm(question, err=True):
        raise CannotRead("nothing was done")


def _recovering(work: Callable[[Tell], T]) -> T:
    """Do what writes to the store, and show how far it is. Raises CannotRead if the store cannot be recovered."""
    try:
        with bytes_progress("recovering") as tell:
            return work(tell)
    except CannotRecover as error:
        raise CannotRead(str(error), "see `gantry store repair-plan`") from error
