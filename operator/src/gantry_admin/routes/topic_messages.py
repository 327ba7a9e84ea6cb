"""The newest messages of a topic over all of its queues, and the progress of one message through its consumer groups.

Like `routes/messages.py` these endpoints read the store's files within the limits of the log's readers, and are
available while the broker is down; only traces, and what is said of a group's present consumers, need the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request

from gantry_access import AccessFileError
from gantry_admin.errors import Problem
from gantry_admin.message_documents import SHOWN_BYTES, TopicMessagesDocument, TopicQueueDocument, message_document
from gantry_admin.message_progress import progress_of
from gantry_admin.message_trace import trace_steps
from gantry_admin.progress_documents import (
    GroupProgressDocument,
    GroupReadingDocument,
    MessageProgressDocument,
    TraceDocument,
)
from gantry_admin.ranges import OFFSET_MAX, log_span
from gantry_admin.relay import Shard, relay_to_shard
from gantry_admin.routes.clients import TEXT_CHARACTERS_MAX
from gantry_admin.routes.common import TheSidecar, refusals
from gantry_admin.routes.messages import (
    BROKER_TIMEOUT_S,
    READ,
    READ_REFUSALS,
    BodyBytes,
    Count,
    QueueId,
    Topic,
    look_up_key,
    read_queue,
)
from gantry_admin.sidecar import Sidecar
from gantry_admin.store_files import QUEUE_ID_MAX
from gantry_admin.topic_messages import TopicPage, read_topic_messages
from gantry_client import ClientError
from gantry_client.deliveries import reading_of
from gantry_wire import properties as names
from gantry_wire.message import StoredMessage
from gantry_wire.names import TRACE_TOPIC

TIME_MAX_MS: Final = 1 << 53
"""The latest time in a parameter: every number up to here is exact in JSON."""

router = APIRouter(tags=["messages"], dependencies=READ)


@router.get("/v1/topics/{topic}/messages", responses={**READ_REFUSALS, **refusals(410)})
async def topic_messages(
    request: Request,
    sidecar: TheSidecar,
    topic: Topic,
    count: Count = 20,
    queue_id: Annotated[int | None, Query(ge=0, le=QUEUE_ID_MAX, description="Only this queue.")] = None,
    before: Annotated[
        int | None, Query(ge=0, le=OFFSET_MAX, description="`older` of the previous answer, for the next page.")
    ] = None,
    until_ms: Annotated[
        int | None, Query(ge=0, le=TIME_MAX_MS, description="Only messages stored before this time.")
    ] = None,
    body_bytes: BodyBytes = SHOWN_BYTES,
    shard: Shard = None,
) -> TopicMessagesDocument:
    """Return the newest messages of all queues of a topic on this broker, merged, the newest first."""
    if (relayed := await relay_to_shard(request, sidecar, shard, TopicMessagesDocument)) is not None:
        return relayed
    page = TopicPage(topic, count, queue_id, before, until_ms)
    with sidecar.limits.hold_reader():
        reading = sidecar.broker.reading
        found = await asyncio.to_thread(read_topic_messages, sidecar.files, log_span(reading), page)
        await asyncio.sleep(sidecar.limits.bucket.take(sum(one.size for one in found.messages)))
    assert reading is not None, "a span comes from a page"
    if not found.queues:
        await _check_exists(sidecar, topic, queue_id)
    return TopicMessagesDocument(
        topic=topic, broker_name=reading.origin.broker_name,
        queues=[
            TopicQueueDocument(queue_id=number, begin=bounds.begin, end=bounds.end)
            for number, bounds in found.queues.items()
        ],
        messages=[message_document(one, body_bytes) for one in found.messages],
        older=found.older, unreadable=found.unreadable, queues_left_out=found.queues_left_out,
    )  # fmt: skip


async def _check_exists(sidecar: Sidecar, topic: str, queue_id: int | None) -> None:
    """Raise ``Problem`` 404 unless the broker has this topic, and this queue of it: they may be without messages."""
    queues = (await sidecar.inventory.get()).inventory.queues.get(topic)
    if queues is not None and (queue_id is None or queue_id in queues):
        return
    # The inventory may be older than a new topic, whose files show that it exists.
    is_known = queues is not None or await asyncio.to_thread(sidecar.files.queue_ids, topic) != []
    raise Problem(404, "queue not found" if is_known else "topic not found")


@router.get("/v1/queues/{topic}/{queue_id}/{offset}/progress", responses={**READ_REFUSALS, **refusals(410, 416)})
async def message_progress(
    request: Request,
    sidecar: TheSidecar,
    topic: Topic,
    queue_id: QueueId,
    offset: Annotated[int, Path(ge=0, le=1 << 53)],
    shard: Shard = None,
) -> MessageProgressDocument:
    """Return which consumer groups have passed a message, their copies of it for redelivery, and its trace."""
    if (relayed := await relay_to_shard(request, sidecar, shard, MessageProgressDocument)) is not None:
        return relayed
    queue = await read_queue(sidecar, topic, queue_id, offset, 1)
    if not queue.messages:
        raise Problem(404, "no readable message has this offset")
    [message] = queue.messages
    snapshot = await sidecar.inventory.get()
    with sidecar.limits.hold_reader():
        span = log_span(sidecar.broker.reading)
        progress = await asyncio.to_thread(progress_of, sidecar.files, span, snapshot.inventory, message)
        await asyncio.sleep(sidecar.limits.bucket.take(progress.bytes_read))
    return MessageProgressDocument(
        topic=topic, queue_id=queue_id, queue_offset=offset,
        groups=await _with_readings(sidecar, message, progress.groups),
        groups_left_out=progress.left_out, source=snapshot.source, age_ms=snapshot.age_ms, reason=snapshot.reason,
        trace=await _trace(sidecar, message, TRACE_TOPIC in snapshot.inventory.system_messages),
    )  # fmt: skip


async def _with_readings(
    sidecar: Sidecar, message: StoredMessage, groups: list[GroupProgressDocument]
) -> list[GroupProgressDocument]:
    """Add how the consumers of each group read the topic, if the broker answers in time."""
    found: list[GroupProgressDocument] = []
    with contextlib.suppress(TimeoutError, ClientError, AccessFileError, Problem):
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            admin, address = await sidecar.client.connect()
            for group in groups:
                connections = await admin.brokers.connections(address, group.group)
                reading = reading_of(connections, message.topic, message.properties)
                document = GroupReadingDocument(
                    clients=reading.clients, is_accepted=reading.is_accepted,
                    filter=None if reading.filter is None else reading.filter[:TEXT_CHARACTERS_MAX],
                )  # fmt: skip
                found.append(group.model_copy(update={"reading": document}))
    return found + groups[len(found) :]


async def _trace(sidecar: Sidecar, message: StoredMessage, has_topic: bool) -> TraceDocument:
    """Return the trace of a message. A broker that does not answer makes it unavailable, and fails nothing else."""
    if not has_topic:
        return TraceDocument(state="off", reason=None, steps=[])
    message_id = message.properties.get(names.UNIQUE_KEY) or message.offset_message_id
    try:
        records = await look_up_key(sidecar, TRACE_TOPIC, message_id, is_unique_key=False)
    except Problem as problem:
        return TraceDocument(state="unavailable", reason=problem.reason, steps=[])
    steps = trace_steps(records, message_id)
    return TraceDocument(state="found" if steps else "none", reason=None, steps=steps)
