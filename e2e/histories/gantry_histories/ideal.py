"""A model of a group that keeps every guarantee: the checker must accept every history of it.

The model has one log, one master at a time, producers with several pending sends, and consumers. Faults occur at
random: replies are lost or late, sends are refused or never arrive, and a failover cuts the end of the log: in a
synchronous group only after the last acknowledged or shown message, in an asynchronous group anywhere.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Final as Constant
from typing import final

from gantry_histories.events import (
    Answered,
    CommitAnswered,
    Committed,
    History,
    OffsetRead,
    Outcome,
    Queue,
    Read,
    Sent,
    Shown,
    Term,
)
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
class PendingSend:
    """A send whose producer waits for the answer."""

    sent: Sent
    broker: str
    record: Record | None = None


@final
class IdealGroup:
    """Runs ``steps`` random steps. Afterwards ``history`` and ``end()`` are the test case."""

    def __init__(self, random_source: random.Random, loss: Loss, steps: int) -> None:
        self.history: Constant = History()
        self._random: Constant = random_source
        self._loss: Constant = loss
        self._log: list[Record] = []
        self._ends: defaultdict[Queue, int] = defaultdict(int)
        self._size = 0
        self._epochs: list[EpochStart] = []
        self._safe = 0
        """The log up to this position, in bytes, was acknowledged or received by a consumer."""

        self._master = ""
        self._pending_sends: list[PendingSend] = []
        self._streams = 0
        """The number of the producers' current connections; each failover begins new ones."""

        self._sequence = 0
        self._positions: dict[tuple[str, Queue], int] = {}
        """The next offset of each consumer in each queue."""

        self._offsets: dict[tuple[str, Queue], int] = {}
        """The committed offsets that the master has."""

        self._connected = 0
        """When the consumers connected to the master."""

        self._now = 0
        self._fail_over()
        for _ in range(steps):
            self._step()

    def _tick(self) -> int:
        self._now += self._random.randint(1, 1_000_000)
        return self._now

    def _step(self) -> None:
        actions = (self._send, self._store, self._answer, self._drop, self._show, self._commit)
        if self._random.random() < 0.02:
            self._fail_over()
        else:
            self._random.choice(actions)()

    # -- producers -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        client = f"p{self._random.randrange(2)}"
        self._sequence += 1
        key = f"{client}-{self._sequence}"
        queue = self._random.choice(QUEUES)
        sent = Sent(client=client, stream=self._streams, key=key, queue=queue, digest=f"#{key}", at=self._tick())
        self.history.add(sent)
        self._pending_sends.append(PendingSend(sent, self._master))

    def _store(self) -> None:
        """Store the oldest send of a random producer that the master has not stored yet."""
        waiting = [
            pending for pending in self._pending_sends if pending.broker == self._master and pending.record is None
        ]
        if not waiting:
            return
        client = self._random.choice(waiting).sent.client
        pending = next(pending for pending in waiting if pending.sent.client == client)
        queue = pending.sent.queue
        pending.record = Record(pending.sent, self._ends[queue], self._size)
        self._ends[queue] += 1
        self._size += self._random.randint(91, 500)
        self._log.append(pending.record)

    def _answer(self) -> None:
        """Answer a random pending send: acknowledged or unknown if it was stored, else refused."""
        if not self._pending_sends:
            return
        pending = self._pending_sends.pop(self._random.randrange(len(self._pending_sends)))
        at = self._tick()
        record = pending.record
        if record is None:
            answer = Answered(key=pending.sent.key, outcome=Outcome.REFUSED, code=14, broker=pending.broker, at=at)
        elif self._random.random() < 0.1 or not self._can_acknowledge(pending, record):
            answer = Answered(key=pending.sent.key, outcome=Outcome.UNKNOWN, code=12, broker=pending.broker, at=at)
        else:
            self._safe = max(self._safe, record.physical_offset + 1)
            answer = Answered(key=pending.sent.key, outcome=Outcome.OK, broker=pending.broker, at=at,
                              queue_offset=record.queue_offset, physical_offset=record.physical_offset)  # fmt: skip
        self.history.add(answer)

    def _can_acknowledge(self, pending: PendingSend, record: Record) -> bool:
        """Return whether the message may be acknowledged.

        A message that a failover has cut off may be acknowledged only in an asynchronous group, by the master that
        had stored it.
        """
        return record in self._log or (self._loss is Loss.SUFFIX and pending.broker != self._master)

    def _drop(self) -> None:
        """Lose a reply or a request."""
        if self._pending_sends and self._random.random() < 0.2:
            self._pending_sends.pop(self._random.randrange(len(self._pending_sends)))

    # -- consumers -----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        client, queue = f"c{self._random.randrange(2)}", self._random.choice(QUEUES)
        position, called = self._positions.get((client, queue), 0), self._tick()
        messages = [record for record in self._log if record.sent.queue == queue][position : position + 3]
        at = self._tick()
        for record in messages:
            self._safe = max(self._safe, record.physical_offset + 1)
            self.history.add(Shown(
                client=client, queue=queue, queue_offset=record.queue_offset, physical_offset=record.physical_offset,
                key=record.sent.key, digest=record.sent.digest, broker=self._master, at=at,
            ))  # fmt: skip
        self.history.add(Read(
            client=client, queue=queue, begin=position, next=position + len(messages), end=self._ends[queue],
            count=len(messages), broker=self._master, connected=self._connected, called=called, at=at,
        ))  # fmt: skip
        self._positions[client, queue] = position + len(messages)

    def _commit(self) -> None:
        for (client, queue), offset in self._positions.items():
            if self._random.random() < 0.3:
                self.history.add(Committed(client=client, queue=queue, offset=offset, at=self._tick()))
                self._answer_commit(client, queue, offset)
            elif self._random.random() < 0.3:
                offset = self._offsets.get((client, queue), -1)
                self.history.add(OffsetRead(
                    client=client, queue=queue, offset=offset, broker=self._master, connected=self._connected,
                    called=self._tick(), at=self._tick(),
                ))  # fmt: skip

    def _answer_commit(self, client: str, queue: Queue, offset: int) -> None:
        """Store the offset and confirm it; or lose the request, or the reply."""
        is_stored, is_answered = self._random.random() < 0.9, self._random.random() < 0.9
        if is_stored:
            self._offsets[client, queue] = offset
        if is_stored and is_answered:
            self.history.add(CommitAnswered(
                client=client, queue=queue, offset=offset, broker=self._master, connected=self._connected,
                at=self._tick(),
            ))  # fmt: skip

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fail_over(self) -> None:
        """Make another broker the master, perhaps without the end of the log."""
        floor = self._safe if self._loss is Loss.NOTHING else 0
        kept = [record for record in self._log if record.physical_offset < floor]
        if self._log and self._random.random() < 0.7:
            kept = self._log[: self._random.randint(len(kept), len(self._log))]
        self._size = self._log[len(kept)].physical_offset if len(kept) < len(self._log) else self._size
        self._log = list(kept)
        self._safe = min(self._safe, self._size)
        self._ends.clear()
        for record in self._log:
            self._ends[record.sent.queue] += 1
        self._positions = {reader: min(position, self._ends[reader[1]]) for reader, position in self._positions.items()}
        self._offsets = {reader: min(offset, self._ends[reader[1]]) for reader, offset in self._offsets.items()}
        self._master = self._random.choice([broker for broker in BROKERS if broker != self._master])
        self._streams += 1
        epoch = self._epochs[-1].epoch + self._random.randint(1, 3) if self._epochs else 1
        self._epochs = [pending for pending in self._epochs if pending.start <= self._size] + [
            EpochStart(epoch, self._size)
        ]
        self.history.add(Term(epoch=epoch, broker=self._master, at=self._tick()))
        self._connected = self._tick()

    def end(self) -> Final:
        """Return the final contents of the group."""
        queues: dict[Queue, list[Stored]] = defaultdict(list)
        for record in self._log:
            sent = record.sent
            queues[sent.queue].append(Stored(sent.key, sent.digest, record.queue_offset, record.physical_offset))
        committed: dict[tuple[str, Queue], int] = {}
        for commit in self.history.committed:
            committed[commit.client, commit.queue] = min(commit.offset, self._ends[commit.queue])
        pieces = [Piece(start, start + PIECE_BYTES, start * 31) for start in range(0, self._size, PIECE_BYTES)]
        logs = [LogSums(broker, pieces[: self._random.randint(0, len(pieces))]) for broker in BROKERS]
        return Final(queues, tuple(self._epochs), logs, committed)
