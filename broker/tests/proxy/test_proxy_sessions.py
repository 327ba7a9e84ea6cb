"""Clients of the proxy: settings, streams, heartbeats, when a client is gone, and questions about transactions."""

from __future__ import annotations

import pytest
from proxy_world import (
    ADDRESS,
    BROKER,
    ENDPOINTS,
    UNAVAILABLE,
    FakeBrokers,
    FakeStream,
    World,
    consumer_settings,
    producer_settings,
)

from gantry_client.errors import NoMaster, NoRoute
from gantry_proxy.clients import DISCONNECTED_MS, LEAVING_MS, SILENT_MS
from gantry_proxy.handlers.routing import query_assignment, query_route
from gantry_proxy.handlers.sessions import (
    accept_settings,
    heartbeat,
    notify_client_termination,
    sync_lite_subscription,
)
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.times import duration_ms
from gantry_wire.commands.admin import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)

ORDERS = pb.Resource(name="orders")


def world(**groups: SubscriptionGroupConfig) -> World:
    return World(FakeBrokers(groups=groups))


async def settings_of(one: World, settings: pb.Settings) -> pb.Settings:
    command = await accept_settings(one.core, one.context(), settings, FakeStream())
    assert command is not None and command.status.code == pb.OK
    return command.settings


# ------- settings


async def test_producer_gets_retries_and_limits() -> None:
    """The server decides how often a producer retries, and how large a body may be."""
    merged = await settings_of(world(), producer_settings())

    assert (merged.publishing.max_body_size, merged.publishing.validate_message_type) == (4 * 1024 * 1024, True)
    assert merged.backoff_policy.max_attempts == 3
    assert duration_ms(merged.backoff_policy.exponential_backoff.initial) == 10
    assert merged.metric.on is False


async def test_consumer_gets_the_policy_of_its_group() -> None:
    """Order, attempts and delays are those of the group's configuration."""
    config = SubscriptionGroupConfig(
        group_name="billing", consume_message_orderly=True, retry_max_times=4,
        group_retry_policy=GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[100, 200])),
    )  # fmt: skip

    merged = await settings_of(world(billing=config), consumer_settings())

    assert (merged.subscription.fifo, merged.subscription.receive_batch_size) == (True, 32)
    assert duration_ms(merged.subscription.long_polling_timeout) == 20_000
    assert merged.backoff_policy.max_attempts == 5
    assert [duration_ms(one) for one in merged.backoff_policy.customized_backoff.next] == [100, 200]


async def test_exponential_policy_is_passed_on() -> None:
    """Both kinds of retry policies have a form in the protocol."""
    policy = GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=ExponentialRetryPolicy(initial=7, max=70))
    config = SubscriptionGroupConfig(group_name="billing", group_retry_policy=policy)

    merged = await settings_of(world(billing=config), consumer_settings())

    backoff = merged.backoff_policy.exponential_backoff
    assert (duration_ms(backoff.initial), duration_ms(backoff.max), backoff.multiplier) == (7, 70, 2)


@pytest.mark.parametrize("topic", ["orders", "not-created"])
async def test_consumer_of_an_unknown_group_gets_the_defaults(topic: str) -> None:
    """A group that no broker knows yet, or of a topic that does not exist yet, has RocketMQ's delays and 16 retries."""
    one = world()

    merged = await settings_of(one, consumer_settings(topic=topic))

    assert (merged.subscription.fifo, merged.backoff_policy.max_attempts) == (False, 17)
    delays = [duration_ms(one) for one in merged.backoff_policy.customized_backoff.next]
    assert (delays[0], delays[-1], len(delays)) == (1_000, 7_200_000, 18)


INVALID = [
    pytest.param(pb.Settings(), pb.BAD_REQUEST, id="neither"),
    pytest.param(producer_settings("a b"), pb.ILLEGAL_TOPIC, id="topic"),
    pytest.param(consumer_settings("a b"), pb.ILLEGAL_CONSUMER_GROUP, id="group"),
    pytest.param(consumer_settings(""), pb.ILLEGAL_CONSUMER_GROUP, id="no group"),
    pytest.param(
        pb.Settings(client_type=pb.LITE_PUSH_CONSUMER, subscription=consumer_settings().subscription),
        pb.UNRECOGNIZED_CLIENT_TYPE, id="lite",
    ),
    pytest.param(
        pb.Settings(publishing=pb.Publishing(topics=[ORDERS] * 1001)), pb.BAD_REQUEST, id="many topics",
    ),
    pytest.param(
        pb.Settings(publishing=pb.Publishing(), client_properties={"1x": "y"}), pb.INVALID_CLIENT_PROPERTIES, id="name",
    ),
    pytest.param(
        pb.Settings(publishing=pb.Publishing(), client_properties={"x": "y" * 257}), pb.INVALID_CLIENT_PROPERTIES,
        id="value",
    ),
    pytest.param(
        pb.Settings(publishing=pb.Publishing(), client_properties={f"x{n}": "" for n in range(33)}),
        pb.INVALID_CLIENT_PROPERTIES, id="many",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "code"), INVALID)
async def test_invalid_settings_register_no_client(settings: pb.Settings, code: pb.Code) -> None:
    """A refused client leaves nothing behind."""
    one = world()

    with pytest.raises(ProxyError) as caught:
        await settings_of(one, settings)

    assert caught.value.code == code
    assert len(one.clients) == 0


async def test_call_without_client_id_is_refused() -> None:
    """A client without an id could not be distinguished from others."""
    one = world()
    for client_id in ("", " ", "x" * 300):
        with pytest.raises(ProxyError):
            await accept_settings(one.core, one.context(client_id), producer_settings(), FakeStream())


async def test_number_of_clients_is_limited() -> None:
    """A client beyond the limit is refused; those that are known may send settings again."""
    one = World(FakeBrokers(), limits=ProxyLimits(clients_max=1))
    one.join_producer(client_id="a")

    one.join_producer(client_id="a")
    with pytest.raises(ProxyError) as caught:
        one.join_producer(client_id="b")

    assert caught.value.code == pb.TOO_MANY_REQUESTS


# ------- life of a client


async def test_second_stream_of_a_client_replaces_the_first() -> None:
    """An SDK that lost its connection opens another stream; the old one must not keep it alive."""
    one = world()
    old = one.join_consumer()
    new = one.join_consumer()

    assert (old.is_closed, new.is_closed, one.clients.stream_count) == (True, False, 1)
    one.clients.disconnect("client-1", old)
    assert one.clients.stream_count == 1


async def test_silent_client_is_gone_after_two_minutes() -> None:
    """Heartbeats keep a client; without them it is removed, and its stream is closed."""
    one = world()
    stream = one.join_consumer()
    one.now_ms += SILENT_MS
    await heartbeat(one.core, one.context(), pb.HeartbeatRequest(group=pb.Resource(name="billing")))
    one.now_ms += SILENT_MS
    assert one.clients.remove_silent() == []

    one.now_ms += 1
    gone = one.clients.remove_silent()

    assert [client.client_id for client in gone] == ["client-1"]
    assert stream.is_closed


async def test_disconnected_client_is_gone_sooner() -> None:
    """A client whose stream ended has half a minute to connect again."""
    one = world()
    stream = one.join_consumer()
    one.clients.disconnect("client-1", stream)

    one.now_ms += DISCONNECTED_MS
    assert one.clients.remove_silent() == []
    one.now_ms += 1
    assert len(one.clients.remove_silent()) == 1


async def test_unknown_client_must_send_settings_first() -> None:
    """A new replica knows no client; SDKs send their settings again when their stream ends."""
    one = world()

    for call in (
        heartbeat(one.core, one.context(), pb.HeartbeatRequest()),
        notify_client_termination(one.core, one.context(), pb.NotifyClientTerminationRequest()),
    ):
        with pytest.raises(ProxyError) as caught:
            await call
        assert caught.value.code == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_terminated_client_is_forgotten_at_once() -> None:
    """NotifyClientTermination leaves the stream to the client: an SDK takes another end of it for a fault."""
    one = world()
    stream = one.join_producer(client_id="client-1")

    await notify_client_termination(one.core, one.context(), pb.NotifyClientTerminationRequest())

    assert (stream.is_closed, len(one.clients), one.clients.produced_topics()) == (False, 0, [])
    one.clients.disconnect("client-1", stream)
    one.now_ms += LEAVING_MS + 1
    assert one.clients.remove_silent() == [] and not stream.is_closed
    one.join_producer(client_id="client-1")


async def test_stream_that_a_terminated_client_leaves_open_is_closed() -> None:
    """A client cannot keep a stream that belongs to nothing, and a stopping proxy does not wait for it."""
    one = world()
    late, stopped, back = (one.join_producer(client_id=name) for name in ("client-1", "client-2", "client-3"))
    await notify_client_termination(one.core, one.context(), pb.NotifyClientTerminationRequest())
    one.now_ms += LEAVING_MS
    one.clients.leave("client-2")
    one.clients.leave("client-3")  # it comes back on the same stream
    one.clients.register("client-3", producer_settings(), back)

    one.clients.remove_silent()
    assert (late.is_closed, stopped.is_closed) == (False, False)
    one.now_ms += 1
    one.clients.remove_silent()
    assert (late.is_closed, stopped.is_closed) == (True, False)
    one.now_ms += LEAVING_MS
    one.clients.remove_silent()
    assert (stopped.is_closed, back.is_closed) == (True, False)
    one.clients.leave("client-3")
    one.clients.close_streams()
    assert back.is_closed


async def test_broken_stream_is_no_error() -> None:
    """A write to a stream that just broke reports failure, and nothing else."""
    one = world()
    stream = one.join_consumer()
    stream.failure = RuntimeError("cancelled")
    client = one.clients.find("client-1")

    assert client is not None
    assert await client.send(pb.TelemetryCommand()) is False


async def test_lite_subscription_is_refused() -> None:
    """Lite topics need a store that brokers here do not have; the refusal says what to do."""
    with pytest.raises(ProxyError) as caught:
        await sync_lite_subscription(world().core, world().context(), pb.SyncLiteSubscriptionRequest())
    assert caught.value.code == pb.UNSUPPORTED


# ------- routes


async def test_route_has_the_endpoints_of_the_client() -> None:
    """Each queue of each broker is reached through the address that the client itself used."""
    one = World(FakeBrokers(masters={"a": "10.0.0.1:1", "b": "10.0.0.2:1"}, kinds={"orders": "FIFO"}))

    reply = await query_route(one.core, one.context(), pb.QueryRouteRequest(topic=ORDERS, endpoints=ENDPOINTS))

    assert [(queue.broker.name, queue.id) for queue in reply.message_queues] == [
        (name, number) for name in "ab" for number in range(4)
    ]
    for queue in reply.message_queues:
        assert (queue.broker.endpoints, queue.permission, queue.topic) == (ENDPOINTS, pb.READ_WRITE, ORDERS)
        assert list(queue.accept_message_types) == [pb.FIFO]


@pytest.mark.parametrize(("perm", "expected"), [(6, pb.READ_WRITE), (4, pb.READ), (2, pb.WRITE), (0, pb.NONE)])
async def test_route_shows_permissions(perm: int, expected: pb.Permission) -> None:
    """Clients send only to queues that they may write, and read only those that they may read."""
    one = World(FakeBrokers(perm=perm))

    reply = await query_route(one.core, one.context(), pb.QueryRouteRequest(topic=ORDERS, endpoints=ENDPOINTS))

    assert {queue.permission for queue in reply.message_queues} == {expected}


async def test_mixed_topic_accepts_all_kinds() -> None:
    """MIXED is not a kind of the protocol: the queues list what they accept."""
    one = World(FakeBrokers(kinds={"orders": "MIXED"}))

    reply = await query_route(one.core, one.context(), pb.QueryRouteRequest(topic=ORDERS, endpoints=ENDPOINTS))

    assert list(reply.message_queues[0].accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]


async def test_assignment_is_every_broker_or_every_queue_in_order() -> None:
    """A group in order polls queue by queue; other groups poll brokers as a whole."""
    request = pb.QueryAssignmentRequest(topic=ORDERS, group=pb.Resource(name="billing"), endpoints=ENDPOINTS)
    free, ordered = world(), world(billing=SubscriptionGroupConfig(group_name="billing", consume_message_orderly=True))

    whole = await query_assignment(free.core, free.context(), request)
    single = await query_assignment(ordered.core, ordered.context(), request)

    assert [one.message_queue.id for one in whole.assignments] == [-1]
    assert [one.message_queue.id for one in single.assignments] == [0, 1, 2, 3]


async def test_unreadable_topic_has_no_assignment() -> None:
    """A consumer of such a topic gets a refusal, instead of waiting for ever."""
    one = World(FakeBrokers(perm=2))
    request = pb.QueryAssignmentRequest(topic=ORDERS, group=pb.Resource(name="billing"), endpoints=ENDPOINTS)

    with pytest.raises(ProxyError) as caught:
        await query_assignment(one.core, one.context(), request)

    assert caught.value.code == pb.FORBIDDEN


async def test_route_of_an_unknown_topic_is_not_found() -> None:
    """Unknown topics are not queried for every call, but again after a second."""
    one = world()
    for _ in range(3):
        with pytest.raises(NoRoute):
            await one.topics.get("unknown")
    assert one.brokers.queries == 1

    one.now_ms += 1_000
    one.brokers.kinds["unknown"] = "NORMAL"
    assert (await one.topics.get("unknown")).route.topic == "unknown"


async def test_known_route_survives_the_name_servers() -> None:
    """While no name server answers, clients work with what is known."""
    one = world()
    await one.topics.get("orders")
    one.brokers.failure = UNAVAILABLE
    one.now_ms += 60_000

    assert (await one.topics.get("orders")).route.topic == "orders"
    await one.topics.refresh("orders")
    assert await one.topics.master("orders", BROKER) == ADDRESS
    await one.topics.close()


async def test_broker_without_a_master_is_named() -> None:
    """During a failover the refusal says which broker is missing."""
    one = World(FakeBrokers(masters={BROKER: ""}))

    with pytest.raises(NoMaster, match=BROKER):
        await one.topics.master("orders", BROKER)
    with pytest.raises(NoRoute):
        await one.topics.master("orders", "unknown")


async def test_unused_routes_are_forgotten() -> None:
    """The memory of a proxy does not grow with all topics that were ever used."""
    one = world()
    await one.topics.get("orders")

    one.now_ms += 300_001
    one.topics.forget_unused()

    assert "routes=0" in repr(one.topics)
