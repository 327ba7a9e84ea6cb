"""Records by RocketMQ's own protocol: from any broker, master or slave, at the price of its event loop.

A broker gives as much in one answer as its settings let it (Apache's: 32 messages), so several questions are under way
at once. Queue offsets are dense, so it is known where each begins before the one in front of it is answered; what an
answer lacks of its stretch is asked for again. Tags are compared here and not by the broker, so that every offset is
accounted for: what is missing is noticed, whatever was wanted of it.

    |--- stretch ---|--- stretch ---|--- stretch ---|      asked side by side, each to its end
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, final

import numpy as np

from gantry_client import Pulled
from gantry_client.fetching import FetchStatus
from gantry_client.sync import Admin
from gantry_wire.message import RECORD_BYTES_MIN, RECORD_HEAD
from gantry_wire.runtime_table import log_range
from pyspark_rocketmq.brokers import Brokers
from pyspark_rocketmq.errors import DamagedRecord
from pyspark_rocketmq.model import Bounds, LogState, QueueId, QueueRange, Replica, Task, TransportKind
from pyspark_rocketmq.records import HEAD, gather
from pyspark_rocketmq.replica_view import Expected, Gone, NotYet, Numbers, Piece, Unreachable
from pyspark_rocketmq.settings import ReadSettings

ASKED_AT_ONCE: Final = 8
"""Questions under way."""
STRETCH_MIN: Final = 32
"""Messages that every broker gives in one answer, if they are small."""
STRETCH_MAX: Final = 2000
_HEAD_BYTES: Final = RECORD_HEAD.size


@final
class PullView:
    """A broker process at its port. Owns nothing: connections are those of `brokers`."""

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
    def is_doubtful(self) -> bool:
        return False

    def log(self) -> LogState:
        """As the broker says of itself; its epochs are not asked for by this protocol."""
        facts = self._brokers.ask(lambda admin: admin.brokers.runtime(self.replica.address))
        try:
            begin, end = log_range(facts)
        except ValueError as error:
            raise Unreachable(f"{self.where} does not say how far its log goes") from error
        return LogState(self.replica.broker, begin, end)

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        """What the broker shows to consumers."""
        address = self.replica.address

        async def one(admin: Admin, queue: QueueId) -> Bounds:
            begin = await admin.replicas.min_offset(address, queue.topic, queue.number)
            end = await admin.replicas.max_offset(address, queue.topic, queue.number)
            return Bounds(max(0, begin), max(0, begin, end))

        async def all_of_them(admin: Admin) -> list[Bounds]:
            return list(await asyncio.gather(*(one(admin, queue) for queue in queues)))

        return dict(zip(queues, self._brokers.ask(all_of_them), strict=True))

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        found = self._brokers.ask(
            lambda admin: admin.replicas.offset_at(self.replica.address, queue.topic, queue.number, timestamp_ms)
        )
        bounds = self.bounds((queue,))[queue]
        return min(max(found, bounds.begin), bounds.end)

    def place(self, queue: QueueId, offset: int) -> tuple[int, int]:
        pulled = self._brokers.ask(lambda admin: self._pull(admin, queue, offset, 1))
        self._judge(pulled, queue, offset, offset + 1)
        if len(pulled.records) < RECORD_BYTES_MIN:
            raise DamagedRecord(f"{self.where} sent no whole record of {queue} at offset {offset}")
        head = RECORD_HEAD.unpack_from(pulled.records)
        return head[6], head[0]

    def close(self) -> None:
        """Nothing is ours."""

    # -- records -------------------------------------------------------------------------------------------------------

    def pieces(self, task: Task) -> Iterator[Piece]:
        assert task.physical is None, "physical chunks are read from logs only"
        for number, wanted in enumerate(task.ranges):
            yield from self._pieces_of(task, number, wanted)

    def _pieces_of(self, task: Task, number: int, wanted: QueueRange) -> Iterator[Piece]:
        left = wanted
        while left.begin < left.end:
            answers = self._brokers.ask(partial(self._next, wanted=left))
            rest = replace(left, begin=min(left.end, answers[-1].next_offset))
            ranges = (*_done(task.ranges[:number]), rest, *task.ranges[number + 1 :])
            yield self._piece(answers, number, replace(task, ranges=ranges), left)
            left = rest

    async def _next(self, admin: Admin, wanted: QueueRange) -> list[Pulled]:
        """Answers that follow each other without a gap, from the beginning of a range on."""
        stretch, offset = self._stretch, wanted.begin
        starts = range(offset, min(wanted.end, offset + ASKED_AT_ONCE * stretch), stretch)
        stretches = await asyncio.gather(
            *(self._stretch_of(admin, wanted.queue, one, min(one + stretch, wanted.end)) for one in starts)
        )
        if all(len(one) == 1 for one in stretches):  # each was answered whole: ask for more at once
            self._stretch = min(2 * stretch, STRETCH_MAX)
        elif max(map(len, stretches)) > 2:
            self._stretch = max(stretch // 2, STRETCH_MIN)
        return [answer for one in stretches for answer in one]

    async def _stretch_of(self, admin: Admin, queue: QueueId, offset: int, end: int) -> list[Pulled]:
        answers: list[Pulled] = []
        while offset < end:
            pulled = await self._pull(admin, queue, offset, end - offset)
            self._judge(pulled, queue, offset, end)
            answers.append(pulled)
            offset = pulled.next_offset
        return answers

    async def _pull(self, admin: Admin, queue: QueueId, offset: int, count: int) -> Pulled:
        return await admin.replicas.pull(
            self.replica.address, queue.topic, queue.number, offset, group=self._settings.group, messages_max=count,
            bytes_max=self._settings.range_bytes,
        )  # fmt: skip

    def _judge(self, pulled: Pulled, queue: QueueId, offset: int, end: int) -> None:
        """Raises for whatever is not a step forward."""
        lack = f"{self.where} has [{pulled.min_offset}, {pulled.max_offset}) of {queue}, and is asked for {offset}"
        if pulled.status is FetchStatus.NO_NEW:
            raise NotYet(lack)
        if pulled.status is FetchStatus.OFFSET_MOVED:
            raise Gone(lack) if offset < pulled.min_offset else NotYet(lack)
        if pulled.status is FetchStatus.NO_MATCH and pulled.next_offset > offset:  # it was there, and is being deleted
            raise Gone(lack)
        if pulled.next_offset <= offset:  # so does a slave of RocketMQ's that may not be read from
            raise Unreachable(f"{self.where} gives nothing of {queue} at offset {offset}")

    def _piece(self, answers: list[Pulled], number: int, rest: Task, wanted: QueueRange) -> Piece:
        data = np.frombuffer(b"".join(one.records for one in answers), np.uint8)
        starts = self._starts(data.data, wanted.queue)
        offset, end = wanted.begin, rest.ranges[number].begin
        starts = starts[gather(data, starts, HEAD)["offset"] < end]  # a broker may give more than it was asked for
        expected = np.arange(offset, end)
        if len(starts) != len(expected):
            raise DamagedRecord(
                f"{self.where} gave {len(starts)} records of {wanted.queue} for the offsets [{offset}, {end})"
            )
        which = np.full(len(starts), number, dtype=np.int64)
        return Piece(data, starts, Expected(which, expected), rest, self.where)

    def _starts(self, data: memoryview, queue: QueueId) -> Numbers:
        """Where each record begins."""
        starts: list[int] = []
        position, end = 0, len(data)
        while position < end:
            size = int.from_bytes(data[position : position + 4], "big", signed=True)
            if size < RECORD_BYTES_MIN or position + size > end:
                raise DamagedRecord(f"{self.where} sent a damaged answer for {queue}")
            starts.append(position)
            position += size
        return np.array(starts, dtype=np.int64)


def _done(ranges: tuple[QueueRange, ...]) -> tuple[QueueRange, ...]:
    return tuple(replace(one, begin=one.end) for one in ranges)
