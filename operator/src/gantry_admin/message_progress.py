"""The progress of one message: which consumer groups have passed it, and their copies of it for redelivery.

Committed offsets come from the inventory. A copy for redelivery has the broker's id of the original in a property, so
it is found by a search of the group's retry and dead letter topics, from the original's position in the log on. The
search is bounded, and the result says whether the bound was reached.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_admin.errors import Problem
from gantry_admin.inventory import Inventory
from gantry_admin.progress_documents import GroupProgressDocument, RedeliveryDocument
from gantry_admin.ranges import Span
from gantry_admin.store_files import ANSWER_BYTES_MAX, StoreFiles, record_at
from gantry_store_files import UNIT
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, StoredMessage
from gantry_wire.names import RETRY_PREFIX, dead_letter_topic, pop_retry_origin, retry_topic
from gantry_wire.properties import ORIGIN_MESSAGE_ID

GROUPS_MAX: Final = 64
"""The most groups of one answer: each has two topics to search."""

SEARCHED_MAX: Final = 10_000
"""The most messages that the search for copies reads for one answer, in all topics together: about 0.2 s of work."""

COPIES_MAX: Final = 64
"""The most copies of one group in an answer; RocketMQ's default is 16 retries."""

QUEUES_SEARCHED_MAX: Final = 16
"""The most queues of one topic that are searched; retry topics have one by default."""


class ProgressOfGroups(NamedTuple):
    """The progress of the groups of a topic, and the number of groups that were left out."""

    groups: list[GroupProgressDocument]
    left_out: int
    bytes_read: int


class _Share(NamedTuple):
    """What the search in one topic may read."""

    messages: int
    bytes: int


class _Found(NamedTuple):
    """The copies in one topic."""

    copies: list[StoredMessage]
    is_complete: bool
    bytes_read: int


def progress_of(files: StoreFiles, span: Span, inventory: Inventory, message: StoredMessage) -> ProgressOfGroups:
    """Return the progress of all groups that consume the topic of a message; blocks. Raises ``Problem``."""
    groups = groups_of_topic(inventory, message.topic)
    chosen = groups[:GROUPS_MAX]
    topics = {group: _redelivery_topics(inventory, group, message) for group in chosen}
    searched = max(sum(map(len, topics.values())), 1)
    share = _Share(SEARCHED_MAX // searched, ANSWER_BYTES_MAX // searched)
    documents: list[GroupProgressDocument] = []
    bytes_read = 0
    for group in chosen:
        found = {topic: _copies_in(files, span, topic, message, share) for topic in topics[group]}
        bytes_read += sum(one.bytes_read for one in found.values())
        documents.append(_document(inventory, group, message, found))
    return ProgressOfGroups(documents, len(groups) - len(chosen), bytes_read)


def groups_of_topic(inventory: Inventory, topic: str) -> list[str]:
    """Return the groups that have committed an offset in any queue of the topic."""
    return sorted(group for group, offsets in inventory.consumed.items() if any(topic == one for one, _ in offsets))


def _redelivery_topics(inventory: Inventory, group: str, message: StoredMessage) -> list[str]:
    """Return the topics of this broker that may have a group's copies of a message; the last is of dead letters."""
    popped = [
        topic for topic in inventory.topics
        if topic.startswith(f"{RETRY_PREFIX}{group}") and pop_retry_origin(topic, group) == message.topic
    ]  # fmt: skip
    return [retry_topic(group), *popped, dead_letter_topic(group)]


def _copies_in(files: StoreFiles, span: Span, topic: str, original: StoredMessage, share: _Share) -> _Found:
    """Return the copies of a message that were stored after it in one topic, reading no more than the share."""
    wanted = original.properties.get(ORIGIN_MESSAGE_ID) or original.offset_message_id
    copies: list[StoredMessage] = []
    left, bytes_left = share
    ids = files.queue_ids(topic)
    is_complete = len(ids) <= QUEUES_SEARCHED_MAX
    for queue_id in ids[:QUEUES_SEARCHED_MAX]:
        units = _units_after(files, span, topic, queue_id, original.physical_offset, left + 1)
        for physical, size in units:
            if left == 0 or bytes_left < size or len(copies) == COPIES_MAX:
                is_complete = False
                break
            left, bytes_left = left - 1, bytes_left - size
            record = record_at(files, span, physical, size)
            if record is not None and record.properties.get(ORIGIN_MESSAGE_ID) == wanted:
                copies.append(record)
    return _Found(copies, is_complete, share.bytes - bytes_left)


def _units_after(
    files: StoreFiles, span: Span, topic: str, queue_id: int, physical: int, count: int
) -> list[tuple[int, int]]:
    """Return the first units of a queue whose messages begin after an offset of the log; none if it was deleted."""
    try:
        start, end = files.bounds(topic, queue_id, max(span.begin, physical + 1), span.end)
        data = files.units(topic, queue_id, start, min(start + count, end)) if start < end else b""
    except Problem as problem:
        if problem.status in (404, 410):
            return []
        raise
    return [(at, size) for at, size, _ in UNIT.iter_unpack(data) if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX]


def _document(
    inventory: Inventory, group: str, message: StoredMessage, found: dict[str, _Found]
) -> GroupProgressDocument:
    consumed = inventory.consumed[group].get((message.topic, message.queue_id))
    ends = inventory.queues.get(message.topic, {}).get(message.queue_id)
    begin = 0 if ends is None else ends.begin
    is_waiting = consumed is not None and consumed <= message.queue_offset
    dead = dead_letter_topic(group)
    retries = [copy for topic, one in found.items() if topic != dead for copy in one.copies]
    return GroupProgressDocument(
        group=group,
        state="unknown" if consumed is None else "waiting" if is_waiting else "passed",
        consumed=consumed,
        waiting_before=message.queue_offset - max(consumed, begin) if is_waiting and consumed is not None else None,
        retries=[_copy(inventory, group, copy) for copy in sorted(retries, key=lambda one: one.physical_offset)],
        dead_letters=[_copy(inventory, group, copy) for copy in found[dead].copies],
        reading=None,
        is_search_complete=all(one.is_complete for one in found.values()),
    )


def _copy(inventory: Inventory, group: str, copy: StoredMessage) -> RedeliveryDocument:
    consumed = inventory.consumed[group].get((copy.topic, copy.queue_id))
    return RedeliveryDocument(
        topic=copy.topic, queue_id=copy.queue_id, queue_offset=copy.queue_offset,
        stored_wall_ms=copy.store_timestamp_ms, reconsume_times=copy.reconsume_times,
        is_passed=None if consumed is None or copy.topic == dead_letter_topic(group) else consumed > copy.queue_offset,
    )  # fmt: skip
