"""The readable part of the log, and the meaning of a range request for it. Pure: headers in, a range or an error out.

The log is one resource, `[0, end)`, of which the oldest part is deleted and the end grows:

    [ deleted: 410 ...... begin ............ readable: 206 ............ end ...... not yet: 416 )

So the positions of HTTP's ``Range`` are the log's own offsets. A request has one range; a range that begins inside and
reaches beyond the end, or is longer than one answer may be, is answered with its beginning, and ``Content-Range`` has
its limits. The entity tag contains store and epoch: as long as it is the same, a readable byte does not change.

The end of the readable part comes from the broker's last publication. It remains valid while the broker is stalled
or has ended: confirmed and committed data is in the files, and no restart removes it. During recovery it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_status import Reading

RANGE_PATTERN: Final = r"bytes=(?:([0-9]{1,19})-([0-9]{1,19})?|-([0-9]{1,19}))"
"""The pattern of a Range header with one range of bytes, as both listeners accept it."""

_RANGE: Final = re.compile(RANGE_PATTERN)
OFFSET_MAX: Final = 1 << 62
"""The largest offset in a parameter of a request: beyond any log, and a signed 64-bit number."""


class Span(NamedTuple):
    """The readable part of the log: ``[begin, end)``."""

    begin: int
    end: int


@final
class PlannedRange(NamedTuple):
    """The range of one answer: ``[start, end)`` of a log that is readable up to ``total``."""

    start: int
    end: int
    total: int
    """The end of the readable part of the log."""

    etag: str
    """The entity tag of the log (``entity_tag``)."""

    @property
    def length(self) -> int:
        return self.end - self.start

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer 206 with this range."""
        return {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(self.length),
            "Content-Range": f"bytes {self.start}-{self.end - 1}/{self.total}",
            "Accept-Ranges": "bytes",
            "ETag": self.etag,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }


def entity_tag(store_uuid: str | None, epoch: int | None) -> str:
    """Return the entity tag of a log, made of its store and its epoch."""
    return f'"{(store_uuid or "unknown").replace("-", "")}-{0 if epoch is None else epoch}"'


def plan_range(headers: Mapping[str, str], span: Span, etag: str, bytes_max: int) -> PlannedRange:
    """Return the range to answer with. Raises ``Problem`` 400, 410, 412 or 416. ``headers`` have lower-case names."""
    for name in ("if-match", "if-range"):
        wanted = headers.get(name)
        if wanted is not None and not _matches(wanted, etag):
            raise Problem(412, "this is another log, or another epoch of it", headers={"ETag": etag}, etag=etag)
    text = headers.get("range", "").strip()
    found = _RANGE.fullmatch(text)
    if found is None:
        raise Problem(400, "expected one range of the log: Range: bytes=FIRST-LAST, FIRST- or -COUNT")
    first, last, count = (None if group is None else int(group) for group in found.groups())
    if count is not None:
        start, end = max(span.end - count, span.begin), span.end
        if count == 0:
            raise _beyond(span, etag)
    else:
        assert first is not None, "either form has a number"
        start, end = first, span.end if last is None else last + 1
        if last is not None and last < first:
            raise Problem(400, f"the range ends before it begins: {text[:60]}")
    return clip_range(start, end, span, etag, bytes_max)


def clip_range(start: int, end: int, span: Span, etag: str, bytes_max: int) -> PlannedRange:
    """Return the readable beginning of ``[start, end)``. Raises ``Problem`` 410 or 416 if there is none."""
    if start < span.begin:
        text = f"the log before offset {span.begin} has been deleted"
        raise Problem(410, text, headers={"ETag": etag}, oldest=span.begin, end=span.end)
    if start >= span.end:
        raise _beyond(span, etag)
    return PlannedRange(start, min(end, span.end, start + bytes_max), span.end, etag)


def _beyond(span: Span, etag: str) -> Problem:
    text = f"the log is readable up to offset {span.end} now"
    headers = {"Content-Range": f"bytes */{span.end}", "ETag": etag}
    return Problem(416, text, headers=headers, oldest=span.begin, end=span.end)


def _matches(wanted: str, etag: str) -> bool:
    return wanted.strip() == "*" or etag in [one.strip() for one in wanted.split(",")]


def log_span(reading: Reading | None) -> Span:
    """Return the readable part, ``[oldest, min(confirmed, committed))``. Raises ``Problem`` 503 if it is unknown."""
    if reading is None:
        raise Problem(503, "no status page, so the readable part of the log is unknown")
    status = reading.status
    readable = status.readable
    if readable is None:
        text = f"the broker is {status.phase.name.lower()}, so the readable part of the log is not known yet"
        raise Problem(503, text, headers={"Retry-After": "1"})
    return Span(readable.start, readable.end)


def log_etag(reading: Reading | None) -> str:
    """Return the entity tag of the log of a publication."""
    status = None if reading is None else reading.status
    if status is None or status.store_uuid is None:
        return entity_tag(None, None)
    return entity_tag(status.store_uuid.hex, status.epoch)
