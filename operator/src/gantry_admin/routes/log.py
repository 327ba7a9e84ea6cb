"""The log itself, for bulk readers: ranges, queue slices, checksums, offsets by time.

It contains messages, so it requires a token or a client certificate, or --open-reads on loopback. The second listener
serves the same ranges faster (`fast_port` of `/v1/log`); both use `ranges.plan_range`, and share the limits.

The status line of a range is sent only after a reader's place is held and every file of the range is open; deleting or
renaming files after that cannot change the bytes that are read. If a file is shorter than expected, the connection is
closed in the middle, which a client detects by the announced length.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from contextlib import ExitStack
from typing import Annotated, Any, Final, Literal, final

import aiofiles
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from gantry_admin.documents import Document, LoopStateDocument
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.ranges import OFFSET_MAX, RANGE_PATTERN, PlannedRange, clip_range, log_etag, log_span, plan_range
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_admin.sidecar import Sidecar
from gantry_admin.store_files import QUEUE_ID_MAX, Piece

UNITS_MAX: Final = 1 << 16
"""The most queue units of one answer."""

PIECE_BYTES: Final = 1 << 20
"""The bytes of a file that are read at a time."""

BINARY: Final[dict[str, Any]] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

router = APIRouter(prefix="/v1/log", tags=["log"], dependencies=[needs(Scope.READ)], responses=refusals(401, 403, 503))

TOPICS_MAX: Final = 64
"""Topics per request; each queue costs two binary searches in its files."""

TopicName = Annotated[str, Field(pattern=r"^[%|a-zA-Z0-9_-]+$", max_length=255)]
Topic = Annotated[str, Path(pattern=r"^[%|a-zA-Z0-9_-]+$", max_length=255)]
QueueId = Annotated[int, Path(ge=0, le=QUEUE_ID_MAX)]
Offset = Annotated[int, Query(ge=0, le=OFFSET_MAX)]


class LogFileDocument(Document):
    """One file of the log."""

    base: int
    """The offset in the log at which the file begins."""

    bytes: int


class EpochDocument(Document):
    """An epoch: one master wrote the log from `begin` to the begin of the next epoch."""

    epoch: int
    begin: int


class LogDocument(Document):
    """The readable part of the log: [begin, end)."""

    begin: int
    end: int = Field(description="min(confirmed, committed): no fault that the mode covers removes data before it.")
    committed: int
    confirmed: int
    epoch: int | None
    store_uuid: str | None
    etag: str
    epochs: list[EpochDocument] = Field(
        default=[], description="The epochs of the log, by offset; empty if the store does not record them."
    )
    files: list[LogFileDocument]
    range_bytes_max: int
    fast_port: int | None = Field(description="The port of this host that serves the same ranges by sendfile.")
    broker: LoopStateDocument


class ChecksumDocument(Document):
    """The checksum of the bytes [offset, offset + length) of the log."""

    offset: int
    length: int
    algorithm: Literal["crc32", "sha256"]
    checksum: str = Field(description="Hexadecimal.")
    etag: str


class QueueBoundsDocument(Document):
    """The readable units of one queue, [begin, end), by its files."""

    topic: str
    queue_id: int
    begin: int
    end: int


class QueuesBoundsDocument(Document):
    """Queues of some topics, all by the same readable part of the log; queues without files are left out."""

    queues: list[QueueBoundsDocument]


class QueueTimeDocument(Document):
    """The first message of a queue that was stored at a time or later."""

    topic: str
    queue_id: int
    timestamp_ms: int
    offset: int = Field(description="The queue's end when every message is older.")
    end: int


@router.get("")
async def log(sidecar: TheSidecar) -> LogDocument:
    """Return the readable part of the log."""
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
        broker=sidecar.broker.loop_state(),
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
            pattern=f"^{RANGE_PATTERN}$",
            description="One range, in offsets of the whole log: `bytes=FIRST-LAST`, `FIRST-` or `-COUNT`.",
        ),
    ],
    _if_match: Annotated[str | None, Header(alias="If-Match", description="412 unless this is still the ETag.")] = None,
) -> Response:
    """Return a range of the log.

    The log is one resource `[0, end)` of which the oldest part is deleted. The answer is 206 with the longest readable
    beginning of the range: never beyond min(confirmed, committed), never longer than `range_bytes_max`. It is 410 with
    `oldest` if the first byte was deleted, 416 with `end` if it is not readable yet. `ETag` contains store and epoch:
    as long as it is the same, bytes that were read do not change; `If-Match` and `If-Range` with another one are
    answered 412.
    """
    wanted = plan_range(
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
    """Return the checksum of the readable beginning of a range.

    `length` in the answer is the number of bytes that it covers: at most `range_bytes_max`, and fewer than requested if
    the readable part ends before.
    """
    etag = log_etag(sidecar.broker.reading)
    wanted = clip_range(
        offset, offset + length, log_span(sidecar.broker.reading), etag, sidecar.settings.log.range_bytes_max
    )
    with sidecar.limits.hold_reader():
        await asyncio.sleep(sidecar.limits.bucket.take(wanted.length))
        text = await asyncio.to_thread(_checksum, sidecar, wanted.start, wanted.end, algorithm)
    return ChecksumDocument(
        offset=wanted.start, length=wanted.length, algorithm=algorithm, checksum=text, etag=wanted.etag
    )


@router.get("/queues", responses=refusals(422))
async def queues(
    sidecar: TheSidecar, topic: Annotated[list[TopicName], Query(max_length=TOPICS_MAX)]
) -> QueuesBoundsDocument:
    """Return the readable units of all queues of some topics."""
    span = log_span(sidecar.broker.reading)

    def read_bounds() -> list[QueueBoundsDocument]:
        found: list[QueueBoundsDocument] = []
        for name in dict.fromkeys(topic):
            for number in sidecar.files.queue_ids(name):
                try:
                    bounds = sidecar.files.bounds(name, number, span.begin, span.end)
                except Problem:
                    continue  # deleted meanwhile
                found.append(QueueBoundsDocument(topic=name, queue_id=number, begin=bounds.begin, end=bounds.end))
        return found

    return QueuesBoundsDocument(queues=await asyncio.to_thread(read_bounds))


@router.get("/queues/{topic}/{queue_id}", responses=refusals(404, 422))
async def queue(sidecar: TheSidecar, topic: Topic, queue_id: QueueId) -> QueueBoundsDocument:
    """Return the readable units of a queue."""
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
    """Return units of a queue whose messages are all readable, from `X-Gantry-First` up to `X-Gantry-End`."""
    span = log_span(sidecar.broker.reading)
    bounds = await asyncio.to_thread(sidecar.files.bounds, topic, queue_id, span.begin, span.end)
    if start < bounds.begin:
        raise Problem(410, f"the units before {bounds.begin} have been deleted", oldest=bounds.begin)
    if start >= bounds.end:
        raise Problem(416, f"the queue is readable up to unit {bounds.end} now", oldest=bounds.begin, end=bounds.end)
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
    """Return the offset of the first message of a queue that was stored at a time or later."""
    span = log_span(sidecar.broker.reading)
    found, end = await asyncio.to_thread(sidecar.files.offset_at, topic, queue_id, timestamp_ms, span.begin, span.end)
    return QueueTimeDocument(topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms, offset=found, end=end)


def _checksum(sidecar: Sidecar, start: int, end: int, algorithm: str) -> str:
    """Return the checksum of a range of the log; blocks."""
    crc, digest = 0, hashlib.sha256()
    with ExitStack() as stack:
        for piece in sidecar.files.open_range(start, end, stack):
            piece.file.seek(piece.position)
            left = piece.length
            while left:
                data = piece.file.read(min(left, PIECE_BYTES))
                if not data:
                    raise Problem(503, "a file of the log is shorter than it was")
                left -= len(data)
                if algorithm == "crc32":
                    crc = zlib.crc32(data, crc)
                else:
                    digest.update(data)
    return f"{crc:08x}" if algorithm == "crc32" else digest.hexdigest()


@final
class RangeResponse(Response):
    """An answer that streams a range of the log, or the error if its files cannot be opened."""

    def __init__(self, sidecar: Sidecar, wanted: PlannedRange) -> None:
        super().__init__(status_code=206, headers=wanted.headers())
        self._sidecar = sidecar
        self._wanted = wanted

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        files, limits, wanted = self._sidecar.files, self._sidecar.limits, self._wanted
        with ExitStack() as stack:
            try:
                stack.enter_context(limits.hold_reader())
                pieces = await asyncio.to_thread(files.open_range, wanted.start, wanted.end, stack)
            except Problem as problem:
                refusal = JSONResponse(problem.document(), problem.status, headers=problem.headers)
                await refusal(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 206, "headers": self.raw_headers})
            if scope["method"] == "GET":
                for piece in pieces:
                    await self._send(piece, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, piece: Piece, send: Send) -> None:
        bucket = self._sidecar.limits.bucket
        async with aiofiles.open(piece.file.fileno(), "rb", buffering=0, closefd=False) as file:
            await file.seek(piece.position)
            left = piece.length
            while left:
                data = await file.read(min(left, PIECE_BYTES))
                if not data:
                    raise ConnectionAbortedError("a file of the log is shorter than it was")
                left -= len(data)
                await asyncio.sleep(bucket.take(len(data)))
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._sidecar.limits.count_sent(len(data))
