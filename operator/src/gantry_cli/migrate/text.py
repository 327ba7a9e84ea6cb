"""A migration as a person reads it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

import click

from gantry_cli.migrate.checks import Finding, Kind
from gantry_cli.migrate.record import Home, Record
from gantry_cli.migrate.run import Progress, Switched
from gantry_cli.text import bytes_text, duration_text

PLAIN_INTERVAL_S: Final = 5.0
MARKS: Final = {Kind.FINE: "ok", Kind.WARNING: "WARNING", Kind.BLOCKED: "BLOCKED"}


def finding_text(one: Finding) -> str:
    """One line."""
    return f"  {MARKS[one.kind]:<8} {one.what}{f' -- {one.remedy}' if one.remedy else ''}"


def plan_text(old_address: str, name: str, home: Home, conf: Mapping[str, str], *, is_conf_new: bool) -> Iterator[str]:
    """What a migration would do."""
    yield "What would be done:"
    yield f"  1. {home.conf} {'written' if is_conf_new else 'used as it is'}, our broker started with it"
    yield f"  2. it follows {name} at {old_address} as slave {conf.get('brokerId', '?')}, until it has the whole log"
    yield f"  3. after a question, {old_address} stops taking messages: brokerRole=SLAVE, brokerPermission=4"
    yield "  4. the last bytes, topics, groups, offsets and delayed messages' progress are copied"
    yield f"  5. our broker becomes {name}'s master, in an epoch of its own, and name servers lead to it"
    yield f"  6. {old_address} is closed to consumers, too: brokerPermission=0"
    yield "  Up to 4, a failure or Ctrl-C puts the old broker back as it is now. Its process is never ended."
    if is_conf_new:
        yield f"{home.conf} would be:"
        yield from (f"  {key}={value}" for key, value in conf.items())


def progress_text(progress: Progress) -> str:
    """`copied 1.2 GiB of 3.1 GiB (39%), 210.3 MiB/s, 9s left`."""
    share = 100 * progress.copied // progress.total if progress.total else 100
    if progress.left_s is not None:
        left = f", {duration_text(progress.left_s)} left"
    else:
        left = ", and the old log grows as fast" if progress.per_s > 0 and progress.copied < progress.total else ""
    size = f"{bytes_text(progress.copied)} of {bytes_text(progress.total)} ({share}%)"
    return f"copied {size}, {bytes_text(int(progress.per_s))}/s{left}"


def done_text(record: Record, switched: Switched | None, late: int) -> Iterator[str]:
    """What came of it, and how to go back."""
    if switched is not None:
        yield f"our broker at {switched.address} is the master of {record.broker_name}, from offset {record.end} on"
    yield f"nobody could write for {record.pause_ms:.0f} ms"
    yield "clients learn of it with their next look at the routes: within 30 s, unless they are set otherwise"
    if late:
        yield f"{late} offsets that consumers committed at the old broker meanwhile were brought over"
    yield f"the old broker at {record.old_address} is closed and out of the routes: stop it"
    yield "to go back, see docs/migration.md: what is sent to our broker from now on is not on the old one"


@final
class ProgressLine:
    """One line of a terminal that changes, or a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._said_at = -PLAIN_INTERVAL_S
        self._is_open = False

    def __call__(self, progress: Progress) -> None:
        is_end = progress.copied == progress.total
        if self._is_terminal:
            click.echo(f"\r\x1b[2K{progress_text(progress)}", nl=False, err=True)
            self._is_open = True
        elif is_end or time.monotonic() - self._said_at >= PLAIN_INTERVAL_S:
            self._said_at = time.monotonic()
            click.echo(progress_text(progress), err=True)

    def close(self) -> None:
        if self._is_open:
            click.echo(err=True)
            self._is_open = False


def blocked(found: Sequence[Finding]) -> list[Finding]:
    """What would fail."""
    return [one for one in found if one.kind is Kind.BLOCKED]
