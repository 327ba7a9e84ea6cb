"""Which part of the log may be read, as the broker's last publication says.

It stays true when the broker stands still or is gone: what was confirmed and committed is in the files, and no start
takes it back. While a broker recovers, nobody knows yet.
"""

from __future__ import annotations

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span, entity_tag
from gantry_status import Reading


def log_span(reading: Reading | None) -> Span:
    """``[oldest, min(confirmed, committed))``. Raises ``Problem`` 503."""
    if reading is None:
        raise Problem(503, "there is no status page, so nobody knows how far the log may be read")
    status = reading.status
    if status.confirmed is None or status.committed is None or status.min_physical is None:
        text = f"the broker is {status.phase.name.lower()}, and has not said yet how far its log may be read"
        raise Problem(503, text, headers={"Retry-After": "1"})
    end = min(status.confirmed, status.committed)
    return Span(min(status.min_physical, end), end)


def log_etag(reading: Reading | None) -> str:
    """The entity tag of that log."""
    status = None if reading is None else reading.status
    if status is None or status.store_uuid is None:
        return entity_tag(None, None)
    return entity_tag(status.store_uuid.hex, status.epoch)
