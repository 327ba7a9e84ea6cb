"""Search and live tail of a topic, as streams of server-sent events.

    /v1/search   event: hit         a message, newest first
                 event: progress    how far the scan of the store's files has come, four times a second
                 event: end         the same, and why the search has ended

    /v1/tail     event: message     a new message; its id has the positions of all queues
                 event: status      once a second, if something has changed: what was examined, sent and left out

A key or a sender's message id is looked up in the broker's index, which answers at once, unless the caller wants the
files to be scanned. The answer of the index is complete if it has fewer messages than the broker returns at most.

A search is a process of its own (`gantry_admin.search`). A tail reads little, so a thread of this process reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.message_documents import SHOWN_BYTES, MessageDocument, message_document
from gantry_admin.ranges import OFFSET_MAX, log_span
from gantry_admin.relay import Shard, relay_stream_to_shard
from gantry_admin.routes.common import Responses, TheSidecar, needs, refusals
from gantry_admin.routes.messages import FOUND_MAX, NAME, PRINTABLE, BodyBytes, by_offset_id, look_up_key
from gantry_admin.routes.status import SILENCE_S
from gantry_admin.search.messages import End, Hit, Progress, SearchRequest
from gantry_admin.sidecar import Sidecar
from gantry_admin.tail import TailPoll, TopicTail, format_positions, parse_positions
from gantry_wire.message import StoredMessage, decode_record
from gantry_wire.search import MessageMatcher, SearchCriteria, SearchFault

HITS_MAX: Final = 1_000
"""The most hits of one search."""

DEADLINE_MAX_S: Final = 600
"""The longest time of a search. A longer one is continued with an earlier `to_ms`."""

RATE_MAX: Final = 1_000
"""The highest rate of a tail: more than a person reads, and than a console can show."""

STATUS_INTERVAL_S: Final = 1.0
"""The time between two events with the status of a tail."""

HEARTBEAT: Final = b": still here\n\n"
"""The comment after `SILENCE_S` without an event."""

NO_MESSAGES: Final = TailPoll([], 0, 0)

EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
"""The schema of an event, as readers of event streams get it; `data` is a JSON object."""

STREAM_ANSWERS: Final[Responses] = {
    200: {"content": {"text/event-stream": {"schema": EVENT}}},
    **refusals(400, 401, 403, 404, 422, 429, 502, 503, 504),
}

STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The headers of event streams: neither caches nor proxies may hold events back."""

router = APIRouter(tags=["messages"], dependencies=[needs(Scope.READ)])


class SearchProgressDocument(Document):
    """How far a search has come."""

    source: Literal["files", "index"] = Field(description="Whether files are scanned, or the index was queried.")
    total_messages: int = Field(description="Messages of the topic in the time range, on this broker; 0 for the index.")
    scanned_messages: int = Field(description="Those that were compared with the conditions.")
    deleted_messages: int = Field(description="Those that were deleted before they were reached.")
    unreadable_messages: int = Field(description="Those of which the record or the body could not be read.")
    share: float = Field(description="`scanned_messages` of `total_messages`; 1 for an empty range.")
    read_bytes: int
    hits: int
    elapsed_ms: int
    messages_per_second: float


class SearchEndDocument(SearchProgressDocument):
    """The end of a search."""

    reason: Literal["complete", "limit", "deadline", "stopped"]
    fault: str | None = Field(description="Why it was stopped.")


class TailStatusDocument(Document):
    """What a tail has done so far."""

    examined: int = Field(description="Messages that were compared with the conditions.")
    sent: int
    left_out: int = Field(description="Messages that match, but exceed the rate.")
    skipped: int = Field(description="Messages that were not examined, because too many came at once or while the "
                         "client was away.")  # fmt: skip
    messages_per_second: float = Field(description="New messages of the topic on this broker since the last status.")


SEARCH_EVENTS: Final[dict[str, type[Document]]] = {
    "hit": MessageDocument,
    "progress": SearchProgressDocument,
    "end": SearchEndDocument,
}
TAIL_EVENTS: Final[dict[str, type[Document]]] = {"message": MessageDocument, "status": TailStatusDocument}
"""The documents of the events, by which those of other shards are validated."""

Time = Annotated[int | None, Query(ge=0, le=OFFSET_MAX)]
TopicOfSearch = Annotated[str, Query(pattern=NAME, max_length=255)]
JsonPaths = Annotated[
    list[str], Query(max_length=8, description="A condition such as `$.order.id = 17`; repeatable, all must hold.")
]


def content_criteria(
    tag: Annotated[str | None, Query(max_length=1_024, description="A tag, or several with `||` between them.")] = None,
    key: Annotated[str | None, Query(max_length=256, pattern=PRINTABLE, description="One of the keys.")] = None,
    id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="A message's id.")] = None,
    sql: Annotated[str | None, Query(max_length=4_096, description="A SQL92 filter on properties.")] = None,
    text: Annotated[str | None, Query(max_length=1_024, description="A part of the body.")] = None,
    ignore_case: Annotated[bool, Query(description="Whether `text` matches in any case.")] = False,
    json_path: JsonPaths = [],  # noqa: B006 - never changed
) -> SearchCriteria:
    """Return the conditions on messages in a query."""
    return SearchCriteria(
        tag=tag, key=key, id=id, sql=sql, text=text, ignores_case=ignore_case, json_paths=tuple(json_path)
    )  # fmt: skip


Content = Annotated[SearchCriteria, Depends(content_criteria)]


def make_matcher(criteria: SearchCriteria) -> MessageMatcher:
    """Return the matcher of the conditions. Raises ``Problem`` 400 that names the invalid condition."""
    try:
        return MessageMatcher(criteria)
    except SearchFault as fault:
        raise Problem(400, str(fault)) from fault


def format_sse(kind: str, document: Document, id: str | None = None) -> bytes:
    """Return one event. JSON contains no newline, so no data can be mistaken for another event."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {document.model_dump_json()}\n\n".encode()


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers=STREAM_HEADERS)


# -- search ------------------------------------------------------------------------------------------------------------


@router.get("/v1/search", response_class=StreamingResponse, responses=STREAM_ANSWERS)
async def search(
    request: Request,
    sidecar: TheSidecar,
    topic: TopicOfSearch,
    content: Content,
    from_ms: Time = None,
    to_ms: Time = None,
    scan: Annotated[bool, Query(description="Whether the files are scanned for a key or an id, too.")] = False,
    limit: Annotated[int, Query(ge=1, le=HITS_MAX, description="Number of hits after which the search ends.")] = 100,
    deadline_s: Annotated[float, Query(ge=1, le=DEADLINE_MAX_S)] = 60.0,
    body_bytes: BodyBytes = SHOWN_BYTES,
    shard: Shard = None,
) -> StreamingResponse:
    """Search the messages of a topic on this broker, newest first, and stream the hits."""
    if (relayed := await relay_stream_to_shard(request, sidecar, shard, SEARCH_EVENTS)) is not None:
        return _stream(relayed)
    criteria = msgspec.structs.replace(content, from_ms=from_ms, to_ms=to_ms)
    matcher = make_matcher(criteria)
    found = None if scan else await _from_index(sidecar, topic, matcher)
    if found is not None:
        return _stream(_indexed_events(found, limit, body_bytes))
    span = log_span(sidecar.broker.reading)
    if not await asyncio.to_thread(sidecar.files.queue_ids, topic):
        raise Problem(404, "topic not found")
    sidecar.searches.running.check()
    order = SearchRequest(
        store=str(sidecar.files.root), topic=topic, begin=span.begin, end=span.end, criteria=criteria, hits_max=limit,
        deadline_s=deadline_s, niceness=sidecar.settings.log.niceness,
    )  # fmt: skip
    return _stream(_scanned_events(sidecar, order, body_bytes))


async def _from_index(sidecar: Sidecar, topic: str, matcher: MessageMatcher) -> list[StoredMessage] | None:
    """Return the messages that the index has for the key or id, newest first; None if the files must be scanned."""
    wanted = matcher.criteria
    if wanted.id is not None and (at := await asyncio.to_thread(by_offset_id, sidecar, wanted.id)) is not None:
        return [at] if at.topic == topic and matcher.accepts(at) else []
    key = wanted.key if wanted.id is None else wanted.id
    if key is None or sidecar.broker.loop_state().state != "running":
        return None
    try:
        records = await look_up_key(sidecar, topic, key, is_unique_key=wanted.id is not None)
    except Problem:
        return None  # the broker does not answer; its files can be read nevertheless
    if len(records) >= FOUND_MAX:
        return None
    return sorted(filter(matcher.accepts, records), key=lambda one: one.physical_offset, reverse=True)


async def _indexed_events(found: list[StoredMessage], limit: int, body_bytes: int) -> AsyncIterator[bytes]:
    shown = found[:limit]
    for message in shown:
        yield format_sse("hit", message_document(message, body_bytes))
    end = SearchEndDocument(
        source="index", total_messages=0, scanned_messages=0, deleted_messages=0, unreadable_messages=0, share=1.0,
        read_bytes=0, hits=len(shown), elapsed_ms=0, messages_per_second=0.0,
        reason="complete" if len(shown) == len(found) else "limit", fault=None,
    )  # fmt: skip
    yield format_sse("end", end)


async def _scanned_events(sidecar: Sidecar, order: SearchRequest, body_bytes: int) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(sidecar.searches.run(order)) as events:
        async for event in events:
            match event:
                case Hit(record):
                    yield format_sse("hit", message_document(decode_record(record), body_bytes))
                case Progress():
                    yield format_sse("progress", progress_document(event))
                case End(reason=reason, progress=progress, fault=fault):
                    values = progress_document(progress).model_dump()
                    yield format_sse("end", SearchEndDocument(**values, reason=reason, fault=fault))


def progress_document(progress: Progress) -> SearchProgressDocument:
    """Return the document of a progress."""
    return SearchProgressDocument(
        source="files",
        total_messages=progress.total_messages,
        scanned_messages=progress.scanned_messages,
        deleted_messages=progress.deleted_messages,
        unreadable_messages=progress.unreadable_messages,
        share=progress.share(),
        read_bytes=progress.read_bytes,
        hits=progress.hits,
        elapsed_ms=progress.elapsed_ms,
        messages_per_second=round(progress.scanned_messages * 1000 / max(progress.elapsed_ms, 1), 1),
    )


# -- tail --------------------------------------------------------------------------------------------------------------


@router.get("/v1/tail", response_class=StreamingResponse, responses=STREAM_ANSWERS)
async def tail(
    request: Request,
    sidecar: TheSidecar,
    topic: TopicOfSearch,
    content: Content,
    rate: Annotated[int, Query(ge=1, le=RATE_MAX, description="Messages per second, at most.")] = 50,
    body_bytes: BodyBytes = SHOWN_BYTES,
    limit: Annotated[
        int | None, Query(ge=1, le=1_000_000, description="Number of events after which the stream ends.")
    ] = None,
    shard: Shard = None,
    last_event_id: Annotated[
        str | None, Header(max_length=8_192, description="The id of the last event: continue after it.")
    ] = None,
) -> StreamingResponse:
    """Stream the new messages of all queues of a topic on this broker, as they become visible."""
    if (relayed := await relay_stream_to_shard(request, sidecar, shard, TAIL_EVENTS)) is not None:
        return _stream(relayed)
    positions = None if last_event_id is None else parse_positions(last_event_id)
    made = TopicTail(sidecar.files, topic, make_matcher(content), rate, positions=positions)
    sidecar.tails.check()
    first = await asyncio.to_thread(made.poll, log_span(sidecar.broker.reading))
    return _stream(_tail_events(sidecar, made, first, body_bytes, limit))


async def _tail_events(
    sidecar: Sidecar, made: TopicTail, first: TailPoll, body_bytes: int, limit: int | None
) -> AsyncGenerator[bytes, None]:
    """Yield events until the client leaves, or ``limit`` events were sent."""
    loop = asyncio.get_running_loop()
    reporter = StatusReporter(made, loop.time())
    sent_s, polled, end, left = loop.time(), first, -1, limit
    with sidecar.tails.hold():
        while left is None or left > 0:
            events = [
                format_sse("message", message_document(one.message, body_bytes), format_positions(one.positions))
                for one in polled.messages
            ]
            await asyncio.sleep(sidecar.limits.bucket.take(polled.read_bytes))
            events = [*events, *reporter.report(loop.time())][:left]
            if events or loop.time() - sent_s >= SILENCE_S:
                sent_s = loop.time()
                yield b"".join(events) or HEARTBEAT
            if left is not None and (left := left - len(events)) == 0:
                return
            polled = NO_MESSAGES
            await sidecar.broker.watch.next(STATUS_INTERVAL_S)
            with contextlib.suppress(Problem):  # while the broker recovers, nothing becomes readable
                span = log_span(sidecar.broker.reading)
                if span.end != end:
                    polled, end = await asyncio.to_thread(made.poll, span), span.end


class StatusReporter:
    """The events with the status of a tail: the first at once, then once a second if something has changed."""

    def __init__(self, made: TopicTail, now_s: float) -> None:
        self._tail: Final = made
        self._reported_s = now_s
        self._counted = 0
        self._last: TailStatusDocument | None = None

    def report(self, now_s: float) -> list[bytes]:
        """Return the event that is due now, or none."""
        made, elapsed_s = self._tail, now_s - self._reported_s
        if self._last is not None and elapsed_s < STATUS_INTERVAL_S:
            return []
        count = made.examined + made.skipped + made.left_out
        status = TailStatusDocument(
            examined=made.examined, sent=made.sent, left_out=made.left_out, skipped=made.skipped,
            messages_per_second=round((count - self._counted) / max(elapsed_s, STATUS_INTERVAL_S), 1),
        )  # fmt: skip
        self._counted, self._reported_s = count, now_s
        if status == self._last:
            return []
        self._last = status
        return [format_sse("status", status, format_positions(made.positions))]
