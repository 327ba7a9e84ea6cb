"""The recorded lag of consumer groups of this broker, as points at regular intervals."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.guard import Scope
from gantry_admin.lag_history import COARSE_S, FINE_S, HISTORY_S, SAMPLE_S, LagPoint
from gantry_admin.relay import Shard, relay_to_shard
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_admin.routes.messages import NAME
from gantry_status.clocks import now

DAY_MINUTES = HISTORY_S // 60
POINTS_OF_ALL_MAX = 60
"""The most points of each series in an answer about all groups: two hundred series take less than a megabyte."""

GroupName = Annotated[str | None, Query(max_length=255, pattern=NAME, description="Only this group.")]
TopicName = Annotated[str | None, Query(max_length=255, pattern=NAME, description="Only this topic.")]
Minutes = Annotated[int, Query(ge=5, le=DAY_MINUTES, description="The period up to now.")]
PointCount = Annotated[int, Query(ge=1, le=720, description="Points of each series, at most; 60 if no group is given.")]

router = APIRouter(
    tags=["topics and groups"], dependencies=[needs(Scope.VIEW)], responses=refusals(401, 403, 404, 422, 502, 503, 504)
)


class LagSeriesDocument(Document):
    """The lag of a group in one topic over time."""

    group: str
    topic: str
    trend: Literal["grows", "shrinks", "steady"] | None
    points: list[LagPoint] = Field(
        description="By time: the beginning of the interval in ms since 1970, the largest lag in messages in it, and"
        " the largest `lag_s`. Both are null where nothing was recorded."
    )


class LagDocument(Document):
    """The recorded lag of consumer groups of this broker."""

    resolution_s: int = Field(description="The length of the interval of one point.")
    kept_in: Literal["file", "memory"]
    series_left_out: int = Field(description="Pairs of group and topic that are not recorded, because of the limit.")
    series: list[LagSeriesDocument]


@router.get("/v1/lag")
async def lag(
    request: Request, sidecar: TheSidecar, group: GroupName = None, topic: TopicName = None,
    minutes: Minutes = DAY_MINUTES, points: PointCount = 288, shard: Shard = None,
) -> LagDocument:  # fmt: skip
    """Return the recorded lag of groups, by group and topic: the last 24 hours, or fewer minutes."""
    if (relayed := await relay_to_shard(request, sidecar, shard, LagDocument)) is not None:
        return relayed
    history, at_ms = sidecar.lag.history, now().wall_ms
    count = points if group is not None else min(points, POINTS_OF_ALL_MAX)
    step_s = max(-(-minutes * 60 // count), 2 * SAMPLE_S if minutes * 60 <= FINE_S else 2 * COARSE_S)
    count = minutes * 60 // step_s
    begin_ms = at_ms - count * step_s * 1000
    state = sidecar.lag.document()
    return LagDocument(
        resolution_s=step_s,
        kept_in=state.kept_in,
        series_left_out=state.series_left_out,
        series=[
            LagSeriesDocument(
                group=pair[0], topic=pair[1], trend=history.trend(*pair),
                points=history.window(pair, begin_ms, step_s * 1000, count),
            )
            for pair in history.pairs(group, topic)
        ],
    )  # fmt: skip
