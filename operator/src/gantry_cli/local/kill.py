"""`gantry kill`: break a process of a local group on purpose, and see that the group goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

import click

from gantry_cli.errors import Absent, CliError
from gantry_cli.examples import examples
from gantry_cli.local.clock import machine_boot, now_ms
from gantry_cli.local.looking import require_group
from gantry_cli.local.names import member_name, parse_member
from gantry_cli.local.state import GroupRecord, GroupState, Held
from gantry_cli.options import data_option, refuse_ignored
from gantry_cli.processes import boot_id_of
from gantry_spec.manifest.quantities import duration_text, parse_duration

DOWN_MS_MIN: Final = 10_000


def _duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else int(parse_duration(0 if value == "0" else value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For a shell that completes."""
    data: Any = context.params.get("data")
    record = None if data is None else GroupState(Path(data)).read_group()
    return [] if record is None else [name for name in _targets(record) if name.startswith(incomplete)]


@click.command(
    epilog=examples(
        ("gantry kill master-0", "kill -9, and down for long enough that a slave takes over"),
        ("gantry kill master-0 --down 0s", "kill -9, and started again at once"),
        ("gantry kill slave-0-1 --stop", "it stands still (SIGSTOP), until --cont"),
        ("gantry kill sidecar-master-0", "its sidecar, which the broker does not notice"),
    )
)
@click.argument("name", shell_complete=_names)
@data_option
@click.option("-9", "is_kill", is_flag=True, help="SIGKILL, the default.")
@click.option("--stop", "is_stop", is_flag=True, help="SIGSTOP: it stands still, with all its connections.")
@click.option("--cont", "is_continue", is_flag=True, help="SIGCONT: it goes on.")
@click.option(
    "--down",
    "down_ms",
    metavar="TIME",
    callback=_duration,
    help="How long a killed broker stays down [default: twice failover.after and 5s, 10s at least].",
)
def kill(name: str, data: Path, is_kill: bool, is_stop: bool, is_continue: bool, down_ms: int | None) -> None:
    """Kill a process of the local group, or have it stand still.

    NAME is that of a broker (`master-0`, `slave-0-1`), of its sidecar (`sidecar-master-0`), or of a name server
    (`nameserver-0`). A broker keeps its name when its role moves: `gantry status` shows who is the master now.
    """
    if is_kill + is_stop + is_continue > 1:
        raise click.UsageError("-9, --stop and --cont contradict each other: give one of them")
    name = _canonical(name)
    if is_stop or is_continue:
        refuse_ignored(f"with --{'stop' if is_stop else 'cont'}, which ends no process", ignored={"down_ms"})
    elif parse_member(name) is None:
        refuse_ignored(f"for {name}: only a broker stays down", ignored={"down_ms"})
    record, state = require_group(data), GroupState(data)
    targets = _targets(record)
    if name not in targets:
        raise Absent(f"the group has no process {name}", f"these run: {', '.join(targets)}")
    pid, boot_id = targets[name]
    if pid is None or boot_id_of(pid) != boot_id:
        raise Absent(f"{name} does not run now", "see `gantry status`")
    if is_stop or is_continue:
        _signal(name, pid, signal.SIGSTOP if is_stop else signal.SIGCONT)
        click.echo(f"{name} (pid {pid}) {'stands still until --cont' if is_stop else 'goes on'}")
        return
    is_broker = parse_member(name) is not None
    rest_ms = _down_ms(state, down_ms) if is_broker else 0
    if rest_ms:
        now, boot = now_ms(), machine_boot()
        with state.editing():
            others = [one for one in state.read_held() if one.until_ms > now and one.name != name]
            state.write_held([*others, Held(name=name, until_ms=now + rest_ms, machine_boot=boot)])
    _signal(name, pid, signal.SIGKILL)
    then = f"stays down for {duration_text(rest_ms)}" if rest_ms else "is started again at once"
    click.echo(f"{name} (pid {pid}) was killed, and {then}")


def _canonical(name: str) -> str:
    """``0/1`` is master-0."""
    parsed = parse_member(name)
    return name if parsed is None else member_name(*parsed)


def _targets(record: GroupRecord) -> dict[str, tuple[int | None, str]]:
    """Every process of the group by its name."""
    brokers = {one.name: (one.pid, one.boot_id) for one in record.members}
    sidecars = {f"sidecar-{one.name}": (one.sidecar_pid, one.sidecar_boot_id) for one in record.members}
    return brokers | sidecars | {one.name: (one.pid, one.boot_id) for one in record.name_servers}


def _down_ms(state: GroupState, chosen_ms: int | None) -> int:
    if chosen_ms is not None:
        return chosen_ms
    manifest = state.read_manifest()
    after_ms = 0 if manifest is None else int(manifest.spec.failover.after)
    return max(DOWN_MS_MIN, 2 * after_ms + 5_000)


def _signal(name: str, pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError as error:
        raise Absent(f"{name} does not run now", "see `gantry status`") from error
    except PermissionError as error:
        raise CliError(f"{name} (pid {pid}) belongs to another user", "do it as that user") from error
