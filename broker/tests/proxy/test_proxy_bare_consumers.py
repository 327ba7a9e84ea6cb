"""Receives of simple consumers whose settings name no topics, or that have sent none: those of the SDK for Rust."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from proxy_world import BROKER, FakeBrokers, FakeStream, World, popped

from gantry_proxy.clients import DISCONNECTED_MS
from gantry_proxy.handlers.receiving import receive_message
from gantry_proxy.handlers.sessions import heartbeat
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode
from gantry_wire.commands.admin import SubscriptionGroupConfig

BILLING = pb.Resource(name="billing")


def world(clients_max: int = 10, **group: Any) -> World:
    groups = {"billing": SubscriptionGroupConfig(group_name="billing", **group)}
    return World(FakeBrokers(groups=groups), ProxyLimits(clients_max=clients_max))


async def receive(one: World) -> list[str]:
    """Receive as a simple consumer, and return the ids of the messages."""
    queue = pb.MessageQueue(topic=pb.Resource(name="orders"), id=-1, broker=pb.Broker(name=BROKER))
    call = pb.ReceiveMessageRequest(
        group=BILLING, message_queue=queue, batch_size=16, invisible_duration=Duration(seconds=30)
    )
    replies = [reply async for reply in receive_message(one.core, one.context(), call)]
    assert replies[0].status.code == pb.OK
    return [reply.message.system_properties.message_id for reply in replies[1:]]


async def test_group_counts_for_a_client_that_names_topics_only_in_its_calls() -> None:
    """Order and deliveries are those of its group all the same."""
    one = world(consume_message_orderly=True, retry_max_times=3)
    settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=pb.Subscription(group=BILLING))
    one.clients.register("client-1", settings, FakeStream())
    one.brokers.popped = [popped(1, reconsume_times=4), popped(2, reconsume_times=3)]

    assert await receive(one) == ["id-2"]
    assert one.brokers.pops[0].is_order
    assert [request.code for request in one.brokers.requests] == [RequestCode.CONSUMER_SEND_MSG_BACK]


async def test_consumer_receives_from_a_proxy_that_was_restarted() -> None:
    """A receive has all that it needs, and the SDK sends its settings only once. Heartbeats keep the client known."""
    one = world()
    one.brokers.popped = [popped(1)]

    assert await receive(one) == ["id-1"]
    assert (await heartbeat(one.core, one.context(), pb.HeartbeatRequest(group=BILLING))).status.code == pb.OK
    one.now_ms += DISCONNECTED_MS + 1
    assert [client.group for client in one.clients.remove_silent()] == ["billing"]


async def test_number_of_consumers_without_settings_is_limited() -> None:
    """Each costs memory as a client with settings does, so the same limit counts."""
    one = world(clients_max=1)
    one.join_consumer(client_id="other")

    with pytest.raises(ProxyError) as caught:
        await receive(one)

    assert (caught.value.code, len(one.clients)) == (pb.TOO_MANY_REQUESTS, 1)


async def test_producer_receives_nothing() -> None:
    """A client that has sent the settings of a producer is no consumer."""
    one = world()
    one.join_producer(client_id="client-1")

    with pytest.raises(ProxyError) as caught:
        await receive(one)

    assert caught.value.code == pb.UNRECOGNIZED_CLIENT_TYPE
