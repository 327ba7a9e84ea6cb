"""Configurations of groups and topics while brokers do not answer: any broker is asked, and none is invented."""

from __future__ import annotations

import asyncio

import pytest
from proxy_world import ADDRESS, BROKER, FakeBrokers, FakeStream, World, consumer_settings, message, popped, send_reply
from test_proxy_receiving import ORDERS, receive, refusal

from gantry_client.errors import BrokerRefused
from gantry_proxy import topics
from gantry_proxy.handlers.routing import query_assignment, query_route
from gantry_proxy.handlers.sending import send_message
from gantry_proxy.handlers.sessions import accept_settings
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig

OTHER = "10.0.0.2:10911"
NO_GET = BrokerRefused(ResponseCode.NO_PERMISSION, "no Get", ADDRESS)


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> World:
    """Two brokers, and a group that consumes in order."""
    monkeypatch.setattr(topics, "ASK_NEXT_S", 0.01)
    group = SubscriptionGroupConfig(group_name="billing", consume_message_orderly=True)
    brokers = FakeBrokers(groups={"billing": group}, masters={BROKER: ADDRESS, "broker-b": OTHER})
    brokers.answers[RequestCode.SEND_MESSAGE_V2] = send_reply()
    return World(brokers)


async def settings_of(one: World, stream: FakeStream) -> pb.Settings | pb.Code | None:
    try:
        reply = await accept_settings(one.core, one.context(), consumer_settings(), stream)
    except ProxyError as error:
        return error.code
    return None if reply is None else reply.settings


@pytest.mark.parametrize("state", ["down", "silent"])
async def test_another_broker_is_asked_if_one_does_not_answer(one: World, state: str) -> None:
    """Routes, assignments, sends, settings and receives need the answer of one broker only."""
    getattr(one.brokers, state).add(ADDRESS)
    context, endpoints = one.context(), pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="192.0.2.1", port=80)])
    route = pb.QueryRouteRequest(topic=ORDERS, endpoints=endpoints)
    assignment = pb.QueryAssignmentRequest(topic=ORDERS, group=pb.Resource(name="billing"), endpoints=endpoints)
    one.brokers.popped = [popped(1)]

    assert (await query_route(one.core, context, route)).status.code == pb.OK
    assert len((await query_assignment(one.core, context, assignment)).assignments) == 8
    found = await settings_of(one, FakeStream())
    await receive(one)

    assert isinstance(found, pb.Settings) and found.subscription.fifo
    assert one.brokers.pops[0].is_order
    one.brokers.down.clear()
    assert (await send_message(one.core, context, pb.SendMessageRequest(messages=[message()]))).status.code == pb.OK
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_only_one_broker_is_asked_if_it_answers(one: World) -> None:
    """The twin: the others get no requests."""
    await one.topics.group("billing", "orders")

    assert one.brokers.reached == [ADDRESS]


@pytest.mark.parametrize("failure", [None, NO_GET], ids=["down", "no permission"])
async def test_group_that_may_have_an_order_is_not_popped_without_it(one: World, failure: Exception | None) -> None:
    """Neither a broker that is down nor a missing permission of the proxy means that the group has no order."""
    one.join_consumer()
    one.brokers.down, one.brokers.failure = {ADDRESS, OTHER}, failure
    if failure is not None:
        await one_route(one)

    assert await refusal(one) == pb.HA_NOT_AVAILABLE
    assert one.brokers.pops == []


async def one_route(one: World) -> None:
    """Make the route known, since the name server has no fault."""
    failure, one.brokers.failure = one.brokers.failure, None
    await one.topics.get("orders")
    one.brokers.failure = failure


async def test_settings_are_refused_until_the_order_is_known(one: World) -> None:
    """SDKs read only once whether a group consumes in order; they repeat a refused stream."""
    one.brokers.down = {ADDRESS, OTHER}

    assert await settings_of(one, FakeStream()) == pb.HA_NOT_AVAILABLE
    assert len(one.clients) == 0
    one.brokers.down = set()
    found = await settings_of(one, FakeStream())
    assert isinstance(found, pb.Settings) and found.subscription.fifo


async def test_client_that_has_settings_keeps_them_and_its_stream(one: World) -> None:
    """SDKs send their settings every few minutes; a failure of brokers must not end streams for it."""
    stream = FakeStream()
    await settings_of(one, stream)
    one.brokers.down = {ADDRESS, OTHER}
    await one.topics.close()
    one.now_ms += 10 * 60_000
    one.topics.forget_unused()

    assert await settings_of(one, stream) is None
    assert one.clients.find("client-1") is not None and not stream.is_closed
