"""The history of a job as a recording that `gantry_histories` and Porcupine judge (`gantry_histories.judges`).

    start 1 ---- load, kill ---- start 2 ---- readback, load, kill ---- start 3 ---- readback ... the last readback

Each start that serves is a term of the only broker, with the number of the start as its epoch. It begins after the last
message that the start has found, so in a cell that may lose the end of the log, the term may have cut it there. In all
others the log of a term begins with everything that any reply acknowledged or showed.

A send without a reply that was not stored after a start must never return, so it counts as refused from then on. In a
cell that may lose the end of the log it counts as open instead: it may have been appended, and lost with the messages
after it, of which some may have been acknowledged. There only the crash checker sees a message that returns.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, final

from crash.history import History, Outcome, Sent
from crash.load_consumer import ReadRecord
from crash.log_walk import Queue
from crash.payload import Mark, digest, read_body
from gantry_histories.events import Answered, Read, Shown, Term
from gantry_histories.events import History as Events
from gantry_histories.events import Outcome as EventOutcome
from gantry_histories.events import Queue as EventQueue
from gantry_histories.events import Sent as SentEvent
from gantry_histories.final import EpochStart, Stored
from gantry_histories.final import Final as End
from gantry_histories.findings import Finding, Kind, Loss, Mode
from gantry_histories.judges import Judgement, Verdict, find_porcupine, judge
from gantry_histories.recording import Recording, write_recording

from gantry_wire.message import StoredMessage

READBACK: Final = "readback"
"""The name of the consumer that reads everything after a start."""

REFUSED_CODE: Final = 2
"""Stands for every code of a refusal."""

Queues = Mapping[Queue, Sequence[StoredMessage]]


@final
class JobRecording:
    """Collects what a job's history lacks: starts, and the replies to pulls. Owned by one event loop."""

    def __init__(self, history: History, broker: str) -> None:
        self._history: Final = history
        self._broker: Final = broker
        self._terms = [Term(epoch=1, broker=broker, at=time.monotonic_ns())]
        self._epochs = [EpochStart(1, 0)]
        self._reads: list[tuple[str, ReadRecord]] = []
        self._known: dict[Queue, int] = {}
        """The number of messages in each queue that an earlier readback has read."""
        self._last: Queues = {}
        self._gone: dict[Mark, int] = {}
        """When it was found that a message without a reply is not stored."""

    def __repr__(self) -> str:
        return f"<JobRecording starts={len(self._terms)} reads={len(self._reads)}>"

    def record_end(self) -> None:
        """Record that the broker has ended: the next start begins a new term."""
        self._history.epoch += 1
        self._terms.append(Term(epoch=self._history.epoch, broker=self._broker, at=time.monotonic_ns()))

    def record_reads(self, reads: Iterable[ReadRecord]) -> None:
        """Record the replies that the consumer of a load got. It is a new consumer in each load."""
        name = f"consumer-{self._history.epoch}"
        self._reads += [(name, read) for read in reads]

    def record_readback(self, queues: Queues, connected_ns: int) -> None:
        """Record the contents of all queues, which a new start has returned since ``connected_ns``.

        Only messages that were not read back before are recorded as read. The end of the job compares all of them.
        """
        at = time.monotonic_ns()
        for queue, messages in queues.items():
            begin = min(self._known.get(queue, 0), len(messages))
            end = len(messages)
            read = ReadRecord(queue, begin, messages[begin:], end, end, connected_ns, connected_ns, at)
            self._reads.append((READBACK, read))
            self._known[queue] = end
        self._last = queues
        ends = [message.physical_offset + 1 for messages in queues.values() for message in messages]
        if self._epochs[-1].epoch != self._history.epoch:
            self._epochs.append(EpochStart(self._history.epoch, max(ends, default=0)))

    def record_settled(self) -> None:
        """Record which messages without a reply are not stored after a start."""
        for mark, sent in self._history.sent.items():
            if sent.outcome is Outcome.GONE and not sent.answered_ns and mark not in self._gone:
                self._gone[mark] = time.monotonic_ns()

    def judge(self, path: Path, own: Sequence[str], *, may_lose_tail: bool, shows_acknowledged: bool) -> Judgement:
        """Write the recording to ``path``, and return the results of its judges.

        ``own`` are the faults that the crash checker found in the last readback; Porcupine must agree with it, too.
        """
        mode = Mode(Loss.SUFFIX if may_lose_tail else Loss.NOTHING, shows_acknowledged, keeps_shown=True)
        recording = Recording(self._events(are_gone_open=may_lose_tail), self._end(), mode)
        with path.open("wb") as file:
            write_recording(file, recording)
        judgement = judge(path, recording, find_porcupine())
        if judgement.second is None or judgement.second.verdict is Verdict.UNDECIDED:
            return judgement
        if bool(own) == (judgement.second.verdict is Verdict.NOT_LINEARIZABLE):
            return judgement
        evidence = f"the crash checker found {own[0] if own else 'nothing'}; Porcupine: {judgement.second}"
        return Judgement([*judgement.findings, Finding(Kind.DISAGREEMENT, evidence)], judgement.second)

    # -- the events ----------------------------------------------------------------------------------------------------

    def _events(self, *, are_gone_open: bool) -> Events:
        events = Events()
        for term in self._terms:
            events.add(term)
        for sent in self._history.sent.values():
            events.add(SentEvent(
                client=f"p{sent.mark.producer}", stream=sent.epoch, key=_key(sent.mark),
                queue=EventQueue(sent.topic, sent.queue_id), digest=sent.body_digest, at=sent.sent_ns,
            ))  # fmt: skip
            answer = self._answer(sent)
            if answer is not None and (sent.answered_ns or not are_gone_open):
                events.add(answer)
        for client, read in self._reads:
            for event in self._read_events(client, read):
                events.add(event)
        return events

    def _answer(self, sent: Sent) -> Answered | None:
        """Return the outcome of a send, if it is known: from a reply, or because the message was not stored."""
        if not sent.answered_ns and sent.mark not in self._gone:
            return None
        is_acknowledged = bool(sent.answered_ns) and sent.outcome is not Outcome.REFUSED
        return Answered(
            key=_key(sent.mark), outcome=EventOutcome.OK if is_acknowledged else EventOutcome.REFUSED,
            broker=self._broker, at=sent.answered_ns or self._gone[sent.mark],
            code=0 if is_acknowledged else REFUSED_CODE, queue_offset=sent.queue_offset,
            physical_offset=sent.physical_offset, epoch=sent.epoch,
        )  # fmt: skip

    def _read_events(self, client: str, read: ReadRecord) -> Iterator[Shown | Read]:
        queue = EventQueue(*read.queue)
        for message in read.messages:
            mark = read_body(self._history.run, message.body)
            yield Shown(
                client=client, queue=queue, queue_offset=message.queue_offset,
                physical_offset=message.physical_offset, key=None if mark is None else _key(mark),
                digest=digest(message.body).hex(), broker=self._broker, at=read.at_ns,
            )  # fmt: skip
        yield Read(
            client=client, queue=queue, begin=read.begin, next=read.next_offset, end=read.end,
            count=len(read.messages), broker=self._broker, connected=read.connected_ns, called=read.called_ns,
            at=read.at_ns,
        )  # fmt: skip

    def _end(self) -> End:
        queues = {
            EventQueue(*queue): [self._stored(message) for message in messages]
            for queue, messages in self._last.items()
        }  # fmt: skip
        return End(queues, tuple(self._epochs))

    def _stored(self, message: StoredMessage) -> Stored:
        mark = read_body(self._history.run, message.body)
        key = None if mark is None else _key(mark)
        return Stored(key, digest(message.body).hex(), message.queue_offset, message.physical_offset)


def _key(mark: Mark) -> str:
    return f"p{mark.producer}-{mark.sequence}"
