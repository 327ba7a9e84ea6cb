"""Whether a group that was made from a backup has what the backup promised: each log up to the point of its shard.

The log of the first member is judged once, before its group has added messages, which would hide that some are missing:

    member 1 reports no role yet    its log ends where the copy of the volume ended
    member 1 is the master          the epoch of its role began there

The end that was found is an annotation of the claim from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from gantry_operator.api import Object, annotations_of
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.backups import POINT_ANNOTATION, RESTORED_END, RESTORED_FROM, Point, point_of
from gantry_spec.decide.decision import Condition
from gantry_spec.observed import ObservedGroup, ObservedShard, Role


@final
class RestoredShard(NamedTuple):
    """A shard whose first member began with a copy of a volume."""

    number: int
    claim: Object
    origin: str
    """The backup, as GROUP/BACKUP."""

    point: Point
    end: int | None
    """Where the log of the copy ended; None while it is unknown."""

    @property
    def is_recorded(self) -> bool:
        """Whether the claim has the end as its annotation."""
        return RESTORED_END in annotations_of(self.claim)


def restored_shards(objects: GroupObjects, observed: ObservedGroup) -> Iterator[RestoredShard]:
    """Yield the shards that were made from a backup."""
    for shard in observed.shards:
        claim = objects.claim(shard.number, 1)
        annotations = {} if claim is None else annotations_of(claim)
        origin, point = annotations.get(RESTORED_FROM, ""), point_of(annotations.get(POINT_ANNOTATION, ""))
        if claim is not None and origin and point is not None:
            recorded = annotations.get(RESTORED_END, "")
            end = int(recorded) if recorded.isdigit() else _find_end(shard)
            yield RestoredShard(shard.number, claim, origin, point, end)


def restored_condition(objects: GroupObjects, observed: ObservedGroup) -> Condition | None:
    """Return the condition ``Restored``; None for a group that was not made from a backup."""
    found = list(restored_shards(objects, observed))
    if not found:
        return None
    text = f"made from backup {', '.join(sorted({one.origin for one in found}))}"
    short = [
        _describe(one.number, one.end, one.point)
        for one in found
        if one.end is not None and one.end < one.point.flushed
    ]
    waiting = [f"shard {one.number} has not reported yet" for one in found if one.end is None]
    if short:
        return Condition(type="Restored", is_true=False, reason="Incomplete", message=f"{text}: {'; '.join(short)}")
    if waiting:
        return Condition(type="Restored", is_true=None, reason="Running", message=f"{text}: {'; '.join(waiting)}")
    return Condition(type="Restored", is_true=True, reason="Complete", message=text)


def _find_end(shard: ObservedShard) -> int | None:
    """Return where the log of the first member ended before its group added messages; None if that is not known."""
    report = next((one.report for one in shard.members if one.number == 1), None)
    if report is None:
        return None
    if report.role is Role.UNASSIGNED:
        return report.wrote
    return report.epoch_start if report.role is Role.MASTER else None


def _describe(shard: int, end: int, point: Point) -> str:
    return (
        f"the log of shard {shard} ended at {end}, before offset {point.flushed}, which its broker had flushed: the"
        " snapshot lacks data"
    )
