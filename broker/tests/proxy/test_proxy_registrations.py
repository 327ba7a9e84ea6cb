"""Consumers of the proxy at brokers: who is registered, on which connection, when again, and when no more."""

from __future__ import annotations

from proxy_world import ADDRESS, UNAVAILABLE, FakeStream, World, consumer_settings

from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.registrations import HEARTBEAT_ROUNDS, SLOTS_MAX, ConsumerRegistrations


def registrations(one: World, consumers_max: int = 100) -> ConsumerRegistrations:
    return ConsumerRegistrations(one.brokers, one.topics, one.clients, one.clock, consumers_max)


def join(one: World, client_id: str, group: str = "billing", expression: str = "new || paid") -> None:
    settings = consumer_settings(group)
    settings.subscription.subscriptions[0].expression.expression = expression
    one.clients.register(client_id, settings, FakeStream())


async def test_consumer_is_registered_with_its_subscriptions() -> None:
    """A broker gets what a consumer over remoting would report about itself."""
    one = World()
    join(one, "client-1")
    one.join_producer()

    await registrations(one).register()

    [(key, beat)] = one.brokers.consumers.items()
    [data] = beat.consumer_data_set
    [subscription] = data.subscription_data_set
    assert key == (ADDRESS, 0, "billing")
    assert (beat.client_id, data.consume_type, data.message_model) == ("client-1", "CONSUME_PASSIVELY", "CLUSTERING")
    assert (subscription.topic, subscription.tags_set) == ("orders", ["new", "paid"])


async def test_consumers_of_one_group_use_different_connections() -> None:
    """A broker knows one client of a group by one connection; groups share the connections."""
    one = World()
    for client_id, group in (("a", "billing"), ("b", "billing"), ("c", "shipping")):
        join(one, client_id, group)

    await registrations(one).register()

    found = {(slot, group): beat.client_id for (_, slot, group), beat in one.brokers.consumers.items()}
    assert found == {(0, "billing"): "a", (1, "billing"): "b", (0, "shipping"): "c"}


async def test_slot_of_a_consumer_that_is_gone_is_used_again() -> None:
    """The number of connections follows the largest group, not the history of clients."""
    one, known = World(), None
    known = registrations(one)
    for client_id in ("a", "b"):
        join(one, client_id)
    await known.register()
    one.clients.leave("a")
    join(one, "c")

    await known.register()

    assert {slot: beat.client_id for (_, slot, _), beat in one.brokers.consumers.items()} == {0: "c", 1: "b"}


async def test_heartbeat_is_repeated_before_brokers_forget_a_consumer() -> None:
    """Not at every call: the heartbeats of many consumers cost the brokers."""
    one = World()
    known = registrations(one)
    join(one, "a")

    for _ in range(2 * HEARTBEAT_ROUNDS):
        await known.register()

    assert one.brokers.heartbeats == 2


async def test_changed_subscription_is_registered_at_once_with_a_newer_version() -> None:
    """Brokers keep the subscription of the newest version."""
    one = World()
    known = registrations(one)
    join(one, "a")
    await known.register()
    before = one.brokers.consumers[ADDRESS, 0, "billing"].consumer_data_set[0].subscription_data_set[0]
    one.now_ms += 1_000
    join(one, "a", expression="paid")

    await known.register()

    after = one.brokers.consumers[ADDRESS, 0, "billing"].consumer_data_set[0].subscription_data_set[0]
    assert (after.sub_string, after.sub_version) == ("paid", before.sub_version + 1_000)


async def test_group_and_proxy_have_limits() -> None:
    """Further consumers are served, and not shown."""
    one, other = World(), World()
    for number in range(SLOTS_MAX + 5):
        join(one, f"client-{number}")
        join(other, f"client-{number}", f"group-{number}")

    await registrations(one).register()
    await registrations(other, consumers_max=7).register()

    assert (len(one.brokers.consumers), len(other.brokers.consumers)) == (SLOTS_MAX, 7)


async def test_refusing_broker_disturbs_nothing() -> None:
    """A broker that is down, or that does not know the account, is asked again with the next heartbeat."""
    one = World()
    known = registrations(one)
    join(one, "a")
    one.brokers.failure = UNAVAILABLE
    await known.register()
    one.brokers.failure = None

    for _ in range(HEARTBEAT_ROUNDS):
        await known.register()

    assert [beat.client_id for beat in one.brokers.consumers.values()] == ["a"]


async def test_subscription_with_an_invalid_filter_is_left_out() -> None:
    """Its receives are refused with the reason; the consumer is shown without it."""
    one = World()
    settings = consumer_settings()
    settings.client_type = pb.SIMPLE_CONSUMER
    settings.subscription.subscriptions[0].expression.type = pb.SQL
    settings.subscription.subscriptions[0].expression.expression = "price >"
    one.clients.register("a", settings, FakeStream())

    await registrations(one).register()

    [data] = one.brokers.consumers[ADDRESS, 0, "billing"].consumer_data_set
    assert (data.consume_type, data.subscription_data_set) == ("CONSUME_ACTIVELY", [])
