"""The command `gantry migrate`: migration from a running RocketMQ broker, with one short write pause."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.migrate.migrator import MigrationOptions, MigrationResult, Migrator
from gantry_cli.migrate.record import MigrationDirectory
from gantry_cli.migrate.source import MigrationError
from gantry_cli.options import name_server_option, read_settings, refuse_ignored
from gantry_cli.output import OutputFormat, long_output_option, print_document
from gantry_status.broker_ports import BROKER_PORT

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@click.command(
    epilog=examples(
        ("gantry migrate --data /var/lib/gantry --dry-run", "show the plan, and what is not migrated"),
        (
            "gantry migrate -n 192.0.2.1:9876 --broker broker-a --data /var/lib/gantry",
            "migrate; asks before the switch",
        ),
        ("gantry migrate --data DIR --abort", "resume writes on the old broker after a run was killed"),
    )
)
@name_server_option
@click.option("--broker", "broker_name", metavar="NAME", help="Name of the old broker [default: the only one].")
@click.option(
    "--data",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the new broker, for its broker.conf, store and log; created if it does not exist.",
)
@click.option(
    "--host", help="Address of the new broker for clients [default: the local address of the route to the name server]."
)
@click.option(
    "--port",
    type=click.IntRange(3, 65534),
    default=BROKER_PORT,
    show_default=True,
    help="Port of the new broker; PORT-2 and PORT+1 are used, too.",
)
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", callback=read_settings,
              help="Setting for the new broker's broker.conf; repeatable.")  # fmt: skip
@click.option(
    "--no-start", is_flag=True, help="Do not start the new broker; wait until it is started with its broker.conf."
)
@click.option("--dry-run", is_flag=True, help="Check and print the plan without changes.")
@click.option("--abort", is_flag=True, help="Resume writes on the old broker, after a run that was killed.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of warnings and of the switch.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.5, 3600),
    default=30.0,
    show_default=True,
    help="Maximum time in seconds to stop writes and copy the rest; after it, the old broker resumes.",
)
@click.option(
    "--linger",
    "linger_s",
    type=click.FloatRange(0, 3600),
    default=35.0,
    show_default=True,
    help="Seconds after the switch during which offset commits at the old broker are copied to the new one.",
)
@long_output_option
def migrate(
    name_server: str, data: Path, options: dict[str, str], abort: bool, form: OutputFormat, **typed: Any
) -> None:
    """Migrate from a running RocketMQ broker.

    The old broker, a RocketMQ master, may have version 4.9 or 5. The new broker, which is Gantry's, is started as its
    slave and copies its whole log while clients continue. When it has caught up, and after a confirmation, the old
    broker stops accepting messages. The rest of the log is copied, and topics, groups and offsets a last time. The new
    broker then becomes the master under the same broker name, and the name servers route clients to it. The write pause
    is measured and printed. Clients need no restart and no new settings.

    Until the promotion of the new broker begins, a failure or Ctrl-C restores the settings of the old broker. The
    command can be run again at any time and continues where the last run ended. The first run writes broker.conf with
    --host, --port and -o; a later run refuses values of these options that differ from that file. The new broker keeps
    running when the command has ended; add its broker.conf to the service manager of this machine.

    Exit codes: 0 success, 1 failure with the present state, 2 invalid usage, 130 interrupted: the old broker continues,
    unless the new one was being promoted.
    """
    if abort:
        refuse_ignored("with --abort, which restores the old broker", ignored={"dry_run"})
    if click.get_current_context().get_parameter_source("port") is not ParameterSource.COMMANDLINE:
        typed["port"] = None
    request = MigrationOptions(name_server=name_server, directory=MigrationDirectory(data), settings=options, **typed)
    try:
        result = asyncio.run(_until_signal(_migrate(request, abort=abort, quiet=form.is_document)))
    except MigrationError as error:
        if form.is_document:
            print_document(form, {"error": error.reason})
        raise CliError(error.reason, error.remedy) from error
    if form.is_document:
        print_document(form, {"error": None, **dataclasses.asdict(result)})
    if result.is_blocked:
        raise click.exceptions.Exit(1)


async def _migrate(options: MigrationOptions, *, abort: bool, quiet: bool) -> MigrationResult:
    async with Migrator(options, quiet=quiet) as migrator:
        return await (migrator.abort() if abort else migrator.run())


async def _until_signal(work: Coroutine[Any, Any, MigrationResult]) -> MigrationResult:
    """Run the migration; SIGTERM and SIGHUP cancel it as Ctrl-C does, so that the old broker is restored."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise click.Abort from None
