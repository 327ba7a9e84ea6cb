"""The driver's catalog of what can be read: topics, queues, their readable bounds, and the replicas that have them.

The catalog is synchronous and keeps its connections. It queries the replicas that tasks will read, so that the bounds
and locations it returns are those of a log that can be read; only the offsets of groups come from the masters. While no
replica answers it keeps trying for `patience_ms`: a failover or a rolling update is no reason to end a query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, final

from gantry_client import BrokerRefused, NoRoute
from gantry_client.sync import Admin
from gantry_wire.codes import ResponseCode
from gantry_wire.structs import make_structs_ready
from pyspark_rocketmq.brokers import call_with_retries
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import Bounds, LogState, QueueId, Replica
from pyspark_rocketmq.replica_reader import ReplicaViews
from pyspark_rocketmq.replica_view import View
from pyspark_rocketmq.settings import ReadSettings, parse_member_name
from pyspark_rocketmq.transport.file import topics_in

T = TypeVar("T")


@final
class Catalog:
    """Answers requests about topics and the brokers that have them. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        """Create a catalog; connections are opened at first use."""
        make_structs_ready()
        self._settings = settings
        self._views = ReplicaViews(settings)

    def __repr__(self) -> str:
        return f"<Catalog {self._settings.name_servers}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- topics and replicas -------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the topics of applications: without RocketMQ's own, retries and dead letters."""
        if not self._settings.has_name_servers:
            return sorted({topic for topics in _directory_topics(self._settings).values() for topic in topics})
        return self._call_with_retries("topics", lambda: self._views.brokers.call(lambda admin: admin.topics.all()))

    def queues(self, topics: Sequence[str]) -> list[QueueId]:
        """Return the queues of these topics, sorted. Raises InvalidOption for a topic that no broker serves."""
        found: set[QueueId] = set()
        for topic in topics:
            found.update(self._queues_of(topic))
        return sorted(found)

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Return the replicas of a broker's log, in the order in which they are read."""
        return self._call_with_retries(f"the replicas of {broker}", lambda: self._views.replicas(broker))

    def brokers(self) -> tuple[str, ...]:
        """Return every broker that name servers, sidecars or directories list."""
        return self._call_with_retries("brokers", self._views.discovery.brokers)

    # -- offsets -------------------------------------------------------------------------------------------------------

    def bounds(self, queues: Iterable[QueueId]) -> dict[QueueId, Bounds]:
        """Return the readable range of each queue; `replica_view` has its limits for each transport."""
        return self._call_per_broker("the bounds of its queues", queues, lambda some, view: view.bounds(some))

    def offsets_at(self, queues: Iterable[QueueId], timestamp_ms: int) -> dict[QueueId, int]:
        """Return for each queue its first message stored at that time or later, or its end if there is none."""

        def call(some: tuple[QueueId, ...], view: View) -> dict[QueueId, int]:
            return {queue: view.offset_at(queue, timestamp_ms) for queue in some}

        return self._call_per_broker("its offsets by store time", queues, call)

    def physical(self, offsets: Mapping[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
        """Return (physical offset, size) of the message at each offset. Raises DataLost if it was deleted."""

        def call(some: tuple[QueueId, ...], view: View) -> dict[QueueId, tuple[int, int]]:
            return {queue: view.locate(queue, offsets[queue]) for queue in some}

        return self._call_per_broker("locations in its log", offsets, call)

    def logs(self, brokers: Iterable[str]) -> dict[str, LogState]:
        """Return how far each broker's log can be read, and its epochs where the replica reports them."""
        return {broker: self._call_view(broker, "its log", lambda view: view.log()) for broker in sorted(set(brokers))}

    # -- consumer groups -----------------------------------------------------------------------------------------------

    def group_offsets(self, group: str, queues: Iterable[QueueId]) -> dict[QueueId, int | None]:
        """Return a consumer group's committed offsets as the masters have them; None where it has none."""
        found: dict[QueueId, int | None] = {}
        for broker, wanted in _by_broker(queues).items():
            found |= self._call_master(broker, partial(_group_offsets, group=group, queues=wanted))
        return found

    def commit_group(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """Commit on the masters that a group has consumed everything below these offsets."""
        for broker, wanted in _by_broker(offsets).items():
            declared = {queue: offsets[queue] for queue in wanted}
            self._call_master(broker, partial(_commit_offsets, group=group, offsets=declared))

    def close(self) -> None:
        """Close all connections and files."""
        self._views.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _call_with_retries(self, what: str, attempt: Callable[[], T]) -> T:
        return call_with_retries(what, attempt, self._settings.patience_ms)

    def _call_view(self, broker: str, what: str, request: Callable[[View], T]) -> T:
        """Call the first replica of a broker that answers, through its view (one replica, read by one transport)."""
        return self._call_with_retries(f"{broker}: {what}", lambda: self._views.call(broker, request))

    def _call_per_broker(
        self, what: str, queues: Iterable[QueueId], request: Callable[[tuple[QueueId, ...], View], dict[QueueId, T]]
    ) -> dict[QueueId, T]:
        found: dict[QueueId, T] = {}
        for broker, wanted in _by_broker(queues).items():
            found |= self._call_view(broker, what, partial(request, wanted))
        return found

    def _call_master(self, broker: str, request: Callable[..., Coroutine[Any, Any, T]]) -> T:
        """Return the response of a broker's master, wherever it runs now."""

        def call() -> T:
            address = self._views.discovery.master_address(broker)
            return self._views.brokers.call(partial(request, address=address))

        return self._call_with_retries(f"the master of {broker}", call)

    def _queues_of(self, topic: str) -> list[QueueId]:
        """Return the queues of one topic on all brokers that have it."""
        if not self._settings.has_name_servers:
            found = [
                QueueId(topic, broker, number)
                for broker, topics in _directory_topics(self._settings).items()
                for number in topics.get(topic, ())
            ]
            if not found:
                raise InvalidOption(f"topic {topic!r} not found in any of the directories")
            return found
        try:
            route = self._call_with_retries(
                f"the route of {topic}", lambda: self._views.brokers.call(lambda admin: admin.topics.route(topic))
            )
        except NoRoute as error:
            raise InvalidOption(f"topic {topic!r} not found: create it, or correct its name ({error})") from error
        return [QueueId(topic, queue.broker_name, queue.queue_id) for queue in route.read_queues]


def _directory_topics(settings: ReadSettings) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return topics and their queues by broker, read from the directories of the settings."""
    return {parse_member_name(name)[0]: topics_in(path) for name, path in settings.directories.items()}


def _by_broker(queues: Iterable[QueueId]) -> dict[str, tuple[QueueId, ...]]:
    found: dict[str, list[QueueId]] = {}
    for queue in sorted(set(queues)):
        found.setdefault(queue.broker, []).append(queue)
    return {broker: tuple(wanted) for broker, wanted in found.items()}


async def _group_offsets(
    admin: Admin, address: str, group: str, queues: Sequence[QueueId]
) -> dict[QueueId, int | None]:
    """Return a group's committed offsets in queues of one master; None where it has none."""
    replicas = admin.replicas
    found = await asyncio.gather(*(replicas.committed(address, group, queue.topic, queue.number) for queue in queues))
    return dict(zip(queues, found, strict=True))


async def _commit_offsets(admin: Admin, address: str, group: str, offsets: Mapping[QueueId, int]) -> None:
    """Commit offsets for a group on one master; nothing is consumed.

    Apache's brokers refuse an offset of an unknown group, and register a group when it pulls, if their settings allow
    that. So an unknown group pulls once.
    """
    left = dict(offsets)
    queue, offset = left.popitem()
    try:
        await admin.replicas.commit(address, group, queue.topic, queue.number, offset)
    except BrokerRefused as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        await admin.replicas.pull(address, queue.topic, queue.number, offset, group=group, messages_max=1)
        await admin.replicas.commit(address, group, queue.topic, queue.number, offset)
    await asyncio.gather(
        *(admin.replicas.commit(address, group, one.topic, one.number, value) for one, value in left.items())
    )
