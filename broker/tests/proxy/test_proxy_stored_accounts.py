"""A proxy in front of a broker that stores users: changes by mqadmin's requests, revocations, and its own account."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from guarded_cluster import guarded_cluster
from proxy_client import GrpcClient, running_proxy
from proxy_clusters import PROXY, stored_cluster, write_own_account
from proxy_world import consumer_settings, message, producer_settings

from gantry_access import Credentials
from gantry_broker.app import Broker
from gantry_proxy import broker_accounts
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.proxy import Proxy
from gantry_testing.accounts import ADMIN, ORDERS, SUPER, signed_dialogue
from gantry_testing.client import wait_until
from gantry_testing.local import GROUP, TOPIC
from gantry_wire.fastjson import dumps

ALICE = ("alice", "alice-secret")
Cluster = tuple[str, Broker]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with stored_cluster(tmp_path) as (address, broker, _):
        yield address, broker


def access(folder: Path, own: Credentials = SUPER) -> dict[str, str]:
    file = folder / "own.yml"
    write_own_account(file, own)
    return {"accountsSource": "brokers", "credentialsFile": str(file)}


async def change(broker: Broker, code: int, header: dict[str, str], body: object = None) -> None:
    """Send a request of mqadmin as the administrator."""
    async with signed_dialogue(broker, SUPER) as root:
        reply = await root.ask(code, header, b"" if body is None else dumps(body))
        assert reply.code == 0, reply.remark


async def create_alice(broker: Broker, **rules: list[str]) -> None:
    await change(broker, 3001, {"username": "alice"}, {"username": "alice", "password": "alice-secret"})
    entries = [{"resource": f"Topic:{one}", "actions": rules[one], "decision": "Allow"} for one in rules]
    if entries:
        subject = {"subject": "User:alice"}
        await change(broker, 3006, subject, {**subject, "policies": [{"entries": entries}]})


async def send(proxy: Proxy, account: tuple[str, str] = ALICE, topic: str = TOPIC) -> pb.Code:
    client = GrpcClient(proxy, "producer-1", account)
    reply = await client.call("SendMessage", pb.SendMessageRequest(messages=[message(topic)]))
    return reply.status.code  # type: ignore[no-any-return]


async def test_created_user_sends_through_the_proxy(cluster: Cluster, tmp_path: Path) -> None:
    """The proxy has no file of accounts: it verifies the password, and checks the policies that the broker stores."""
    address, broker = cluster
    async with running_proxy(address, access=access(tmp_path)) as proxy:
        before = await send(proxy)
        await create_alice(broker, **{TOPIC: ["Pub"]})

        async def is_known() -> bool:
            return await send(proxy) == pb.OK

        await wait_until(is_known, what="the new user")
        end = broker.core.store.log.wrote
        forged, foreign = await send(proxy, ("alice", "other-secret")), await send(proxy, topic="Billing")
        consumer = GrpcClient(proxy, "consumer-1", ALICE)
        stream = consumer.method("Telemetry", "stream_stream")(metadata=consumer.metadata)
        await stream.write(pb.TelemetryCommand(settings=consumer_settings(GROUP, TOPIC)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()

    assert (before, forged, foreign) == (pb.UNAUTHORIZED, pb.UNAUTHORIZED, pb.FORBIDDEN)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert broker.core.store.log.wrote == end


@pytest.mark.parametrize("is_limited", [True, False])
async def test_deleted_user_is_refused_and_disconnected(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_limited: bool
) -> None:
    """Within the age of accounts. The twin keeps accounts for ever, and serves the deleted user."""
    monkeypatch.setattr(broker_accounts, "REFRESH_MS", 20 if is_limited else 10**9)
    monkeypatch.setattr(broker_accounts, "AGE_MS_MAX", 20 if is_limited else 10**9)
    monkeypatch.setattr("gantry_proxy.proxy.CONFIRM_INTERVAL_MS", 20)
    address, broker = cluster
    await create_alice(broker, **{TOPIC: ["Pub"]})
    async with running_proxy(address, access=access(tmp_path)) as proxy:
        assert await send(proxy) == pb.OK
        stream = await GrpcClient(proxy, "producer-2", ALICE).telemetry(producer_settings(TOPIC))
        await change(broker, 3003, {"username": "alice"})
        if not is_limited:
            assert await send(proxy) == pb.OK
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()

        async def is_refused() -> bool:
            return await send(proxy) == pb.UNAUTHORIZED

        await wait_until(is_refused, what="the refusal of the deleted user")
        client = GrpcClient(proxy, "producer-2", ALICE)
        with pytest.raises(grpc.aio.AioRpcError) as again:  # refused with its headers, so nothing is written
            await client.method("Telemetry", "stream_stream")(metadata=client.metadata).read()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert again.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_settings_on_an_open_stream_need_a_present_account(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """The call was authenticated when it began. The twin, whose user still exists, changes its settings."""
    monkeypatch.setattr(broker_accounts, "AGE_MS_MAX", 0)
    monkeypatch.setattr("gantry_proxy.proxy.CONFIRM_INTERVAL_MS", 10**9)
    address, broker = cluster
    await create_alice(broker, **{TOPIC: ["Pub"]})
    async with running_proxy(address, access=access(tmp_path)) as proxy:
        stream = await GrpcClient(proxy, "producer-2", ALICE).telemetry(producer_settings(TOPIC))
        if is_deleted:
            await change(broker, 3003, {"username": "alice"})
        await stream.write(pb.TelemetryCommand(settings=producer_settings(TOPIC)))
        if not is_deleted:
            assert (await stream.read()).status.code == pb.OK
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()

    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("own", [PROXY, SUPER, Credentials("proxy-user", "wrong-secret")])
async def test_proxy_without_the_right_to_read_passwords_gives_no_access(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, own: Credentials
) -> None:
    """Neither an ordinary account nor one with a wrong password lets a client in, and the log has the remedy."""
    address, broker = cluster
    await create_alice(broker, **{TOPIC: ["Pub"]})
    if own == PROXY:
        rule = {"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"}
        subject = {"subject": f"User:{PROXY.access_key}"}
        await change(broker, 3006, subject, {**subject, "policies": [{"entries": [rule]}]})
    async with running_proxy(address, access=access(tmp_path, own)) as proxy:
        found = await send(proxy)

    assert found == (pb.OK if own == SUPER else pb.HA_NOT_AVAILABLE)
    reasons = [
        str(one.__dict__.get("reason")) for one in caplog.records if one.getMessage().startswith("cannot read acc")
    ]
    assert [("type Super" in one, "Check signature failed" in one) for one in reasons] == {
        PROXY: [(True, False)], SUPER: [],
    }.get(own, [(False, True)])  # fmt: skip


async def test_broker_with_a_file_of_accounts_gives_no_access(tmp_path: Path) -> None:
    """Its accounts have no passwords for the proxy, which needs the file, too."""
    async with guarded_cluster(tmp_path) as (address, _):
        settings: dict[str, Any] = access(tmp_path, ADMIN)
        async with running_proxy(address, access=settings) as proxy:
            assert await send(proxy, (ORDERS.access_key, ORDERS.secret_key)) == pb.HA_NOT_AVAILABLE
