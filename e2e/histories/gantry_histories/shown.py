"""Rules about what consumers were shown.

Whoever has seen a message goes on behind it. So what was shown must be there in the end, at the same place, or new
messages at that place are skipped for ever; where the mode may lose the end of a log, only that may vanish, and a
consumer may be past what took its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gantry_histories.events import History, Queue, Shown
from gantry_histories.final import Final, Stored
from gantry_histories.findings import Finding, Kind, Loss, Mode
from gantry_histories.reigns import Reigns
from gantry_histories.stored import is_in_lost_tail


def find_false(history: History) -> Iterator[Finding]:
    """What is shown was sent, and is whole."""
    for shown in history.shown:
        sent = history.sent.get(shown.key) if shown.key is not None else None
        if sent is None or sent.digest != shown.digest or sent.queue != shown.queue:
            yield Finding(Kind.FALSE, f"{shown.client} was shown {shown.key or 'a broken body'} as {_place(shown)}")


def find_vanished(history: History, final: Final, mode: Mode, reigns: Reigns) -> Iterator[Finding]:
    """What was shown is there in the end, at its place."""
    told: set[tuple[Queue, int, str | None]] = set()
    places = _places(final)
    for shown in history.shown:
        if _is_there(shown, places) or (shown.queue, shown.queue_offset, shown.key) in told:
            continue
        if shown.physical_offset < final.begin or _may_vanish(shown, final, mode, reigns):
            continue
        told.add((shown.queue, shown.queue_offset, shown.key))
        instead = places.get((shown.queue, shown.queue_offset))
        now = f"{instead.key} is there now" if instead is not None else "nothing is there now"
        yield Finding(Kind.VANISHED, f"{shown.key}, shown to {shown.client} as {_place(shown)}: {now}")


def find_skipped(history: History, final: Final, mode: Mode, reigns: Reigns) -> Iterator[Finding]:
    """Every consumer was shown every message before its position, from the first that it saw on."""
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
        if not _is_there(shown, places) and _may_vanish(shown, final, mode, reigns):
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
                yield Finding(Kind.SKIPPED, f"{reader[0]} is at {end} and was never shown {message.key} in {place}")


def find_beyond(final: Final) -> Iterator[Finding]:
    """No consumer stands where its queue has not come to yet: it would be past what comes."""
    for (client, queue), offset in final.committed.items():
        if offset > final.end(queue):
            yield Finding(Kind.BEYOND, f"{client} stands at {offset} of {queue}, which ends at {final.end(queue)}")


def _places(final: Final) -> dict[tuple[Queue, int], Stored]:
    return {
        (queue, message.queue_offset): message
        for queue, messages in final.queues.items()
        for message in messages
    }  # fmt: skip


def _is_there(shown: Shown, places: dict[tuple[Queue, int], Stored]) -> bool:
    message = places.get((shown.queue, shown.queue_offset))
    return message is not None and message.key == shown.key


def _may_vanish(shown: Shown, final: Final, mode: Mode, reigns: Reigns) -> bool:
    if mode.loss is not Loss.SUFFIX:
        return False
    return is_in_lost_tail(final, reigns.epoch_at(shown.broker, shown.at), shown.physical_offset)


def _place(shown: Shown) -> str:
    return f"{shown.queue} offset {shown.queue_offset} at {shown.physical_offset} by {shown.broker}"
