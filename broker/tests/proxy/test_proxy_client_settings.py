"""Settings that clients send: what a proxy keeps of them, and what topics in them that do not exist cost."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from proxy_world import FakeBrokers, FakeStream, World, consumer_settings

from gantry_proxy import clients as clients_module
from gantry_proxy.handlers.sessions import GROUP_TOPICS_MAX, accept_settings, group_of
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.registrations import HEARTBEAT_ROUNDS, UNKNOWN_TOPICS_MAX, ConsumerRegistrations
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.client_settings import SETTINGS_BYTES_MAX
from gantry_wire.commands.admin import SubscriptionGroupConfig

BILLING = SubscriptionGroupConfig(group_name="billing", consume_message_orderly=True)


def settings_of(*topics: str, expression: str = "*") -> pb.Settings:
    settings = consumer_settings(topic=topics[0])
    for topic in topics[1:]:
        settings.subscription.subscriptions.add(
            topic=pb.Resource(name=topic), expression=pb.FilterExpression(expression=expression)
        )
    return settings


async def join(one: World, settings: pb.Settings, client_id: str = "client-1") -> None:
    await accept_settings(one.core, one.context(client_id), settings, FakeStream())


async def test_thousand_topics_are_accepted() -> None:
    """A client with as many topics as one may name, with names of usual length."""
    one = World()

    await join(one, settings_of("orders", *(f"messaging-orders-of-shop-{number:04}" for number in range(999))))

    assert 39_000 < one.clients.settings_bytes < SETTINGS_BYTES_MAX


@pytest.mark.parametrize("where", ["expression", "namespace", "unknown"])
async def test_large_settings_are_refused(where: str) -> None:
    """The proxy keeps them as long as the client is connected."""
    one, text = World(), "x" * SETTINGS_BYTES_MAX
    settings = settings_of("orders")
    if where == "expression":
        settings.subscription.subscriptions[0].expression.expression = text
    elif where == "namespace":
        settings.subscription.group.resource_namespace = text
    else:
        settings.MergeFromString(b"\xa2\x06\x80\x80\x04" + text.encode())

    with pytest.raises(ProxyError) as caught:
        await join(one, settings)

    assert (caught.value.code, len(one.clients), one.clients.settings_bytes) == (pb.BAD_REQUEST, 0, 0)


async def test_settings_of_all_clients_have_a_limit() -> None:
    """An account with many client ids cannot fill the memory; a client that leaves makes room."""
    one = World(limits=ProxyLimits(clients_max=1_000))
    settings = settings_of("orders", "paid", expression="x" * 60_000)
    with patch.object(clients_module, "SETTINGS_BYTES_MIN", 0):
        one.clients = clients_module.ClientTable(one.clock, 100)
    for number in range(3):
        one.clients.register(f"client-{number}", settings, FakeStream())
    with pytest.raises(ProxyError) as caught:
        one.clients.register("client-3", settings, FakeStream())
    one.clients.register("client-2", settings, FakeStream())  # a known client sends its settings again

    one.clients.leave("client-0")
    one.clients.register("client-3", settings, FakeStream())
    for number in range(1, 4):
        one.clients.remove(f"client-{number}")

    assert (caught.value.code, one.clients.settings_bytes) == (pb.TOO_MANY_REQUESTS, 0)


async def test_unknown_fields_of_settings_are_not_kept() -> None:
    """Nor is the message in which the settings came, which may be much larger."""
    one, settings = World(), settings_of("orders")
    plain = settings.ByteSize()
    settings.MergeFromString(b"\xa2\x06\xff\x7f" + b"x" * 16_383)

    await join(one, settings)
    client = one.clients.find("client-1")

    assert client is not None
    assert (client.settings.ByteSize(), one.clients.settings_bytes) == (plain, plain)


@pytest.mark.parametrize("is_known", [True, False])
async def test_topics_that_do_not_exist_cost_few_queries(is_known: bool) -> None:
    """A call needs one topic whose brokers know the group, and tries a few."""
    one = World(FakeBrokers(groups={"billing": BILLING}))
    missing = [f"missing-{number}" for number in range(200)]
    await join(one, settings_of(*missing))
    client = one.clients.find("client-1")
    assert client is not None
    one.brokers.queries = 0
    one.now_ms += 5_000

    config = await group_of(one.core, client.settings, "orders" if is_known else "")

    assert config == (BILLING if is_known else None)
    assert one.brokers.queries == (1 if is_known else GROUP_TOPICS_MAX)


async def test_heartbeat_tries_few_topics_that_do_not_exist() -> None:
    """A consumer is shown at the brokers of its first topics, also if it names a thousand others."""
    one = World()
    await join(one, settings_of("orders", *(f"missing-{number}" for number in range(200))))
    registrations = ConsumerRegistrations(one.brokers, one.topics, one.clients, one.clock, 100)
    one.brokers.queries = 0

    for _ in range(HEARTBEAT_ROUNDS + 1):
        one.now_ms += 5_000
        await registrations.register()

    assert (len(one.brokers.consumers), one.brokers.heartbeats) == (1, 2)
    assert one.brokers.queries <= 2 * UNKNOWN_TOPICS_MAX + 2


async def test_known_settings_are_not_examined_again() -> None:
    """A round over a thousand consumers costs no time for those that have sent nothing."""
    one = World()
    await join(one, settings_of("orders"))
    registrations = ConsumerRegistrations(one.brokers, one.topics, one.clients, one.clock, 100)
    with patch("gantry_proxy.registrations._digest", return_value=b"same") as digest:
        for _ in range(5):
            await registrations.register()
        await join(one, settings_of("orders"))
        await registrations.register()

    assert digest.call_count == 2
