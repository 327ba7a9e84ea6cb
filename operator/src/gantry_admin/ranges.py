"""Which part of the log may be read, and what a range request means for it. Pure: headers in, a range or a refusal out.

The log is one resource, `[0, end)`, of which the oldest part is gone and the end grows:

    [ gone: 410 ...... begin ............ readable: 206 ............ end ...... not yet: 416 )

So the positions of HTTP's ``Range`` are the log's own offsets. One range at a time; a range that begins inside and
reaches beyond the end, or is longer than one answer may be, is answered with its beginning, and ``Content-Range`` says
what it is. The entity tag names store and epoch: as long as it stays, a byte that was readable stays what it was.

Where the readable part ends is what the broker published last. It stays true when the broker stands still or is gone:
what was confirmed and committed is in the files, and no start takes it back. While a broker recovers, it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_status import Reading

RANGE_PATTERN: Final = r"bytes=(?:([0-9]{1,19})-([0-9]{1,19})?|-([0-9]{1,19}))"
"""One range of bytes, as both listeners take it."""

_RANGE: Final = re.compile(RANGE_PATTERN)
OFFSET_MAX: Final = 1 << 62
"""A number that JSON schemas can say exactly; no log gets there."""


class Span(NamedTuple):
    """What can be read: ``[begin, end)``."""

    begin: int
    end: int


@final
class LogRange(NamedTuple):
    """What one answer holds: ``[start, end)`` of a log that is readable up to ``total``."""

    start: int
    end: int
    total: int
    etag: str

    @property
    def length(self) -> int:
        return self.end - self.start

    def headers(self) -> dict[str, str]:
        """Of a 206."""
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
    """Of a log."""
    return f'"{(store_uuid or "unknown").replace("-", "")}-{0 if epoch is None else epoch}"'


def plan(headers: Mapping[str, str], span: Span, etag: str, bytes_max: int) -> LogRange:
    """The range to answer with; ``headers`` have lower-case names. Raises ``Problem`` 400, 410, 412 or 416."""
    for name in ("if-match", "if-range"):
        wanted = headers.get(name)
        if wanted is not None and not _matches(wanted, etag):
            raise Problem(412, "this is another log, or another epoch of it", headers={"ETag": etag}, etag=etag)
    text = headers.get("range", "").strip()
    found = _RANGE.fullmatch(text)
    if found is None:
        raise Problem(400, "ask for one range of the log: Range: bytes=FIRST-LAST, FIRST- or -COUNT")
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
    return bounded(start, end, span, etag, bytes_max)


def bounded(start: int, end: int, span: Span, etag: str, bytes_max: int) -> LogRange:
    """``[start, end)`` as far as it can be read. Raises ``Problem`` 410 or 416."""
    if start < span.begin:
        text = f"what lies before offset {span.begin} is not there any more"
        raise Problem(410, text, headers={"ETag": etag}, oldest=span.begin, end=span.end)
    if start >= span.end:
        raise _beyond(span, etag)
    return LogRange(start, min(end, span.end, start + bytes_max), span.end, etag)


def _beyond(span: Span, etag: str) -> Problem:
    text = f"the log can be read up to offset {span.end} now"
    headers = {"Content-Range": f"bytes */{span.end}", "ETag": etag}
    return Problem(416, text, headers=headers, oldest=span.begin, end=span.end)


def _matches(wanted: str, etag: str) -> bool:
    return wanted.strip() == "*" or etag in [one.strip() for one in wanted.split(",")]


def log_span(reading: Reading | None) -> Span:
    """``[oldest, min(confirmed, committed))``. Raises ``Problem`` 503."""
    if reading is None:
        raise Problem(503, "there is no status page, so nobody knows how far the log may be read")
    status = reading.status
    readable = status.readable
    if readable is None:
        text = f"the broker is {status.phase.name.lower()}, and has not said yet how far its log may be read"
        raise Problem(503, text, headers={"Retry-After": "1"})
    return Span(readable.start, readable.end)


def log_etag(reading: Reading | None) -> str:
    """The entity tag of that log."""
    status = None if reading is None else reading.status
    if status is None or status.store_uuid is None:
        return entity_tag(None, None)
    return entity_tag(status.store_uuid.hex, status.epoch)
