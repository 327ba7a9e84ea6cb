"""Orders the promotion of a member in a shard of the local group, and waits for the result.

The order is the same annotation as in a cluster, with the same rules for several orders.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.local.group_status import LocalGroupStatus, require_alive, require_status
from gantry_cli.local.lease import LeaseFile
from gantry_cli.local.records import member_name
from gantry_cli.local.state import GroupState, now_ms
from gantry_cli.orders import Master, OrderDocument, add_promotion, parse_promotion, promotion_outcome
from gantry_cli.output import OutputFormat, show
from gantry_spec.manifest.annotations import PROMOTE

POLL_S: Final = 0.1
PROGRESS_AFTER_S: Final = 2.0


def promote_in_folder(order: str, data: Path, accept_loss: str, timeout_s: float, form: OutputFormat) -> None:
    """Order the promotion `SHARD[=MEMBER]` in the group that runs in a folder, and wait for it. Raises CliError."""
    shard, member = parse_promotion(order)
    status = require_status(data)
    require_alive(status)
    numbers = [one.number for one in status.members if one.shard == shard]
    if len(numbers) == 1 and not member:
        member = numbers[0]  # without a slave no election can take place
        order = f"{shard}={member}"
    elif not numbers or member not in (0, *numbers):
        known = ", ".join(f"{one.shard}={one.number} ({one.name})" for one in status.members)
        raise CliError(f"{order} not found in the group", f"its members are {known}")
    began_s, before = time.monotonic(), master_of(status, shard)
    own_order = f"{order}@{time.time_ns() // 1_000_000}"
    write_order(GroupState(data), shard, own_order, accept_loss)
    is_done = _wait_until_cleared(data, shard, own_order, timeout_s)
    after = _wait_for_master(data, shard, began_s + timeout_s) if is_done else before
    wanted = member_name(shard, member) if member else ""
    document = OrderDocument(
        context="",
        namespace="",
        group=status.group,
        shard=shard,
        order=own_order,
        is_done=is_done,
        master=after.name,
        epoch=after.epoch,
        before_master=before.name,
        before_epoch=before.epoch,
        waited_ms=int((time.monotonic() - began_s) * 1000),
        message=promotion_outcome(shard, before, after, wanted) if is_done else "order given; see `gantry status`",
    )
    show(form, document, lambda: [document.message])


def write_order(state: GroupState, shard: int, order: str, loss: str) -> None:
    """Add the order to the group's annotations. Raises CliError when it contradicts the others."""
    with state.editing():
        annotations = state.read_annotations()
        annotations |= add_promotion(annotations, shard, order, loss)
        state.write_annotations(annotations)


def _wait_until_cleared(data: Path, shard: int, order: str, timeout_s: float) -> bool:
    """Wait until the supervisor has removed the order. Return False if ``timeout_s`` is 0. Raises CliError after it."""
    state, began_s, shown = GroupState(data), time.monotonic(), ""
    while order in state.read_annotations().get(PROMOTE, ""):
        status = require_status(data)
        if time.monotonic() > began_s + timeout_s:
            if not timeout_s:
                return False
            waits = "; ".join(line for line in status.decision if f"shard {shard}: waiting" in line)
            reason = waits or "see gantry status"
            remedy = f"the order stays pending; another `gantry promote` for shard {shard} replaces it"
            raise CliError(f"timed out after {timeout_s:g} s: {reason}", remedy)
        text = "; ".join(status.decision)
        if text != shown and time.monotonic() > began_s + PROGRESS_AFTER_S:
            click.echo(text, err=True)
            shown = text
        time.sleep(POLL_S)
    return True


def master_of(status: LocalGroupStatus, shard: int) -> Master:
    """Return the master of a shard in the supervisor's latest status."""
    current = (one for one in status.ledgers if one.shard == shard and one.master is not None)
    return next((Master(member_name(shard, one.master), one.epoch) for one in current if one.master), Master())


def _wait_for_master(data: Path, shard: int, deadline_s: float) -> Master:
    """Wait until the status shows the master of the newest epoch. Raises CliError if none appears in time.

    The supervisor removes an order when the new epoch has its master, and its next round writes the status.
    """
    record = LeaseFile(GroupState(data).lease(shard), now_ms).observed.record
    epoch = 0 if record is None or record.newest is None else record.newest.epoch
    while not (current := master_of(require_status(data), shard)).name or current.epoch < epoch:
        if time.monotonic() > deadline_s:
            raise CliError("the order was executed, but the shard has no master", "see `gantry status`")
        time.sleep(POLL_S)
    return current
