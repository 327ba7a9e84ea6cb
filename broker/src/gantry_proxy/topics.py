"""Topics and groups as the proxy knows them: routes, kinds, configurations of groups, and queues for sends."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, final

from gantry_client.errors import ClientError, NoMaster, NoRoute
from gantry_client.routes import Route, build_route
from gantry_client.selection import QueueSelector
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.cache import AnswerCache
from gantry_proxy.translation.routes import bucket_of_group
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.nameserver import TopicRoute

AVOID_FAILED_BROKER_MS: Final = 5_000
"""How long other brokers are preferred for sends after a connection to a broker failed."""
NORMAL: Final = "NORMAL"
"""The kind of a topic without a `message.type`."""
KIND_ATTRIBUTE: Final = "message.type"
QUEUE_ATTRIBUTE: Final = "queue.type"
BATCH_QUEUES: Final = "BatchCQ"
"""The queue type of a topic in which RocketMQ stores each request with several messages as one record."""
CLEANUP_ATTRIBUTE: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
"""The policy of a topic in which RocketMQ refuses a message without keys, but not in a batch."""
ASK_NEXT_S: Final = 0.5
"""How long brokers may take to answer about a topic or a group before another one is asked, too. A broker that has
vanished would take the time that an SDK waits for a route."""
V = TypeVar("V")


@final
@dataclass(frozen=True, slots=True)
class KnownTopic:
    """The route of one topic, as the name server returned it and as it is used."""

    data: TopicRoute
    route: Route


class TopicTraits(NamedTuple):
    """What the configuration of a topic says about its messages."""

    kind: str = NORMAL
    """The `message.type`, such as NORMAL or MIXED."""
    takes_batches: bool = True
    """Whether a message in a batch is stored, or refused, as it would be alone."""


@final
class Topics:
    """The topics and groups that clients use. Owned by one event loop."""

    def __init__(self, brokers: BrokerPort, now_ms: Callable[[], int]) -> None:
        """``now_ms`` is a monotonic clock."""
        self._brokers: Final = brokers
        self._now_ms: Final = now_ms
        self._selector: Final = QueueSelector(AVOID_FAILED_BROKER_MS)
        self._turn: Final = itertools.count()
        self._routes: Final = AnswerCache("route", self._load_route, now_ms, is_passing=_is_passing)
        self._traits: Final = AnswerCache("topic config", self._load_traits, now_ms)
        self._groups: Final = AnswerCache("group config", self._load_group, now_ms)
        """By group and topic, since any broker of the topic has the group."""

    def __repr__(self) -> str:
        return f"<Topics routes={len(self._routes)} groups={len(self._groups)}>"

    async def get(self, topic: str) -> KnownTopic:
        """Return the route of a topic. Raises NoRoute, or a RequestFailed if no name server answers."""
        known = await self._routes.get(topic)
        if known is None:
            raise NoRoute(topic, "no broker has registered it; create the topic")
        return known

    async def refresh(self, topic: str) -> None:
        """Query the route of a topic again, after a broker of it has failed."""
        await self._routes.refresh(topic)

    async def kind(self, topic: str) -> str:
        """Return the `message.type` of a topic, such as NORMAL or MIXED."""
        return (await self._traits.get(topic) or TopicTraits()).kind

    def fresh_traits(self, topic: str) -> TopicTraits | None:
        """Return the traits of a topic without a query; None if that is not possible."""
        return self._traits.fresh(topic)

    async def group(self, group: str, topic: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group that consumes ``topic``; None if it has none yet."""
        return await self._groups.get(f"{group} {topic}")

    # ------- addresses and queues

    async def queue_for_send(self, topic: str, message_group: str, now_s: float) -> tuple[MessageQueue, str]:
        """Return the queue for a message, and the address of its broker. Raises NoRoute and NoMaster."""
        route = (await self.get(topic)).route
        if not route.write_queues:
            without = tuple(sorted(name for name in route.brokers if route.master_address(name) is None))
            raise NoMaster(topic, without) if without else NoRoute(topic, "no broker grants write permission")
        queue = self._choose_queue(route, message_group, now_s)
        return queue, route.require_master(queue.broker_name)

    def fresh_queue_for_send(self, topic: str, message_group: str, now_s: float) -> tuple[MessageQueue, str] | None:
        """Return what ``queue_for_send`` would return without a query; None if it would query or raise."""
        known = self._routes.fresh(topic)
        if known is None or not known.route.write_queues:
            return None
        queue = self._choose_queue(known.route, message_group, now_s)
        address = known.route.master_address(queue.broker_name)
        return None if address is None else (queue, address)

    def _choose_queue(self, route: Route, message_group: str, now_s: float) -> MessageQueue:
        if message_group:
            return route.write_queues[bucket_of_group(message_group, len(route.write_queues))]
        return self._selector.next(route, (), now_s)

    def record_send(self, broker_name: str, now_s: float, *, is_connected: bool) -> None:
        """Record whether a broker could be reached, for the choice of later queues."""
        if is_connected:
            self._selector.record_success(broker_name)
        else:
            self._selector.record_failure(broker_name, now_s)

    async def master(self, topic: str, broker_name: str) -> str:
        """Return the address of the master of a broker. Raises NoRoute if it does not have the topic, and NoMaster."""
        route = (await self.get(topic)).route
        if broker_name not in route.brokers:
            refreshed = await self._routes.refresh(topic)
            route = route if refreshed is None else refreshed.route
        if broker_name not in route.brokers:
            raise NoRoute(topic, f"broker {broker_name[:64]!r} does not have it")
        return route.require_master(broker_name)

    def fresh_master(self, topic: str, broker_name: str) -> str | None:
        """Return what ``master`` would return without a query; None if it would query or raise."""
        known = self._routes.fresh(topic)
        return None if known is None else known.route.master_address(broker_name)

    async def any_read_broker(self, topic: str) -> str:
        """Return the name of a broker from which messages of a topic can be read, another one each time."""
        route = (await self.get(topic)).route
        names = sorted({queue.broker_name for queue in route.read_queues if route.master_address(queue.broker_name)})
        if not names:
            raise NoMaster(topic, tuple(sorted(route.brokers)))
        return names[next(self._turn) % len(names)]

    def forget_unused(self) -> None:
        """Forget what was not used for long. Called periodically."""
        for cache in (self._routes, self._traits, self._groups):
            cache.forget_unused()

    async def close(self) -> None:
        """Cancel all queries that are in progress."""
        for cache in (self._routes, self._traits, self._groups):
            await cache.close()

    # ------- loading

    async def _load_route(self, topic: str) -> KnownTopic | None:
        data = await self._brokers.topic_route(topic)
        return None if data is None else KnownTopic(data, build_route(topic, data))

    async def _load_traits(self, topic: str) -> TopicTraits:
        config = await self._ask_any(topic, lambda address: self._brokers.topic_config(address, topic))
        attributes = {} if config is None else config.attributes
        is_compacted = attributes.get(CLEANUP_ATTRIBUTE) == COMPACTION
        takes_batches = attributes.get(QUEUE_ATTRIBUTE) != BATCH_QUEUES and not is_compacted
        return TopicTraits(attributes.get(KIND_ATTRIBUTE) or NORMAL, takes_batches)

    async def _load_group(self, group_and_topic: str) -> SubscriptionGroupConfig | None:
        group, _, topic = group_and_topic.partition(" ")
        return await self._ask_any(topic, lambda address: self._brokers.group_config(address, group))

    async def _ask_any(self, topic: str, ask: Callable[[str], Coroutine[None, None, V]]) -> V:
        """Return the answer of a broker of a topic. Each further one is asked when those before fail or are silent.

        Raises NoRoute and NoMaster, and the error of the first broker if all of them fail.
        """
        route = (await self.get(topic)).route
        waiting = [address for _, address in route.read_addresses()]
        if not waiting:
            raise NoMaster(topic, tuple(sorted(route.brokers)))
        asked: list[asyncio.Task[V]] = []
        try:
            return await _first_answer(waiting, ask, asked)
        finally:
            for task in asked:
                task.cancel()  # has no effect on one that has ended


async def _first_answer(
    addresses: list[str], ask: Callable[[str], Coroutine[None, None, V]], asked: list[asyncio.Task[V]]
) -> V:
    """Return the first answer from these addresses; ``asked`` gets the task of each that was asked."""
    waiting, running = deque(addresses), set[asyncio.Task[V]]()
    while waiting or running:
        if waiting:
            asked.append(asyncio.get_running_loop().create_task(ask(waiting.popleft()), name="gantry-proxy-question"))
            running.add(asked[-1])
        timeout_s = ASK_NEXT_S if waiting else None
        done, running = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        answers = [task for task in done if not isinstance(task.exception(), ClientError)]
        if answers:
            return answers[0].result()
    return asked[0].result()


def _is_passing(topic: KnownTopic) -> bool:
    """Return whether a route is that of a failover: a broker has no master, or no broker accepts sends.

    A proxy often asks just then, since a send has failed. It must not keep such a route until the next regular refresh.
    """
    route = topic.route
    return not route.write_queues or any(route.master_address(name) is None for name in route.brokers)
