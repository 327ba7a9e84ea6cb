"""Rules about the messages that are stored in the end, compared with those that were sent and acknowledged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gantry_histories.events import Answered, History, Outcome, Queue, Sent
from gantry_histories.final import Final, Stored
from gantry_histories.findings import Finding, Kind, Loss, Mode
from gantry_histories.terms import TermIndex, tail_start

Places = dict[str, tuple[Queue, Stored]]


def find_wrong_messages(history: History, final: Final) -> Iterator[Finding]:
    """Find stored messages that were not sent, are corrupt, duplicate or refused, or are in another queue or at another
    offset than acknowledged, and gaps in offsets.
    """
    first_places: Places = {}
    for queue, messages in final.queues.items():
        for place, message in enumerate(messages):
            expected = messages[0].queue_offset + place
            if message.queue_offset != expected:
                yield Finding(Kind.GAP, f"{queue} has offset {message.queue_offset} where {expected} should be")
                break
        for message in messages:
            where = f"{queue} offset {message.queue_offset} at {message.physical_offset}"
            if message.key is None:
                yield Finding(Kind.ALTERED, f"the body in {where} is corrupt")
                continue
            sent = history.sent.get(message.key)
            if sent is None:
                yield Finding(Kind.INVENTED, f"{message.key} in {where}")
                continue
            if message.key in first_places:
                other = first_places[message.key][1].physical_offset
                yield Finding(Kind.DOUBLED, f"{message.key} in {where} and at {other}")
                continue
            first_places[message.key] = queue, message
            yield from _find_wrong(history, sent, queue, message, where)


def _find_wrong(history: History, sent: Sent, queue: Queue, message: Stored, where: str) -> Iterator[Finding]:
    answer = history.answered.get(sent.key)
    if sent.digest != message.digest:
        yield Finding(Kind.ALTERED, f"{sent.key} in {where} has another body than was sent")
    if answer is not None and answer.outcome is Outcome.REFUSED:
        yield Finding(Kind.KEPT, f"{sent.key} in {where} was answered {answer.code} by {answer.broker}")
    if queue != sent.queue:
        yield Finding(Kind.MOVED, f"{sent.key} in {where} was sent to {sent.queue}")
    elif answer is not None and answer.outcome is Outcome.OK:
        acknowledged_place = answer.queue_offset, answer.physical_offset
        if acknowledged_place != (message.queue_offset, message.physical_offset):
            yield Finding(
                Kind.MOVED,
                f"{sent.key} in {where}, acknowledged as offset {acknowledged_place[0]} at {acknowledged_place[1]}",
            )


def find_lost_messages(history: History, final: Final, mode: Mode, terms: TermIndex) -> Iterator[Finding]:
    """Find acknowledged messages that are lost although the mode forbids it, and other messages at their offsets."""
    keys = {message.key for messages in final.queues.values() for message in messages}
    holders = {
        (queue, message.queue_offset): message.key
        for queue, messages in final.queues.items()
        for message in messages
    }  # fmt: skip
    for sent, answer in history.acknowledged_sends():
        if sent.key in keys or answer.physical_offset < final.begin:
            continue
        if mode.loss is Loss.SUFFIX and is_in_lost_tail(final, terms.oldest_of(sent, answer), answer.physical_offset):
            continue
        evidence = f"{sent.key}, acknowledged by {answer.broker} as {_place(sent, answer)}"
        yield Finding(Kind.HOLE if mode.loss is Loss.SUFFIX else Kind.LOST, evidence)
        holder = holders.get((sent.queue, answer.queue_offset))
        if holder is not None:
            yield Finding(Kind.DISPLACED, f"{_place(sent, answer)} is {sent.key}'s, and holds {holder}")


def is_in_lost_tail(final: Final, epoch: int, physical_offset: int) -> bool:
    """Return whether a failover may have lost what a master of ``epoch`` wrote at this offset."""
    start = tail_start(final.epochs, epoch)
    return start is not None and physical_offset >= start


def _place(sent: Sent, answer: Answered) -> str:
    return f"{sent.queue} offset {answer.queue_offset} at {answer.physical_offset}"


def find_foreign_messages(history: History, final: Final, terms: TermIndex) -> Iterator[Finding]:
    """Find acknowledged messages that are stored in the term of another master than the one that acknowledged them."""
    if not final.epochs:
        return
    places = {message.key: message for messages in final.queues.values() for message in messages}
    for sent, answer in history.acknowledged_sends():
        stored = places.get(sent.key)
        if stored is None:
            continue
        epoch = terms.epoch_in_log(final.epochs, stored.physical_offset)
        if epoch not in terms.possible_epochs(sent, answer):
            evidence = f"{sent.key} is in the part of epoch {epoch}, and was acknowledged by {answer.broker} in epoch "
            yield Finding(Kind.FOREIGN, f"{evidence}{terms.epoch_of(answer)}")


def find_disordered_messages(history: History, final: Final) -> Iterator[Finding]:
    """Find acknowledged messages of one producer and queue that are not in the order of sending.

    A message is earlier if it went over the same connection before, or was acknowledged before the other was sent.
    Lost messages are skipped, because their offsets may have been reassigned; other rules cover them.
    """
    keys = {message.key for messages in final.queues.values() for message in messages}
    lanes: dict[tuple[str, Queue], list[tuple[Sent, Answered]]] = defaultdict(list)
    for sent, answer in history.acknowledged_sends():
        if sent.key in keys:
            lanes[sent.client, sent.queue].append((sent, answer))
    for lane in lanes.values():
        lane.sort(key=lambda pair: pair[0].at)
        by_answer = sorted(lane, key=lambda pair: pair[1].at)
        done, highest = 0, None
        last_of_stream: dict[int, tuple[Sent, Answered]] = {}
        for sent, answer in lane:
            while done < len(by_answer) and by_answer[done][1].at < sent.at:
                if highest is None or by_answer[done][1].queue_offset > highest[1].queue_offset:
                    highest = by_answer[done]
                done += 1
            for before in (highest, last_of_stream.get(sent.stream)):
                if before is not None and before[1].queue_offset >= answer.queue_offset:
                    yield Finding(Kind.DISORDER, f"{sent.key} is {_place(sent, answer)}, and came after "
                                                 f"{before[0].key}, which is {_place(*before)}")  # fmt: skip
                    break
            last_of_stream[sent.stream] = sent, answer
