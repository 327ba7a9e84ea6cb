"""A snapshot of a cluster: registered brokers and their runtime info, topics, and the progress of consumer groups.

Brokers are queried concurrently. A broker that does not answer is part of the snapshot, not an error.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gantry_cli.rates import BrokerRuntimeInfo, parse_runtime_info
from gantry_client import Admin, BrokerAddress, ClientError, MessageQueue, QueueOffsets
from gantry_client.documents import longest_wait

TOPICS_MAX: Final = 200
"""The number of topics whose queues are queried; a cluster may have a hundred thousand."""
CONCURRENT_REQUESTS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """One registered broker and its runtime info."""

    address: BrokerAddress
    facts: BrokerRuntimeInfo | None
    """Its runtime info; null if it does not answer."""

    failure: str | None
    """Why its runtime info is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic: its queues and the number of their messages."""

    name: str
    brokers: tuple[str, ...]
    """The names of the brokers that have the topic."""
    queues: int
    messages: int
    """The number of messages that can still be read."""
    end_offset_total: int
    """The sum of the end offsets of all queues."""
    last_message_ms: int | None
    """The store time of the last message; null if there is none."""
    failure: str | None = None
    """Why the topic cannot be described; null if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The progress of one group in one topic."""

    name: str
    topic: str
    members: int
    """The number of present members."""

    consumed_offset_total: int
    """The sum of the committed offsets of all queues."""

    lag: int
    """The number of messages that are not consumed yet."""

    lag_s: float | None
    """The age of the oldest of them in seconds; null if the brokers do not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The snapshot that `gantry status` shows."""

    name_server: str
    brokers: tuple[BrokerView, ...]
    topics: tuple[TopicView, ...]
    topics_total: int
    """The number of all topics; `topics` has at most 200."""

    groups: tuple[GroupView, ...]


async def view_cluster(admin: Admin, name_server: str, *, with_internal: bool = False) -> ClusterView:
    """Take a snapshot of a cluster. Raises ClientError only if a request to the name server fails."""
    limit = asyncio.Semaphore(CONCURRENT_REQUESTS_MAX)
    addresses = await admin.brokers.all()
    brokers = await asyncio.gather(*(_view_broker(admin, address) for address in addresses))
    names = await admin.topics.all(with_internal=with_internal)
    topics = await view_topics(admin, names, limit)
    groups = await _view_groups(admin, limit) if any(broker.facts for broker in brokers) else ()
    return ClusterView(
        name_server=name_server, brokers=tuple(brokers), topics=topics, topics_total=len(names), groups=groups
    )


async def view_topics(
    admin: Admin, names: Sequence[str], limit: asyncio.Semaphore | None = None
) -> tuple[TopicView, ...]:
    """Return the views of the first ``TOPICS_MAX`` topics. ``limit`` bounds concurrent requests."""
    shared = asyncio.Semaphore(CONCURRENT_REQUESTS_MAX) if limit is None else limit
    return tuple(await asyncio.gather(*(view_topic(admin, name, shared) for name in names[:TOPICS_MAX])))


async def view_topic(admin: Admin, name: str, limit: asyncio.Semaphore) -> TopicView:
    """Return the view of one topic; if it is not available, with the reason."""
    async with limit:
        try:
            stats = await admin.topics.stats(name)
        except ClientError as error:
            return TopicView(
                name=name,
                brokers=(),
                queues=0,
                messages=0,
                end_offset_total=0,
                last_message_ms=None,
                failure=str(error),
            )
    return summarize_topic(name, stats)


def summarize_topic(name: str, stats: dict[MessageQueue, QueueOffsets]) -> TopicView:
    """Return the sums over all queues of a topic."""
    newest = max((offsets.last_update_timestamp for offsets in stats.values()), default=0)
    return TopicView(
        name=name,
        brokers=tuple(sorted({queue.broker_name for queue in stats})),
        queues=len(stats),
        messages=sum(offsets.max_offset - offsets.min_offset for offsets in stats.values()),
        end_offset_total=sum(offsets.max_offset for offsets in stats.values()),
        last_message_ms=newest or None,
    )


async def view_group(admin: Admin, name: str, topic: str | None = None) -> list[GroupView]:
    """Return the progress of a group, one entry for each topic that it has consumed."""
    members = await admin.groups.members(name)
    progress = await admin.groups.progress(name, topic)
    waits = await admin.groups.lag_seconds(name, progress)
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in progress:
        by_topic.setdefault(queue.topic, []).append(queue)
    return [
        GroupView(
            name=name,
            topic=consumed,
            members=0 if members is None else len(members.connection_set),
            consumed_offset_total=sum(max(0, progress[queue].consumer_offset) for queue in queues),
            lag=sum(progress[queue].lag for queue in queues),
            lag_s=longest_wait(waits[queue] for queue in queues if progress[queue].lag > 0),
        )
        for consumed, queues in sorted(by_topic.items())
    ]


async def _view_broker(admin: Admin, address: BrokerAddress) -> BrokerView:
    try:
        table = await admin.brokers.runtime(address.address)
    except ClientError as error:
        return BrokerView(address=address, facts=None, failure=str(error))
    return BrokerView(address=address, facts=parse_runtime_info(table, time.monotonic()), failure=None)


async def _view_groups(admin: Admin, limit: asyncio.Semaphore) -> tuple[GroupView, ...]:
    async def one(name: str) -> list[GroupView]:
        async with limit:
            try:
                return await view_group(admin, name)
            except ClientError:
                return []  # a group that has never consumed has no progress

    try:
        names = sorted(await admin.groups.all())
    except ClientError:
        return ()  # some brokers do not list their groups; the rest of the snapshot is valid
    return tuple(view for views in await asyncio.gather(*(one(name) for name in names)) for view in views)


def no_topics_text(brokers: Iterable[BrokerAddress]) -> str:
    """Return what to show where a cluster has no topics. Only a registered master can create one."""
    known = list(brokers)
    if not known:
        return "No topics: no broker is registered"
    if not any(broker.is_master for broker in known):
        return "No topics: no master is registered; a failover may be in progress, see `gantry status`"
    return "No topics. Create one with: gantry topic create NAME"
