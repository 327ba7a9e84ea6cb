"""Orders for one shard (promote, fence, restore): their syntax, their combination with other orders, their output.

In a cluster an order is an annotation of the group's object. For a local group there is a command for promotions only:
they are the same annotation, in the folder of the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, final

import click
import msgspec

from gantry_cli.errors import CliError
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, parse_requests


@final
class OrderDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`promote`, `fence` and `restore`: an order and its result."""

    context: str
    """The Kubernetes context; empty for a local group, as is the namespace."""
    namespace: str
    group: str
    shard: int
    order: str
    """The entry in the annotation: the shard, for a promotion `SHARD[=MEMBER]@TIME`."""
    is_done: bool
    """Whether the order was completed; false with `--timeout 0`, which does not wait."""
    master: str
    """The pod, or the member of the local group, that is the master now; empty if there is none."""
    epoch: int
    """The epoch of that master; 0 if there is none."""
    before_master: str
    """The master before the order; empty if there was none."""
    before_epoch: int
    waited_ms: int
    """How long the command waited for the result."""
    message: str
    """The result as a sentence for people."""


class Master(NamedTuple):
    """The master of a shard and its epoch; without a name there is no master."""

    name: str = ""
    epoch: int = 0


def promotion_outcome(shard: int, before: Master, after: Master, wanted: str) -> str:
    """Return the result of a promotion, as a sentence for people. Its order was removed, so it is executed or replaced.

    ``after`` is the master of the newest epoch that has one. ``wanted`` is the member that was ordered; empty for the
    member with the longest log. Raises CliError when another member is the master.
    """
    if wanted and after.name != wanted:
        text = f"the order was removed, but {after.name} is the master in epoch {after.epoch}"
        raise CliError(text, "a later order may have replaced it; see the group's events")
    if before == after:
        return f"shard {shard}: {after.name} is the master already, in epoch {after.epoch}"
    previous = f"{before.name} in epoch {before.epoch}" if before.name else "none"
    return f"shard {shard}: {after.name} is the master in epoch {after.epoch}; previous master: {previous}"


class PromotionTarget(NamedTuple):
    """A shard that gets another master, and the member to promote; 0 for the member with the longest log."""

    shard: int
    member: int


def parse_promotion(order: str) -> PromotionTarget:
    """Parse `SHARD[=MEMBER]`. Raises click's BadParameter."""
    match = re.fullmatch(r"(\d{1,3})(?:=(\d{1,3}))?", order, re.ASCII)
    if match is None:
        raise click.BadParameter(
            f"invalid shard {order!r}: expected SHARD or SHARD=MEMBER, for example 0, or 0=2 for member 2 of shard 0",
            param_hint="SHARD",
        )
    return PromotionTarget(int(match[1]), int(match[2] or 0))


def parse_shard(text: str) -> int:
    """Parse the number of a shard. Raises click's BadParameter."""
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise click.BadParameter(f"invalid shard {text!r}: expected a number, for example 0", param_hint="SHARD")
    return int(text)


def add_promotion(annotations: Mapping[str, str], shard: int, order: str, loss: str) -> dict[str, str]:
    """Return the change of annotations that adds the order to those of other shards. Raises CliError for a conflict."""
    try:
        others = [one for one in parse_requests(annotations).promotions if one.shard != shard]
        old_loss = annotations.get(ACCEPT_LOSS, "0")
        if others and old_loss != loss:
            raise CliError(
                f"a pending order for shard {others[0].shard} accepts a loss of {old_loss}, and this one {loss}",
                "wait until it is done",
            )
        change = {PROMOTE: ",".join([*(one.id for one in others), order]), ACCEPT_LOSS: loss}
        parse_requests({**annotations, **change})
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems)), "see docs/groups.md") from error
    return change
