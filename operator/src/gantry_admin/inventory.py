"""Topics, consumer groups and their offsets, read from the broker itself or from its files.

From the broker: three tables, the ends of each topic's queues, and its runtime table, over its ordinary port with the
project's client.
From disk: the same tables as the broker last saved them (it does so every few seconds), and the ends as the queue files
show them, below the limit of what may be read. RocketMQ's system topics are many, and internal: only their numbers of
messages are shown, because delayed messages and open transactions are stored there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar, final

import msgspec

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles
from gantry_client import Admin
from gantry_client.documents import ConsumerOffsetTable, GroupTable, count_lag
from gantry_client.resend_plan import READER_PREFIX
from gantry_store_files import PlainDisk, StoreDisk, read_identity, read_small
from gantry_store_files.table_copies import TableCopy, edition_store, parse_table, reason_for_backup
from gantry_wire.commands.admin import TopicConfig, TopicConfigTable
from gantry_wire.names import SYSTEM_TOPICS, dead_letter_topic, is_system_group, reply_topic

TOPICS_MAX: Final = 500
"""Topics whose queues are read; further topics are only counted."""
REQUESTS_AT_ONCE_MAX: Final = 16
"""The most requests to the broker at a time."""

D = TypeVar("D", bound=msgspec.Struct)


class QueueEnds(NamedTuple):
    """One queue: ``[begin, end)``, and when its newest message was stored."""

    begin: int
    end: int
    last_stored_ms: int | None
    """The store time of the newest message; None if there is none, or it is unknown."""


class QueueLag(NamedTuple):
    """The consume offset and the lag of a group in one queue."""

    topic: str
    queue_id: int
    consumed: int
    """The next offset that the group consumes."""

    end: int
    """The end offset of the queue."""

    lag: int
    """The number of messages that are not consumed yet."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Topics, queues, groups and consume offsets of one broker at one moment."""

    topics: Mapping[str, TopicConfig]
    """The settings of each topic, by its name."""
    queues: Mapping[str, Mapping[int, QueueEnds]]
    """Topic -> queue -> the ends of the queue."""
    groups: tuple[str, ...]
    consumed: Mapping[str, Mapping[tuple[str, int], int]]
    """Group -> (topic, queue) -> the next offset to consume."""
    topics_left_out: int
    """The number of topics whose queues were not read."""
    runtime: Mapping[str, str] = field(default_factory=dict)
    """The broker's runtime table by RocketMQ's names; empty if the inventory is from disk."""
    resent: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Group -> queue of its dead letters -> the offset before which they were resent."""
    system_messages: Mapping[str, int] = field(default_factory=dict)
    """The number of messages in each of RocketMQ's system topics, which are not among ``topics``."""

    def lags(self, group: str) -> Iterator[QueueLag]:
        """Yield the lag of a group in each queue, by topic and queue.

        A queue whose ends are unknown is skipped: it is not on this broker, or its topic was left out.
        """
        for (topic, queue_id), consumed in sorted(self.consumed.get(group, {}).items()):
            ends = self.queues.get(topic, {}).get(queue_id)
            if ends is not None:
                yield QueueLag(topic, queue_id, consumed, ends.end, count_lag(ends.begin, ends.end, consumed))


def make_inventory(
    topics: Mapping[str, TopicConfig], groups: set[str], offsets: Mapping[str, Mapping[int, int]],
    queues: Mapping[str, Mapping[int, QueueEnds]], left_out: int,
) -> Inventory:  # fmt: skip
    """Join the tables to an inventory, without RocketMQ's system topics and groups."""
    consumed: dict[str, dict[tuple[str, int], int]] = {}
    for key, by_queue in offsets.items():
        topic, separator, group = key.partition("@")
        if separator and topic not in SYSTEM_TOPICS and not is_system_group(group):
            consumed.setdefault(group, {}).update({(topic, queue): offset for queue, offset in by_queue.items()})
    own = {group for group in groups if not is_system_group(group)}
    return Inventory(
        topics={name: topics[name] for name in sorted(queues)},
        queues=queues,
        groups=tuple(sorted(own | consumed.keys())),
        consumed=consumed,
        topics_left_out=left_out,
        resent=resent_offsets(offsets),
    )


def resent_offsets(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, Mapping[int, int]]:
    """Return the offsets of the readers of dead letters, by the group whose dead letters they read."""
    found: dict[str, Mapping[int, int]] = {}
    for key, by_queue in offsets.items():
        topic, _, reader = key.partition("@")
        group = reader.removeprefix(READER_PREFIX)
        if group != reader and topic == dead_letter_topic(group):
            found[group] = by_queue
    return found


def chosen_topics(topics: Mapping[str, TopicConfig], broker_topics: set[str]) -> tuple[list[str], int]:
    """Return the topics whose queues are read, and the number of topics that are left out."""
    names = sorted(name for name in topics if name not in SYSTEM_TOPICS and name not in broker_topics)
    return names[:TOPICS_MAX], max(len(names) - TOPICS_MAX, 0)


def system_topics(topics: Mapping[str, TopicConfig], broker_topics: set[str]) -> list[str]:
    """Return the names of all of RocketMQ's system topics on this broker."""
    return sorted(name for name in topics if name in SYSTEM_TOPICS or name in broker_topics)


def count_messages(queues: Mapping[int, QueueEnds]) -> int:
    """Return the number of messages in these queues."""
    return sum(max(ends.end - ends.begin, 0) for ends in queues.values())


def topics_of_broker(broker: str, cluster: str) -> set[str]:
    """Return the system topics that are named after a broker and its cluster."""
    return {broker, cluster, reply_topic(cluster)}


async def inventory_from_broker(admin: Admin, address: str, broker_topics: set[str]) -> Inventory:
    """Request the inventory from the broker. Raises a ``ClientError``."""
    brokers = admin.brokers
    topics = await brokers.topic_table(address)
    groups = await brokers.group_table(address)
    offsets = await brokers.offset_table(address)
    names, left_out = chosen_topics(topics, broker_topics)
    semaphore = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)

    async def ends(topic: str) -> dict[int, QueueEnds]:
        async with semaphore:
            found = await brokers.queue_table(address, topic)
        return {
            queue.queue_id: QueueEnds(row.min_offset, row.max_offset, row.last_update_timestamp or None)
            for queue, row in sorted(found.items(), key=lambda item: item[0].queue_id)
        }

    own = system_topics(topics, broker_topics)
    found = await asyncio.gather(*(ends(name) for name in [*names, *own]))
    queues = dict(zip([*names, *own], found, strict=True))
    inventory = make_inventory(topics, set(groups), offsets, {name: queues[name] for name in names}, left_out)
    counts = {name: count_messages(queues[name]) for name in own}
    return replace(inventory, runtime=await brokers.runtime(address), system_messages=counts)


def inventory_from_disk(files: StoreFiles, span: Span, broker_topics: set[str]) -> Inventory:
    """Read the inventory from disk; blocks.

    Raises OSError, or ``Problem`` 503 if a table cannot be read.
    """
    disk, root = PlainDisk(), str(files.root)
    store = edition_store(read_identity(disk, root))
    topics = _table(disk, root, store, "topics", TopicConfigTable).topic_config_table
    groups = _table(disk, root, store, "subscriptionGroup", GroupTable).subscription_group_table
    offsets = _table(disk, root, store, "consumerOffset", ConsumerOffsetTable).offset_table
    names, left_out = chosen_topics(topics, broker_topics)
    queues = {name: _queues_on_disk(files, name, topics[name], span) for name in names}
    inventory = make_inventory(topics, set(groups), offsets, queues, left_out)
    own = system_topics(topics, broker_topics)
    counts = {name: count_messages(_queues_on_disk(files, name, topics[name], span)) for name in own}
    return replace(inventory, system_messages=counts)


def _queues_on_disk(files: StoreFiles, topic: str, config: TopicConfig, span: Span) -> dict[int, QueueEnds]:
    """Return the ends of a topic's queues, by their files."""
    ids = set(range(min(max(config.read_queue_nums, config.write_queue_nums), 1024))) | set(files.queue_ids(topic))
    found: dict[int, QueueEnds] = {}
    for queue_id in sorted(ids):
        try:
            bounds = files.bounds(topic, queue_id, span.begin, span.end)
        except Problem:
            found[queue_id] = QueueEnds(0, 0, None)
            continue
        stored = None
        if bounds.end > bounds.begin:
            with suppress(Problem):  # the log lacks the newest message, whose time is unknown then
                stored = files.stored_at(topic, queue_id, bounds.end - 1, span.begin)
        found[queue_id] = QueueEnds(bounds.begin, bounds.end, stored)
    return found


def _table(disk: StoreDisk, root: str, store: str, name: str, kind: type[D]) -> D:
    """Return one table from the file that the broker would use; an empty one if neither file exists."""
    path = f"{root}/config/{name}.json"
    data, copied = _file(disk, path), _file(disk, f"{path}.bak")
    if data is None and copied is None:
        return kind()
    current = TableCopy() if data is None else parse_table(data)
    backup = TableCopy() if copied is None else current if copied == data else parse_table(copied)
    for one in (backup, current) if reason_for_backup(current, backup, store) else (current, backup):
        with suppress(msgspec.ValidationError):
            if one.document is not None:
                return msgspec.convert(one.document, kind, strict=False)
    raise Problem(503, f"the table {name} cannot be read from disk")


def _file(disk: StoreDisk, path: str) -> bytes | None:
    """Return the bytes of a file; None if it does not exist, and b"", which is no valid table, if it is unreadable."""
    try:
        return read_small(disk, path)
    except OSError:
        return b""
