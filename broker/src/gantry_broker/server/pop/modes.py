"""Assigns queues to consumers that let the broker do so, and keeps for each group whether it pulls or pops a topic.

    401 set the mode of a group in a topic    400 the queues of a consumer, with the mode    402 all modes, for slaves

A consumer asks any broker of its topic, so the answer covers the queues of all brokers: the route comes from the name
server, and the members of the group are those that this broker knows. A consumer that pops gets every broker once, with
the queue id -1, which stands for any queue; with ``popShareQueueNum`` it gets its own queues, and those of as many
members after it. Modes are written to ``messageRequestMode.json`` and copied to slaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.request_modes import MODE_TABLE
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.nameserver import PERMISSION_READ, TopicRoute
from gantry_wire.commands.pop import (
    MODE_POP,
    MODE_PULL,
    MessageRequestMode,
    QueryAssignment,
    QueryAssignmentResult,
    QueueAssignment,
)

ROUTE_KEPT_S: Final = 5.0
"""How long a route is used again: the consumers of a group ask every 20 seconds, all at once after a change."""
ROUTES_MAX: Final = 1024
"""The limit of routes that are kept."""

AVERAGELY: Final = "AVG"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"

QueryRoute = Callable[[str], Awaitable[TopicRoute | None]]
"""Returns the route of a topic from a name server; None if it has none, or no name server answers."""


@final
class _RouteQuery:
    """A query of a route that several requests wait for."""

    def __init__(self) -> None:
        self.is_done: Final = asyncio.Event()
        self.queues: list[MessageQueue] | None = None
        """The result; None if the request that made the query was cancelled."""


@final
class ModeHandlers:
    """The handlers of assignments and modes. Owned by the event loop."""

    def __init__(self, core: BrokerCore, query_route: QueryRoute, loop: asyncio.AbstractEventLoop) -> None:
        self._core: Final = core
        self._query_route: Final = query_route
        self._loop: Final = loop
        self._routes: Final[dict[str, tuple[float, list[MessageQueue]]]] = {}
        """(loop time at which it is outdated, queues) by topic."""
        self._queries: Final[dict[str, _RouteQuery]] = {}
        """The queries that wait for a name server, by topic: one each, since a whole group asks at once."""

    # ------- modes

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """Set the mode of a group in a topic; the answer waits until it is written."""
        mode, core = read_document(command.body, MessageRequestMode), self._core
        if mode.topic.startswith(names.RETRY_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if mode.mode not in (MODE_PULL, MODE_POP):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"mode {mode.mode[:64]!r}: expected {MODE_PULL} or {MODE_POP}"
            )
        if mode.topic not in core.topics:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic[:300]}] not exist")
        if core.groups.find_or_create(mode.consumer_group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        core.request_modes.put(mode)
        return self._reply_when_written(command)

    async def _reply_when_written(self, command: Command) -> Command:
        self._core.persistence.mark(MODE_TABLE, now=False)
        await self._core.persistence.wait_until_written(MODE_TABLE)
        return command.reply()

    @handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def list_modes(self, command: Command, connection: Connection) -> Command:
        """Answer with the modes of all groups."""
        return command.reply(body=write_document(self._core.request_modes.document()))

    # ------- assignments

    @handles(RequestCode.QUERY_ASSIGNMENT)
    async def assign(self, command: Command, connection: Connection) -> Command:
        """Answer with the queues that a consumer should read."""
        request = read_document(command.body, QueryAssignment)
        mode = self._mode_of(request.topic, request.consumer_group)
        queues = await self._queues_of(request.topic)
        assigned = queues if request.message_model == "BROADCASTING" else self._share(request, queues, mode)
        if not queues or assigned is None:
            return command.reply(body=b"{}")  # the consumer keeps what it has
        assignments = [QueueAssignment(message_queue=queue, mode=mode.mode) for queue in assigned]
        return command.reply(body=write_document(QueryAssignmentResult(message_queue_assignments=assignments)))

    def _mode_of(self, topic: str, group: str) -> MessageRequestMode:
        found = self._core.request_modes.find(topic, group)
        return found or MessageRequestMode(topic=topic, consumer_group=group)

    def _share(
        self, request: QueryAssignment, queues: list[MessageQueue], mode: MessageRequestMode
    ) -> Sequence[MessageQueue] | None:
        state = self._core.clients.consumers.get(request.consumer_group)
        if state is None or request.strategy_name not in (AVERAGELY, BY_CIRCLE):
            return None
        members = sorted(state.client_ids)
        allocate = allocate_averagely if request.strategy_name == AVERAGELY else allocate_by_circle
        if mode.mode != MODE_POP:
            return allocate(request.client_id, queues, members)
        share = mode.pop_share_queue_num
        if share <= 0 or share >= len(members) - 1:
            brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
            return [MessageQueue(topic=topic, broker_name=name, queue_id=-1) for topic, name in brokers]
        if request.client_id not in members:
            return []
        index = members.index(request.client_id)
        if len(members) > len(queues):
            return [queues[index % len(queues)]]
        sharing = [members[(index + number) % len(members)] for number in range(share + 1)]
        return list(dict.fromkeys(queue for member in sharing for queue in allocate(member, queues, members)))

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of all brokers, sorted; those of this broker if no name server answers.

        Requests that come while a route is being queried wait for it, also if no name server answers.
        """
        while True:
            known = self._routes.get(topic)
            if known is not None and known[0] > self._loop.time():
                return known[1]
            query = self._queries.get(topic)
            if query is None:
                return await self._query_queues(topic)
            await query.is_done.wait()
            if query.queues is not None:
                return query.queues

    async def _query_queues(self, topic: str) -> list[MessageQueue]:
        query = self._queries[topic] = _RouteQuery()
        try:
            queues = query.queues = await self._find_queues(topic)
        finally:
            # If this request is cancelled, one of those that wait takes its place.
            del self._queries[topic]
            query.is_done.set()
        return queues

    async def _find_queues(self, topic: str) -> list[MessageQueue]:
        route = await self._query_route(topic)
        if route is None:
            return self._own_queues(topic)
        queues = [
            MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=number)
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            if data.perm & PERMISSION_READ
            for number in range(data.read_queue_nums)
        ]
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (self._loop.time() + ROUTE_KEPT_S, queues)
        return queues

    def _own_queues(self, topic: str) -> list[MessageQueue]:
        config, name = self._core.topics.find(topic), self._core.settings.broker_name
        if config is None or not config.perm & PERMISSION_READ:
            return []
        return [MessageQueue(topic=topic, broker_name=name, queue_id=one) for one in range(config.read_queue_nums)]


def allocate_averagely(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Return the queues of a member if each gets a range of about the same size."""
    if member not in members or not queues:
        return []
    index, size = members.index(member), len(members)
    share, rest = divmod(len(queues), size)
    if len(queues) <= size:
        return [queues[index]] if index < len(queues) else []
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def allocate_by_circle(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Return the queues of a member if the members take the queues in rotation."""
    return list(queues[members.index(member) :: len(members)]) if member in members else []
