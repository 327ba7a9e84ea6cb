"""The messages of all queues of a topic on one broker, the newest first, in pages.

Messages are merged by their offset in the log: the log is written in store order, so this is the order of their store
times, and no record is read that is not returned. A page ends at an offset of the log, where the next page continues:

    [ log begin ...... the next page ...... older )[ older ...... this page ...... before )

The log only grows, so messages that arrive between two requests shift no page: **no message is returned twice, and none
is left out**, except those that retention deletes meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_admin.store_files import ANSWER_BYTES_MAX, StoreFiles, record_at
from gantry_store_files import UNIT, QueueBounds
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, StoredMessage

QUEUES_MAX: Final = 1_024
"""The most queues of one topic that are merged. Each costs a search in its files; further queues are only counted."""


class TopicPage(NamedTuple):
    """A request for messages of a topic."""

    topic: str
    messages_max: int
    queue_id: int | None = None
    """Only this queue; None for all queues."""

    before: int | None = None
    """Only messages that begin before this offset of the log; None for the newest."""

    until_ms: int | None = None
    """Only messages that were stored before this time."""


class TopicMessages(NamedTuple):
    """One page of the messages of a topic, the newest first."""

    queues: Mapping[int, QueueBounds]
    messages: Sequence[StoredMessage]
    older: int | None
    """The offset of the log at which the next page begins; None if there are no older messages."""

    queues_left_out: int
    unreadable: int
    """Messages of this page that are damaged, and were left out."""


class _Candidates(NamedTuple):
    """The newest units of one queue before the page."""

    units: list[tuple[int, int]]
    """(Physical offset, size) of each message."""

    floor: int
    """The queue may have further messages before this offset of the log; 0 if all of them are among the units."""


def read_topic_messages(files: StoreFiles, span: Span, page: TopicPage) -> TopicMessages:
    """Return one page of the messages of a topic; blocks. Raises ``Problem`` if files of the log are missing.

    Queues without files are left out; they have no messages, or do not exist. A page has fewer messages than requested
    if their records are too long for one answer, or if messages were lost; ``older`` is set then.
    """
    ids = files.queue_ids(page.topic)
    chosen = ids[:QUEUES_MAX] if page.queue_id is None else [one for one in ids if one == page.queue_id]
    bounds: dict[int, QueueBounds] = {}
    candidates: list[tuple[int, int]] = []
    floor = 0
    for queue_id in chosen:
        try:
            bounds[queue_id] = files.bounds(page.topic, queue_id, span.begin, span.end)
            found = _newest_units(files, span, page, queue_id)
        except Problem as problem:
            if problem.status != 404:
                raise
            bounds.pop(queue_id, None)  # the files of this queue were deleted meanwhile
            continue
        candidates += found.units
        floor = max(floor, found.floor)
    eligible = sorted((unit for unit in candidates if unit[0] >= floor), reverse=True)
    kept = _bounded(eligible[: page.messages_max])
    read = [record_at(files, span, physical, size) for physical, size in kept]
    messages = [message for message in read if message is not None]
    if len(kept) < len(eligible):
        older: int | None = kept[-1][0]
    else:
        older = floor or None
    return TopicMessages(bounds, messages, older, len(ids) - len(chosen) if page.queue_id is None else 0,
                         len(read) - len(messages))  # fmt: skip


def _newest_units(files: StoreFiles, span: Span, page: TopicPage, queue_id: int) -> _Candidates:
    """Return the last units of a queue that can be on this page, at most as many as the page has messages.

    Units of lost messages are among them, so they may hold fewer messages than the page. The floor keeps the messages
    of other queues that are older than all of these units for the next page.
    """
    limit = span.end if page.before is None else min(page.before, span.end)
    begin, end = files.bounds(page.topic, queue_id, span.begin, limit)
    if page.until_ms is not None:
        end = min(end, files.offset_at(page.topic, queue_id, page.until_ms, span.begin, span.end)[0])
    start = max(end - page.messages_max, begin)
    if start >= end:
        return _Candidates([], 0)
    units = list(UNIT.iter_unpack(files.units(page.topic, queue_id, start, end)))
    messages = [(physical, size) for physical, size, _ in units if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX]
    return _Candidates(messages, units[0][0] if start > begin else 0)


def _bounded(units: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return the first units whose records fit into one answer; at least one."""
    total = 0
    for number, (_, size) in enumerate(units):
        total += size
        if number and total > ANSWER_BYTES_MAX:
            return units[:number]
    return units
