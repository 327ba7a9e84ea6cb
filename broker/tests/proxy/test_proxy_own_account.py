"""The proxy's own account at brokers with access control: what it needs, and how it is renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from guarded_cluster import guarded_cluster
from proxy_client import GrpcClient, running_proxy
from proxy_clusters import access_settings, file_cluster, stored_cluster, write_own_account
from proxy_world import consumer_settings, message, producer_settings

from gantry_access import Credentials
from gantry_broker.app import Broker
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.proxy import Proxy
from gantry_testing.accounts import ACCOUNTS, ADMIN, ORDERS, signed_dialogue, write_accounts
from gantry_testing.client import wait_until
from gantry_testing.local import GROUP, TOPIC
from gantry_wire.codes import ResponseCode
from gantry_wire.commands.admin import CreateTopic
from gantry_wire.fastjson import dumps

CLIENTS = """\
accounts:
  - {accessKey: sdk-orders, secretKey: sdk-orders-secret, topicPerms: [TopicTest=PUB|SUB], groupPerms: [GroupTest=SUB]}
  - {accessKey: sdk-other, secretKey: sdk-other-secret, topicPerms: [Billing=SUB]}
"""
ALLOWED = ("sdk-orders", "sdk-orders-secret")
DENIED = ("sdk-other", "sdk-other-secret")


async def make_ordered(broker: Broker, administrator: Credentials) -> None:
    """Give the topic the type FIFO, and the group ordered consumption."""
    topic = CreateTopic(
        topic=TOPIC, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG", order=False, attributes="+message.type=FIFO",
    )  # fmt: skip
    async with signed_dialogue(broker, administrator) as admin:
        assert (await admin.ask(17, topic.write())).code == 0
        group = {"groupName": GROUP, "consumeMessageOrderly": True}
        assert (await admin.ask(200, body=dumps(group))).code == 0


async def send(proxy: Proxy, account: tuple[str, str], **system: Any) -> pb.Code:
    client = GrpcClient(proxy, "producer-1", account)
    reply = await client.call("SendMessage", pb.SendMessageRequest(messages=[message(TOPIC, **system)]))
    return reply.status.code  # type: ignore[no-any-return]


ORDERED: dict[str, Any] = {"message_type": pb.FIFO, "message_group": "one"}


@pytest.mark.parametrize("cluster", [file_cluster, stored_cluster])
async def test_ordinary_account_reads_types_and_group_settings(tmp_path: Path, cluster: Any) -> None:
    """An account with permissions for topic and group suffices: the proxy need not be an administrator."""
    async with cluster(tmp_path) as (address, broker, administrator):
        await make_ordered(broker, administrator)
        async with running_proxy(address, access=access_settings(tmp_path, CLIENTS)) as proxy:
            wrong, right = await send(proxy, ALLOWED), await send(proxy, ALLOWED, **ORDERED)
            consumer = GrpcClient(proxy, "consumer-1", ALLOWED)
            stream = consumer.method("Telemetry", "stream_stream")(metadata=consumer.metadata)
            await stream.write(pb.TelemetryCommand(settings=consumer_settings(GROUP, TOPIC)))
            settings = (await stream.read()).settings

    assert wrong == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the type of the topic was read"
    assert (right, settings.subscription.fifo) == (pb.OK, True)


@pytest.mark.parametrize("cluster", [file_cluster, stored_cluster])
async def test_client_without_permission_reaches_no_broker(tmp_path: Path, cluster: Any) -> None:
    """The proxy's account may do more than one client: the proxy checks each client itself."""
    async with (
        cluster(tmp_path) as (address, broker, _),
        running_proxy(address, access=access_settings(tmp_path, CLIENTS)) as proxy,
    ):
        before = broker.core.store.log.wrote
        denied = await send(proxy, DENIED)
        forged = await send(proxy, (ALLOWED[0], "another-secret"))
        after = broker.core.store.log.wrote
        allowed = await send(proxy, ALLOWED)
        producer = GrpcClient(proxy, "producer-1", DENIED)
        stream = producer.method("Telemetry", "stream_stream")(metadata=producer.metadata)
        await stream.write(pb.TelemetryCommand(settings=producer_settings(TOPIC)))
        with pytest.raises(Exception, match="permission"):
            await stream.read()

    assert (denied, forged, allowed) == (pb.FORBIDDEN, pb.UNAUTHORIZED, pb.OK)
    assert after == before


@pytest.mark.parametrize("is_renewed", [True, False])
@pytest.mark.parametrize("signature", ["v1", "strict"])
async def test_renewed_own_account_needs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signature: str, *, is_renewed: bool
) -> None:
    """After the file has changed, requests on open connections are signed with the new account.

    The twin keeps the old account in the file: then the brokers, which do not know it any more, refuse its requests.
    """
    monkeypatch.setattr("gantry_proxy.proxy.OWN_ACCOUNT_INTERVAL_MS", 20)
    async with guarded_cluster(tmp_path) as (address, broker):
        access = {**access_settings(tmp_path, CLIENTS, ORDERS), "signature": signature}
        async with running_proxy(address, access=access) as proxy:
            assert await send(proxy, ALLOWED) == pb.OK
            if is_renewed:
                write_own_account(Path(access["credentialsFile"]), ADMIN)
            without_orders = "accounts:\n" + ACCOUNTS[ACCOUNTS.index("  - accessKey: billing-key") :]
            write_accounts(tmp_path / "plain_acl.yml", without_orders)
            wanted = pb.OK if is_renewed else pb.FORBIDDEN

            async def is_removed() -> bool:
                async with signed_dialogue(broker, ORDERS) as orders:
                    return (await orders.send()).code != ResponseCode.SUCCESS

            async def is_as_wanted() -> bool:
                return await send(proxy, ALLOWED) == wanted

            await wait_until(is_removed, what="the removal of the old account")
            await wait_until(is_as_wanted, what=f"the answer {wanted}")
