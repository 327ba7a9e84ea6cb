"""How a batch is decided: look, store one marker, look again; then everybody acts on what the queue says.

    look       is there a marker of this batch already?      yes: an earlier attempt was committed
    store      the marker of this attempt, acknowledged
    look       from there up to our own marker               somebody else was first: their halves, not ours

It knows a queue (`MarkerQueue`) and nothing of halves and their ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

from gantry_wire.errors import RemoteProtocolError
from pyspark_rocketmq.errors import BatchForgotten, BatchTorn, NotStored
from pyspark_rocketmq.sink.halves import Halves
from pyspark_rocketmq.sink.markers import NO_BATCH, PART_BYTES_MAX, Marker, MarkerKind, cut, deciding, decode, halves_of
from pyspark_rocketmq.sink.options import OnForgotten

log = logging.getLogger(__name__)
LOOK_MESSAGES: Final = 32


class MarkerQueue(Protocol):
    """The queue of one query's markers. It is patient; what it raises is final."""

    async def bounds(self) -> tuple[int, int]:
        """The oldest message that is there, and one past the newest that is shown."""
        ...

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        """The messages in `[begin, end)` by their offsets; those that have expired are left out."""
        ...

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        """Store one, as safely as the broker's mode promises; its offset. It may be stored twice."""
        ...


@final
@dataclass
class Look:
    """What was seen of a queue."""

    end: int
    """As far as it was read."""
    markers: dict[int, Marker] = field(default_factory=dict)
    """Those of the query."""
    has_expired: bool = False
    """Whether the queue's first messages are gone."""

    def add(self, markers: dict[int, Marker], end: int) -> None:
        """Take what a read up to `end` has shown."""
        self.markers |= markers
        self.end = max(self.end, end)

    @property
    def newest(self) -> int:
        """The newest batch of the query; NO_BATCH if there is none."""
        known = [max(marker.batch, marker.newest) for marker in self.markers.values()]
        return max(known, default=NO_BATCH)

    @property
    def last_run(self) -> str | None:
        """Which run wrote the last marker."""
        return self.markers[max(self.markers)].run if self.markers else None


@final
class Decisions:
    """Of one batch of one query."""

    def __init__(self, queue: MarkerQueue, query: str, batch: int, run: str | None = None) -> None:
        self._queue: Final = queue
        self._query: Final = query
        self._batch: Final = batch
        self._run: Final = run
        self._look: Look | None = None

    async def begin(self) -> None:
        """For a query that has just got its name: there is nothing of it to look for."""
        _, end = await self._queue.bounds()
        self._look = Look(end=end)

    async def look(self) -> Look:
        """What there is of this batch, read backwards as far as it takes; at most once."""
        if self._look is not None:
            return self._look
        begin, end = await self._queue.bounds()
        look = Look(end=end, has_expired=begin > 0)
        floor, position = begin, end
        while position > floor:
            start = max(floor, position - LOOK_MESSAGES)
            found = self._mine(await self._queue.read(start, position))
            look.markers |= found
            for marker in found.values():
                if marker.kind is not MarkerKind.PART and marker.newest < self._batch:
                    floor = max(floor, marker.scanned)
            position = start
        self._look = look
        return look

    async def decided(self) -> Marker | None:
        """The marker that decides the batch, as far as the first look has seen."""
        look = await self.look()
        return deciding(look.markers, self._query, self._batch)

    async def check_memory(self, on_forgotten: OnForgotten) -> None:
        """Raises BatchForgotten where a marker of this batch may have been, and nobody can say."""
        look = await self.look()
        if self._batch <= 0 or look.markers or not look.has_expired or on_forgotten is OnForgotten.PROCEED:
            return
        raise BatchForgotten(
            f"batch {self._batch} of query {self._query}: the markers of this query have expired, or there were none. "
            "If it was stopped for longer than the broker keeps messages, the batch may have been committed: compare "
            "the topic with it, then start once with onForgottenBatch=proceed"
        )

    async def commit(self, halves: Halves) -> Marker:
        """Store the marker of these; which one decides now. Raises what the queue raises."""
        look = await self.look()
        payload = halves.pack()
        common = self._common(look, halves)
        parts: list[int] = []
        if len(payload) > PART_BYTES_MAX:
            for piece in cut(payload, PART_BYTES_MAX):
                part = Marker(kind=MarkerKind.PART, payload=piece, **common)
                parts.append(await self._queue.append(part.encode(), self._keys()))
        marker = Marker(kind=MarkerKind.COMMIT, parts=tuple(parts), payload=b"" if parts else payload, **common)
        found = await self._store(marker)
        if found is None:
            raise NotStored(f"batch {self._batch} of query {self._query} was aborted while it was committed")
        return found

    async def abort(self, halves: Halves) -> Marker | None:
        """Say that these shall never be committed; the marker that had decided the batch before, if one had."""
        return await self._store(Marker(kind=MarkerKind.ABORT, **self._common(await self.look(), halves)))

    async def halves_of(self, marker: Marker) -> Halves:
        """Those that a marker lists. Raises BatchTorn if that cannot be read any more."""
        try:
            pieces: list[bytes] = []
            for offset in marker.parts:
                found = await self._queue.read(offset, offset + 1)
                pieces.append(decode(found[offset]).payload)
            return halves_of(marker, pieces)
        except (KeyError, RemoteProtocolError) as error:
            raise BatchTorn(
                f"batch {marker.batch} of query {marker.query} was decided, and its marker cannot be read: {error}"
            ) from error

    async def _store(self, marker: Marker) -> Marker | None:
        look = await self.look()
        place = await self._queue.append(marker.encode(), self._keys())
        look.add(self._mine(await self._queue.read(look.end, place + 1)), place + 1)
        assert place in look.markers, "a queue shows what it has acknowledged"
        return deciding(look.markers, self._query, self._batch)

    def _common(self, look: Look, halves: Halves) -> dict[str, Any]:
        return {
            "query": self._query, "batch": self._batch, "attempt": halves.fingerprint, "run": self._run,
            "rows": len(halves), "scanned": look.end, "newest": look.newest,
        }  # fmt: skip

    def _keys(self) -> tuple[str, ...]:
        return (f"{self._query}:{self._batch}",)

    def _mine(self, bodies: dict[int, bytes]) -> dict[int, Marker]:
        found: dict[int, Marker] = {}
        for offset, body in bodies.items():
            try:
                marker = decode(body)
            except RemoteProtocolError as error:
                log.warning("a message of the marker topic is passed over", extra={"reason": str(error)})
                continue
            if marker.query == self._query:
                found[offset] = marker
        return found
