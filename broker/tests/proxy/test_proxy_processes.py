"""Proxies as processes in front of a real broker: kills, drains, TLS, and every kind of message over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from google.protobuf.duration_pb2 import Duration
from named_cluster import TOPIC, named_cluster
from proxy_world import consumer_settings, message, producer_settings

from gantry_client import Admin
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.service import SERVICE
from gantry_testing.certificates import Party
from gantry_testing.local import wait_until
from gantry_wire.commands.admin import SubscriptionGroupConfig

GROUP = "billing"
READY = "proxy listening on "
TIMEOUT_S = 120.0
INVISIBLE_S = 2
"""How long a message that is not acknowledged stays away; an ack that takes longer has no effect."""
RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
"""What SDKs repeat: a call whose connection is lost, or that a server has not begun."""


class ProxyProcess:
    """One proxy as a process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def running_proxy(folder: Path, name_server: str, processes: int = 1, **more: Any) -> AsyncIterator[ProxyProcess]:
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    document: dict[str, Any] = {
        "nameServers": [name_server],
        "listen": {
            "address": "127.0.0.1:0", "httpAddress": "127.0.0.1:0", "drainDelayMs": 100, "graceMs": 30_000,
            "processes": processes,
        },
        "limits": {"pollMsMin": 100},
        **more,
    }  # fmt: skip
    conf = folder / "proxy.yaml"
    await asyncio.to_thread(conf.write_text, json.dumps(document))
    with await asyncio.to_thread((folder / "log").open, "wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gantry_proxy", "--config", conf, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith(READY), (folder / "log").read_text()
        yield ProxyProcess(process, int(line.strip().rpartition(":")[2]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Sdk:
    """A client with the endpoints of several proxies, which repeats a call whose connection failed, as SDKs do."""

    def __init__(
        self, *proxies: ProxyProcess, credentials: grpc.ChannelCredentials | None = None, number: int = 0
    ) -> None:
        """SDKs with different numbers have different connections."""
        target = "ipv4:" + ",".join(proxy.target for proxy in proxies)
        options: list[tuple[str, str | int]] = [
            ("grpc.lb_policy_name", "round_robin"), ("grpc.ssl_target_name_override", "localhost"),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100), ("number", number),
        ]  # fmt: skip
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self.channel = grpc.aio.secure_channel(target, credentials, options=options)
        self.failed = 0
        """How many calls failed at least once."""

    def method(self, name: str, kind: str = "unary_unary") -> Any:
        found = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
        request, reply = getattr(pb, found.input_type.name), getattr(pb, found.output_type.name)
        return getattr(self.channel, kind)(
            f"/{SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )

    async def call(self, name: str, request: Any, client_id: str) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    return await self.method(name)(request, metadata=(("x-mq-client-id", client_id),), timeout=30)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in RETRIED:
                        raise
                    self.failed += 1
                    await asyncio.sleep(0.05)

    async def telemetry(self, settings: pb.Settings, client_id: str) -> Any:
        stream = self.method("Telemetry", "stream_stream")(metadata=(("x-mq-client-id", client_id),))
        await stream.write(pb.TelemetryCommand(settings=settings))
        async with asyncio.timeout(TIMEOUT_S):
            reply = await stream.read()
        assert reply.status.code == pb.OK
        return stream

    async def send(self, number: int, **system: Any) -> pb.SendResultEntry:
        sent = message(TOPIC, f"body {number}".encode(), **{"message_id": f"id-{number}", **system})
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                reply = await self.call("SendMessage", pb.SendMessageRequest(messages=[sent]), "producer-1")
                if reply.status.code == pb.OK:
                    return reply.entries[0]  # type: ignore[no-any-return]
                assert reply.status.code in (pb.HA_NOT_AVAILABLE, pb.PROXY_TIMEOUT), reply.status

    async def receive(self, count: int, *, auto_renew: bool = True, invisible_s: int = 15) -> list[pb.Message]:
        """Receive until there are this many messages, at least once, without acknowledging them."""
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=GROUP), batch_size=32, auto_renew=auto_renew,
            invisible_duration=Duration(seconds=invisible_s), long_polling_timeout=Duration(nanos=200_000_000),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=TOPIC), id=-1, broker=pb.Broker(name="test-broker")),
        )  # fmt: skip
        found: list[pb.Message] = []
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                metadata = (("x-mq-client-id", "consumer-1"),)
                call = self.method("ReceiveMessage", "unary_stream")(request, metadata=metadata, timeout=40)
                found += [reply.message async for reply in call if reply.WhichOneof("content") == "message"]
                if len(found) >= count:
                    return found

    async def ack(self, messages: list[pb.Message]) -> pb.AckMessageResponse:
        return await self.call("AckMessage", ack_request(messages), "consumer-1")  # type: ignore[no-any-return]


def ack_request(messages: list[pb.Message]) -> pb.AckMessageRequest:
    entries = [
        pb.AckMessageEntry(
            message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
        )
        for one in messages
    ]
    return pb.AckMessageRequest(group=pb.Resource(name=GROUP), topic=pb.Resource(name=TOPIC), entries=entries)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[str]:
    async with named_cluster(folder / "cluster") as (address, _), Admin(address) as admin:
        await admin.groups.create(SubscriptionGroupConfig(group_name=GROUP))
        yield address


async def consumed(sdk: Sdk, numbers: range) -> list[pb.Message]:
    """Start a consumer, send messages, and receive them."""
    await sdk.telemetry(consumer_settings(GROUP, TOPIC), "consumer-1")
    await sdk.receive(0)  # a new group begins at the newest message of each queue
    await sdk.telemetry(producer_settings(TOPIC), "producer-1")
    for number in numbers:
        await sdk.send(number)
    return await sdk.receive(len(numbers))


async def test_receipt_of_one_replica_works_at_another(tmp_path: Path) -> None:
    """Messages received through one proxy are acknowledged through the other, and never delivered again."""
    async with (
        cluster(tmp_path) as address,
        running_proxy(tmp_path / "a", address) as first,
        running_proxy(tmp_path / "b", address) as second,
    ):
        one, other = Sdk(first), Sdk(second)
        messages = await consumed(one, range(10))
        reply = await other.ack(messages)
        await one.telemetry(consumer_settings(GROUP, TOPIC), "consumer-1")
        await one.send(10)
        after = await one.receive(1)

    assert {entry.status.code for entry in reply.entries} == {pb.OK}
    assert sorted(found.body for found in messages) == sorted(f"body {number}".encode() for number in range(10))
    assert [found.body for found in after] == [b"body 10"]


@pytest.mark.parametrize("processes", [1, 2])
async def test_drained_proxy_moves_its_clients_to_the_other_endpoint(tmp_path: Path, processes: int) -> None:
    """SIGTERM during a stream of sends: each send succeeds, the stream ends, and the process ends with code 0."""
    async with (
        cluster(tmp_path) as address,
        running_proxy(tmp_path / "a", address, processes) as first,
        running_proxy(tmp_path / "b", address) as second,
    ):
        sdk, bound = Sdk(first, second), Sdk(first)
        stream = await bound.telemetry(producer_settings(TOPIC), "producer-1")
        sent, is_ended = 0, asyncio.Event()

        async def keep_sending() -> None:
            nonlocal sent
            while not is_ended.is_set():
                await sdk.send(sent)
                sent += 1

        sending = [asyncio.ensure_future(keep_sending()) for _ in range(8)]
        await wait_until(lambda: sent >= 50)
        first.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await stream.read() is not grpc.aio.EOF:
                pass
        async with asyncio.timeout(TIMEOUT_S):
            code = await first.process.wait()
        at_the_end = sent
        await wait_until(lambda: sent >= at_the_end + 50)
        is_ended.set()
        await asyncio.gather(*sending)

    assert code == 0
    assert sdk.failed <= len(sending), "more calls failed than were running at one moment"


@pytest.mark.parametrize("processes", [1, 2])
async def test_killed_proxy_loses_no_acknowledged_message(tmp_path: Path, processes: int) -> None:
    """kill -9 under load: what was acknowledged to the producer is delivered through the other proxy."""
    async with (
        cluster(tmp_path) as address,
        running_proxy(tmp_path / "a", address, processes) as first,
        running_proxy(tmp_path / "b", address) as second,
    ):
        sdk, other = Sdk(first, second), Sdk(second)
        await other.telemetry(consumer_settings(GROUP, TOPIC), "consumer-1")
        await other.receive(0)

        async def send(numbers: range) -> None:
            for number in numbers:
                await sdk.send(number)

        sending = [asyncio.ensure_future(send(range(start, 200, 4))) for start in range(4)]
        while not sdk.failed and not all(one.done() for one in sending):
            await asyncio.sleep(0.05)
            if first.process.returncode is None:
                first.process.kill()
                await first.process.wait()
        await asyncio.gather(*sending)
        bodies: set[bytes] = set()
        async with asyncio.timeout(TIMEOUT_S):
            while len(bodies) < 200:
                found = await other.receive(1)
                bodies |= {one.body for one in found}
                await other.ack(found)

    assert bodies == {f"body {number}".encode() for number in range(200)}


async def test_killed_proxy_redelivers_no_acknowledged_message(tmp_path: Path) -> None:
    """kill -9 during acknowledgements: a message whose ack had a reply in time is never delivered again, others are."""
    limits = {"pollMsMin": 100, "invisibleMsMin": 1_000}
    async with (
        cluster(tmp_path) as address,
        running_proxy(tmp_path / "a", address, limits=limits) as first,
        running_proxy(tmp_path / "b", address, limits=limits) as second,
    ):
        one, other = Sdk(first), Sdk(second)
        for sdk in (one, other):
            await sdk.telemetry(consumer_settings(GROUP, TOPIC), "consumer-1")
        await one.receive(0)
        for number in range(60):
            await one.send(number)
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + INVISIBLE_S
        found = {message.body: message for message in await one.receive(60, auto_renew=False, invisible_s=INVISIBLE_S)}
        acked: set[bytes] = set()
        in_doubt: set[bytes] = set()

        async def acknowledge(messages: list[pb.Message]) -> None:
            for message in messages:
                in_doubt.add(message.body)
                try:
                    reply = await one.method("AckMessage")(
                        ack_request([message]), metadata=(("x-mq-client-id", "consumer-1"),), timeout=30
                    )
                except grpc.aio.AioRpcError:
                    return
                if reply.entries[0].status.code == pb.OK and loop.time() < expires_at:
                    acked.add(message.body)

        queued = list(found.values())
        acking = [asyncio.ensure_future(acknowledge(queued[start::4])) for start in range(4)]
        await wait_until(lambda: len(acked) >= 10 or all(task.done() for task in acking))
        first.process.kill()
        await asyncio.gather(*acking)
        again: set[bytes] = set()
        while len(in_doubt | again) < 60:
            again |= {message.body for message in await other.receive(1, auto_renew=False, invisible_s=60)}
        rest = await other.receive(0, auto_renew=False, invisible_s=60)

    assert acked
    assert not acked & (again | {message.body for message in rest})
    assert found.keys() - in_doubt <= again, "a message that was never acknowledged is delivered again"


async def test_tls_uses_replaced_certificates(tmp_path: Path) -> None:
    """A client that trusts only the new authority connects after the files changed, without a restart."""
    old, new = trustme.CA(), trustme.CA()
    party = Party(tmp_path / "tls", old)
    tls = {"certificate": str(party.chain), "key": str(party.key)}
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, tls=tls) as proxy:
        before = Sdk(proxy, credentials=grpc.ssl_channel_credentials(old.cert_pem.bytes()))
        assert (await before.send(1)).message_id == "id-1"
        party.replace(new)
        after = Sdk(proxy, credentials=grpc.ssl_channel_credentials(new.cert_pem.bytes()))
        receipt = await after.send(2)

    assert receipt.message_id == "id-2"


async def test_plain_text_client_of_a_tls_port_is_refused(tmp_path: Path) -> None:
    """The twin of the test above: without TLS no call succeeds."""
    party = Party(tmp_path / "tls", trustme.CA())
    tls = {"certificate": str(party.chain), "key": str(party.key)}
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, tls=tls) as proxy:
        plain = Sdk(proxy)
        request = pb.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        try:
            await plain.method("QueryRoute")(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            code = error.code()

    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
