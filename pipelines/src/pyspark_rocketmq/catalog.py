"""What there is to read: topics, queues, how far each can be read, and by whom. The driver's view.

It is synchronous, keeps its connections, and asks the replicas that tasks will read, so that what it says can be read
there. While nobody answers it goes on looking for `patience_ms`: a failover or a roll is no reason to end a query.
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
from pyspark_rocketmq.brokers import patiently
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import Bounds, LogState, QueueId, Replica
from pyspark_rocketmq.replica_view import View
from pyspark_rocketmq.settings import ReadSettings, parse_member_name
from pyspark_rocketmq.transport.file import topics_in
from pyspark_rocketmq.views import ReplicaViews
from pyspark_rocketmq.worker import prepare_structs

T = TypeVar("T")


@final
class Catalog:
    """Questions about topics and the brokers that have them. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        """Connects to nobody yet."""
        prepare_structs()
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

    # -- what there is -------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Topics of applications: without RocketMQ's own, retries and dead letters."""
        if not self._settings.has_name_servers:
            return sorted({topic for topics in _directory_topics(self._settings).values() for topic in topics})
        return self._patiently("topics", lambda: self._views.brokers.ask(lambda admin: admin.topics.all()))

    def queues(self, topics: Sequence[str]) -> list[QueueId]:
        """Their queues, sorted. Raises InvalidOption for a topic that nobody serves."""
        found: set[QueueId] = set()
        for topic in topics:
            found.update(self._queues_of(topic))
        return sorted(found)

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Who has its log, in the order in which they are to be read."""
        return self._patiently(f"the replicas of {broker}", lambda: self._views.replicas(broker))

    def brokers(self) -> tuple[str, ...]:
        """Every broker that name servers, sidecars or directories know of."""
        return self._patiently("brokers", self._views.discovery.brokers)

    # -- how far -------------------------------------------------------------------------------------------------------

    def bounds(self, queues: Iterable[QueueId]) -> dict[QueueId, Bounds]:
        """What of each queue can be read, never beyond min(confirmed, committed) of the replica that says so."""
        return self._ask_of_queues("the bounds of its queues", queues, lambda some, view: view.bounds(some))

    def offsets_at(self, queues: Iterable[QueueId], timestamp_ms: int) -> dict[QueueId, int]:
        """For each queue the first message stored at that time or later; its end if there is none."""

        def ask(some: tuple[QueueId, ...], view: View) -> dict[QueueId, int]:
            return {queue: view.offset_at(queue, timestamp_ms) for queue in some}

        return self._ask_of_queues("its offsets in time", queues, ask)

    def physical(self, offsets: Mapping[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
        """(physical offset, size) of the message at each offset. Raises DataLost if it is gone."""

        def ask(some: tuple[QueueId, ...], view: View) -> dict[QueueId, tuple[int, int]]:
            return {queue: view.place(queue, offsets[queue]) for queue in some}

        return self._ask_of_queues("places in its log", offsets, ask)

    def logs(self, brokers: Iterable[str]) -> dict[str, LogState]:
        """How far each broker's log can be read, and who wrote it; without epochs where nobody says them."""
        return {broker: self._ask(broker, "its log", lambda view: view.log()) for broker in sorted(set(brokers))}

    # -- consumer groups -----------------------------------------------------------------------------------------------

    def group_offsets(self, group: str, queues: Iterable[QueueId]) -> dict[QueueId, int | None]:
        """How far a consumer group has come, as the masters know it; None where it has not begun."""
        found: dict[QueueId, int | None] = {}
        for broker, wanted in _by_broker(queues).items():
            found |= self._ask_master(broker, partial(_group_offsets, group=group, queues=wanted))
        return found

    def commit_group(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """Say to the masters that a group has consumed everything below these offsets."""
        for broker, wanted in _by_broker(offsets).items():
            said = {queue: offsets[queue] for queue in wanted}
            self._ask_master(broker, partial(_commit_offsets, group=group, offsets=said))

    def close(self) -> None:
        """Close all connections and files."""
        self._views.close()

    # -- asking --------------------------------------------------------------------------------------------------------

    def _patiently(self, what: str, attempt: Callable[[], T]) -> T:
        return patiently(what, attempt, self._settings.patience_ms)

    def _ask(self, broker: str, what: str, question: Callable[[View], T]) -> T:
        return self._patiently(f"{broker}: {what}", lambda: self._views.ask(broker, question))

    def _ask_of_queues(
        self, what: str, queues: Iterable[QueueId], question: Callable[[tuple[QueueId, ...], View], dict[QueueId, T]]
    ) -> dict[QueueId, T]:
        found: dict[QueueId, T] = {}
        for broker, wanted in _by_broker(queues).items():
            found |= self._ask(broker, what, partial(question, wanted))
        return found

    def _ask_master(self, broker: str, question: Callable[..., Coroutine[Any, Any, T]]) -> T:
        """What a broker's master answers, wherever it is now."""

        def ask() -> T:
            address = self._views.discovery.master_address(broker)
            return self._views.brokers.ask(partial(question, address=address))

        return self._patiently(f"the master of {broker}", ask)

    def _queues_of(self, topic: str) -> list[QueueId]:
        if not self._settings.has_name_servers:
            found = [
                QueueId(topic, broker, number)
                for broker, topics in _directory_topics(self._settings).items()
                for number in topics.get(topic, ())
            ]
            if not found:
                raise InvalidOption(f"topic {topic!r} is in none of the directories")
            return found
        try:
            route = self._patiently(
                f"the route of {topic}", lambda: self._views.brokers.ask(lambda admin: admin.topics.route(topic))
            )
        except NoRoute as error:
            raise InvalidOption(
                f"topic {topic!r} is served by nobody: create it, or mend its name ({error})"
            ) from error
        return [QueueId(topic, queue.broker_name, queue.queue_id) for queue in route.read_queues]


def _directory_topics(settings: ReadSettings) -> dict[str, dict[str, tuple[int, ...]]]:
    """Topics and their queues by broker, as its files say."""
    return {parse_member_name(name)[0]: topics_in(path) for name, path in settings.directories.items()}


def _by_broker(queues: Iterable[QueueId]) -> dict[str, tuple[QueueId, ...]]:
    found: dict[str, list[QueueId]] = {}
    for queue in sorted(set(queues)):
        found.setdefault(queue.broker, []).append(queue)
    return {broker: tuple(wanted) for broker, wanted in found.items()}


async def _group_offsets(
    admin: Admin, address: str, group: str, queues: Sequence[QueueId]
) -> dict[QueueId, int | None]:
    """How far a group is in queues of one master; None where it has not begun."""
    replicas = admin.replicas
    found = await asyncio.gather(*(replicas.committed(address, group, queue.topic, queue.number) for queue in queues))
    return dict(zip(queues, found, strict=True))


async def _commit_offsets(admin: Admin, address: str, group: str, offsets: Mapping[QueueId, int]) -> None:
    """Commit for a group to one master; nothing is consumed.

    Apache's brokers take no offset of a group that they do not know, and make a group known when it pulls, if their
    settings allow that: so an unknown group pulls once.
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
