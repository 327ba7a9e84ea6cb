"""Rules about the messages that consumers received (events ``Shown``).

A consumer continues after the last message that it received. So a received message must be stored in the end, at the
same offset, or new messages at that offset are skipped for ever. Where the mode may lose the end of a log, only that
part may vanish, and a consumer may skip the messages that replace it; not even that if the mode keeps what was shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gantry_histories.events import History, Queue, Shown
from gantry_histories.final import Final, Stored
from gantry_histories.findings import Finding, Kind, Loss, Mode
from gantry_histories.stored import is_in_lost_tail
from gantry_histories.terms import TermIndex


def find_invalid_deliveries(history: History) -> Iterator[Finding]:
    """Find received messages that were never sent, were sent to another queue, or whose body is corrupt."""
    for shown in history.shown:
        sent = history.sent.get(shown.key) if shown.key is not None else None
        if sent is None or sent.digest != shown.digest or sent.queue != shown.queue:
            yield Finding(Kind.FALSE, f"{shown.client} received {shown.key or 'a broken body'} as {_place(shown)}")


def find_vanished_deliveries(history: History, final: Final, mode: Mode, terms: TermIndex) -> Iterator[Finding]:
    """Find received messages that are no longer stored at their offset."""
    reported: set[tuple[Queue, int, str | None]] = set()
    places = _places(final)
    for shown in history.shown:
        if _is_stored(shown, places) or (shown.queue, shown.queue_offset, shown.key) in reported:
            continue
        if shown.physical_offset < final.begin or _may_be_lost(shown, final, mode, terms):
            continue
        reported.add((shown.queue, shown.queue_offset, shown.key))
        instead = places.get((shown.queue, shown.queue_offset))
        now = f"{instead.key} is stored there now" if instead is not None else "no message is stored there now"
        yield Finding(Kind.VANISHED, f"{shown.key}, received by {shown.client} as {_place(shown)}: {now}")


def find_skipped_messages(history: History, final: Final, mode: Mode, terms: TermIndex) -> Iterator[Finding]:
    """Find messages that a consumer passed and never received, starting at the first one that it received."""
    keys: dict[tuple[str, Queue], set[str | None]] = defaultdict(set)
    excused: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    begins: dict[tuple[str, Queue], int] = {}
    ends: dict[tuple[str, Queue], int] = {}
    places = _places(final)
    for shown in history.shown:
        reader = shown.client, shown.queue
        keys[reader].add(shown.key)
        begins[reader] = min(begins.get(reader, shown.queue_offset), shown.queue_offset)
        ends[reader] = max(ends.get(reader, 0), shown.queue_offset + 1)
        if not _is_stored(shown, places) and _may_be_lost(shown, final, mode, terms):
            excused[reader].add(shown.queue_offset)
    for commit in history.committed:
        reader = commit.client, commit.queue
        begins.setdefault(reader, 0)
        ends[reader] = max(ends.get(reader, 0), commit.offset)
    for reader, end in ends.items():
        for message in final.queues.get(reader[1], ()):
            is_passed = begins[reader] <= message.queue_offset < end
            if is_passed and message.key not in keys[reader] and message.queue_offset not in excused[reader]:
                place = f"{reader[1]} offset {message.queue_offset} at {message.physical_offset}"
                yield Finding(Kind.SKIPPED, f"{reader[0]} is at {end} and never received {message.key} in {place}")


def find_skipping_replies(history: History, final: Final) -> Iterator[Finding]:
    """Find replies to pulls after which a consumer continues behind messages that have not expired, and that the reply
    does not have."""
    offsets: dict[tuple[str, Queue, int], list[int]] = defaultdict(list)
    for shown in history.shown:
        offsets[shown.client, shown.queue, shown.at].append(shown.queue_offset)
    for read in history.reads:
        found = offsets[read.client, read.queue, read.at][-read.count :] if read.count else []
        first = found[0] if found else read.next
        messages = final.queues.get(read.queue, ())
        expired = messages[0].queue_offset if messages else final.end(read.queue)
        if (first > max(read.begin, expired)) or (found and read.next > found[-1] + 1):
            place = f"{read.begin} in {read.queue}"
            yield Finding(Kind.SKIPPED, f"{read.client} asked {read.broker} for {place}, got {found}, and continued at "
                                        f"{read.next}")  # fmt: skip


def find_offsets_beyond_end(final: Final) -> Iterator[Finding]:
    """Find consumers whose offset is beyond the end of the queue, so that they would skip the next messages."""
    for (client, queue), offset in final.committed.items():
        if offset > final.end(queue):
            yield Finding(Kind.BEYOND, f"{client} has offset {offset} in {queue}, which ends at {final.end(queue)}")


def _places(final: Final) -> dict[tuple[Queue, int], Stored]:
    return {
        (queue, message.queue_offset): message
        for queue, messages in final.queues.items()
        for message in messages
    }  # fmt: skip


def _is_stored(shown: Shown, places: dict[tuple[Queue, int], Stored]) -> bool:
    message = places.get((shown.queue, shown.queue_offset))
    return message is not None and message.key == shown.key


def _may_be_lost(shown: Shown, final: Final, mode: Mode, terms: TermIndex) -> bool:
    if mode.loss is not Loss.SUFFIX or mode.keeps_shown:
        return False
    return is_in_lost_tail(final, terms.epoch_at(shown.broker, shown.at), shown.physical_offset)


def _place(shown: Shown) -> str:
    return f"{shown.queue} offset {shown.queue_offset} at {shown.physical_offset} by {shown.broker}"
