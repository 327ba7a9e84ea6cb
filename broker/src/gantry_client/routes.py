"""The routes of topics, as the name servers last returned them.

A route is queried when a topic is first used, again every 30 s (`refresh_all`), and at once when a broker fails
(`refresh`). An old route is kept when no name server replies, because the brokers usually still work. Concurrent
callers that need the same topic share one query.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final, final

from gantry_client.clock import Deadline
from gantry_client.errors import NoMaster, NoRoute, RequestFailed, RouteProblem, Unavailable
from gantry_client.name_servers import NameServers
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.nameserver import (
    MASTER_ID,
    PERMISSION_READ,
    PERMISSION_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
)
from gantry_wire.names import AUTO_CREATE_TOPIC

log = logging.getLogger(__name__)

QUEUES_MAX: Final = 65536
"""The maximum number of queues of one topic on one broker; a higher number means a corrupt route."""


@final
@dataclass(frozen=True, slots=True)
class Route:
    """The queues of one topic and the brokers that serve them."""

    topic: str
    write_queues: tuple[MessageQueue, ...]
    """The queues to which messages can be sent."""

    read_queues: tuple[MessageQueue, ...]
    """The queues that consumers read."""

    brokers: dict[str, dict[int, str]]
    """The addresses by broker name and broker id; id 0 is the master."""
    is_guess: bool = False
    """Whether the topic is unknown, and these are the queues that automatic creation would give it."""
    clusters: frozenset[str] = frozenset()
    """The clusters to which the brokers belong."""

    def master_address(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def require_master(self, broker_name: str) -> str:
        """Return the address of the master. Raises NoMaster if the broker has no master now."""
        address = self.master_address(broker_name)
        if address is None:
            raise NoMaster(self.topic, (broker_name,))
        return address

    def read_address(self, broker_name: str, preferred_id: int = MASTER_ID) -> str | None:
        """Return the address of the preferred replica, else of the master, else of any slave."""
        addresses = self.brokers.get(broker_name, {})
        found = addresses.get(preferred_id) or addresses.get(MASTER_ID)
        return found or next(iter(addresses.values()), None)

    def read_addresses(self) -> list[tuple[str, str]]:
        """Return (broker name, address to read from) of every broker with an address."""
        found = ((name, self.read_address(name)) for name in self.brokers)
        return [(name, address) for name, address in found if address is not None]


def build_route(topic: str, data: TopicRoute) -> Route:
    """Build the route from a reply of a name server.

    Queues are sorted by broker name and id; those of an order configuration keep its order of brokers.
    """
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda queue_data: queue_data.broker_name)
    if data.order_topic_conf:
        write_queues = _parse_ordered_queues(topic, data.order_topic_conf)
    else:
        write_queues = [
            queue
            for queue_data in queue_datas
            if queue_data.perm & PERMISSION_WRITE and MASTER_ID in brokers.get(queue_data.broker_name, {})
            for queue in _build_queues(topic, queue_data.broker_name, queue_data.write_queue_nums)
        ]
    read_queues = [
        queue
        for queue_data in queue_datas
        if queue_data.perm & PERMISSION_READ
        for queue in _build_queues(topic, queue_data.broker_name, queue_data.read_queue_nums)
    ]
    clusters = frozenset(broker.cluster for broker in data.broker_datas)
    return Route(topic, tuple(write_queues), tuple(read_queues), brokers, clusters=clusters)


def _build_queues(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)
        for queue_id in range(min(count, QUEUES_MAX))
    ]


def _parse_ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    """Parse `brokerA:4;brokerB:4`, the fixed queues of an ordered topic."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        broker_name, _, count = part.partition(":")
        if count.isdigit():
            queues += _build_queues(topic, broker_name, int(count))
    return queues


@final
class RouteTable:
    """The routes that one client uses. Belongs to one event loop."""

    def __init__(self, name_servers: NameServers, *, default_topic_queues: int = 4) -> None:
        self._name_servers = name_servers
        self._default_topic_queues = default_topic_queues
        self._routes: dict[str, Route] = {}
        self._queries: dict[str, asyncio.Task[Route | None]] = {}

    def __repr__(self) -> str:
        return f"<RouteTable topics={sorted(self._routes)}>"

    async def get(self, topic: str) -> Route:
        """Return the route of `topic`. Raises NoRoute if it is unknown, Unavailable if no name server replies."""
        route = self._routes.get(topic)
        if route is None or route.is_guess:
            route = await self.refresh(topic)
        if route is None:
            raise await self.error_for_unknown(topic)
        return route

    def find_for_sending(self, topic: str) -> Route | None:
        """Return the route that `for_sending` would return without a query; None if it would query or raise."""
        route = self._routes.get(topic)
        return route if route is not None and route.write_queues else None

    async def for_sending(self, topic: str) -> Route:
        """Return the route of `topic`; for an unknown topic, the queues with which brokers would create it.

        Raises NoRoute and NoMaster, and Unavailable if no name server replies.
        """
        route = self._routes.get(topic) or await self.refresh(topic) or await self._guess(topic)
        if not route.write_queues:
            without = tuple(sorted(name for name in route.brokers if route.master_address(name) is None))
            if without:
                raise NoMaster(topic, without)
            reason = "no broker with a master grants write permission"
            raise NoRoute(topic, reason, RouteProblem.NO_PERMISSION)
        return route

    async def for_sending_until(self, topic: str, deadline: Deadline) -> Route:
        """Return the route like `for_sending`. Raises Unavailable also if no name server replies before `deadline`."""
        known = self.find_for_sending(topic)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(deadline.at):
                return await self.for_sending(topic)
        except TimeoutError as error:
            raise Unavailable(f"no name server replied in time with the route of topic {topic!r}") from error

    async def refresh(self, topic: str) -> Route | None:
        """Query the route of `topic`; None if no broker has it any more. Concurrent callers share one query."""
        task = self._queries.get(topic)
        if task is None:
            task = asyncio.create_task(self._query(topic), name=f"gantry-route-{topic}")
            self._queries[topic] = task
            task.add_done_callback(lambda done: self._on_query_ended(topic, done))
        return await asyncio.shield(task)

    async def refresh_all(self) -> None:
        """Query the routes of all known topics. A route whose query fails is kept."""
        for topic in list(self._routes):
            try:
                await self.refresh(topic)
            except RequestFailed as error:
                log.warning(
                    "failed to refresh route; keeping the old one", extra={"topic": topic, "reason": str(error)}
                )

    def addresses(self, *, masters_only: bool) -> set[str]:
        """Return the addresses of the brokers, or only of the masters, that serve any topic of this client."""
        return {
            address
            for route in self._routes.values()
            for addresses in route.brokers.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or not masters_only
        }

    async def close(self) -> None:
        """Cancel all pending route queries."""
        tasks = list(self._queries.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_query_ended(self, topic: str, task: asyncio.Task[Route | None]) -> None:
        self._queries.pop(topic, None)
        if not task.cancelled():
            task.exception()  # Retrieve the error: the callers may have stopped waiting for this query.

    async def _query(self, topic: str) -> Route | None:
        data = await self._name_servers.route(topic)
        if data is None:
            known = self._routes.get(topic)
            if known is None or not known.is_guess:
                self._routes.pop(topic, None)
            return None
        self._routes[topic] = build_route(topic, data)
        return self._routes[topic]

    async def error_for_unknown(self, topic: str, reason: str = "no broker has registered it") -> NoRoute:
        """Return the error for an unknown topic. It names brokers without a master, which may have the topic."""
        try:
            brokers = (await self._name_servers.cluster()).broker_addr_table
        except RequestFailed:  # with access control, this request needs an administrator
            return NoRoute(topic, reason, RouteProblem.UNDECIDED)
        without = tuple(sorted(name for name, broker in brokers.items() if MASTER_ID not in broker.broker_addrs))
        return NoMaster(topic, without) if without or not brokers else NoRoute(topic, reason)

    async def _guess(self, topic: str) -> Route:
        data = await self._name_servers.route(AUTO_CREATE_TOPIC)
        if data is None:
            raise await self.error_for_unknown(
                topic, "no broker has registered it, and none creates topics on first use"
            )
        guess = replace(build_route(topic, _limit_queues(data, self._default_topic_queues)), is_guess=True)
        self._routes[topic] = guess
        return guess


def _limit_queues(data: TopicRoute, queues_max: int) -> TopicRoute:
    return TopicRoute(
        broker_datas=[
            BrokerData(cluster=broker.cluster, broker_name=broker.broker_name, broker_addrs=broker.broker_addrs)
            for broker in data.broker_datas
        ],
        queue_datas=[
            QueueData(
                broker_name=queue_data.broker_name,
                read_queue_nums=min(queue_data.read_queue_nums, queues_max),
                write_queue_nums=min(queue_data.write_queue_nums, queues_max),
                perm=queue_data.perm,
            )
            for queue_data in data.queue_datas
        ],
    )
