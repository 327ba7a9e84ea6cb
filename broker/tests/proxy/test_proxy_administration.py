"""What administrators and clients with offsets do through a proxy in front of a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from named_cluster import TOPIC, named_cluster
from proxy_client import GrpcClient, running_proxy
from proxy_world import consumer_settings, message

from gantry_client import Admin
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.proxy import Proxy
from gantry_testing.client import wait_until

GROUP = "billing"
BROKER = "test-broker"
QUEUE = pb.MessageQueue(topic=pb.Resource(name=TOPIC), id=0, broker=pb.Broker(name=BROKER))


@asynccontextmanager
async def shown_consumer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Proxy, Admin]]:
    """A proxy that registers its consumers at once, and an administrator of the broker behind it."""
    monkeypatch.setattr("gantry_proxy.proxy.SHOW_INTERVAL_MS", 50)
    async with named_cluster(folder) as (address, _), running_proxy(address) as proxy, Admin(address) as admin:
        yield proxy, admin


async def until_shown(admin: Admin, client_id: str) -> None:
    async def is_shown() -> bool:
        return client_id in await admin.consumers.connections(GROUP)

    await wait_until(is_shown, what="the registration of the client")


async def test_administrator_gets_the_thread_dump_of_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mqadmin consumerConnection shows the client with its language, and consumerStatus its stacks."""
    async with shown_consumer(tmp_path, monkeypatch) as (proxy, admin):
        client = GrpcClient(proxy, "client-1")
        settings = consumer_settings(GROUP, TOPIC)
        settings.user_agent.language = pb.GOLANG
        stream = await client.telemetry(settings)
        await until_shown(admin, "client-1")
        shown = await admin.consumers.connections(GROUP)
        asking = asyncio.ensure_future(admin.consumers.running_info(GROUP, "client-1", has_stacks=True))
        asked = await stream.read()
        trace = pb.ThreadStackTrace(
            nonce=asked.print_thread_stack_trace_command.nonce, thread_stack_trace="goroutine 1"
        )
        await stream.write(pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace))
        info = await asking

    assert shown["client-1"].language == "GO"
    assert info.jstack == "goroutine 1"
    assert [one.topic for one in info.subscription_set] == [TOPIC]


async def test_administrator_lets_a_client_consume_a_stored_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets the message from the broker's log, and the administrator its result."""
    async with shown_consumer(tmp_path, monkeypatch) as (proxy, admin):
        client = GrpcClient(proxy, "client-1")
        stream = await client.telemetry(consumer_settings(GROUP, TOPIC))
        await until_shown(admin, "client-1")
        sent = await client.call("SendMessage", pb.SendMessageRequest(messages=[message(TOPIC, b"one")]))
        assert sent.status.code == pb.OK
        [stored] = await admin.messages.by_id(TOPIC, "01ABC")
        asking = asyncio.ensure_future(admin.consumers.consume(GROUP, "client-1", stored.offset_message_id))
        asked = await stream.read()
        result = pb.VerifyMessageResult(nonce=asked.verify_message_command.nonce)
        failed = pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE)
        await stream.write(pb.TelemetryCommand(status=failed, verify_message_result=result))
        consumed = await asking

    assert asked.verify_message_command.message.body == b"one"
    assert consumed.consume_result == "CR_LATER"


async def test_client_that_has_left_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker forgets it at the next round of registrations."""
    async with shown_consumer(tmp_path, monkeypatch) as (proxy, admin):
        client = GrpcClient(proxy, "client-1")
        await client.telemetry(consumer_settings(GROUP, TOPIC))
        await until_shown(admin, "client-1")
        await client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=pb.Resource(name=GROUP)))

        async def is_gone() -> bool:
            return not await admin.consumers.connections(GROUP)

        await wait_until(is_gone, what="the end of the registration")


async def test_offsets_and_pulls_are_those_of_the_broker(tmp_path: Path) -> None:
    """A pull consumer reads a queue from an offset on, commits, and finds its commit again."""
    group = pb.Resource(name=GROUP)
    async with named_cluster(tmp_path) as (address, broker), running_proxy(address) as proxy:
        client = GrpcClient(proxy, "client-1")
        for number in range(5):
            sent = message(TOPIC, b"%d" % number, message_id=f"id-{number}")
            reply = await client.call("SendMessage", pb.SendMessageRequest(messages=[sent]))
            assert reply.status.code == pb.OK
        await wait_until(lambda: broker.core.readable_range(TOPIC, 0)[1] == 5)
        places = [
            await client.call("QueryOffset", pb.QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=policy))
            for policy in (pb.BEGINNING, pb.END)
        ]
        before = await client.call("GetOffset", pb.GetOffsetRequest(group=group, message_queue=QUEUE))
        pulled = await client.stream(
            "PullMessage", pb.PullMessageRequest(group=group, message_queue=QUEUE, offset=2, batch_size=2)
        )
        commit = pb.UpdateOffsetRequest(group=group, message_queue=QUEUE, offset=pulled[-1].next_offset)
        committed = await client.call("UpdateOffset", commit)
        after = await client.call("GetOffset", pb.GetOffsetRequest(group=group, message_queue=QUEUE))
        beyond = await client.stream(
            "PullMessage", pb.PullMessageRequest(group=group, message_queue=QUEUE, offset=9, batch_size=2)
        )

    assert [place.offset for place in places] == [0, 5]
    assert before.status.code == pb.OFFSET_NOT_FOUND
    assert [reply.WhichOneof("content") for reply in pulled] == ["status", "message", "message", "next_offset"]
    assert [reply.message.body for reply in pulled[1:-1]] == [b"2", b"3"]
    assert (committed.status.code, after.offset) == (pb.OK, 4)
    assert beyond[0].status.code == pb.ILLEGAL_OFFSET


async def test_stopping_proxy_asks_its_clients_to_reconnect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the port closes: a client that has moved by then loses no call."""
    monkeypatch.setattr("gantry_proxy.proxy.RECONNECT_S", 0.5)
    async with named_cluster(tmp_path) as (address, _), running_proxy(address) as proxy:
        client = GrpcClient(proxy, "client-1")
        stream = await client.telemetry(consumer_settings(GROUP, TOPIC))
        stopping = asyncio.ensure_future(proxy.drain())
        asked = await stream.read()
        heartbeat = await client.call("Heartbeat", pb.HeartbeatRequest(group=pb.Resource(name=GROUP)))
        await stopping

    assert asked.WhichOneof("command") == "reconnect_endpoints_command"
    assert heartbeat.status.code == pb.OK, "calls are served until the port closes"
