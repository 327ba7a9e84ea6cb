"""`gantry up`: from nothing to a broker that has sent and read back a message, with one command."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from gantry_cli.errors import CliError, explain
from gantry_cli.examples import examples
from gantry_cli.local_stack import LocalStack, StackPlan, plan
from gantry_cli.options import data_option
from gantry_cli.own_name import own_name
from gantry_cli.round_trip import RoundTrip, round_trip
from gantry_cli.stack import StackDirectory, StackRunning
from gantry_cli.state_stream import StateStream
from gantry_client import ClientError

STATE_INTERVAL_S: Final = 1.0
PLAIN_INTERVAL_S: Final = 10.0
DETACH_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What was typed."""

    data: Path
    host: str
    name_server_port: int
    broker_port: int
    broker_options: dict[str, str]
    report_fd: int | None


@click.command(
    epilog=examples(
        ("gantry up", "name server on 9876, broker on 10911, until Ctrl-C"),
        ("gantry up --detach", "the same in the background; stop it with `gantry down`"),
        ("gantry up --data /tmp/second --namesrv-port 9886 --broker-port 10921", "a second one beside it"),
        ("gantry up -o autoCreateTopicEnable=false", "with a broker.conf setting"),
    )
)
@data_option
@click.option("--namesrv-port", "name_server_port", type=click.IntRange(0, 65535), default=9876, show_default=True,
              help="Port of the name server; 0 takes a free one.")  # fmt: skip
@click.option("--broker-port", type=click.IntRange(0, 65535), default=10911, show_default=True,
              help="Port of the broker; its fast port is two below; 0 takes free ones.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on and to tell clients.")
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE",
              help="A setting for broker.conf; repeatable (`gantry broker --settings` lists them).")  # fmt: skip
@click.option("--detach", is_flag=True, help="Go on in the background.")
@click.option("--report-fd", type=int, hidden=True, help="For --detach: say on this descriptor how the start went.")
def up(
    data: Path, name_server_port: int, broker_port: int, host: str, options: tuple[str, ...], detach: bool,
    report_fd: int | None,
) -> None:  # fmt: skip
    """Start a name server and a broker here, and prove that they work.

    Both run as processes that are restarted when they die, with their data and logs in the --data directory. One
    message is sent and read back; then addresses and next steps are printed, and the state is shown until Ctrl-C.
    """
    typed = UpOptions(
        data=data,
        host=host,
        name_server_port=name_server_port,
        broker_port=broker_port,
        broker_options=_broker_options(options),
        report_fd=report_fd,
    )
    if broker_port in (1, 2):
        raise click.BadParameter(
            "the fast port is two below the broker's port; take 3 or more", param_hint="--broker-port"
        )
    if detach:
        _detach(typed)
    elif report_fd is not None:
        _run_detached(typed, report_fd)
    else:
        asyncio.run(_run(typed, _ForegroundFace()))


# ------- the run itself


class _ForegroundFace:
    """A terminal, where the state is one line that changes, or a pipe that gets a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._has_state_line = False

    def report(self, text: str) -> None:
        if self._has_state_line:
            click.echo()
            self._has_state_line = False
        click.echo(text)

    def ready(self, stack: LocalStack, trip: RoundTrip) -> None:
        click.echo(summary(stack.directory, stack.plan, trip, is_detached=False))

    async def stream(self, plan: StackPlan) -> None:
        show: Callable[[str], None] = self._rewrite_line if self._is_terminal else click.echo
        interval_s = STATE_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S
        await StateStream(plan.name_server, plan.broker, show, interval_s=interval_s).run()

    def _rewrite_line(self, text: str) -> None:
        """The same line of the terminal again. A terminal that does not know its width gets it whole."""
        columns = os.get_terminal_size().columns
        click.echo(f"\r\x1b[2K{text[: columns - 1] if columns else text}", nl=False)
        self._has_state_line = True


class _DetachedFace:
    """Nobody watches: reports go to up.log, the outcome of the start to whoever typed --detach."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, text: str) -> None:
        click.echo(text)

    def ready(self, stack: LocalStack, trip: RoundTrip) -> None:
        self.say({"ready": summary(stack.directory, stack.plan, trip, is_detached=True)})

    async def stream(self, plan: StackPlan) -> None:
        await asyncio.Event().wait()

    def say(self, outcome: dict[str, Any]) -> None:
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(json.dumps(outcome))


async def _run(typed: UpOptions, face: "_ForegroundFace | _DetachedFace") -> None:
    """Everything between the lock and its release. Raises CliError."""
    directory = _claim(typed.data)
    try:
        stack = LocalStack(directory, plan(typed.host, typed.name_server_port, typed.broker_port, typed.broker_options),
                           face.report)  # fmt: skip
        stopped = _stop_signal()
        try:
            await _until(stopped, _work(stack, face))
        finally:
            face.report("stopping")
            killed = await stack.stop()
        if killed:
            raise CliError(f"had to kill the {' and the '.join(killed)} after waiting in vain", "see its log")
        face.report("stopped")
    finally:
        directory.release()


async def _work(stack: LocalStack, face: "_ForegroundFace | _DetachedFace") -> None:
    await stack.start(is_detached=isinstance(face, _DetachedFace), pid=os.getpid())
    try:
        trip = await round_trip(stack.plan.name_server)
    except ClientError as error:
        raise explain(error, stack.plan.name_server) from error
    face.ready(stack, trip)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(stack.keep(), name="keep servers")
            group.create_task(face.stream(stack.plan), name="stream state")
    except* CliError as errors:
        raise errors.exceptions[0] from None


async def _until(stopped: asyncio.Event, work: Any) -> None:
    """Run `work` until it ends by itself (then its error counts) or a signal comes."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not working.done():
        working.cancel()
    results = await asyncio.gather(working, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


def _stop_signal() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _claim(data: Path) -> StackDirectory:
    try:
        return StackDirectory(data).claim()
    except StackRunning as running:
        record = running.record
        where = f"name server {record.name_server}, pid {record.pid}" if record is not None else "it is just starting"
        raise CliError(
            f"a stack runs on {data} already ({where})",
            f"see `gantry status`, stop it with `gantry down --data {data}`, or choose another --data",
        ) from running
    except OSError as error:
        raise CliError(f"cannot use {data}: {error.strerror}", "choose another --data") from error


# ------- in the background


def _detach(typed: UpOptions) -> None:
    """Start ourselves again in a session of its own, and wait to hear how it went."""
    reader, writer = os.pipe()
    directory = StackDirectory(typed.data)
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        log = directory.log("up").open("ab")
    except OSError as error:
        raise CliError(f"cannot use {typed.data}: {error.strerror}", "choose another --data") from error
    with log:
        process = subprocess.Popen(
            _detached_command(typed, directory, writer),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        outcome = json.loads(pipe.read() or "{}")
    if "ready" in outcome:
        click.echo(outcome["ready"])
        return
    process.wait(DETACH_TIMEOUT_S)
    raise CliError(outcome.get("error", f"the stack did not start; see {directory.log('up')}"))


def _detached_command(typed: UpOptions, directory: StackDirectory, descriptor: int) -> list[str]:
    command = [sys.executable, "-m", "gantry_cli", "up", "--report-fd", str(descriptor), "--data", str(directory.path)]
    command += ["--host", typed.host, "--namesrv-port", str(typed.name_server_port)]
    command += ["--broker-port", str(typed.broker_port)]
    for key, value in typed.broker_options.items():
        command += ["-o", f"{key}={value}"]
    return command


def _run_detached(typed: UpOptions, descriptor: int) -> None:
    face = _DetachedFace(descriptor)
    try:
        asyncio.run(_run(typed, face))
    except CliError as error:
        click.echo(error.format_message())
        try:
            face.say({"error": error.format_message()})
        except OSError:
            raise error from None  # it failed after it was ready, and nobody listens any more
        raise


# ------- what is printed


def summary(directory: StackDirectory, plan: StackPlan, trip: RoundTrip, *, is_detached: bool) -> str:
    """Addresses, the proof, and three next steps."""
    namesrv = "" if plan.name_server == "127.0.0.1:9876" else f" -n {plan.name_server}"
    data = "" if directory.path == StackDirectory(Path(".gantry/local")).path else f" --data {directory.path}"
    gantry = own_name()
    stop = f"{gantry} down{data}" if is_detached else "Ctrl-C"
    return "\n".join(
        [
            "Gantry is up.",
            f"  name server   {plan.name_server}   log {directory.log('nameserver')}",
            f"  broker        {plan.broker}   log {directory.log('broker')}",
            f"  data          {directory.path}",
            f"  checked       1 message sent and read back in {trip.elapsed_ms:.1f} ms "
            f"({trip.queue.topic}, queue {trip.queue.queue_id}, offset {trip.queue_offset})",
            "",
            "Next steps",
            f'  1. From Java:   producer.setNamesrvAddr("{plan.name_server}");   (consumers the same)',
            f'  2. From here:   {gantry} produce{namesrv} hello "first message" && {gantry} consume{namesrv} hello',
            f"  3. Look at it:  {gantry} status{namesrv}   (stop with {stop})",
            "",
        ]
    )


def _broker_options(options: tuple[str, ...]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator or not key.strip():
            raise click.BadParameter(f"{option!r} is not KEY=VALUE", param_hint="-o")
        entries[key.strip()] = value.strip()
    return entries
