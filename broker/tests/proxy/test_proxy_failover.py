"""Routes during a failover: a proxy that asked while there was no master finds the new one soon."""

from __future__ import annotations

import asyncio

import pytest
from proxy_world import ADDRESS, BROKER, FakeBrokers, World, message, send_reply

from gantry_client.errors import ClientError, NoMaster
from gantry_proxy.cache import MISSING_MS, REFRESH_MS
from gantry_proxy.handlers.sending import send_message
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_wire.codes import RequestCode


def world() -> World:
    brokers = FakeBrokers()
    brokers.answers[RequestCode.SEND_MESSAGE_V2] = send_reply()
    return World(brokers)


async def send(one: World) -> pb.Code:
    reply = await send_message(one.core, one.context(), pb.SendMessageRequest(messages=[message()]))
    return reply.status.code


async def let_queries_end() -> None:
    """Give queries that run in the background the turns of the loop that they need here."""
    for _ in range(4):
        await asyncio.sleep(0)


async def sends_until_success(one: World) -> int:
    """Send until it succeeds, as an SDK does; return how many sends failed."""
    for failed in range(10):
        try:
            assert await send(one) == pb.OK
        except NoMaster:
            await let_queries_end()
        else:
            return failed
    raise AssertionError("the new master was not found")


@pytest.mark.parametrize("addresses", [{BROKER: ""}, {BROKER: "", "broker-b": "10.0.0.2:10911"}], ids=["only", "one"])
async def test_new_master_is_found_soon(addresses: dict[str, str]) -> None:
    """A route without the master of a broker is queried again after a second, by the first call that uses it."""
    one = world()
    one.brokers.masters = dict(addresses)
    await one.topics.get("orders")
    one.brokers.masters = dict.fromkeys(addresses, ADDRESS)
    one.now_ms += MISSING_MS
    before = one.brokers.queries

    failed = await sends_until_success(one)

    assert failed <= 1 and one.brokers.queries == before + 1
    assert (await one.topics.get("orders")).route.master_address(BROKER) == ADDRESS


async def test_withdrawn_broker_is_found_again_soon() -> None:
    """The same holds while no broker accepts sends, as during a roll of the only shard."""
    one = world()
    one.brokers.perm = 4
    await one.topics.get("orders")
    with pytest.raises(ClientError):
        await send(one)
    one.brokers.perm = 6
    one.now_ms += MISSING_MS
    await one.topics.get("orders")
    await let_queries_end()

    assert await send(one) == pb.OK


async def test_route_with_all_masters_is_kept() -> None:
    """The twin: an ordinary route is not queried again before the regular time."""
    one = world()
    await one.topics.get("orders")
    before = one.brokers.queries
    one.now_ms += REFRESH_MS - 1
    await send(one)
    await let_queries_end()
    kept = one.brokers.queries
    one.now_ms += 1
    await send(one)
    await let_queries_end()

    assert (kept, one.brokers.queries) == (before, before + 1)
