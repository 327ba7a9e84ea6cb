"""The log itself, for whoever reads it in bulk: ranges, queue slices, checksums, offsets by time.

Messages are in it, so it needs a token that may read, or --open-reads on loopback. The same ranges leave faster by the
second listener (`fast_port` of `/v1/log`); both follow `ranges.plan`, and share the limits.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from contextlib import ExitStack
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import Field

from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.log_documents import (
    ChecksumDocument,
    EpochDocument,
    LogDocument,
    LogFileDocument,
    QueueBoundsDocument,
    QueuesBoundsDocument,
    QueueTimeDocument,
)
from gantry_admin.log_span import log_etag, log_span
from gantry_admin.range_response import RangeResponse
from gantry_admin.ranges import OFFSET_MAX, bounded, plan
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_admin.sidecar import Sidecar
from gantry_admin.store_files import QUEUE_ID_MAX

UNITS_MAX: Final = 1 << 16
CHECK_PIECE_BYTES: Final = 1 << 20
BINARY: Final[dict[str, Any]] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

router = APIRouter(prefix="/v1/log", tags=["log"], dependencies=[needs(Scope.READ)], responses=refusals(401, 403, 503))

TOPICS_MAX: Final = 64
"""In one question; each queue costs two bisections of its files."""

TopicName = Annotated[str, Field(pattern=r"^[%|a-zA-Z0-9_-]+$", max_length=255)]
Topic = Annotated[str, Path(pattern=r"^[%|a-zA-Z0-9_-]+$", max_length=255)]
QueueId = Annotated[int, Path(ge=0, le=QUEUE_ID_MAX)]
Offset = Annotated[int, Query(ge=0, le=OFFSET_MAX)]


@router.get("")
async def log(sidecar: TheSidecar) -> LogDocument:
    """What of the log can be read here."""
    reading = sidecar.broker.reading
    span = log_span(reading)
    assert reading is not None, "a span comes from a page"
    status = reading.status
    files = await asyncio.to_thread(sidecar.files.log_segments)
    epochs = await asyncio.to_thread(sidecar.files.epochs)
    return LogDocument(
        begin=span.begin, end=span.end, committed=status.committed or 0, confirmed=status.confirmed or 0,
        epoch=status.epoch, store_uuid=None if status.store_uuid is None else str(status.store_uuid),
        etag=log_etag(reading), epochs=[EpochDocument(epoch=one.epoch, begin=one.start) for one in epochs],
        files=[LogFileDocument(base=file.base_offset, bytes=file.size) for file in files],
        range_bytes_max=sidecar.settings.log.range_bytes_max, fast_port=sidecar.fast_port,
        broker=sidecar.broker.motion(),
    )  # fmt: skip


@router.get(
    "/bytes",
    status_code=206,
    response_class=Response,
    responses={
        206: {"description": "The range, or its beginning; `Content-Range` says which.", "content": BINARY},
        **refusals(400, 410, 412, 416, 422, 429),
    },
)
async def log_bytes(
    request: Request,
    sidecar: TheSidecar,
    _range: Annotated[
        str,
        Header(
            alias="Range",
            pattern=r"^bytes=([0-9]{1,19}-([0-9]{1,19})?|-[0-9]{1,19})$",
            description="One range, in offsets of the whole log: `bytes=FIRST-LAST`, `FIRST-` or `-COUNT`.",
        ),
    ],
    _if_match: Annotated[str | None, Header(alias="If-Match", description="412 unless this is still the ETag.")] = None,
) -> Response:
    """A range of the log.

    The log is one resource `[0, end)` of which the oldest part is gone. The answer is 206 with the longest beginning of
    the range that can be read: never beyond min(confirmed, committed), never longer than `range_bytes_max`. 410 with
    `oldest` when its first byte is gone, 416 with `end` when it is not there yet. `ETag` names store and epoch: as long
    as it is the same, bytes that were read once stay what they were; `If-Match` and `If-Range` with another one are
    answered 412.
    """
    wanted = plan(
        request.headers,
        log_span(sidecar.broker.reading),
        log_etag(sidecar.broker.reading),
        sidecar.settings.log.range_bytes_max,
    )
    return RangeResponse(sidecar, wanted)


@router.get("/checksum", responses=refusals(410, 416, 422, 429))
async def checksum(
    sidecar: TheSidecar,
    offset: Offset,
    length: Annotated[int, Query(ge=1, le=1 << 30)],
    algorithm: Literal["crc32", "sha256"] = "crc32",
) -> ChecksumDocument:
    """Of a range, as far as it can be read and at most `range_bytes_max`: `length` in the answer says how much."""
    etag = log_etag(sidecar.broker.reading)
    wanted = bounded(
        offset, offset + length, log_span(sidecar.broker.reading), etag, sidecar.settings.log.range_bytes_max
    )
    with sidecar.limits.reader():
        await asyncio.sleep(sidecar.limits.bucket.take(wanted.length))
        text = await asyncio.to_thread(_checksum, sidecar, wanted.start, wanted.end, algorithm)
    return ChecksumDocument(
        offset=wanted.start, length=wanted.length, algorithm=algorithm, checksum=text, etag=wanted.etag
    )


@router.get("/queues", responses=refusals(422))
async def queues(
    sidecar: TheSidecar, topic: Annotated[list[TopicName], Query(max_length=TOPICS_MAX)]
) -> QueuesBoundsDocument:
    """Which units of all queues of some topics can be read."""
    span = log_span(sidecar.broker.reading)

    def look() -> list[QueueBoundsDocument]:
        found: list[QueueBoundsDocument] = []
        for name in dict.fromkeys(topic):
            for number in sidecar.files.queue_ids(name):
                try:
                    bounds = sidecar.files.bounds(name, number, span.begin, span.end)
                except Problem:
                    continue  # deleted meanwhile
                found.append(QueueBoundsDocument(topic=name, queue_id=number, begin=bounds.begin, end=bounds.end))
        return found

    return QueuesBoundsDocument(queues=await asyncio.to_thread(look))


@router.get("/queues/{topic}/{queue_id}", responses=refusals(404, 422))
async def queue(sidecar: TheSidecar, topic: Topic, queue_id: QueueId) -> QueueBoundsDocument:
    """Which units of a queue can be read."""
    span = log_span(sidecar.broker.reading)
    bounds = await asyncio.to_thread(sidecar.files.bounds, topic, queue_id, span.begin, span.end)
    return QueueBoundsDocument(topic=topic, queue_id=queue_id, begin=bounds.begin, end=bounds.end)


@router.get(
    "/queues/{topic}/{queue_id}/units",
    response_class=Response,
    responses={
        200: {"description": "20 bytes each: physical offset 8, size 4, tags code 8; big-endian.", "content": BINARY},
        **refusals(404, 410, 416, 422),
    },
)
async def units(
    sidecar: TheSidecar,
    topic: Topic,
    queue_id: QueueId,
    start: Annotated[int, Query(alias="from", ge=0, le=1 << 53)],
    count: Annotated[int, Query(ge=1, le=UNITS_MAX)] = UNITS_MAX,
) -> Response:
    """Units of a queue whose messages can all be read. `X-Gantry-First` and `X-Gantry-End` say which these are."""
    span = log_span(sidecar.broker.reading)
    bounds = await asyncio.to_thread(sidecar.files.bounds, topic, queue_id, span.begin, span.end)
    if start < bounds.begin:
        raise Problem(410, f"what lies before unit {bounds.begin} is not there any more", oldest=bounds.begin)
    if start >= bounds.end:
        raise Problem(416, f"the queue can be read up to unit {bounds.end} now", oldest=bounds.begin, end=bounds.end)
    end = min(start + count, bounds.end)
    data = await asyncio.to_thread(sidecar.files.units, topic, queue_id, start, end)
    headers = {"X-Gantry-First": str(start), "X-Gantry-End": str(end), "ETag": log_etag(sidecar.broker.reading),
               "Cache-Control": "no-store"}  # fmt: skip
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get("/queues/{topic}/{queue_id}/offset", responses=refusals(404, 410, 422))
async def queue_offset(
    sidecar: TheSidecar,
    topic: Topic,
    queue_id: QueueId,
    timestamp_ms: Annotated[int, Query(ge=0, le=OFFSET_MAX)],
) -> QueueTimeDocument:
    """The first message of a queue that was stored at a time or later."""
    span = log_span(sidecar.broker.reading)
    found, end = await asyncio.to_thread(sidecar.files.offset_at, topic, queue_id, timestamp_ms, span.begin, span.end)
    return QueueTimeDocument(topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms, offset=found, end=end)


def _checksum(sidecar: Sidecar, start: int, end: int, algorithm: str) -> str:
    """Of the bytes; blocks."""
    crc, digest = 0, hashlib.sha256()
    with ExitStack() as stack:
        for piece in sidecar.files.open_range(start, end, stack):
            piece.file.seek(piece.position)
            left = piece.length
            while left:
                data = piece.file.read(min(left, CHECK_PIECE_BYTES))
                if not data:
                    raise Problem(503, "a file of the log is shorter than it was")
                left -= len(data)
                if algorithm == "crc32":
                    crc = zlib.crc32(data, crc)
                else:
                    digest.update(data)
    return f"{crc:08x}" if algorithm == "crc32" else digest.hexdigest()
