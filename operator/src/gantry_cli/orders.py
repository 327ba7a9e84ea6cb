"""Orders of a person for one shard: how they are typed, how they stand beside others, and how they are shown.

The same for a group here and for one in a cluster: there an order is an annotation of the group's object, here one in
the folder of the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, final

import click
import msgspec

from gantry_cli.errors import CliError
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, wanted


@final
class OrderDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`promote`, `fence` and `restore`: an order, and what came of it."""

    context: str
    """Empty for the group here, and so is the namespace."""
    namespace: str
    group: str
    shard: int
    order: str
    """What was put into the annotation."""
    is_done: bool
    """False with `--timeout 0`: the order is left, and nobody has waited for it."""
    master: str
    """The pod that is the master now, or the member of the group here; empty if none is."""
    epoch: int
    before_master: str
    before_epoch: int
    waited_ms: int
    message: str
    """For people."""


class Master(NamedTuple):
    """Which member is a shard's master, and in which epoch; no name if none is."""

    name: str = ""
    epoch: int = 0


def promotion_outcome(shard: int, before: Master, after: Master, wanted: str) -> str:
    """Return what came of a promotion that was taken off, for people.

    ``after`` is the master of the newest epoch that has one. ``wanted`` is the member that was ordered; empty for the
    one that is furthest. Raises CliError when another member is the master.
    """
    if wanted and after.name != wanted:
        text = f"the order was taken off, and {after.name} is the master in epoch {after.epoch}"
        raise CliError(text, "another order may have come after it; see the group's events")
    if before == after:
        return f"shard {shard}: {after.name} is the master already, in epoch {after.epoch}"
    was = f"{before.name} in epoch {before.epoch}" if before.name else "nobody"
    return f"shard {shard}: {after.name} is the master in epoch {after.epoch}; it was {was}"


class Promotion(NamedTuple):
    """Which shard gets another master, and which member that is; 0 for the one that is furthest."""

    shard: int
    member: int


def parse_promotion(order: str) -> Promotion:
    """`SHARD[=MEMBER]`. Raises click's BadParameter."""
    match = re.fullmatch(r"(\d{1,3})(?:=(\d{1,3}))?", order, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{order!r} is no order: write 0, or 0=2 for member 2 of shard 0", param_hint="SHARD")
    return Promotion(int(match[1]), int(match[2] or 0))


def parse_shard(text: str) -> int:
    """A shard's number. Raises click's BadParameter."""
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise click.BadParameter(f"{text!r} is no shard: write 0", param_hint="SHARD")
    return int(text)


def with_promotion(annotations: Mapping[str, str], shard: int, order: str, loss: str) -> dict[str, str]:
    """The order beside those for other shards. Raises CliError when it cannot stand with them."""
    try:
        others = [one for one in wanted(annotations).orders if one.shard != shard]
        old_loss = annotations.get(ACCEPT_LOSS, "0")
        if others and old_loss != loss:
            raise CliError(f"an order for shard {others[0].shard} stands, which accepts {old_loss}", "wait for its end")
        change = {PROMOTE: ",".join([*(one.id for one in others), order]), ACCEPT_LOSS: loss}
        wanted({**annotations, **change})
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems)), "see docs/groups.md") from error
    return change
