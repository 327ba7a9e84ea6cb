"""Rules about what one process of a master has shown: its clients see their acknowledged sends and commits at once.

A reply is compared only with earlier replies of the same process in the same term. The connection is the evidence of
the process, which has run since the connection was opened; the term is the newest one when the reply arrives. A slave,
an older master and a restarted master may lag, so nothing is expected from the ends and offsets that they return.

    connection opened, or term recorded ---- a send starts -- is acknowledged ---- pull ---- reply: shows the message
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeGuard

from gantry_histories.events import Answered, CommitAnswered, Committed, History, OffsetRead, Queue, Read, Sent
from gantry_histories.findings import Finding, Kind
from gantry_histories.terms import TermIndex


def find_outdated_reads(history: History, terms: TermIndex) -> Iterator[Finding]:
    """Find pulls whose reply has an end of the queue before a message that this master had acknowledged."""
    acknowledged: dict[tuple[Queue, str], list[tuple[Sent, Answered]]] = defaultdict(list)
    for sent, answer in sorted(history.acknowledged_sends(), key=lambda pair: pair[1].at):
        acknowledged[sent.queue, answer.broker].append((sent, answer))
    current = [
        (read.queue, read.broker, max(read.connected, start), read)
        for read in history.reads
        if read.end >= 0 and (start := terms.start_if_current(read.broker, read.at)) is not None
    ]
    current.sort(key=lambda one: (*one[:3], one[3].called))
    for (queue, broker, since), group in groupby(current, key=lambda one: one[:3]):
        sends = [pair for pair in acknowledged[queue, broker] if pair[0].at >= since]
        yield from _find_outdated((one[3] for one in group), sends)


def _find_outdated(reads: Iterator[Read], sends: list[tuple[Sent, Answered]]) -> Iterator[Finding]:
    """Compare the reads of one queue and process, by their time, with the sends that it acknowledged."""
    done, newest = 0, None
    for read in reads:
        while done < len(sends) and sends[done][1].at < read.called:
            if newest is None or sends[done][1].queue_offset > newest[1].queue_offset:
                newest = sends[done]
            done += 1
        if newest is not None and newest[1].queue_offset >= read.end:
            sent, answer = newest
            late_ms = (read.called - answer.at) / 1e6
            yield Finding(
                Kind.OUTDATED,
                f"{read.client} got the end {read.end} of {read.queue} from {read.broker}, {late_ms:.3f} ms after it "
                f"had acknowledged {sent.key} as {answer.queue_offset}",
            )


@dataclass
class GroupOffset:
    """What is known of the offset of a consumer's group in a queue."""

    last: CommitAnswered | OffsetRead | None = None
    """The last reply with this offset; None if it is not known what is stored."""

    reader: tuple[str, int] = "", 0
    """The broker and the connection of the last pull."""

    end: int = 0
    """The highest end of the queue that this connection has returned."""

    pending: Counter[int] = field(default_factory=Counter)
    """How many commits of each offset were never confirmed: each may take effect at any later time, or not at all."""

    highest: int = -1
    """The highest offset that was ever committed."""


def find_forgotten_offsets(history: History, terms: TermIndex) -> Iterator[Finding]:
    """Find offsets that a broker returned although it had confirmed another one, or although no one had committed so
    high an offset.

    A broker may lower a commit that is beyond the end of its queue, so what it stores is known only if it has shown the
    queue up to this offset. Without an offset it may store one by itself, when it refuses a pull beyond that end.
    """
    known: dict[tuple[str, Queue], GroupOffset] = defaultdict(GroupOffset)
    for event in sorted([*history.reads, *history.offsets], key=lambda one: one.at):
        state = known[event.client, event.queue]
        match event:
            case Read():
                end = state.end if state.reader == _connection(event) else 0
                state.reader, state.end = _connection(event), max(end, event.end)
            case Committed():
                state.pending[event.offset] += 1
                state.highest = max(state.highest, event.offset)
            case CommitAnswered():
                state.pending[event.offset] -= 1
                is_stored = state.reader == _connection(event) and event.offset <= state.end
                state.last = event if is_stored else None
            case OffsetRead():
                yield from _find_forgotten(state, event, terms)
                state.last = event if event.offset >= 0 else None


def _find_forgotten(state: GroupOffset, event: OffsetRead, terms: TermIndex) -> Iterator[Finding]:
    expected = ""
    if _is_same_process(state.last, event, terms):
        if event.offset != state.last.offset and not state.pending[event.offset]:
            expected = f"{state.last.offset}, as it had confirmed on this connection"
    elif event.offset > state.highest:
        expected = f"at most {state.highest}, the highest offset that was committed"
    if expected:
        evidence = f"{event.broker} returned {event.offset} for {event.client} in {event.queue}, expected {expected}"
        yield Finding(Kind.FORGOTTEN, evidence)


def _is_same_process(
    last: CommitAnswered | OffsetRead | None, event: OffsetRead, terms: TermIndex
) -> TypeGuard[CommitAnswered | OffsetRead]:
    if last is None or _connection(last) != _connection(event):
        return False
    return terms.start_if_current(event.broker, event.at) is not None


def _connection(event: Read | CommitAnswered | OffsetRead) -> tuple[str, int]:
    return event.broker, event.connected
