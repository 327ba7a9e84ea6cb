"""The output of a migration for people: findings, plan, progress and result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

import click

from gantry_cli.migrate.checks import Finding, Severity
from gantry_cli.migrate.procedure import Progress, SwitchResult
from gantry_cli.migrate.record import MigrationDirectory, MigrationRecord
from gantry_cli.text import duration_text
from gantry_status.text import bytes_text

PLAIN_INTERVAL_S: Final = 5.0
MARKS: Final = {Severity.FINE: "ok", Severity.WARNING: "WARNING", Severity.BLOCKED: "BLOCKED"}
"""The word before a finding, by severity."""


def finding_text(one: Finding) -> str:
    """Return a finding as one line."""
    return f"  {MARKS[one.kind]:<8} {one.what}{f' -- {one.remedy}' if one.remedy else ''}"


def plan_text(
    old_address: str, name: str, directory: MigrationDirectory, conf: Mapping[str, str], *, is_conf_new: bool
) -> Iterator[str]:
    """Yield the steps that a migration would take."""
    yield "Plan:"
    yield f"  1. {'Write' if is_conf_new else 'Use'} {directory.conf}, and start the new broker with it"
    slave_id = conf.get("brokerId", "?")
    yield f"  2. The new broker follows {name} at {old_address} as slave {slave_id} until it has caught up"
    yield f"  3. After a confirmation, {old_address} stops accepting messages: brokerRole=SLAVE, brokerPermission=4"
    yield "  4. The rest of the log, topics, groups, offsets and the progress of delayed messages are copied"
    yield f"  5. The new broker becomes the master of {name} in a new epoch, and name servers route clients to it"
    yield f"  6. {old_address} stops serving consumers: brokerPermission=0"
    yield "  Up to step 4, a failure or Ctrl-C restores the old broker. Its process is never stopped."
    if is_conf_new:
        yield f"{directory.conf} would be:"
        yield from (f"  {key}={value}" for key, value in conf.items())


def unfinished_promotion_text(record: MigrationRecord) -> Iterator[str]:
    """Yield what a dry run reports after a run that has ended during the promotion."""
    yield f"An earlier run has stopped writes at {record.old_address} and begun to promote the new {record.broker_name}"
    yield f"Plan: a run without --dry-run promotes the new broker in epoch {record.epoch}, from offset {record.end} on,"
    yield "  copies late commits, and closes the old broker"


def progress_text(progress: Progress) -> str:
    """Return the progress as one line: `copied 1.2 GiB of 3.1 GiB (39%), 210.3 MiB/s, 9s left`."""
    share = 100 * progress.copied // progress.total if progress.total else 100
    if progress.left_s is not None:
        left = f", {duration_text(progress.left_s)} left"
    else:
        left = ", the old log grows at least as fast" if progress.per_s > 0 and progress.copied < progress.total else ""
    size = f"{bytes_text(progress.copied)} of {bytes_text(progress.total)} ({share}%)"
    return f"copied {size}, {bytes_text(int(progress.per_s))}/s{left}"


def result_text(record: MigrationRecord, switched: SwitchResult | None, late: int) -> Iterator[str]:
    """Yield the result of a migration, and the next steps."""
    if switched is not None:
        yield f"The new broker at {switched.address} is the master of {record.broker_name}, from offset {record.end} on"
    if record.pause_ms >= 0:  # the run that measured it was not killed before the end of the promotion
        yield f"Write pause: {record.pause_ms:.0f} ms"
    yield "Clients switch with their next route update: within 30 s by default"
    if late:
        yield f"{late} offsets that consumers committed at the old broker after the switch were copied"
    if record.is_old_closed:
        yield f"The old broker at {record.old_address} is closed and removed from the routes: stop it"
    else:
        yield f"WARNING: the old broker at {record.old_address} did not confirm that it is closed, and that it accepted"
        yield "  no messages after the switch: stop it, or clients may continue to read there"
    yield "To roll back, see docs/migration.md; messages that are sent from now on are not on the old broker"


@final
class ProgressLine:
    """A progress line on standard error: updated in place on a terminal, otherwise printed at intervals."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._printed_at = -PLAIN_INTERVAL_S
        self._is_open = False

    def __call__(self, progress: Progress) -> None:
        is_end = progress.copied == progress.total
        if self._is_terminal:
            click.echo(f"\r\x1b[2K{progress_text(progress)}", nl=False, err=True)
            self._is_open = True
        elif is_end or time.monotonic() - self._printed_at >= PLAIN_INTERVAL_S:
            self._printed_at = time.monotonic()
            click.echo(progress_text(progress), err=True)

    def close(self) -> None:
        if self._is_open:
            click.echo(err=True)
            self._is_open = False


def blocking_findings(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that block a migration."""
    return [one for one in found if one.kind is Severity.BLOCKED]
