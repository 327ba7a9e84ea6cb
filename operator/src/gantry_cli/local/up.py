"""`gantry up`: starts a group with one command, and checks it by sending a message and reading it back."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from gantry_cli.account import account_options
from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.local.group_run import UpOptions, run_group
from gantry_cli.local.plan import LaunchOptions
from gantry_cli.local.ports import BROKER, NAME_SERVER, PROXY, SIDECAR
from gantry_cli.local.running import DetachedOutput, ForegroundOutput, RunOutput
from gantry_cli.options import data_option, read_settings, refuse_ignored
from gantry_cli.progress import spinner
from gantry_cli.stack import StackDirectory
from gantry_remoting import bare_host

PORT = click.IntRange(0, 65535)
SUPERVISED: Final = frozenset({"brokerId", "brokerRole", "controlSocketPath", "roleAtStart"})
"""Settings by which the supervisor gives a broker its role."""


@click.command(
    epilog=examples(
        ("gantry up", "run a master and a slave, with a sidecar each, until Ctrl-C"),
        ("gantry up -f group.yaml", "run the group of a manifest: shards, slaves, buffers, topics"),
        ("gantry up --detach", "run in the background; stop it with `gantry down`"),
        ("gantry up --data /tmp/second --namesrv-port 0 --broker-port 0 --console-port 0", "run a second group"),
        ("gantry up --single -o autoCreateTopicEnable=false", "run a single broker, with a broker.conf setting"),
    )
)
@data_option
@click.option("-f", "--file", "manifest", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A BrokerGroup manifest [default: the directory's, else one shard and one slave].")  # fmt: skip
@click.option("--single", is_flag=True, help="Run one name server and one broker, without manifest, slave and sidecar.")
@click.option("--namesrv-port", "name_server_port", type=PORT,
              help="Port of the first name server; 0 takes a free one [default: as before, else 9876].")  # fmt: skip
@click.option("--broker-port", type=PORT,
              help="Port of the first broker; its fast port is two below, its replication port one above; 0 takes"
              " free ones [default: as before, else 10911].")  # fmt: skip
@click.option("--console-port", type=PORT,
              help="Port of the first sidecar, with the console; 0 takes a free one"
              " [default: as before, else 8080].")  # fmt: skip
@click.option("--proxy-port", type=PORT,
              help="Port of the first gRPC proxy for RocketMQ 5 SDKs; 0 takes a free one"
              " [default: as before, else 8081, or a free one if --broker-port is 0].")  # fmt: skip
@click.option("--no-proxy", "without_proxy", is_flag=True, help="Run no gRPC proxy, also if the manifest has some.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    callback=lambda _context, _parameter, host: bare_host(host),
    help="Address to listen on and to advertise to clients; ::1 for IPv6.",
)
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", callback=read_settings,
              help="With --single, a setting for broker.conf; repeatable (`gantry broker --settings` lists them)."
              " A group has them in spec.broker.")  # fmt: skip
@click.option("--detach", "is_detached", is_flag=True, help="Run in the background.")
@click.option("--report-fd", type=int, hidden=True, help="For --detach: write the outcome to this descriptor.")
def up(
    data: Path, manifest: Path | None, single: bool, name_server_port: int | None, broker_port: int | None,
    console_port: int | None, proxy_port: int | None, without_proxy: bool, host: str, options: dict[str, str],
    is_detached: bool, report_fd: int | None,
) -> None:  # fmt: skip
    """Start a group of brokers on this machine, and check that it works.

    Name servers, masters, slaves and their sidecars run as processes that are restarted when they die, with their data
    and logs in the --data directory. When a master fails, a slave takes over as in a cluster. The command sends a
    message and reads it back, prints addresses and next steps, and shows the state until Ctrl-C.
    """
    if broker_port in (1, 2):
        raise click.BadParameter(
            "the fast port is two below the broker's port; use 3 or more", param_hint="--broker-port"
        )
    if options and not single:
        raise click.UsageError("-o is only for --single; a group has these settings in its manifest: spec.broker")
    if manifest is not None and single:
        raise click.UsageError("--single and -f contradict each other: give one of them")
    if supervised := sorted(options.keys() & SUPERVISED):
        raise click.UsageError(f"-o {supervised[0]} is set by the supervisor of the broker: remove it")
    if single:
        refuse_ignored("with --single, which runs no sidecar", ignored={"console_port"})
        refuse_ignored("with --single, which runs no proxy", ignored={"proxy_port", "without_proxy"})
    if without_proxy and proxy_port is not None:
        raise click.UsageError("--no-proxy and --proxy-port contradict each other: give one of them")
    if is_detached:
        context = click.get_current_context()
        arguments = ["--host", host] + (["--single"] if single else []) + (["--no-proxy"] if without_proxy else [])
        arguments += [] if manifest is None else ["-f", str(manifest.absolute())]
        for name in ("name_server_port", "broker_port", "console_port", "proxy_port"):
            if context.params[name] is not None:
                option = f"--{name.replace('name_server', 'namesrv').replace('_', '-')}"
                arguments += [option, str(context.params[name])]
        log_level = ("--log-level", str(context.find_root().params["log_level"]))
        arguments += [word for pair in options.items() for word in ("-o", "=".join(pair))]
        detach(data, arguments, general=[*log_level, *account_options()])
        return

    def run(output: RunOutput) -> None:
        ports = ((NAME_SERVER, name_server_port), (BROKER, broker_port), (SIDECAR, console_port), (PROXY, proxy_port))
        launch = LaunchOptions(
            host=host, ports=ports, single=options if single else None, has_proxies=not without_proxy and not single
        )
        asyncio.run(run_group(UpOptions(data=data, manifest=manifest, launch=launch), output))

    if report_fd is None:
        run(ForegroundOutput())
    else:
        run_detached(report_fd, run)


# -- in the background -------------------------------------------------------------------------------------------------
# `--detach` runs the same command again in a session of its own, and waits for the outcome of its start.


DETACH_TIMEOUT_S: Final = 180.0
"""How long the parent waits for the outcome of the start."""


def detach(data: Path, arguments: Sequence[str], *, general: Sequence[str]) -> None:
    """Run `gantry up` with these arguments, and the general options of `gantry`, in the background.

    Raises CliError when its start fails.
    """
    reader, writer = os.pipe()
    directory = StackDirectory(data)
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        log = directory.log.open("ab")
    except OSError as error:
        raise CliError(f"cannot use {data}: {error.strerror}", "choose another --data") from error
    command = [sys.executable, "-m", "gantry_cli", *general, "up", "--report-fd", str(writer)]
    with log:
        process = subprocess.Popen(
            [*command, "--data", str(directory.path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    with os.fdopen(reader) as pipe, spinner("starting"):
        outcome = json.loads(pipe.read() or "{}")
    if "ready" in outcome:
        click.echo(outcome["ready"])
        return
    try:
        process.wait(DETACH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its servers end with it
    raise CliError(outcome.get("error", f"the group did not start; see {directory.log}"))


def run_detached(descriptor: int, run: Callable[[DetachedOutput], None]) -> None:
    """Run as the background process of ``detach``, and send the outcome to the descriptor."""
    output = DetachedOutput(descriptor)
    try:
        run(output)
    except CliError as error:
        click.echo(error.format_message())
        try:
            output.send_outcome({"error": error.format_message()})
        except OSError:
            raise error from None  # it failed after it was ready, and the parent has ended
        raise
