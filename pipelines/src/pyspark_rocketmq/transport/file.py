"""Records out of a store's directory that this machine sees: mapped, and copied once, into the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, final

from pyspark_rocketmq.model import Bounds, EpochStart, LogState, QueueId, Replica, Task, TransportKind
from pyspark_rocketmq.replica_view import Bytes, Gone, NotYet, Piece
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.pieces import Units, log_pieces, place_of
from pyspark_rocketmq.transport.store import Store

RANGE_BYTES_MIN: Final = 32 * 1024 * 1024
"""Nothing of a mapped range is touched but its records, so ranges are long, and gaps between records are free."""
GAP_BYTES_MIN: Final = RANGE_BYTES_MIN


@final
class FileView:
    """A replica, by its files."""

    kind: Final = TransportKind.FILE

    def __init__(self, replica: Replica, settings: ReadSettings) -> None:
        """Raises Unreachable where there is no store."""
        assert replica.directory is not None, "only replicas with a directory are read so"
        self.replica: Final = replica
        self.where: Final = f"{replica.broker}:{replica.number} in {replica.directory}"
        self._settings = replace(
            settings,
            range_bytes=max(settings.range_bytes, RANGE_BYTES_MIN),
            gap_bytes_max=max(settings.gap_bytes_max, GAP_BYTES_MIN),
        )
        self._store = Store(replica.directory)

    def __repr__(self) -> str:
        return f"<FileView {self.where}>"

    @property
    def is_doubtful(self) -> bool:
        """Whether no page vouches for the log, so that every record has to prove itself."""
        return not self._store.span().is_said

    def log(self) -> LogState:
        span = self._store.span()
        epochs = tuple(EpochStart(one.epoch, one.start) for one in self._store.epochs())
        return LogState(self.replica.broker, span.begin, span.end, epochs)

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        return {queue: self._store.bounds(queue) for queue in queues}

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        return self._store.offset_at(queue, timestamp_ms)

    def place(self, queue: QueueId, offset: int) -> tuple[int, int]:
        self._demand(queue, offset, offset + 1)
        return place_of(self.units(queue, offset, offset + 1))

    def pieces(self, task: Task) -> Iterator[Piece]:
        for wanted in task.ranges:
            if wanted.count > 0:
                self._demand(wanted.queue, wanted.begin, wanted.end)
        yield from log_pieces(task, self, self._settings)

    def close(self) -> None:
        self._store.close()

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        return self._store.units(queue, begin, end)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        for begin, end in wanted:
            limit = self._store.span().end
            if end > limit:
                raise NotYet(f"{self.where} has the log up to {limit}, and is asked for {end}")
            yield self._store.read(begin, end)

    def _demand(self, queue: QueueId, begin: int, end: int) -> None:
        """Raises Gone or NotYet unless all of it can be read: units beyond that may be zeros, or another history's."""
        if self._store.has(queue, begin, end):
            return
        bounds = self._store.bounds(queue)
        text = f"{self.where} has [{bounds.begin}, {bounds.end}) of {queue}, and is asked for [{begin}, {end})"
        if end > bounds.end:
            raise NotYet(text)
        if begin < bounds.begin:
            raise Gone(text)
