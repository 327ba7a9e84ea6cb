"""Topics and consumer groups of this broker, with their lag: from the broker, or from the disk when it stands still."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

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
from gantry_admin.relay import Shard, elsewhere
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, dead_letter_topic, retry_topic

ROWS_MAX = 1_000

router = APIRouter(
    tags=["topics and groups"], dependencies=[needs(Scope.LOOK)], responses=refusals(401, 403, 404, 422, 502, 503, 504)
)

Limit = Annotated[int, Query(ge=1, le=ROWS_MAX, description="So many rows at most; the others are counted.")]


@router.get("/v1/topics")
async def topics(request: Request, sidecar: TheSidecar, limit: Limit = ROWS_MAX, shard: Shard = None) -> TopicsDocument:
    """Every topic that applications made, and retry and dead letter topics, with the ends of their queues."""
    if (told := await elsewhere(request, sidecar, shard, TopicsDocument)) is not None:
        return told
    shown = await sidecar.tables.get()
    rows = [topic_row(shown.inventory, name) for name in shown.inventory.topics]
    left_out = shown.inventory.topics_left_out + max(len(rows) - limit, 0)
    return TopicsDocument(
        topics=rows[:limit],
        left_out=left_out,
        system_messages=dict(shown.inventory.system_messages),
        source=shown.source,
        age_ms=shown.age_ms,
        reason=shown.reason,
    )


@router.get("/v1/groups")
async def groups(request: Request, sidecar: TheSidecar, limit: Limit = ROWS_MAX, shard: Shard = None) -> GroupsDocument:
    """Every consumer group, and how far it is behind in each queue of this broker."""
    if (told := await elsewhere(request, sidecar, shard, GroupsDocument)) is not None:
        return told
    shown = await sidecar.tables.get()
    rows = [group_row(shown.inventory, name) for name in shown.inventory.groups]
    return GroupsDocument(
        groups=rows[:limit],
        left_out=max(len(rows) - limit, 0),
        source=shown.source,
        age_ms=shown.age_ms,
        reason=shown.reason,
    )


def kind_of(topic: str) -> Literal["user", "retry", "dead-letter", "system"]:
    """Whose it is."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead-letter"
    return "system" if topic.startswith(("rmq_sys_", "RMQ_SYS_")) else "user"


def topic_row(inventory: Inventory, name: str) -> TopicDocument:
    """One topic."""
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
    """How many messages of a topic are there."""
    return count_messages(inventory.queues.get(topic, {}))


def group_row(inventory: Inventory, name: str) -> GroupDocument:
    """One group."""
    queues = [QueueLagDocument(**one._asdict()) for one in inventory.lags(name)]
    retry = retry_topic(name)
    return GroupDocument(
        name=name,
        lag=sum(queue.lag for queue in queues if queue.topic != retry),
        retry_lag=sum(queue.lag for queue in queues if queue.topic == retry),
        dead_letters=messages_of(inventory, dead_letter_topic(name)),
        queues=queues,
    )
