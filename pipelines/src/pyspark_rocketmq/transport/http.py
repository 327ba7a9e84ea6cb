"""Read records as ranges of the log from a sidecar, so that no byte passes the broker's event loop.

Ranges come from the sidecar's log listener (`fast_port`) if it has one. Some threads request them ahead of the decoder.
A task keeps the entity tag that the log had when the task began. After a new epoch the sidecar refuses ranges with that
tag (412), and the view fails, so that two branches of the log are never mixed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, final
from urllib.parse import quote, urlencode

import numpy as np

from pyspark_rocketmq.model import Bounds, EpochStart, LogState, QueueId, Replica, Task, TransportKind
from pyspark_rocketmq.replica_view import Bytes, NotYetAvailable, Piece, RangeDeleted, Unreachable
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.pieces import UNIT, Units, locate_unit, log_pieces
from pyspark_rocketmq.transport.sidecar import NoSuchQueue, Sidecars

TOPICS_PER_REQUEST: Final = 64
"""The maximum number of topics that a sidecar accepts in one request."""


@final
class HttpView:
    """A replica that is read through its sidecar."""

    kind: Final = TransportKind.HTTP

    def __init__(self, replica: Replica, sidecars: Sidecars, settings: ReadSettings) -> None:
        assert replica.sidecar is not None, "only replicas with a sidecar are read through it"
        self.replica: Final = replica
        self.where: Final = f"{replica.broker}:{replica.number} by {replica.sidecar}"
        self._sidecar = sidecars.at(replica.sidecar)
        self._settings = settings
        self._log: dict[str, Any] | None = None
        """The description of the log when the task opened it; None between tasks."""
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<HttpView {self.where}>"

    @property
    def needs_body_check(self) -> bool:
        return False

    def log(self) -> LogState:
        found = self._describe_log()
        epochs = tuple(EpochStart(int(one["epoch"]), int(one["begin"])) for one in found.get("epochs") or ())
        return LogState(self.replica.broker, int(found["begin"]), int(found["end"]), epochs)

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        topics = sorted({queue.topic for queue in queues})
        found: dict[tuple[str, int], Bounds] = {}
        for first in range(0, len(topics), TOPICS_PER_REQUEST):
            request = urlencode([("topic", topic) for topic in topics[first : first + TOPICS_PER_REQUEST]])
            for one in self._sidecar.document(f"/v1/log/queues?{request}")["queues"]:
                found[one["topic"], one["queue_id"]] = Bounds(int(one["begin"]), int(one["end"]))
        return {queue: found.get((queue.topic, queue.number), Bounds(0, 0)) for queue in queues}

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        try:
            found = self._sidecar.document(f"{_path(queue)}/offset?timestamp_ms={max(0, timestamp_ms)}")
            return int(found["offset"])
        except NoSuchQueue:
            return 0

    def locate(self, queue: QueueId, offset: int) -> tuple[int, int]:
        return locate_unit(self.units(queue, offset, offset + 1))

    def pieces(self, task: Task) -> Iterator[Piece]:
        self._log = self._describe_log()
        try:
            yield from log_pieces(task, self, self._settings)
        finally:
            self._log = None

    def close(self) -> None:
        """Stop reading ahead without waiting for pending requests; the connections belong to the sidecar."""
        self._is_closed = True
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    # -- the log's bytes -----------------------------------------------------------------------------------------------

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        """Return exactly these units of a queue."""
        try:
            answer = self._sidecar.get(f"{_path(queue)}/units?from={begin}&count={end - begin}")
        except NoSuchQueue as error:
            raise NotYetAvailable(f"{self.where} has no message of {queue} yet") from error
        first, stop = _span(answer.headers)
        if first != begin or not begin < stop <= end or len(answer.body) != (stop - begin) * UNIT.itemsize:
            raise Unreachable(f"{self.where} returned other units of {queue} than requested")
        if stop < end:
            raise NotYetAvailable(f"{self.where} has {queue} up to offset {stop}, but {end} was requested")
        if self._log is not None and answer.headers.get("etag") != self._log["etag"]:
            raise Unreachable(f"{self.where} began a new epoch since the log was opened")
        return np.frombuffer(answer.body, UNIT)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        """Yield the bytes of ranges, some of them requested ahead."""
        log, pool = self._log, self._pool()
        assert log is not None, "a task opens the log first"
        pending: deque[Future[Bytes]] = deque()
        left = deque(wanted)
        try:
            while left or pending:
                while left and len(pending) <= self._settings.read_ahead:
                    begin, end = left.popleft()
                    pending.append(pool.submit(self._range, begin, end, log))
                yield pending.popleft().result()
        finally:
            for one in pending:
                one.cancel()

    def _range(self, begin: int, end: int, log: dict[str, Any]) -> Bytes:
        if begin < int(log["begin"]):
            raise RangeDeleted(f"{self.where} has the log from {log['begin']} on, but {begin} was requested")
        return self._sidecar.log_bytes(begin, end, etag=str(log["etag"]), fast_port=log.get("fast_port"))

    def _describe_log(self) -> dict[str, Any]:
        """Return the sidecar's description of the log."""
        return self._sidecar.document("/v1/log")

    def _pool(self) -> ThreadPoolExecutor:
        if self._is_closed:
            raise Unreachable(f"{self.where} is closed")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._settings.read_ahead + 1, thread_name_prefix="gantry-ranges")
        return self._threads


def _path(queue: QueueId) -> str:
    return f"/v1/log/queues/{quote(queue.topic, safe='')}/{queue.number}"


def _span(headers: Any) -> tuple[int, int]:
    try:
        return int(headers["x-gantry-first"]), int(headers["x-gantry-end"])
    except (KeyError, ValueError):
        return -1, -1
