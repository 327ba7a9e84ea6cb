"""`gantry promote`: order another master for a shard of the group, and wait until it is so."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.completing import complete_cluster_group
from gantry_cli.kube.options import cluster_options, group_before
from gantry_cli.kube.ordering import promote as promote_in_cluster
from gantry_cli.kube.waiting import Asked
from gantry_cli.local.look import Look
from gantry_cli.local.looking import require_alive, require_look
from gantry_cli.local.names import member_name
from gantry_cli.local.state import GroupState
from gantry_cli.options import data_option
from gantry_cli.output import Form
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, wanted

POLL_S: Final = 0.1
SHOW_S: Final = 2.0


@click.command(
    epilog=examples(
        ("gantry promote 0", "shard 0: whoever is furthest, without losing anything"),
        ("gantry promote 0=2", "shard 0: member 2, which is slave-0-1"),
        ("gantry promote 0 --accept-loss 64Mi", "though so much may be lost"),
        ("gantry promote 0 --accept-loss any", "whatever is lost: for when nobody can know it"),
        ("gantry promote bg/orders 0=2 --namespace shop", "of a group in a Kubernetes cluster"),
    )
)
@click.argument("words", nargs=-1, required=True, metavar="[bg/GROUP] SHARD[=MEMBER]",
                shell_complete=complete_cluster_group)  # fmt: skip
@data_option
@cluster_options
@click.option("--accept-loss", default="0", metavar="SIZE|any", help="How much this promotion may lose.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, 86_400), default=60.0, show_default=True,
              help="How long to wait for it, in seconds; 0 only leaves the order.")  # fmt: skip
def promote(words: tuple[str, ...], target: Target, data: Path, accept_loss: str, timeout_s: float) -> None:
    """Move the master's role in a shard of the group.

    The order is what `kubectl annotate` leaves in a cluster. The master is drained first, and the role moves when a
    slave has everything. When the master is gone, the furthest slave is promoted, if what may be lost is accepted.
    Until then the order stands, and `gantry status` says what it waits for. It stays when this command gives up
    waiting; another order for the same shard replaces it.
    """
    order, group = words[-1], group_before(words, target)
    if group is not None:
        promote_in_cluster(Asked(target, group, Form.TABLE, timeout_s), order, accept_loss)
        return
    _promote_here(order, data, accept_loss, timeout_s)


def _promote_here(order: str, data: Path, accept_loss: str, timeout_s: float) -> None:
    """In the group that runs on a folder."""
    if re.fullmatch(r"\d{1,3}(=\d{1,3})?", order) is None:
        raise click.BadParameter(f"{order!r} is no order: write 0, or 0=2 for member 2 of shard 0", param_hint="SHARD")
    look = require_look(data)
    require_alive(look)
    shard, _, to = order.partition("=")
    if not any(one.shard == int(shard) and (not to or one.number == int(to)) for one in look.members):
        known = ", ".join(f"{one.shard}={one.number} ({one.name})" for one in look.members)
        raise CliError(f"there is no {order} in the group", f"these are: {known}")
    state, before = GroupState(data), _masters(look)
    mine = f"{order}@{time.time_ns() // 1_000_000}"
    _leave(state, int(shard), mine, accept_loss)
    deadline = time.monotonic() + timeout_s
    said = ""
    while mine in state.read_annotations().get(PROMOTE, ""):
        look = require_look(data)
        if time.monotonic() > deadline:
            waits = "; ".join(line for line in look.decision if f"shard {shard}: waits" in line)
            if not timeout_s:
                click.echo("the order is left; see `gantry status`")
                return
            raise CliError(f"not done after {timeout_s:g} s: {waits or 'see gantry status'}", "the order stands")
        text = "; ".join(look.decision)
        if text != said and time.monotonic() > deadline - timeout_s + SHOW_S:
            click.echo(text, err=True)
            said = text
        time.sleep(POLL_S)
    _say(int(shard), before.get(int(shard)), _wait_for_master(data, int(shard), deadline))


def _leave(state: GroupState, shard: int, order: str, loss: str) -> None:
    """Put the order among the annotations. Raises CliError when it cannot stand with the others."""
    with state.editing():
        state.write_annotations(_with(state.read_annotations(), shard, order, loss))


def _with(annotations: dict[str, str], shard: int, order: str, loss: str) -> dict[str, str]:
    try:
        others = [one for one in wanted(annotations).orders if one.shard != shard]
        old_loss = annotations.get(ACCEPT_LOSS, "0")
        if others and old_loss != loss:
            raise CliError(f"an order for shard {others[0].shard} stands, which accepts {old_loss}", "wait for its end")
        annotations |= {PROMOTE: ",".join([*(one.id for one in others), order]), ACCEPT_LOSS: loss}
        wanted(annotations)
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems))) from error
    return annotations


def _masters(look: Look) -> dict[int, tuple[int, int]]:
    return {one.shard: (one.master, one.epoch) for one in look.ledgers if one.master is not None}


def _wait_for_master(data: Path, shard: int, deadline: float) -> tuple[int, int] | None:
    """An order is obeyed when the new epoch has its master; the next look shows it."""
    while True:
        found = _masters(require_look(data)).get(shard)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)


def _say(shard: int, before: tuple[int, int] | None, after: tuple[int, int] | None) -> None:
    if after is None:
        raise CliError("the order was taken off, and there is no master", "see `gantry status`")
    who = member_name(shard, after[0])
    if before == after:
        click.echo(f"shard {shard}: {who} is the master already, in epoch {after[1]}")
        return
    was = "nobody" if before is None else f"{member_name(shard, before[0])} in epoch {before[1]}"
    click.echo(f"shard {shard}: {who} is the master in epoch {after[1]}; it was {was}")
