"""Assignments of queues by the broker: a whole group asks at once, and one query of the route answers all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest

from gantry_broker.server.pop.modes import ROUTE_KEPT_S, ModeHandlers
from gantry_remoting import Connection
from gantry_testing.local import TOPIC, running_broker, wait_until
from gantry_wire import Command, RequestCode
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.nameserver import QueueData, TopicRoute

MEMBERS: Final = 5


class SlowNameServer:
    """A name server that answers each query when the test lets it."""

    def __init__(self, route: TopicRoute | None) -> None:
        self.route = route
        self.queries: list[str] = []
        self.may_answer = asyncio.Event()

    async def query_route(self, topic: str) -> TopicRoute | None:
        self.queries.append(topic)
        await self.may_answer.wait()
        return self.route


@asynccontextmanager
async def asking_members(
    tmp_path: Path, route: TopicRoute | None
) -> AsyncIterator[tuple[SlowNameServer, list[asyncio.Task[Command]], ModeHandlers]]:
    """Run requests of several members that wait for the name server."""
    async with running_broker(tmp_path) as broker:
        broker.core.topics.put(TopicConfig(topic_name=TOPIC))
        name_server = SlowNameServer(route)
        handlers = ModeHandlers(broker.core, name_server.query_route, asyncio.get_running_loop())
        asking = [asyncio.ensure_future(ask(handlers)) for _ in range(MEMBERS)]
        await wait_until(lambda: bool(name_server.queries))
        try:
            yield name_server, asking, handlers
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def ask(handlers: ModeHandlers, topic: str = TOPIC) -> Command:
    body = {"topic": topic, "consumerGroup": "group", "clientId": "a", "messageModel": "BROADCASTING"}
    command = Command(code=RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode())
    return await handlers.assign(command, cast(Connection, None))


def queues_in(reply: Command) -> list[tuple[str, int]]:
    found: dict[str, Any] = json.loads(bytes(reply.body))
    queues = (one["messageQueue"] for one in found["messageQueueAssignments"])
    return [(one["brokerName"], one["queueId"]) for one in queues]


def route_of(broker_name: str) -> TopicRoute:
    data = QueueData(broker_name=broker_name, read_queue_nums=2, write_queue_nums=2, perm=6, topic_sys_flag=0)
    return TopicRoute(queue_datas=[data], broker_datas=[])


async def test_members_that_ask_at_once_share_a_query(tmp_path: Path) -> None:
    """One query answers all of them, and those that ask within the next seconds."""
    async with asking_members(tmp_path, route_of("other")) as (name_server, asking, handlers):
        name_server.may_answer.set()
        replies = [await one for one in asking] + [await ask(handlers)]

    assert [queues_in(one) for one in replies] == [[("other", 0), ("other", 1)]] * (MEMBERS + 1)
    assert name_server.queries == [TOPIC]


async def test_without_sharing_each_member_queries_the_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the queries of a large group would reach the name server together."""
    monkeypatch.setattr(ModeHandlers, "_queues_of", ModeHandlers._find_queues)
    async with asking_members(tmp_path, route_of("other")) as (name_server, asking, _):
        name_server.may_answer.set()
        await asyncio.gather(*asking)

    assert name_server.queries == [TOPIC] * MEMBERS


async def test_members_share_a_query_without_an_answer(tmp_path: Path) -> None:
    """If no name server answers, all get the queues of this broker, and none waits for one time-out after another."""
    async with asking_members(tmp_path, None) as (name_server, asking, _):
        name_server.may_answer.set()
        replies = [await one for one in asking]

    assert {name for reply in replies for name, _ in queues_in(reply)} == {"test-broker"}
    assert name_server.queries == [TOPIC]


async def test_query_of_a_cancelled_request_is_repeated(tmp_path: Path) -> None:
    """A member whose connection ends while the route is queried does not leave the others without an answer."""
    async with asking_members(tmp_path, route_of("other")) as (name_server, asking, _):
        asking[0].cancel()
        await wait_until(lambda: len(name_server.queries) == 2)
        name_server.may_answer.set()
        replies = [await one for one in asking[1:]]

    assert [queues_in(one) for one in replies] == [[("other", 0), ("other", 1)]] * (MEMBERS - 1)
    assert name_server.queries == [TOPIC] * 2


async def test_other_topics_are_queried_meanwhile(tmp_path: Path) -> None:
    """A query of one topic does not delay another one, and an outdated route is queried again."""
    async with asking_members(tmp_path, route_of("other")) as (name_server, asking, handlers):
        one = asyncio.ensure_future(ask(handlers, "second"))
        await wait_until(lambda: len(name_server.queries) == 2)
        name_server.may_answer.set()
        await asyncio.gather(one, *asking)
        expires, queues = handlers._routes[TOPIC]
        handlers._routes[TOPIC] = (expires - ROUTE_KEPT_S, queues)
        await ask(handlers)

    assert name_server.queries == [TOPIC, "second", TOPIC]
