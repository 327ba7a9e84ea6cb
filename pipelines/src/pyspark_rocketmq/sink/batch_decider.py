"""Decide a batch: scan the marker queue, store one marker, scan again; then act on what the queue contains.

    scan       has this batch a marker already?              yes: an earlier attempt was committed
    store      the marker of this attempt, acknowledged
    scan       from there up to the new marker               another driver was first: its half messages are the batch

This module knows a queue (`MarkerQueue`), and neither stores nor ends half messages.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

from gantry_wire.errors import RemoteProtocolError
from pyspark_rocketmq.errors import BatchForgotten, BatchTorn, NotStored
from pyspark_rocketmq.sink.half_message_list import HalfMessageList
from pyspark_rocketmq.sink.markers import (
    NO_BATCH,
    PART_BYTES_MAX,
    Marker,
    MarkerKind,
    decode,
    find_deciding_marker,
    halves_of,
    split_payload,
)
from pyspark_rocketmq.sink.options import OnForgotten

log = logging.getLogger(__name__)
SCAN_MESSAGES: Final = 32
"""How many messages are read at a time while the queue is scanned backwards."""


class MarkerQueue(Protocol):
    """The queue of one query's markers. It retries by itself; an error that it raises is final."""

    async def bounds(self) -> tuple[int, int]:
        """Return the offset of the oldest message, and one past the newest that is visible."""
        ...

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        """Return the messages in `[begin, end)` by their offsets, without those that have expired."""
        ...

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        """Store a message as safely as the broker's mode promises, and return its offset.

        It may be stored twice.
        """
        ...


@final
@dataclass
class MarkerScan:
    """The result of reading a marker queue."""

    end: int
    """The offset up to which the queue was read."""
    markers: dict[int, Marker] = field(default_factory=dict)
    """The markers of the query, by offset."""
    has_expired: bool = False
    """Whether the first messages of the queue have expired."""

    def add(self, markers: dict[int, Marker], end: int) -> None:
        """Add markers of a further read up to `end`."""
        self.markers |= markers
        self.end = max(self.end, end)

    @property
    def newest(self) -> int:
        """The newest batch of the query; NO_BATCH if there is none."""
        known = [max(marker.batch, marker.newest) for marker in self.markers.values()]
        return max(known, default=NO_BATCH)

    @property
    def last_run(self) -> str | None:
        """The run that wrote the last marker; None without markers."""
        return self.markers[max(self.markers)].run if self.markers else None


@final
class BatchDecider:
    """Decides one batch of one query."""

    def __init__(self, queue: MarkerQueue, query: str, batch: int, run: str | None = None) -> None:
        self._queue: Final = queue
        self._query: Final = query
        self._batch: Final = batch
        self._run: Final = run
        self._scan: MarkerScan | None = None

    async def skip_scan(self) -> None:
        """Skip the scan of the queue, for a query whose name is new and which therefore has no markers."""
        _, end = await self._queue.bounds()
        self._scan = MarkerScan(end=end)

    async def scan(self) -> MarkerScan:
        """Return the markers that matter for this batch, read backwards; the queue is scanned only once."""
        if self._scan is not None:
            return self._scan
        begin, end = await self._queue.bounds()
        scan = MarkerScan(end=end, has_expired=begin > 0)
        floor, position = begin, end
        while position > floor:
            start = max(floor, position - SCAN_MESSAGES)
            found = self._own_markers(await self._queue.read(start, position))
            scan.markers |= found
            for marker in found.values():
                if marker.kind is not MarkerKind.PART and marker.newest < self._batch:
                    floor = max(floor, marker.scanned)
            position = start
        self._scan = scan
        return scan

    async def find_decision(self) -> Marker | None:
        """Return the marker that decides the batch, according to the first scan."""
        scan = await self.scan()
        return find_deciding_marker(scan.markers, self._query, self._batch)

    async def require_retained_markers(self, on_forgotten: OnForgotten) -> None:
        """Raise BatchForgotten if a marker of this batch may have expired."""
        scan = await self.scan()
        if self._batch <= 0 or scan.markers or not scan.has_expired or on_forgotten is OnForgotten.PROCEED:
            return
        raise BatchForgotten(
            f"batch {self._batch} of query {self._query}: the markers of this query have expired, or never existed. "
            "If it was stopped for longer than the broker keeps messages, the batch may have been committed: check "
            "whether the topic has its rows, then start once with onForgottenBatch=proceed"
        )

    async def commit(self, halves: HalfMessageList) -> Marker:
        """Store a marker for these half messages, and return the marker that decides the batch.

        Raises NotStored if this attempt was aborted before, and the errors of the queue.
        """
        scan = await self.scan()
        payload = halves.pack()
        common = self._marker_fields(scan, halves)
        parts: list[int] = []
        if len(payload) > PART_BYTES_MAX:
            for piece in split_payload(payload, PART_BYTES_MAX):
                part = Marker(kind=MarkerKind.PART, payload=piece, **common)
                parts.append(await self._queue.append(part.encode(), self._keys()))
        marker = Marker(kind=MarkerKind.COMMIT, parts=tuple(parts), payload=b"" if parts else payload, **common)
        found = await self._store(marker)
        if found is None:
            raise NotStored(f"batch {self._batch} of query {self._query} was aborted during its commit")
        return found

    async def abort(self, halves: HalfMessageList) -> Marker | None:
        """Store a marker that these are never committed; return the marker that decided the batch before, if any."""
        return await self._store(Marker(kind=MarkerKind.ABORT, **self._marker_fields(await self.scan(), halves)))

    async def halves_of(self, marker: Marker) -> HalfMessageList:
        """Return the half messages that a marker lists. Raises BatchTorn if they can no longer be read."""
        try:
            pieces: list[bytes] = []
            for offset in marker.parts:
                found = await self._queue.read(offset, offset + 1)
                pieces.append(decode(found[offset]).payload)
            return halves_of(marker, pieces)
        except (KeyError, RemoteProtocolError) as error:
            raise BatchTorn(
                f"batch {marker.batch} of query {marker.query} was decided, but its marker cannot be read: {error}"
            ) from error

    async def _store(self, marker: Marker) -> Marker | None:
        scan = await self.scan()
        offset = await self._queue.append(marker.encode(), self._keys())
        scan.add(self._own_markers(await self._queue.read(scan.end, offset + 1)), offset + 1)
        assert offset in scan.markers, "a queue returns what it has acknowledged"
        return find_deciding_marker(scan.markers, self._query, self._batch)

    def _marker_fields(self, scan: MarkerScan, halves: HalfMessageList) -> dict[str, Any]:
        return {
            "query": self._query, "batch": self._batch, "attempt": halves.fingerprint, "run": self._run,
            "rows": len(halves), "scanned": scan.end, "newest": scan.newest,
        }  # fmt: skip

    def _keys(self) -> tuple[str, ...]:
        return (f"{self._query}:{self._batch}",)

    def _own_markers(self, bodies: dict[int, bytes]) -> dict[int, Marker]:
        found: dict[int, Marker] = {}
        for offset, body in bodies.items():
            try:
                marker = decode(body)
            except RemoteProtocolError as error:
                log.warning("skipped invalid marker", extra={"reason": str(error)})
                continue
            if marker.query == self._query:
                found[offset] = marker
        return found
