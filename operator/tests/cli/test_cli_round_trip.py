"""The self-check of `gantry up` waits until the name server has a route."""

from __future__ import annotations

import asyncio

import pytest

from gantry_cli import round_trip
from gantry_client import ClientSettings, NoRoute
from gantry_spec.observed import CHECK_TOPIC
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode
from gantry_wire.names import SELF_CHECK_TOPIC


def refuse_topics(cluster: FakeCluster) -> None:
    """Let the broker refuse every topic, as one that is not registered or not the master yet."""
    for broker in cluster.brokers.values():
        broker.refuse(RequestCode.UPDATE_AND_CREATE_TOPIC, 14, "starting", times=1_000_000)


async def test_self_check_creates_its_topic_where_brokers_create_none() -> None:
    """With autoCreateTopicEnable=false the first send has no route until the check has created its topic."""
    async with FakeCluster(auto_creates_topics=False) as cluster:
        trip = await round_trip.round_trip(cluster.name_server, ClientSettings())
        assert trip.queue.topic == CHECK_TOPIC == SELF_CHECK_TOPIC


async def test_self_check_waits_for_broker_registration() -> None:
    """A broker can be ready before it is registered, which is not a failure of the stack."""
    async with FakeCluster(auto_creates_topics=False) as cluster:
        refuse_topics(cluster)
        trip = asyncio.ensure_future(round_trip.round_trip(cluster.name_server, ClientSettings()))
        await wait_until(lambda: len(cluster.name_server_requests) > 2)
        assert not trip.done()

        cluster.add_topic(CHECK_TOPIC)

        assert (await trip).queue.topic == CHECK_TOPIC


async def test_self_check_fails_without_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout the check raises NoRoute."""
    monkeypatch.setattr(round_trip, "ROUTE_TIMEOUT_S", 0.1)
    async with FakeCluster(auto_creates_topics=False) as cluster:
        refuse_topics(cluster)
        with pytest.raises(NoRoute):
            await round_trip.round_trip(cluster.name_server, ClientSettings())
