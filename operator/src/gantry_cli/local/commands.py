"""`gantry apply`, `kill` and `down`: commands for a local group that runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import click

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.local.access import read_access
from gantry_cli.local.group_status import require_alive, require_group, require_status
from gantry_cli.local.manifest_changes import changes_needing_restart, read_manifest
from gantry_cli.local.records import GroupRecord, MemberHold, member_name, parse_member
from gantry_cli.local.state import GroupState, machine_boot, now_ms
from gantry_cli.options import data_option, refuse_ignored
from gantry_cli.processes import STOP_TIMEOUT_S, boot_id_of
from gantry_cli.progress import spinner
from gantry_cli.stack import StackDirectory
from gantry_spec.manifest import check_changes
from gantry_spec.manifest.quantities import duration_text, parse_duration
from gantry_spec.promise import describe_promise

# -- apply -------------------------------------------------------------------------------------------------------------
# `gantry apply`: apply a changed manifest to the running group.


@click.command(
    epilog=examples(
        ("gantry apply -f group.yaml", "apply what has changed, such as more slaves or other topics, step by step"),
        ("gantry apply -f group.yaml --dry-run", "only check the manifest"),
    )
)
@click.option("-f", "--file", "manifest", required=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The changed manifest.")  # fmt: skip
@data_option
@click.option("--dry-run", is_flag=True, help="Change nothing.")
def apply(manifest: Path, data: Path, dry_run: bool) -> None:
    """Apply a changed manifest to the local group.

    A change to a field that may not change is refused with the path of the field. The supervisor makes all other
    changes as safely as the operator does in a cluster: one broker after another, without loss of acknowledged
    messages.
    """
    status = require_status(data)
    require_alive(status)
    state = GroupState(data)
    old, (new, text) = state.read_manifest(), read_manifest(manifest)
    if old is None:
        raise NotFoundError(
            f"{data} has no manifest", "a broker of `gantry up --single` gets its settings with -o at its start"
        )
    problems = [*map(str, check_changes(old, new)), *changes_needing_restart(old, new)]
    if problems:
        raise CliError("; ".join(problems))
    read_access(new.spec, state)
    if dry_run:
        click.echo(f"Manifest is valid. {describe_promise(new.spec)}")
        return
    state.write_manifest(text)
    click.echo(f"Manifest of group {status.group} applied. {describe_promise(new.spec)}")
    click.echo("Watch the changes with `gantry status --watch`")


# -- kill --------------------------------------------------------------------------------------------------------------
# `gantry kill`: kill or suspend a process of a local group on purpose, to see that the group recovers.


RESTART_TEXT: Final = "restarts at once, or after a delay if it has died before within a minute"
"""What a killed process does next, for people."""

DOWN_MS_MIN: Final = 10_000
"""The least time for which `gantry kill` keeps a broker down by default."""


def _duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else int(parse_duration(0 if value == "0" else value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _complete_process_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of processes that complete what was typed, for shell completion."""
    data: Any = context.params.get("data")
    record = None if data is None else GroupState(Path(data)).read_group()
    return [] if record is None else [name for name in _processes_by_name(record) if name.startswith(incomplete)]


@click.command(
    epilog=examples(
        ("gantry kill master-0", "send SIGKILL, and keep it down long enough for a slave to take over"),
        ("gantry kill master-0 --down 0s", "send SIGKILL, and do not keep it down"),
        ("gantry kill slave-0-1 --stop", "suspend it (SIGSTOP) until --cont"),
        ("gantry kill sidecar-master-0", "kill its sidecar, which does not affect the broker"),
    )
)
@click.argument("name", shell_complete=_complete_process_names)
@data_option
@click.option("-9", "is_kill", is_flag=True, help="Send SIGKILL, the default.")
@click.option("--stop", "is_stop", is_flag=True, help="Send SIGSTOP: suspend it, with all its connections.")
@click.option("--cont", "is_continue", is_flag=True, help="Send SIGCONT: let it continue.")
@click.option(
    "--down",
    "down_ms",
    metavar="TIME",
    callback=_duration,
    help="How long a killed broker stays down [default: twice failover.after plus 5s, at least 10s].",
)
def kill(name: str, data: Path, is_kill: bool, is_stop: bool, is_continue: bool, down_ms: int | None) -> None:
    """Kill or suspend a process of the local group.

    NAME is that of a broker (`master-0`, `slave-0-1`), of its sidecar (`sidecar-master-0`), of a name server
    (`nameserver-0`), or of a gRPC proxy (`proxy-0`). A broker keeps its name when its role moves: `gantry status` shows
    which one is the master now.
    """
    if is_kill + is_stop + is_continue > 1:
        raise click.UsageError("-9, --stop and --cont contradict each other: give one of them")
    name = _canonical(name)
    if is_stop or is_continue:
        refuse_ignored(f"with --{'stop' if is_stop else 'cont'}, which ends no process", ignored={"down_ms"})
    elif parse_member(name) is None:
        refuse_ignored(f"for {name}: only a broker can be kept down", ignored={"down_ms"})
    record, state = require_group(data), GroupState(data)
    targets = _processes_by_name(record)
    if name not in targets:
        raise NotFoundError(f"the group has no process {name}", f"name one of {', '.join(targets)}")
    pid, boot_id = targets[name]
    if pid is None or boot_id_of(pid) != boot_id:
        raise NotFoundError(f"{name} does not run", "see `gantry status`")
    if is_stop or is_continue:
        _signal(name, pid, signal.SIGSTOP if is_stop else signal.SIGCONT)
        click.echo(f"{name} (pid {pid}) {'suspended until --cont' if is_stop else 'continued'}")
        return
    is_broker = parse_member(name) is not None
    hold_ms = _down_ms(state, down_ms) if is_broker else 0
    if hold_ms:
        now, boot = now_ms(), machine_boot()
        with state.editing():
            others = [one for one in state.read_holds() if one.until_ms > now and one.name != name]
            state.write_holds([*others, MemberHold(name=name, until_ms=now + hold_ms, machine_boot=boot)])
    _signal(name, pid, signal.SIGKILL)
    then = f"stays down for {duration_text(hold_ms)}" if hold_ms else RESTART_TEXT
    click.echo(f"{name} (pid {pid}) killed; {then}")


def _canonical(name: str) -> str:
    """Return the name of a member that is given as ``0/1`` (master-0), any other name as it is."""
    parsed = parse_member(name)
    return name if parsed is None else member_name(*parsed)


def _processes_by_name(record: GroupRecord) -> dict[str, tuple[int | None, str]]:
    """Return the process id and boot id of every process of the group, by its name."""
    brokers = {one.name: (one.pid, one.boot_id) for one in record.members}
    sidecars = {f"sidecar-{one.name}": (one.sidecar_pid, one.sidecar_boot_id) for one in record.members}
    proxies = {one.name: (one.pid, one.boot_id) for one in record.proxies}
    return brokers | sidecars | proxies | {one.name: (one.pid, one.boot_id) for one in record.name_servers}


def _down_ms(state: GroupState, chosen_ms: int | None) -> int:
    """Return the chosen time for which a broker is kept down, or one that is long enough for a failover."""
    if chosen_ms is not None:
        return chosen_ms
    manifest = state.read_manifest()
    after_ms = 0 if manifest is None else int(manifest.spec.failover.after)
    return max(DOWN_MS_MIN, 2 * after_ms + 5_000)


def _signal(name: str, pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError as error:
        raise NotFoundError(f"{name} does not run", "see `gantry status`") from error
    except PermissionError as error:
        raise CliError(f"{name} (pid {pid}) belongs to another user", "run the command as that user") from error


# -- down --------------------------------------------------------------------------------------------------------------
# `gantry down`: stop the group of a directory, no matter where it was started.


GROUP_STOP_TIMEOUT_S: Final = 4 * STOP_TIMEOUT_S + 5.0
"""How long to wait: sidecars, masters, slaves and name servers stop one after another."""

POLL_S: Final = 0.05


@click.command(
    epilog=examples(
        ("gantry down", "stop the group that `gantry up --detach` started here"),
        ("gantry down --data /tmp/second", "stop the group of another directory"),
    )
)
@data_option
def down(data: Path) -> None:
    """Stop what `gantry up` started.

    Every broker writes everything to disk before it stops. Messages stay in the directory. If nothing runs there, the
    command prints a note and succeeds.
    """
    directory = StackDirectory(data)
    if not directory.is_running():
        click.echo(f"Nothing is running in {data}")
        return
    record = directory.running()
    if record is None:
        raise CliError(f"the group in {data} is starting or stopping", "try again in a moment")
    try:
        os.kill(record.pid, signal.SIGTERM)
    except PermissionError as error:
        raise CliError(
            f"the group in {data} belongs to another user (pid {record.pid})", "run the command as that user"
        ) from error
    except ProcessLookupError:
        pass  # the process has ended already, and its lock with it
    deadline = time.monotonic() + GROUP_STOP_TIMEOUT_S
    with spinner("stopping and flushing"):
        while directory.is_running():
            if time.monotonic() > deadline:
                raise CliError(f"the group (pid {record.pid}) is still running", f"see {directory.path / 'logs'}")
            time.sleep(POLL_S)
    click.echo(f"Stopped name server {record.name_server} and broker {record.broker}")
