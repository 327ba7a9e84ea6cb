"""The service over real gRPC connections: headers, deadlines, overload, streams that are cut, and the stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from proxy_world import (
    BROKER,
    ENDPOINTS,
    FakeBrokers,
    World,
    consumer_settings,
    message,
    popped,
    receipt_of,
    send_reply,
)

from gantry_proxy import service
from gantry_proxy.grpc_server import GrpcServer
from gantry_proxy.metrics import ProxyMetrics, metric_families, metrics_text
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.renewal import RETURN_MS
from gantry_proxy.service import SERVICE, STREAMING, TELEMETRY, UNARY, MessagingService
from gantry_proxy.settings import ProxyLimits, ProxyTlsSettings
from gantry_testing.local import wait_until

HEADERS = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"))
ORDERS = pb.Resource(name="orders")
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods}


@dataclass
class Served:
    """A service that listens, and a client of it."""

    world: World
    server: GrpcServer
    channel: grpc.aio.Channel
    metrics: ProxyMetrics

    def call(self, name: str) -> Any:
        """Return a method of the service for this client."""
        method = METHODS[name]
        request, reply = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
        kinds = {"SendMessage": "unary_unary", "Telemetry": "stream_stream"}
        kind = kinds.get(name, "unary_stream" if name in STREAMING else "unary_unary")
        make = getattr(self.channel, kind)
        return make(
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )

    async def connect(self, settings: pb.Settings | None = None, headers: Any = HEADERS) -> Any:
        """Open a Telemetry stream and send settings; return the stream."""
        stream = self.call("Telemetry")(metadata=headers)
        await stream.write(pb.TelemetryCommand(settings=settings or consumer_settings()))
        assert (await stream.read()).status.code == pb.OK
        return stream


@asynccontextmanager
async def serving(
    limits: ProxyLimits | None = None, brokers: FakeBrokers | None = None, accounts: Path | None = None
) -> AsyncIterator[Served]:
    one = World(brokers or FakeBrokers(), limits=limits or ProxyLimits(), accounts=accounts)
    metrics = ProxyMetrics()
    server = GrpcServer(MessagingService(one.core, metrics), "127.0.0.1:0", ProxyTlsSettings(), one.limits)
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=[("grpc.max_metadata_size", 1 << 20)])
    try:
        yield Served(one, server, channel, metrics)
    finally:
        await channel.close()
        await server.stop(0)
        await one.tasks.close()
        await one.topics.close()


def test_every_method_of_the_protocol_has_a_handler() -> None:
    """A new method of the protocol cannot be forgotten."""
    assert {*UNARY, *STREAMING, TELEMETRY} == set(METHODS)


async def test_call_is_answered_and_counted() -> None:
    """A route arrives over the wire, and the metrics name its method and code."""
    async with serving() as one:
        reply = await one.call("QueryRoute")(pb.QueryRouteRequest(topic=ORDERS, endpoints=ENDPOINTS), metadata=HEADERS)

    assert (reply.status.code, len(reply.message_queues)) == (pb.OK, 4)
    assert 'gantry_proxy_calls_total{method="QueryRoute",code="OK"} 1' in metrics_text(metric_families(one.metrics, []))


async def test_refusal_is_a_status_of_the_reply() -> None:
    """SDKs read the code; a gRPC error would look like a broken proxy."""
    async with serving() as one:
        reply = await one.call("QueryRoute")(pb.QueryRouteRequest(topic=pb.Resource(name="?"), endpoints=ENDPOINTS))
        lite = await one.call("SyncLiteSubscription")(pb.SyncLiteSubscriptionRequest())

    assert reply.status.code == pb.ILLEGAL_TOPIC
    assert (lite.status.code, "ordinary topics" in lite.status.message) == (pb.UNSUPPORTED, True)


async def test_bug_is_an_internal_error_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error reveals nothing, ends no connection, and leaves its trace in the log."""
    brokers = FakeBrokers(failure=ZeroDivisionError("secret"))
    async with serving(brokers=brokers) as one:
        reply = await one.call("QueryRoute")(pb.QueryRouteRequest(topic=ORDERS, endpoints=ENDPOINTS))

    assert reply.status.code == pb.INTERNAL_SERVER_ERROR
    assert "secret" not in reply.status.message
    assert "unexpected error in call" in caplog.text


async def test_receive_over_the_wire() -> None:
    """A status, the messages, and a timestamp; a client without settings gets a refusal and the timestamp."""
    async with serving(brokers=FakeBrokers(popped=[popped(1), popped(2)])) as one:
        queue = pb.MessageQueue(topic=ORDERS, id=-1, broker=pb.Broker(name=BROKER))
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name="billing"), message_queue=queue, batch_size=9, auto_renew=True
        )
        refused = [reply async for reply in one.call("ReceiveMessage")(request, metadata=HEADERS, timeout=30)]
        stream = await one.connect()
        found = [reply async for reply in one.call("ReceiveMessage")(request, metadata=HEADERS, timeout=30)]
        stream.cancel()

    assert [reply.WhichOneof("content") for reply in refused] == ["status", "delivery_timestamp"]
    assert [reply.WhichOneof("content") for reply in found] == ["status", "message", "message", "delivery_timestamp"]


async def test_deadline_of_a_receive_reaches_the_handler() -> None:
    """A client that waits two seconds gets a refusal at once, and no message is popped for it."""
    async with serving(brokers=FakeBrokers(popped=[popped(1)])) as one:
        stream = await one.connect()
        queue = pb.MessageQueue(topic=ORDERS, id=-1, broker=pb.Broker(name=BROKER))
        request = pb.ReceiveMessageRequest(group=pb.Resource(name="billing"), message_queue=queue, batch_size=9)
        request.auto_renew = True
        first = await one.call("ReceiveMessage")(request, metadata=HEADERS, timeout=2).read()
        stream.cancel()

    assert first.status.code == pb.ILLEGAL_POLLING_TIME
    assert one.world.brokers.pops == []


async def test_cut_receive_returns_its_messages() -> None:
    """A client that disconnects during a long poll loses nothing."""
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        waiting.set()
        await go_on.wait()

    async with serving(brokers=FakeBrokers(popped=[popped(1)], before_pop=hold)) as one:
        stream = await one.connect()
        queue = pb.MessageQueue(topic=ORDERS, id=-1, broker=pb.Broker(name=BROKER))
        request = pb.ReceiveMessageRequest(group=pb.Resource(name="billing"), message_queue=queue, batch_size=9)
        request.auto_renew = True
        call = one.call("ReceiveMessage")(request, metadata=HEADERS, timeout=30)
        reading = asyncio.ensure_future(call.read())
        await waiting.wait()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await wait_until(lambda: one.metrics.running == 0)
        go_on.set()
        await wait_until(lambda: bool(one.world.brokers.changed))
        stream.cancel()

    assert one.world.brokers.changed == [(receipt_of(1), RETURN_MS)]


async def test_unread_receive_ends_and_returns_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for messages and does not read them costs a bounded time and memory, and no message."""
    monkeypatch.setattr(service, "READ_TIMEOUT_S", 0.5)
    large = [
        one._replace(message=msgspec.structs.replace(one.message, stored_body=bytes(1 << 20)))
        for one in map(popped, range(32))
    ]
    async with serving(brokers=FakeBrokers(popped=large)) as one:
        stream = await one.connect()
        queue = pb.MessageQueue(topic=ORDERS, id=-1, broker=pb.Broker(name=BROKER))
        request = pb.ReceiveMessageRequest(group=pb.Resource(name="billing"), message_queue=queue, batch_size=32)
        request.auto_renew = True
        call = one.call("ReceiveMessage")(request, metadata=HEADERS, timeout=60)
        await wait_until(lambda: bool(one.world.brokers.pops) and one.metrics.running == 0)
        returned, kept = len(one.world.brokers.changed), one.world.renewals.message_count
        call.cancel()
        stream.cancel()

    assert returned > 16
    assert returned + kept == 32


# ------- limits


async def test_calls_of_one_client_are_limited() -> None:
    """A client beyond its limit gets a refusal; others are served."""
    go_on = asyncio.Event()
    brokers = FakeBrokers()

    async def held_request(*_args: Any, **_options: Any) -> Any:
        await go_on.wait()
        return send_reply()

    brokers.request = held_request  # type: ignore[method-assign]
    async with serving(ProxyLimits(calls_per_client_max=2), brokers) as one:
        send, request = one.call("SendMessage"), pb.SendMessageRequest(messages=[message()])
        running = [asyncio.ensure_future(send(request, metadata=HEADERS)) for _ in range(2)]
        await wait_until(lambda: one.metrics.running == 2)
        refused = await send(request, metadata=HEADERS)
        other = asyncio.ensure_future(send(request, metadata=(("x-mq-client-id", "client-2"),)))
        await wait_until(lambda: one.metrics.running == 3)
        go_on.set()
        served = await asyncio.gather(*running, other)

    assert refused.status.code == pb.TOO_MANY_REQUESTS
    assert [reply.status.code for reply in served] == [pb.OK] * 3
    assert (one.metrics.running, one.metrics.refused) == (0, 1)


async def test_large_request_is_refused_by_its_size() -> None:
    """A request beyond the limit is not read into memory."""
    async with serving(ProxyLimits(request_bytes_max=100_000, message_bytes_max=50_000)) as one:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await one.call("SendMessage")(pb.SendMessageRequest(messages=[message(body=bytes(200_000))]))

    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_large_headers_are_refused() -> None:
    """Headers beyond the limit end the call, not the proxy."""
    async with serving() as one:
        with pytest.raises(grpc.aio.AioRpcError):
            await one.call("Heartbeat")(pb.HeartbeatRequest(), metadata=(*HEADERS, ("x", "y" * 40_000)))
        reply = await one.call("Heartbeat")(pb.HeartbeatRequest(), metadata=HEADERS)

    assert reply.status.code == pb.UNRECOGNIZED_CLIENT_TYPE


# ------- Telemetry


async def test_settings_return_merged_and_may_be_sent_again() -> None:
    """SDKs send their settings every few minutes on the same stream."""
    async with serving() as one:
        stream = await one.connect()
        await stream.write(pb.TelemetryCommand(settings=consumer_settings()))
        again = await stream.read()
        await stream.write(pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce="unknown")))
        await stream.write(pb.TelemetryCommand(settings=consumer_settings()))
        last = await stream.read()
        stream.cancel()

    assert (again.settings.subscription.receive_batch_size, last.status.code) == (32, pb.OK)


async def test_refused_settings_end_the_stream_with_their_reason() -> None:
    """A stream has no other place for a refusal."""
    async with serving() as one:
        stream = one.call("Telemetry")(metadata=HEADERS)
        await stream.write(pb.TelemetryCommand(settings=pb.Settings()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert len(one.world.clients) == 0


async def test_cut_stream_disconnects_its_client() -> None:
    """The client stays known for a while, but no command is sent to it."""
    async with serving() as one:
        stream = await one.connect()
        assert one.world.clients.stream_count == 1
        stream.cancel()
        await wait_until(lambda: one.world.clients.stream_count == 0)

    assert len(one.world.clients) == 1


async def test_closed_streams_tell_the_client_to_connect_again() -> None:
    """When a proxy stops, its streams end with a code after which every SDK opens another one."""
    async with serving() as one:
        stream = await one.connect()
        one.world.clients.close_streams()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        reply = await one.call("Heartbeat")(pb.HeartbeatRequest(group=pb.Resource(name="billing")), metadata=HEADERS)

    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert reply.status.code == pb.OK


# ------- stop


async def test_health_says_not_serving_while_draining() -> None:
    """Load balancers read the health protocol; calls are still answered then."""
    async with serving() as one:
        health = health_pb2_grpc.HealthStub(one.channel)
        before = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        await one.server.report_draining()
        after = await health.Check(health_pb2.HealthCheckRequest())
        reply = await one.call("QueryRoute")(pb.QueryRouteRequest(topic=ORDERS, endpoints=ENDPOINTS))

    assert (before.status, after.status) == (1, 2)
    assert reply.status.code == pb.OK


async def test_running_call_ends_before_the_server() -> None:
    """A send that has begun gets its reply during the grace."""
    go_on = asyncio.Event()
    brokers = FakeBrokers()

    async def held_request(*_args: Any, **_options: Any) -> Any:
        await go_on.wait()
        return send_reply()

    brokers.request = held_request  # type: ignore[method-assign]
    async with serving(brokers=brokers) as one:
        call = one.call("SendMessage")(pb.SendMessageRequest(messages=[message()]), metadata=HEADERS)
        sending = asyncio.ensure_future(wait_for_reply(call))
        await wait_until(lambda: one.metrics.running == 1)
        stopping = asyncio.ensure_future(one.server.stop(20))
        await asyncio.sleep(0)
        go_on.set()
        reply = await sending
        await stopping

    assert reply.status.code == pb.OK


async def wait_for_reply(call: Any) -> Any:
    return await call


# ------- calls without a task


@asynccontextmanager
async def serving_connected(limits: ProxyLimits | None = None) -> AsyncIterator[Served]:
    """Serve with a known topic and a connection to its broker, so that sends begin without a task."""
    async with serving(limits, FakeBrokers(is_connected=True)) as one:
        await one.world.topics.get("orders")
        await one.world.topics.kind("orders")
        yield one


async def send(one: Served) -> pb.SendMessageResponse:
    reply: pb.SendMessageResponse = await one.call("SendMessage")(
        pb.SendMessageRequest(messages=[message()]), metadata=HEADERS
    )
    return reply


async def test_send_without_a_task_counts_until_its_outcome() -> None:
    """The limits of a client and the metrics are those of all calls."""
    async with serving_connected(ProxyLimits(calls_per_client_max=1)) as one:
        waiting = asyncio.ensure_future(send(one))
        begun = one.world.brokers.begun
        await wait_until(lambda: len(begun) == 1)
        assert one.metrics.running == 1
        assert (await send(one)).status.code == pb.TOO_MANY_REQUESTS
        begun[0][3](send_reply())
        assert (await waiting).status.code == pb.OK
        again = asyncio.ensure_future(send(one))
        await wait_until(lambda: len(begun) == 2)
        begun[1][3](send_reply())
        assert (await again).entries[0].message_id == "01ABC"

    assert (one.metrics.running, one.metrics.refused) == (0, 1)
    assert 'gantry_proxy_calls_total{method="SendMessage",code="OK"} 2' in metrics_text(
        metric_families(one.metrics, [])
    )


async def test_refused_and_failed_sends_without_a_task_have_a_reply(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal and a bug are statuses, as those of handlers, and the call is over."""
    async with serving_connected() as one:
        refused = await one.call("SendMessage")(pb.SendMessageRequest(messages=[message(body=b"")]), metadata=HEADERS)
        one.world.brokers.begin_request = None  # type: ignore[method-assign,assignment]
        failed = await send(one)

    assert refused.status.code == pb.MESSAGE_BODY_EMPTY
    assert failed.status.code == pb.INTERNAL_SERVER_ERROR
    assert "unexpected error in call" in caplog.text
    assert one.metrics.running == 0
