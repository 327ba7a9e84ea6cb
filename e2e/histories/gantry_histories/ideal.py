"""A group that keeps every promise, in a few lines: legal histories of it must never be complained of.

One log, one master at a time, some producers that have several sends under way, some consumers. What a fault may do is
done by chance: replies are lost or late, sends are refused or never arrive, and a failover takes the end of the log, in
a synchronous group only behind what was acknowledged or shown, in an asynchronous one from anywhere.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Final as Constant
from typing import final

from gantry_histories.events import Answered, Committed, History, Outcome, Queue, Reign, Sent, Shown
from gantry_histories.final import EpochStart, Final, LogSums, Piece, Stored
from gantry_histories.findings import Loss

BROKERS: Constant = ("a", "b", "c")
QUEUES: Constant = (Queue("T", 0), Queue("T", 1), Queue("U", 0))
PIECE_BYTES: Constant = 1_000


@dataclass
class Record:
    """A message in the log."""

    sent: Sent
    queue_offset: int
    physical_offset: int


@dataclass
class UnderWay:
    """A send whose producer waits."""

    sent: Sent
    broker: str
    record: Record | None = None


@final
class IdealGroup:
    """Lives through ``steps`` of chance; then ``history`` and ``end()`` are the case."""

    def __init__(self, chance: random.Random, loss: Loss, steps: int) -> None:
        self.history: Constant = History()
        self._chance: Constant = chance
        self._loss: Constant = loss
        self._log: list[Record] = []
        self._ends: defaultdict[Queue, int] = defaultdict(int)
        self._size = 0
        self._epochs: list[EpochStart] = []
        self._safe = 0
        """Up to where something was acknowledged or shown, in bytes."""

        self._master = ""
        self._under_way: list[UnderWay] = []
        self._streams = 0
        self._sequence = 0
        self._positions: dict[tuple[str, Queue], int] = {}
        self._now = 0
        self._fail_over()
        for _ in range(steps):
            self._step()

    def _tick(self) -> int:
        self._now += self._chance.randint(1, 1_000_000)
        return self._now

    def _step(self) -> None:
        actions = (self._send, self._store, self._answer, self._drop, self._show, self._commit)
        if self._chance.random() < 0.02:
            self._fail_over()
        else:
            self._chance.choice(actions)()

    # -- producers -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        client = f"p{self._chance.randrange(2)}"
        self._sequence += 1
        key = f"{client}-{self._sequence}"
        queue = self._chance.choice(QUEUES)
        sent = Sent(client=client, stream=self._streams, key=key, queue=queue, digest=f"#{key}", at=self._tick())
        self.history.add(sent)
        self._under_way.append(UnderWay(sent, self._master))

    def _store(self) -> None:
        """The master takes the oldest send of some producer that it has not taken yet."""
        waiting = [one for one in self._under_way if one.broker == self._master and one.record is None]
        if not waiting:
            return
        client = self._chance.choice(waiting).sent.client
        one = next(one for one in waiting if one.sent.client == client)
        queue = one.sent.queue
        one.record = Record(one.sent, self._ends[queue], self._size)
        self._ends[queue] += 1
        self._size += self._chance.randint(91, 500)
        self._log.append(one.record)

    def _answer(self) -> None:
        """Whoever stored it says so, or has to say that it is not sure; or it is refused."""
        if not self._under_way:
            return
        one = self._under_way.pop(self._chance.randrange(len(self._under_way)))
        at = self._tick()
        record = one.record
        if record is None:
            answer = Answered(key=one.sent.key, outcome=Outcome.REFUSED, code=14, broker=one.broker, at=at)
        elif self._chance.random() < 0.1 or not self._may_acknowledge(one, record):
            answer = Answered(key=one.sent.key, outcome=Outcome.UNKNOWN, code=12, broker=one.broker, at=at)
        else:
            self._safe = max(self._safe, record.physical_offset + 1)
            answer = Answered(key=one.sent.key, outcome=Outcome.OK, broker=one.broker, at=at,
                              queue_offset=record.queue_offset, physical_offset=record.physical_offset)  # fmt: skip
        self.history.add(answer)

    def _may_acknowledge(self, one: UnderWay, record: Record) -> bool:
        """What a failover has taken is acknowledged at most in an asynchronous group, by who had it."""
        return record in self._log or (self._loss is Loss.SUFFIX and one.broker != self._master)

    def _drop(self) -> None:
        """A reply, or a request, is never seen again."""
        if self._under_way and self._chance.random() < 0.2:
            self._under_way.pop(self._chance.randrange(len(self._under_way)))

    # -- consumers -----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        client, queue = f"c{self._chance.randrange(2)}", self._chance.choice(QUEUES)
        position = self._positions.get((client, queue), 0)
        messages = [record for record in self._log if record.sent.queue == queue][position : position + 3]
        for record in messages:
            self._safe = max(self._safe, record.physical_offset + 1)
            self.history.add(Shown(
                client=client, queue=queue, queue_offset=record.queue_offset, physical_offset=record.physical_offset,
                key=record.sent.key, digest=record.sent.digest, broker=self._master, at=self._tick(),
            ))  # fmt: skip
        self._positions[client, queue] = position + len(messages)

    def _commit(self) -> None:
        for (client, queue), offset in self._positions.items():
            if self._chance.random() < 0.3:
                self.history.add(Committed(client=client, queue=queue, offset=offset, at=self._tick()))

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fail_over(self) -> None:
        """Another broker goes on, perhaps without the end of the log."""
        floor = self._safe if self._loss is Loss.NOTHING else 0
        kept = [record for record in self._log if record.physical_offset < floor]
        if self._log and self._chance.random() < 0.7:
            kept = self._log[: self._chance.randint(len(kept), len(self._log))]
        self._size = self._log[len(kept)].physical_offset if len(kept) < len(self._log) else self._size
        self._log = list(kept)
        self._safe = min(self._safe, self._size)
        self._ends.clear()
        for record in self._log:
            self._ends[record.sent.queue] += 1
        self._positions = {reader: min(position, self._ends[reader[1]]) for reader, position in self._positions.items()}
        self._master = self._chance.choice([broker for broker in BROKERS if broker != self._master])
        self._streams += 1
        epoch = self._epochs[-1].epoch + self._chance.randint(1, 3) if self._epochs else 1
        self._epochs = [one for one in self._epochs if one.start <= self._size] + [EpochStart(epoch, self._size)]
        self.history.add(Reign(epoch=epoch, broker=self._master, at=self._tick()))

    def end(self) -> Final:
        """What the group holds."""
        queues: dict[Queue, list[Stored]] = defaultdict(list)
        for record in self._log:
            sent = record.sent
            queues[sent.queue].append(Stored(sent.key, sent.digest, record.queue_offset, record.physical_offset))
        committed: dict[tuple[str, Queue], int] = {}
        for commit in self.history.committed:
            committed[commit.client, commit.queue] = min(commit.offset, self._ends[commit.queue])
        pieces = [Piece(start, start + PIECE_BYTES, start * 31) for start in range(0, self._size, PIECE_BYTES)]
        logs = [LogSums(broker, pieces[: self._chance.randint(0, len(pieces))]) for broker in BROKERS]
        return Final(queues, tuple(self._epochs), logs, committed)
