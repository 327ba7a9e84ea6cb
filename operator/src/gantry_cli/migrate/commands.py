"""`gantry migrate`: from a running broker of RocketMQ's to ours, under load, with one short pause of writes."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.migrate.plan import Migrating, Outcome, Typed
from gantry_cli.migrate.record import Home
from gantry_cli.migrate.source import CannotMigrate
from gantry_cli.options import name_server_option, read_settings, refuse_ignored
from gantry_cli.output import Form, output_option, print_document

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@click.command(
    epilog=examples(
        ("gantry migrate --data /var/lib/gantry --dry-run", "what would be done, what would not come along"),
        (
            "gantry migrate -n 192.0.2.1:9876 --broker broker-a --data /var/lib/gantry",
            "do it; it asks before the switch",
        ),
        ("gantry migrate --data DIR --abort", "an earlier run was killed, the old broker shall go on"),
    )
)
@name_server_option
@click.option("--broker", "broker_name", metavar="NAME", help="Which broker [default: the only one].")
@click.option(
    "--data",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of our broker: its broker.conf, its store, its log.",
)
@click.option("--host", help="Our broker's address for clients [default: ours towards the name server].")
@click.option(
    "--port",
    type=click.IntRange(3, 65534),
    default=10911,
    show_default=True,
    help="Our broker's port; two below it and one above it are used, too.",
)
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", callback=read_settings,
              help="A setting for our broker.conf.")  # fmt: skip
@click.option("--no-start", is_flag=True, help="Wait for somebody else to start our broker with its broker.conf.")
@click.option("--dry-run", is_flag=True, help="Look, say what would be done, change nothing.")
@click.option("--abort", is_flag=True, help="Have the old broker take messages again, after a run that was killed.")
@click.option("--yes", is_flag=True, help="Do not ask: not about warnings, not before the switch.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.5, 3600),
    default=30.0,
    show_default=True,
    help="How many seconds nobody may write while the rest is copied; then the old broker goes on.",
)
@click.option(
    "--linger",
    "linger_s",
    type=click.FloatRange(0, 3600),
    default=35.0,
    show_default=True,
    help="For how many seconds after the switch consumers' late commits at the old broker are brought over.",
)
@output_option
def migrate(name_server: str, data: Path, options: dict[str, str], abort: bool, form: Form, **typed: Any) -> None:
    """Take over from a running broker of RocketMQ's.

    Its version may be 4.9 or 5. Our broker is started as a slave of the old one and copies its whole log while
    clients go on. Once it is level, and after a question, the old broker is told to take no more messages; the rest
    is copied, topics, groups and offsets a last time; our broker becomes the master in the old one's name, and the
    name servers lead to it. That pause is measured and printed. Clients need no restart and no new setting.

    Until our broker is promoted, every failure and Ctrl-C puts the old broker back as it was. The command may be run
    again at any time: it goes on where the last run ended. Our broker goes on when the command has ended; give its
    broker.conf to whatever keeps servers running on this machine.

    Exit codes: 0 done, 1 it could not be done and says how things are, 2 the command was typed wrongly,
    130 Ctrl-C, and the old broker goes on.
    """
    if abort:
        refuse_ignored("with --abort, which changes the old broker back", ignored={"dry_run"})
    wish = Typed(name_server=name_server, home=Home(data), options=options, **typed)
    try:
        outcome = asyncio.run(_until_signal(_migrate(wish, abort=abort, quiet=form.is_document)))
    except CannotMigrate as error:
        if form.is_document:
            print_document(form, {"error": error.reason})
        raise CliError(error.reason, error.remedy) from error
    if form.is_document:
        print_document(form, {"error": None, **dataclasses.asdict(outcome)})
    if outcome.is_blocked:
        raise click.exceptions.Exit(1)


async def _migrate(wish: Typed, *, abort: bool, quiet: bool) -> Outcome:
    async with Migrating(wish, quiet=quiet) as migrating:
        return await (migrating.abort() if abort else migrating.run())


async def _until_signal(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """SIGTERM and SIGHUP end it as Ctrl-C does: put back what can be put back."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise click.Abort from None
