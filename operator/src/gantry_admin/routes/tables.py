"""Topics and consumer groups of this broker, with their lag: from the broker, or from disk if it does not answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from gantry_admin.consumer_lag import group_wait, is_behind, lag_by_topic
from gantry_admin.documents import (
    GroupDocument,
    GroupsDocument,
    QueueDocument,
    QueueLagDocument,
    TopicDocument,
    TopicsDocument,
)
from gantry_admin.guard import Scope
from gantry_admin.inventory import Inventory, count_messages
from gantry_admin.lag_monitor import LagMonitor
from gantry_admin.relay import Shard, relay_to_shard
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_wire.names import DEAD_LETTER_PREFIX, INTERNAL_PREFIX, RETRY_PREFIX, dead_letter_topic, retry_topic

ROWS_MAX = 1_000
"""The most rows of one answer."""
TIMES_WAIT_S = 0.02
"""How long an answer waits for store times: with the wait for the broker it stays under a tenth of a second."""

router = APIRouter(
    tags=["topics and groups"], dependencies=[needs(Scope.VIEW)], responses=refusals(401, 403, 404, 422, 502, 503, 504)
)

Limit = Annotated[int, Query(ge=1, le=ROWS_MAX, description="Number of rows, at most; further rows are only counted.")]


@router.get("/v1/topics")
async def topics(request: Request, sidecar: TheSidecar, limit: Limit = ROWS_MAX, shard: Shard = None) -> TopicsDocument:
    """Return all topics of applications, and retry and dead letter topics, with the ends of their queues."""
    if (relayed := await relay_to_shard(request, sidecar, shard, TopicsDocument)) is not None:
        return relayed
    snapshot = await sidecar.inventory.get()
    rows = [topic_row(snapshot.inventory, name) for name in snapshot.inventory.topics]
    left_out = snapshot.inventory.topics_left_out + max(len(rows) - limit, 0)
    return TopicsDocument(
        topics=rows[:limit],
        left_out=left_out,
        system_messages=dict(snapshot.inventory.system_messages),
        source=snapshot.source,
        age_ms=snapshot.age_ms,
        reason=snapshot.reason,
    )


@router.get("/v1/groups")
async def groups(request: Request, sidecar: TheSidecar, limit: Limit = ROWS_MAX, shard: Shard = None) -> GroupsDocument:
    """Return all consumer groups, and their lag in each queue of this broker."""
    if (relayed := await relay_to_shard(request, sidecar, shard, GroupsDocument)) is not None:
        return relayed
    snapshot = await sidecar.inventory.get()
    await sidecar.lag.times.refresh(snapshot.inventory, TIMES_WAIT_S if snapshot.source == "broker" else 0.0)
    rows = [group_row(snapshot.inventory, name, sidecar.lag) for name in snapshot.inventory.groups]
    return GroupsDocument(
        groups=rows[:limit],
        left_out=max(len(rows) - limit, 0),
        source=snapshot.source,
        age_ms=snapshot.age_ms,
        reason=snapshot.reason,
    )


def kind_of(topic: str) -> Literal["user", "retry", "dead-letter", "system"]:
    """Return the kind of a topic, by its name."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead-letter"
    return "system" if topic.startswith((INTERNAL_PREFIX, INTERNAL_PREFIX.upper())) else "user"


def topic_row(inventory: Inventory, name: str) -> TopicDocument:
    """Return the document of one topic."""
    config, queues = inventory.topics[name], inventory.queues[name]
    return TopicDocument(
        name=name,
        kind=kind_of(name),
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=("r" if config.perm & 4 else "-") + ("w" if config.perm & 2 else "-"),
        messages=messages_of(inventory, name),
        queues=[
            QueueDocument(queue_id=queue_id, begin=ends.begin, end=ends.end, last_stored_ms=ends.last_stored_ms)
            for queue_id, ends in queues.items()
        ],
    )


def messages_of(inventory: Inventory, topic: str) -> int:
    """Return the number of messages that a topic holds."""
    return count_messages(inventory.queues.get(topic, {}))


def group_row(inventory: Inventory, name: str, monitor: LagMonitor) -> GroupDocument:
    """Return the document of one consumer group."""
    queues = monitor.times.queues(inventory, name)
    retry, topics, trend = retry_topic(name), lag_by_topic(queues), monitor.history.trend
    wait_s = group_wait(topics, name)
    worst = next((topic for topic, one in topics.items() if topic != retry and one.wait_s == wait_s), "")
    return GroupDocument(
        name=name,
        lag=sum(one.lag for topic, one in topics.items() if topic != retry),
        lag_s=wait_s,
        trend=trend(name, worst),
        is_behind=any(is_behind(one.wait_s, trend(name, topic)) for topic, one in topics.items()),
        retry_lag=topics[retry].lag if retry in topics else 0,
        dead_letters=messages_of(inventory, dead_letter_topic(name)),
        queues=[QueueLagDocument(**one._asdict()) for one in queues],
    )
