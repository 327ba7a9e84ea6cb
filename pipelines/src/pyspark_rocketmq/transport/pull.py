"""Read records by RocketMQ's own protocol: from any broker, master or slave, at the cost of its event loop.

A broker limits the messages of one response by its settings (Apache's: 32 messages), so several requests are pending at
once. Queue offsets are dense, so the begin of each request is known before the previous one is answered; the rest of an
incomplete stretch is requested again. Tags are compared here and not by the broker, so that every offset is
accounted for, and missing messages are noticed with any filter.

    |--- stretch ---|--- stretch ---|--- stretch ---|      requested concurrently, each to its end
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, final

import numpy as np

from gantry_client import RawPullResult
from gantry_client.fetching import FetchStatus
from gantry_client.sync import Admin
from gantry_wire.message import RECORD_BYTES_MIN, RECORD_HEAD
from gantry_wire.runtime_table import log_range
from pyspark_rocketmq.brokers import Brokers
from pyspark_rocketmq.errors import DamagedRecord
from pyspark_rocketmq.model import Bounds, LogState, QueueId, QueueRange, Replica, Task, TransportKind
from pyspark_rocketmq.records import HEAD, gather
from pyspark_rocketmq.replica_view import Expected, NotYetAvailable, Numbers, Piece, RangeDeleted, Unreachable
from pyspark_rocketmq.settings import ReadSettings

CONCURRENT_PULLS: Final = 8
"""The number of pull requests that are pending at once."""
STRETCH_MIN: Final = 32
"""The number of small messages that every broker returns in one response."""
STRETCH_MAX: Final = 2000
"""The most messages that one pull requests."""
_HEAD_BYTES: Final = RECORD_HEAD.size


@final
class PullView:
    """A broker process at its port. It owns no connections; they belong to `brokers`."""

    kind: Final = TransportKind.PULL

    def __init__(self, replica: Replica, brokers: Brokers, settings: ReadSettings) -> None:
        self.replica: Final = replica
        self.where: Final = f"{replica.broker}:{replica.number} at {replica.address} by pull"
        self._brokers = brokers
        self._settings = settings
        self._stretch = STRETCH_MIN

    def __repr__(self) -> str:
        return f"<PullView {self.where}>"

    @property
    def needs_body_check(self) -> bool:
        return False

    def log(self) -> LogState:
        """Return the log as the broker reports it; this protocol has no epochs."""
        facts = self._brokers.call(lambda admin: admin.brokers.runtime(self.replica.address))
        try:
            begin, end = log_range(facts)
        except ValueError as error:
            raise Unreachable(f"{self.where} does not report the end of its log") from error
        return LogState(self.replica.broker, begin, end)

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        """Return the bounds that the broker shows to consumers."""
        address = self.replica.address

        async def read_bounds(admin: Admin, queue: QueueId) -> Bounds:
            begin = await admin.replicas.min_offset(address, queue.topic, queue.number)
            end = await admin.replicas.max_offset(address, queue.topic, queue.number)
            return Bounds(max(0, begin), max(0, begin, end))

        async def all_bounds(admin: Admin) -> list[Bounds]:
            return list(await asyncio.gather(*(read_bounds(admin, queue) for queue in queues)))

        return dict(zip(queues, self._brokers.call(all_bounds), strict=True))

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        found = self._brokers.call(
            lambda admin: admin.replicas.offset_at(self.replica.address, queue.topic, queue.number, timestamp_ms)
        )
        bounds = self.bounds((queue,))[queue]
        return min(max(found, bounds.begin), bounds.end)

    def locate(self, queue: QueueId, offset: int) -> tuple[int, int]:
        pulled = self._brokers.call(lambda admin: self._pull(admin, queue, offset, 1))
        self._check_progress(pulled, queue, offset, offset + 1)
        if len(pulled.records) < RECORD_BYTES_MIN:
            raise DamagedRecord(f"{self.where} returned no whole record of {queue} at offset {offset}")
        head = RECORD_HEAD.unpack_from(pulled.records)
        return head[6], head[0]

    def close(self) -> None:
        """Do nothing: the connections belong to `brokers`."""

    # -- records -------------------------------------------------------------------------------------------------------

    def pieces(self, task: Task) -> Iterator[Piece]:
        assert task.physical is None, "physical chunks are read from logs only"
        for number, wanted in enumerate(task.ranges):
            yield from self._range_pieces(task, number, wanted)

    def _range_pieces(self, task: Task, number: int, wanted: QueueRange) -> Iterator[Piece]:
        """Yield the records of one range of the task."""
        left = wanted
        while left.begin < left.end:
            answers = self._brokers.call(partial(self._pull_next, wanted=left))
            rest = replace(left, begin=min(left.end, answers[-1].next_offset))
            ranges = (*_empty_ranges(task.ranges[:number]), rest, *task.ranges[number + 1 :])
            yield self._piece(answers, number, replace(task, ranges=ranges), left)
            left = rest

    async def _pull_next(self, admin: Admin, wanted: QueueRange) -> list[RawPullResult]:
        """Return consecutive responses without a gap, from the beginning of a range on."""
        stretch, offset = self._stretch, wanted.begin
        starts = range(offset, min(wanted.end, offset + CONCURRENT_PULLS * stretch), stretch)
        stretches = await asyncio.gather(
            *(self._pull_stretch(admin, wanted.queue, one, min(one + stretch, wanted.end)) for one in starts)
        )
        if all(len(one) == 1 for one in stretches):  # each was answered in one response: request more at once
            self._stretch = min(2 * stretch, STRETCH_MAX)
        elif max(map(len, stretches)) > 2:
            self._stretch = max(stretch // 2, STRETCH_MIN)
        return [answer for one in stretches for answer in one]

    async def _pull_stretch(self, admin: Admin, queue: QueueId, offset: int, end: int) -> list[RawPullResult]:
        answers: list[RawPullResult] = []
        while offset < end:
            pulled = await self._pull(admin, queue, offset, end - offset)
            self._check_progress(pulled, queue, offset, end)
            answers.append(pulled)
            offset = pulled.next_offset
        return answers

    async def _pull(self, admin: Admin, queue: QueueId, offset: int, count: int) -> RawPullResult:
        return await admin.replicas.pull(
            self.replica.address, queue.topic, queue.number, offset, group=self._settings.group, messages_max=count,
            bytes_max=self._settings.range_bytes,
        )  # fmt: skip

    def _check_progress(self, pulled: RawPullResult, queue: QueueId, offset: int, end: int) -> None:
        """Raise unless the response continues at this offset."""
        detail = (
            f"{self.where} has [{pulled.min_offset}, {pulled.max_offset}) of {queue}, but offset {offset} was requested"
        )
        if pulled.status is FetchStatus.NO_NEW:
            raise NotYetAvailable(detail)
        if pulled.status is FetchStatus.OFFSET_MOVED:
            raise RangeDeleted(detail) if offset < pulled.min_offset else NotYetAvailable(detail)
        if pulled.status is FetchStatus.NO_MATCH and pulled.next_offset > offset:
            raise RangeDeleted(detail)  # no filter was sent, so the message existed and is being deleted
        if pulled.next_offset <= offset:  # a slave of RocketMQ's that may not be read answers like this
            raise Unreachable(f"{self.where} returned no message of {queue} at offset {offset}")

    def _piece(self, answers: list[RawPullResult], number: int, rest: Task, wanted: QueueRange) -> Piece:
        data = np.frombuffer(b"".join(one.records for one in answers), np.uint8)
        starts = self._starts(data.data, wanted.queue)
        offset, end = wanted.begin, rest.ranges[number].begin
        starts = starts[gather(data, starts, HEAD)["offset"] < end]  # a broker may return more than was requested
        expected = np.arange(offset, end)
        if len(starts) != len(expected):
            raise DamagedRecord(
                f"{self.where} returned {len(starts)} records of {wanted.queue} for the offsets [{offset}, {end})"
            )
        which = np.full(len(starts), number, dtype=np.int64)
        return Piece(data, starts, Expected(which, expected), rest, self.where)

    def _starts(self, data: memoryview, queue: QueueId) -> Numbers:
        """Return the position of each record."""
        starts: list[int] = []
        position, end = 0, len(data)
        while position < end:
            size = int.from_bytes(data[position : position + 4], "big", signed=True)
            if size < RECORD_BYTES_MIN or position + size > end:
                raise DamagedRecord(f"{self.where} returned a damaged response for {queue}")
            starts.append(position)
            position += size
        return np.array(starts, dtype=np.int64)


def _empty_ranges(ranges: tuple[QueueRange, ...]) -> tuple[QueueRange, ...]:
    return tuple(replace(one, begin=one.end) for one in ranges)
