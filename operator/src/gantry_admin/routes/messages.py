"""Messages for people: find one, list the newest of a queue, list dead letters, and resend them.

Messages are read from the store's files, so they are available while the broker is down; only a key or a sender's
message id needs the broker, which looks it up in its index. Each answer is bounded in messages, in bytes of records and
in bytes of bodies, and readers share the limits of `/v1/log`. Resending is an order like those of roles: it requires a
token that may change, and is audited.
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
from gantry_admin.relay import SHARD_PATTERN, Shard, relay_to_shard
from gantry_admin.resender import DeadLetterPosition
from gantry_admin.routes.common import Orderer, TheSidecar, needs, refusals
from gantry_admin.sidecar import Sidecar
from gantry_admin.store_files import QUEUE_ID_MAX, QueueMessages, message_at, queue_messages
from gantry_client.errors import ClientError
from gantry_client.resend_plan import OutcomeKind, ResendOutcome, ResendRequest, Verdict
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, parse_offset_message_id
from gantry_wire.names import dead_letter_topic, group_fault, topic_fault

MESSAGES_MAX: Final = 64
"""The most messages of one answer about a queue."""

FOUND_MAX: Final = 32
"""The most messages that a search returns."""

BROKER_TIMEOUT_S: Final = 3.0
"""How long the broker may take to look up a key."""

PASSED_OVER_SHOWN: Final = 20
"""The most ids of skipped dead letters in an answer."""

NAME: Final = r"^[%|a-zA-Z0-9_-]+$"
PRINTABLE: Final = r"^[\x21-\x7e]+$"

READ = [needs(Scope.READ)]
READ_REFUSALS = refusals(401, 403, 404, 422, 429, 502, 503, 504)
router = APIRouter(tags=["messages"])

Topic = Annotated[str, Path(pattern=NAME, max_length=255)]
Group = Annotated[str, Path(pattern=NAME, max_length=255)]
QueueId = Annotated[int, Path(ge=0, le=QUEUE_ID_MAX)]
Count = Annotated[int, Query(ge=1, le=MESSAGES_MAX, description="Number of messages, at most.")]
ShardOfLetter = Annotated[
    str | None,
    Query(
        max_length=255, pattern=SHARD_PATTERN,
        description="The broker name of the shard that has the dead letter, by default this one. It needs no --peer.",
    ),
]  # fmt: skip
BodyBytes = Annotated[int, Query(ge=0, le=SHOWN_BYTES_MAX, description="Bytes of each body to return, at most.")]


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
    """Return messages of a queue from an offset on, or its newest."""
    if (relayed := await relay_to_shard(request, sidecar, shard, MessagesDocument)) is not None:
        return relayed
    found = await read_queue(sidecar, topic, queue_id, start, count)
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
        str | None, Query(max_length=255, pattern=NAME, description="Required except for a broker's message id.")
    ] = None,
    body_bytes: BodyBytes = SHOWN_BYTES,
    shard: Shard = None,
) -> FoundDocument:
    """Find messages by the broker's id, by the sender's id and topic, or by key and topic; oldest first, 32 at most."""
    if (relayed := await relay_to_shard(request, sidecar, shard, FoundDocument)) is not None:
        return relayed
    if (id is None) == (key is None):
        raise Problem(400, "set either id or key, not both")
    if id is not None:
        with sidecar.limits.hold_reader():
            at = await asyncio.to_thread(by_offset_id, sidecar, id)
        if at is not None:
            return FoundDocument(messages=[message_document(at, body_bytes)], source="disk")
    if topic is None:
        if id is not None:
            raise Problem(404, "no message of this broker has that id; the sender's message id needs the topic too")
        raise Problem(400, "a key needs the topic too")
    records = await look_up_key(sidecar, topic, key or id or "", is_unique_key=key is None)
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
    """Return the newest dead letters of a group on this broker, and up to which offset they were resent."""
    if (relayed := await relay_to_shard(request, sidecar, shard, DeadLettersDocument)) is not None:
        return relayed
    topic, reading = dead_letter_topic(group), sidecar.broker.reading
    if group_fault(group) is not None or topic_fault(topic) is not None or reading is None:
        raise Problem(404, "group not found")
    snapshot = await sidecar.inventory.get()
    resent = snapshot.inventory.resent.get(group, {})
    ids = await asyncio.to_thread(sidecar.files.queue_ids, topic)
    queues: list[DeadLetterQueueDocument] = []
    for queue_id in ids[:8]:
        found = await read_queue(sidecar, topic, queue_id, None, count)
        queues.append(
            DeadLetterQueueDocument(
                topic=topic, queue_id=queue_id, begin=found.bounds.begin, end=found.bounds.end,
                left_out=found.left_out, messages=[message_document(one, body_bytes) for one in found.messages],
                resent_end=resent.get(queue_id),
            )
        )  # fmt: skip
    return DeadLettersDocument(group=group, broker_name=reading.origin.broker_name, queues=queues)


RESEND_REFUSALS = refusals(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504)


@router.post("/v1/dead-letters/{group}/resend", responses=RESEND_REFUSALS)
async def resend(
    group: Group, body: ResendBody, request: Request, sidecar: TheSidecar, caller: Orderer
) -> ResentDocument:
    """Resend the next dead letters of a group to their original topics; those that were resent already are left out."""
    return await _resend(request, sidecar, caller, ResendRequest(group=group), body.messages_max)


@router.post("/v1/dead-letters/{group}/{queue_id}/{offset}/resend", responses=RESEND_REFUSALS)
async def resend_one(
    group: Group,
    queue_id: QueueId,
    offset: Annotated[int, Path(ge=0, le=1 << 53)],
    request: Request,
    sidecar: TheSidecar,
    caller: Orderer,
    shard: ShardOfLetter = None,
) -> ResentDocument:
    """Resend one dead letter, even if it was resent before; of this broker, or of the shard that is named."""
    position = DeadLetterPosition(queue_id, offset, shard)
    return await _resend(request, sidecar, caller, ResendRequest(group=group), 1, position)


async def _resend(
    request: Request, sidecar: Sidecar, caller: Caller, order: ResendRequest, messages_max: int,
    one: DeadLetterPosition | None = None,
) -> ResentDocument:  # fmt: skip
    """Execute a resend order, and write its audit line. Raises ``Problem`` 502 if not all messages were sent."""
    on: dict[str, object] = {"group": order.group, **({} if one is None else one._asdict())}
    with audited(request, caller, "resend", on):
        plan, outcomes = await sidecar.resender.run(order, messages_max, one)
        sent = Counter(done.message.target or "" for done in outcomes if done.kind is OutcomeKind.SENT)
        on["sent"] = sent.total()
        if (fault := _first_fault(outcomes)) is not None:
            raise Problem(502, f"{fault.kind.value}: {fault.reason}; {sent.total()} were sent before"[:500])
    passed_over = [
        done.message.message_id for done in outcomes if done.message.verdict in (Verdict.NO_ORIGIN, Verdict.UNSENDABLE)
    ]
    return ResentDocument(
        group=order.group or "", sent=dict(sorted(sent.items())), passed_over=passed_over[:PASSED_OVER_SHOWN],
        passed_over_count=len(passed_over), left=plan.remaining,
    )  # fmt: skip


def _first_fault(outcomes: list[ResendOutcome]) -> ResendOutcome | None:
    """Return the first outcome of a message that should have been sent, and was not acknowledged."""
    return next((one for one in outcomes if one.kind in (OutcomeKind.FAILED, OutcomeKind.UNKNOWN)), None)


async def read_queue(sidecar: Sidecar, topic: str, queue_id: int, start: int | None, count: int) -> QueueMessages:
    """Read messages of a queue from its files, within the limits of the log's readers."""
    with sidecar.limits.hold_reader():
        span = log_span(sidecar.broker.reading)
        found = await asyncio.to_thread(queue_messages, sidecar.files, span, topic, queue_id, start, count)
        await asyncio.sleep(sidecar.limits.bucket.take(sum(one.size for one in found.messages)))
        return found


def by_offset_id(sidecar: Sidecar, text: str) -> StoredMessage | None:
    """Return the message with a broker's id; None if the id is of another broker, whose host differs, or unknown."""
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


async def look_up_key(sidecar: Sidecar, topic: str, key: str, *, is_unique_key: bool) -> list[StoredMessage]:
    """Look up a key in the broker's index. Raises ``Problem`` if the broker does not answer."""
    sidecar.broker.check_running("keys can only be looked up by the broker")
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            admin, address = await sidecar.client.connect()
            return await admin.messages.records_at(
                address, topic, key, messages_max=FOUND_MAX, is_unique_key=is_unique_key
            )
    except TimeoutError as error:
        raise Problem(504, "the broker did not answer in time") from error
    except (ClientError, AccessFileError) as error:
        raise Problem(502, str(error)[:300]) from error
