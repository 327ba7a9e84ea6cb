"""Messages for people: look one up, look at the newest of a queue, see dead letters, send them again.

What is read comes out of the store's files, so it can be read while the broker is down; only keys are asked for in the
broker's index. Each answer is bounded in messages, in bytes of records and in bytes of bodies, and readers share the
limits of `/v1/log`. Sending again is an order like those of roles: it needs a token that may change, and leaves a line.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request

from gantry_access import AccessFileError
from gantry_admin.audit import audited
from gantry_admin.errors import Problem
from gantry_admin.guard import Caller, Scope
from gantry_admin.message_documents import (
    SHOWN_BYTES,
    SHOWN_BYTES_MAX,
    DeadLetterQueueDocument,
    DeadLettersDocument,
    FoundDocument,
    MessagesDocument,
    ResendBody,
    ResentDocument,
    message_document,
)
from gantry_admin.ranges import OFFSET_MAX, log_span
from gantry_admin.relay import Shard, elsewhere
from gantry_admin.resending import OneLetter
from gantry_admin.routes.common import Orderer, TheSidecar, needs, refusals
from gantry_admin.sidecar import Sidecar
from gantry_admin.store_files import QUEUE_ID_MAX, Found, message_at, queue_messages
from gantry_client.dead_letters import Resend, Tally
from gantry_client.errors import ClientError
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, parse_offset_message_id
from gantry_wire.names import dead_letter_topic, group_fault, topic_fault

MESSAGES_MAX: Final = 64
FOUND_MAX: Final = 32
BROKER_PATIENCE_S: Final = 3.0
PASSED_OVER_SHOWN: Final = 20
NAME: Final = r"^[%|a-zA-Z0-9_-]+$"
PRINTABLE: Final = r"^[\x21-\x7e]+$"

READ = [needs(Scope.READ)]
READ_REFUSALS = refusals(401, 403, 404, 422, 429, 502, 503, 504)
router = APIRouter(tags=["messages"])

Topic = Annotated[str, Path(pattern=NAME, max_length=255)]
Group = Annotated[str, Path(pattern=NAME, max_length=255)]
QueueId = Annotated[int, Path(ge=0, le=QUEUE_ID_MAX)]
Count = Annotated[int, Query(ge=1, le=MESSAGES_MAX, description="So many messages at most.")]
BodyBytes = Annotated[int, Query(ge=0, le=SHOWN_BYTES_MAX, description="So much of each body.")]


@router.get(
    "/v1/queues/{topic}/{queue_id}/messages", dependencies=READ, responses={**READ_REFUSALS, **refusals(410, 416)}
)
async def peek(
    request: Request,
    sidecar: TheSidecar,
    topic: Topic,
    queue_id: QueueId,
    start: Annotated[int | None, Query(alias="from", ge=0, le=1 << 53, description="By default the newest.")] = None,
    count: Count = 20,
    body_bytes: BodyBytes = SHOWN_BYTES,
    shard: Shard = None,
) -> MessagesDocument:
    """Messages of a queue from an offset on, or its newest."""
    if (told := await elsewhere(request, sidecar, shard, MessagesDocument)) is not None:
        return told
    found = await _in_queue(sidecar, topic, queue_id, start, count)
    return MessagesDocument(
        topic=topic, queue_id=queue_id, begin=found.bounds.begin, end=found.bounds.end, left_out=found.left_out,
        messages=[message_document(one, body_bytes) for one in found.messages],
    )  # fmt: skip


@router.get("/v1/messages", dependencies=READ, responses={**READ_REFUSALS, **refusals(400, 410, 416)})
async def find(
    request: Request,
    sidecar: TheSidecar,
    id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="A message's id.")] = None,
    key: Annotated[str | None, Query(max_length=256, pattern=PRINTABLE, description="One of its keys.")] = None,
    topic: Annotated[
        str | None, Query(max_length=255, pattern=NAME, description="Needed but for broker's ids.")
    ] = None,
    body_bytes: BodyBytes = SHOWN_BYTES,
    shard: Shard = None,
) -> FoundDocument:
    """Messages by the broker's id, by the sender's id and topic, or by key and topic; oldest first, 32 at most."""
    if (told := await elsewhere(request, sidecar, shard, FoundDocument)) is not None:
        return told
    if (id is None) == (key is None):
        raise Problem(400, "give an id or a key, and not both")
    if id is not None:
        with sidecar.limits.reader():
            at = await asyncio.to_thread(_by_offset_id, sidecar, id)
        if at is not None:
            return FoundDocument(messages=[message_document(at, body_bytes)], source="disk")
    if topic is None:
        if id is not None:
            raise Problem(404, "no message of this broker has that id; an id that its sender gave needs the topic, too")
        raise Problem(400, "a key needs the topic, too")
    records = await _ask(sidecar, topic, key or id or "", is_unique_key=key is None)
    return FoundDocument(messages=[message_document(one, body_bytes) for one in records], source="broker")


@router.get("/v1/dead-letters/{group}", dependencies=READ, responses=READ_REFUSALS)
async def dead_letters(
    request: Request,
    sidecar: TheSidecar,
    group: Group,
    count: Count = 20,
    body_bytes: BodyBytes = SHOWN_BYTES,
    shard: Shard = None,
) -> DeadLettersDocument:
    """The newest dead letters of a group on this broker, and how far they were sent again."""
    if (told := await elsewhere(request, sidecar, shard, DeadLettersDocument)) is not None:
        return told
    topic, reading = dead_letter_topic(group), sidecar.broker.reading
    if group_fault(group) is not None or topic_fault(topic) is not None or reading is None:
        raise Problem(404, "there is no such group here")
    shown = await sidecar.tables.get()
    sent_again = shown.inventory.sent_again.get(group, {})
    ids = await asyncio.to_thread(sidecar.files.queue_ids, topic)
    queues: list[DeadLetterQueueDocument] = []
    for queue_id in ids[:8]:
        found = await _in_queue(sidecar, topic, queue_id, None, count)
        queues.append(
            DeadLetterQueueDocument(
                topic=topic, queue_id=queue_id, begin=found.bounds.begin, end=found.bounds.end,
                left_out=found.left_out, messages=[message_document(one, body_bytes) for one in found.messages],
                sent_again_end=sent_again.get(queue_id),
            )
        )  # fmt: skip
    return DeadLettersDocument(group=group, broker_name=reading.origin.broker_name, queues=queues)


RESEND_REFUSALS = refusals(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504)


@router.post("/v1/dead-letters/{group}/resend", responses=RESEND_REFUSALS)
async def resend(
    group: Group, body: ResendBody, request: Request, sidecar: TheSidecar, caller: Orderer
) -> ResentDocument:
    """Send the next dead letters of a group to the topics they came from; what was sent again already is left out."""
    wish = Resend(group=group, messages_max=body.messages_max)
    return await _resend(request, sidecar, caller, wish, None)


@router.post("/v1/dead-letters/{group}/{queue_id}/{offset}/resend", responses=RESEND_REFUSALS)
async def resend_one(
    group: Group,
    queue_id: QueueId,
    offset: Annotated[int, Path(ge=0, le=1 << 53)],
    request: Request,
    sidecar: TheSidecar,
    caller: Orderer,
    shard: Shard = None,
) -> ResentDocument:
    """Send one dead letter again, also for a second time; of this broker, or of the shard that is named."""
    return await _resend(request, sidecar, caller, Resend(group=group), OneLetter(queue_id, offset, shard))


async def _resend(
    request: Request, sidecar: Sidecar, caller: Caller, wish: Resend, one: OneLetter | None
) -> ResentDocument:
    """Have it done, and put down who wanted it and what came of it."""
    on: dict[str, object] = {"group": wish.group, **({} if one is None else one._asdict())}
    with audited(request, caller, "resend", on):
        tally = await sidecar.resending.run(wish, one)
        on["sent"] = tally.sent.total()
        return _resent(wish.group, tally)


def _resent(group: str, tally: Tally) -> ResentDocument:
    passed_over = tally.unreadable + tally.without_origin
    return ResentDocument(
        group=group, sent=dict(sorted(tally.sent.items())), passed_over=passed_over[:PASSED_OVER_SHOWN],
        passed_over_count=len(passed_over), left=tally.left,
    )  # fmt: skip


async def _in_queue(sidecar: Sidecar, topic: str, queue_id: int, start: int | None, count: int) -> Found:
    """Out of the files, as one of the log's readers and at their rate."""
    with sidecar.limits.reader():
        span = log_span(sidecar.broker.reading)
        found = await asyncio.to_thread(queue_messages, sidecar.files, span, topic, queue_id, start, count)
        await asyncio.sleep(sidecar.limits.bucket.take(sum(one.size for one in found.messages)))
        return found


def _by_offset_id(sidecar: Sidecar, text: str) -> StoredMessage | None:
    """The message of this log with that id. One of another broker has another host in it."""
    try:
        _, _, physical = parse_offset_message_id(text)
    except RemoteProtocolError:
        return None
    if physical > OFFSET_MAX:
        return None
    try:
        message = message_at(sidecar.files, log_span(sidecar.broker.reading), physical)
    except Problem as problem:
        if problem.status == 410:
            return None
        raise
    return message if message is not None and message.offset_message_id == text.upper() else None


async def _ask(sidecar: Sidecar, topic: str, key: str, *, is_unique_key: bool) -> list[StoredMessage]:
    """In the broker's index; one that stands still is not asked."""
    sidecar.broker.check_moving("only the broker can look up keys")
    try:
        async with asyncio.timeout(BROKER_PATIENCE_S):
            admin, address = await sidecar.client.connected()
            return await admin.messages.records_at(
                address, topic, key, messages_max=FOUND_MAX, is_unique_key=is_unique_key
            )
    except TimeoutError as error:
        raise Problem(504, "the broker did not answer in time") from error
    except (ClientError, AccessFileError) as error:
        raise Problem(502, str(error)[:300]) from error
