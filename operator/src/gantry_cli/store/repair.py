"""The commands `gantry store repair-plan`, `recover` and `accept-loss`: recovery without a broker."""

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
from gantry_broker.store.offline import RecoveryFailed, recover
from gantry_cli.errors import NotFoundError
from gantry_cli.examples import examples
from gantry_cli.output import OutputFormat, output_option, show
from gantry_cli.progress import ReportProgress, bytes_progress
from gantry_cli.store.options import (
    EXIT_DAMAGED,
    NO_STORE_REMEDY,
    StoreUnavailable,
    absolute_path,
    buffers_option,
    directory_argument,
    open_store_root,
)
from gantry_cli.store.text import accepted_text, plan_text, recovery_text

T = TypeVar("T")


@click.command(
    "repair-plan",
    epilog=examples(
        ("gantry store repair-plan /var/lib/gantry/store", "show what the next start would do"),
        ("gantry store repair-plan DIR --buffers /dev/hugepages/gantry", "use write buffers that were moved"),
        ("gantry store repair-plan DIR --output json | jq .cut_bytes", "print JSON"),
    ),
)
@directory_argument
@buffers_option
@output_option
def repair_plan(directory: Path, buffers: Path | None, form: OutputFormat) -> None:
    """Show how a broker would recover the store in DIR, without changing it.

    The plan shows where recovery starts reading and how much it reads, where the log would end and what is truncated,
    which corrupt ranges are skipped, whether queues and the index are rebuilt, which write buffers are replayed or set
    aside and why, and what is lost. The decisions are made by the same functions as in a broker.

    Exit codes: 0 nothing would be lost, 1 data would be lost or the start would fail, 2 invalid usage, 3 not found,
    4 the store cannot be read, 130 interrupted.
    """
    with open_store_root(directory) as root, bytes_progress("reading") as report_progress:
        plan = RepairPlanner(RealReadingDisk(), root, report_progress, boot_id=SystemClock().boot_id()).run(
            absolute_path(buffers)
        )
    show(form, plan, lambda: plan_text(plan))
    if plan.refusal or not plan.is_lossless:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@click.command(
    "recover",
    epilog=examples(
        ("gantry store recover /var/lib/gantry/store", "ask, then recover"),
        ("gantry store recover DIR --yes", "recover without a question, in a script"),
        ("gantry store recover DIR --buffers /dev/hugepages/gantry", "use write buffers that were moved"),
    ),
)
@directory_argument
@buffers_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def recover_store(directory: Path, buffers: Path | None, yes: bool, form: OutputFormat) -> None:
    """Recover the store in DIR without a broker. This command writes to the store.

    It recovers as the start of a broker does: write buffers are replayed into the log and released, a torn tail is
    truncated, queues and index are brought up to the end of the log, everything is flushed, and the file `abort` is
    removed. Afterwards Gantry or RocketMQ can open the store. The command refuses while a broker has the store open. If
    it is interrupted, it can be run again.

    Whole records in the torn tail count as lost, as in `repair-plan`: with asynchronous flush they may have been
    acknowledged.

    Exit codes: 0 recovered, no acknowledged data lost, 1 recovered, data was lost or set aside, 2 invalid usage, 3 no
    store found, 4 not recovered, 130 interrupted.
    """
    with open_store_root(directory) as root:
        summary = inspect_stopped_store(root, buffers, "stop it first")
        if not yes:
            _confirm(summary.next_start, "Recover now?")
        report = _run_with_progress(lambda report_progress: recover(root, absolute_path(buffers), report_progress))
    show(form, report, lambda: recovery_text(root, report))
    if not report.is_lossless:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@click.command(
    "accept-loss",
    epilog=examples(
        ("gantry store accept-loss /var/lib/gantry/store", "show the missing ranges, then ask"),
        ("gantry store accept-loss DIR --yes", "accept without a question, in a script"),
    ),
)
@directory_argument
@buffers_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def accept_loss(directory: Path, buffers: Path | None, yes: bool, form: OutputFormat) -> None:
    """Accept the loss of missing log data in the store in DIR. This command writes to the store.

    A broker refuses sends while its log lacks bytes that were on the disk. If possible, restore the files, or let the
    broker follow a master that has them. If that is not possible, accept the loss: the log then continues after the
    missing ranges, and their offsets are never reused. The decision is stored in loss.json. The store is recovered
    first, as by `gantry store recover`, also if nothing is missing. If the recovery then finds a missing range that was
    not shown, nothing is accepted; run the command again. With --yes, all that is missing is accepted. The command
    refuses while a broker has the store open: use `gantry ha accept-loss` then.

    Exit codes: 0 accepted, or nothing is missing, 2 invalid usage, 3 no store found, 4 not accepted, 130 interrupted.
    """
    with open_store_root(directory) as root:
        summary = inspect_stopped_store(root, buffers, "stop it first, or use `gantry ha accept-loss`")
        if not yes:
            missing = describe_missing(summary.missing) if summary.missing else "No log data is known to be missing."
            _confirm(missing, "Accept the loss permanently?")
        by = "gantry store accept-loss"
        record = _run_with_progress(
            lambda report_progress: offline.accept_loss(
                root, by, absolute_path(buffers), report_progress, shown=None if yes else summary.missing
            )
        )
    show(form, record, lambda: accepted_text(root, record))


def inspect_stopped_store(root: str, buffers: Path | None, remedy: str) -> StoreSummary:
    """Return the summary of a store that no broker has open. Raises StoreUnavailable with ``remedy``, NotFoundError."""
    summary = inspect_store(RealReadingDisk(), root, buffers_path=absolute_path(buffers))
    if not summary.is_store:
        raise NotFoundError(f"no store found in {root}", NO_STORE_REMEDY)
    if summary.holder_pid is not None:
        raise StoreUnavailable(f"a broker has {root} open (pid {summary.holder_pid or 'unknown'})", remedy)
    return summary


def _confirm(text: str, question: str) -> None:
    """Show what would happen and ask for confirmation. Raises StoreUnavailable if the answer is no."""
    click.echo(text, err=True)
    if not click.confirm(question, err=True):
        raise StoreUnavailable("canceled; nothing was changed")


def _run_with_progress(work: Callable[[ReportProgress], T]) -> T:
    """Run an operation that writes to the store, with a progress bar. Raises StoreUnavailable if it fails."""
    try:
        with bytes_progress("recovering") as report_progress:
            return work(report_progress)
    except RecoveryFailed as error:
        raise StoreUnavailable(str(error), "see `gantry store repair-plan`") from error
