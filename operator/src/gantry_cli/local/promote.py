"""Ordering another master for a shard of the local group, and waiting until it is so.

The order is the annotation that `kubectl annotate` leaves in a cluster, and stands by the same rules beside others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.local.lease import LeaseFile
from gantry_cli.local.look import Look, require_alive, require_look
from gantry_cli.local.state import GroupState, member_name, now_ms
from gantry_cli.orders import Master, OrderDocument, parse_promotion, promotion_outcome, with_promotion
from gantry_cli.output import Form, show
from gantry_spec.manifest.annotations import PROMOTE

POLL_S: Final = 0.1
SHOW_S: Final = 2.0


def promote_here(order: str, data: Path, accept_loss: str, timeout_s: float, form: Form) -> None:
    """`SHARD[=MEMBER]` becomes an order to the group that runs on a folder, and is waited for. Raises CliError."""
    shard, member = parse_promotion(order)
    look = require_look(data)
    require_alive(look)
    numbers = [one.number for one in look.members if one.shard == shard]
    if len(numbers) == 1 and not member:
        member = numbers[0]  # an election among others would be waited for in vain
        order = f"{shard}={member}"
    elif not numbers or member not in (0, *numbers):
        known = ", ".join(f"{one.shard}={one.number} ({one.name})" for one in look.members)
        raise CliError(f"there is no {order} in the group", f"these are: {known}")
    began_s, before = time.monotonic(), master_of(look, shard)
    mine = f"{order}@{time.time_ns() // 1_000_000}"
    leave_order(GroupState(data), shard, mine, accept_loss)
    is_done = _wait_until_taken_off(data, shard, mine, timeout_s)
    after = _wait_for_master(data, shard, began_s + timeout_s) if is_done else before
    wanted = member_name(shard, member) if member else ""
    document = OrderDocument(
        context="",
        namespace="",
        group=look.group,
        shard=shard,
        order=mine,
        is_done=is_done,
        master=after.name,
        epoch=after.epoch,
        before_master=before.name,
        before_epoch=before.epoch,
        waited_ms=int((time.monotonic() - began_s) * 1000),
        message=promotion_outcome(shard, before, after, wanted)
        if is_done
        else "the order is left; see `gantry status`",
    )
    show(form, document, lambda: [document.message])


def leave_order(state: GroupState, shard: int, order: str, loss: str) -> None:
    """Put the order among the annotations. Raises CliError when it cannot stand with the others."""
    with state.editing():
        annotations = state.read_annotations()
        annotations |= with_promotion(annotations, shard, order, loss)
        state.write_annotations(annotations)


def _wait_until_taken_off(data: Path, shard: int, order: str, timeout_s: float) -> bool:
    """False if nobody wants to wait. Raises CliError when it is not done in time."""
    state, began_s, said = GroupState(data), time.monotonic(), ""
    while order in state.read_annotations().get(PROMOTE, ""):
        look = require_look(data)
        if time.monotonic() > began_s + timeout_s:
            if not timeout_s:
                return False
            waits = "; ".join(line for line in look.decision if f"shard {shard}: waits" in line)
            raise CliError(f"not done after {timeout_s:g} s: {waits or 'see gantry status'}", "the order stands")
        text = "; ".join(look.decision)
        if text != said and time.monotonic() > began_s + SHOW_S:
            click.echo(text, err=True)
            said = text
        time.sleep(POLL_S)
    return True


def master_of(look: Look, shard: int) -> Master:
    """As the supervisor has written it down last."""
    found = (one for one in look.ledgers if one.shard == shard and one.master is not None)
    return next((Master(member_name(shard, one.master), one.epoch) for one in found if one.master), Master())


def _wait_for_master(data: Path, shard: int, deadline_s: float) -> Master:
    """An order is obeyed when the new epoch has its master; the next look shows it. Raises CliError."""
    record = LeaseFile(GroupState(data).lease(shard), now_ms).observed.record
    epoch = 0 if record is None or record.newest is None else record.newest.epoch
    while not (found := master_of(require_look(data), shard)).name or found.epoch < epoch:
        if time.monotonic() > deadline_s:
            raise CliError("the order was taken off, and there is no master", "see `gantry status`")
        time.sleep(POLL_S)
    return found
