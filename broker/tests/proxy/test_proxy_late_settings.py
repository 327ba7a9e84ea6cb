"""Receives that come before the settings of their client: they wait for a limited time."""

from __future__ import annotations

import asyncio

import pytest
from proxy_world import FakeBrokers, World, popped
from test_proxy_receiving import receive, refusal

from gantry_proxy.handlers import receiving
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError


async def test_client_without_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a client with a Telemetry stream receives: the messages of any other client could not be renewed."""
    monkeypatch.setattr(receiving, "SETTINGS_WAIT_S", 0.01)
    one = World(FakeBrokers())

    assert await refusal(one) == pb.UNRECOGNIZED_CLIENT_TYPE
    assert (one.brokers.pops, one.clients._waiting) == ([], {})


@pytest.mark.parametrize("wait_s", [60.0, 0.0])
async def test_receive_waits_for_the_settings_that_come_after_it(
    monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Some SDKs send both at once. The time that has passed counts for the poll. The twin does not wait."""
    monkeypatch.setattr(receiving, "SETTINGS_WAIT_S", wait_s)
    one = World(FakeBrokers(popped=[popped(1), popped(2)]))
    await one.topics.get("orders")
    calls = [asyncio.ensure_future(receive(one, batch_size=1)) for _ in range(2)]
    await asyncio.sleep(0)
    one.now_ms += 12_000
    one.join_consumer()
    found = await asyncio.gather(*calls, return_exceptions=True)

    if wait_s:
        assert [len(one) for one in found if isinstance(one, list)] == [1, 1]
        assert {pop.poll_ms for pop in one.brokers.pops} == {30_000 - 12_000 - receiving.REPLY_RESERVE_MS}
    else:
        assert [one.code for one in found if isinstance(one, ProxyError)] == [pb.UNRECOGNIZED_CLIENT_TYPE] * 2
    assert one.clients._waiting == {}


async def test_settings_of_a_producer_end_the_wait() -> None:
    """A producer does not receive, so nothing is gained by waiting longer."""
    one = World(FakeBrokers())
    await one.topics.get("orders")
    call = asyncio.ensure_future(refusal(one))
    await asyncio.sleep(0)
    one.join_producer(client_id="client-1")

    assert await call == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_receive_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    """The client that went away is not waited for."""
    one = World(FakeBrokers())
    await one.topics.get("orders")
    call = asyncio.ensure_future(receive(one))
    await asyncio.sleep(0)
    assert list(one.clients._waiting) == ["client-1"]
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    assert one.clients._waiting == {}
