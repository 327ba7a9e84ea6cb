"""The checker: it compares stored messages with what was promised. A pure function of a history and of queues.

    acknowledged   stored once, in its queue, at the queue offset and physical offset of the reply, byte for byte
    refused        not stored
    unknown        stored once or not at all
    gone           not stored, ever again: a recovery has lost it
    every queue    offsets 0, 1, 2, ... without a gap; the messages of one producer in the order of their sending

The queues may come from pulls or from the log's files. The mark of a message is the producer and the sequence number
in its body (`payload.Mark`). If the mode allows the loss of the newest messages,
`may_lose_tail` is set, and no message after a lost one may be present.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from crash.history import History, Outcome, Sent
from crash.log_walk import Queue
from crash.payload import Mark, digest, read_body

from gantry_wire.message import StoredMessage


class FaultKind(Enum):
    """The kinds of broken promises."""

    LOST = "an acknowledged message is not stored"
    MOVED = "a message is in another queue, or not at the offsets of its reply"
    ALTERED = "a body or a unique id is damaged, or not the one that was sent"
    INVENTED = "a message is stored that was never sent"
    DOUBLED = "a message is stored twice"
    REFUSED = "a refused message is stored"
    RETURNED = "a lost message has returned"
    HOLE = "a message is lost, and others after it in the log are present"
    """In place of LOST, where the mode may lose the end of the log."""
    GAP = "queue offsets are not dense"
    DISORDER = "a producer's messages are not in the order of their sending"


class Fault(NamedTuple):
    """One broken promise, and where it was found."""

    kind: FaultKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.kind.value}: {self.detail}"


def check(
    history: History, queues: Mapping[Queue, Sequence[StoredMessage]], *, may_lose_tail: bool = False
) -> list[Fault]:
    """Return all faults of these queues; none if every promise was kept."""
    faults: list[Fault] = []
    stored: dict[Mark, StoredMessage] = {}
    for queue, messages in queues.items():
        faults += _check_offsets(queue, messages)
        faults += _check_order(history, queue, messages)
        for message in messages:
            faults += _check_message(history, message, stored)
    log_end = max((message.physical_offset for message in stored.values()), default=-1)
    for sent in lost_messages(history, stored):
        if may_lose_tail and sent.physical_offset > log_end:
            continue
        place = f"{sent.topic}/{sent.queue_id} offset {sent.queue_offset} at {sent.physical_offset}"
        kind = FaultKind.HOLE if may_lose_tail else FaultKind.LOST
        faults.append(Fault(kind, f"{name(sent.mark)}, acknowledged as {place}"))
    return faults


def stored_marks(run: bytes, queues: Mapping[Queue, Sequence[StoredMessage]]) -> dict[Mark, StoredMessage]:
    """Return the run's undamaged messages by their marks."""
    marked = ((read_body(run, message.body), message) for messages in queues.values() for message in messages)
    return {mark: message for mark, message in marked if mark is not None}


def lost_messages(history: History, stored: Mapping[Mark, StoredMessage]) -> list[Sent]:
    """Return the messages that were acknowledged and are not stored."""
    return [sent for sent in history.sent.values() if sent.outcome is Outcome.ACKED and sent.mark not in stored]


def name(mark: Mark) -> str:
    return f"message {mark.sequence} of producer {mark.producer}"


def _check_offsets(queue: Queue, messages: Sequence[StoredMessage]) -> list[Fault]:
    """Check that the offsets of a queue are 0, 1, 2, ...; report the first that is not."""
    for expected, message in enumerate(messages):
        if message.queue_offset != expected:
            detail = f"{queue[0]}/{queue[1]} has offset {message.queue_offset} where {expected} should be"
            return [Fault(FaultKind.GAP, detail)]
    return []


def _check_order(history: History, queue: Queue, messages: Sequence[StoredMessage]) -> list[Fault]:
    """Check that each producer's messages come in the order of their sending; report the first that does not."""
    last: dict[int, int] = {}
    for message in messages:
        mark = read_body(history.run, message.body)
        if mark is None:
            continue
        if mark.sequence <= last.get(mark.producer, -1):
            before = f"after number {last[mark.producer]}"
            return [Fault(FaultKind.DISORDER, f"{name(mark)} in {queue[0]}/{queue[1]} {before}")]
        last[mark.producer] = mark.sequence
    return []


def _check_message(history: History, message: StoredMessage, stored: dict[Mark, StoredMessage]) -> list[Fault]:
    """Check one stored message and remember it."""
    where = f"{message.topic}/{message.queue_id} offset {message.queue_offset} at {message.physical_offset}"
    mark = read_body(history.run, message.body)
    if mark is None:
        return [Fault(FaultKind.ALTERED, f"the body in {where} is not one of this run")]
    sent = history.sent.get(mark)
    if sent is None:
        return [Fault(FaultKind.INVENTED, f"{name(mark)} in {where}")]
    if mark in stored:
        return [Fault(FaultKind.DOUBLED, f"{name(mark)} in {where} and at {stored[mark].physical_offset}")]
    stored[mark] = message
    if sent.outcome is Outcome.REFUSED:
        return [Fault(FaultKind.REFUSED, f"{name(mark)} in {where}")]
    if sent.outcome is Outcome.GONE:
        return [Fault(FaultKind.RETURNED, f"{name(mark)} in {where}")]
    if digest(message.body).hex() != sent.body_digest or message.properties.get("UNIQ_KEY") != sent.unique_id:
        return [Fault(FaultKind.ALTERED, f"{name(mark)} in {where}")]
    if not _is_where_it_should_be(sent, message):
        reported = f"{sent.topic}/{sent.queue_id} offset {sent.queue_offset} at {sent.physical_offset}"
        return [Fault(FaultKind.MOVED, f"{name(mark)} in {where}, not {reported}")]
    return []


def _is_where_it_should_be(sent: Sent, message: StoredMessage) -> bool:
    """Return whether a message is in its queue and, if acknowledged, at the offsets of its reply."""
    if (sent.topic, sent.queue_id) != (message.topic, message.queue_id):
        return False
    if sent.outcome is not Outcome.ACKED:
        return True
    return (sent.queue_offset, sent.physical_offset) == (message.queue_offset, message.physical_offset)
