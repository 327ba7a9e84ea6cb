"""The client with an account: every request is signed, with both kinds of signature."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded_cluster import guarded_cluster

from gantry_client import (
    Admin,
    BrokerRefused,
    ClientSettings,
    ConsumerSettings,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestFailed,
    SendFailed,
    SignatureKind,
    StartFrom,
)
from gantry_testing.accounts import ADMIN, BILLING, ORDERS
from gantry_testing.local import GROUP, TOPIC, wait_until

KINDS = [SignatureKind.V1, SignatureKind.STRICT]


@pytest.mark.parametrize("kind", KINDS)
async def test_client_with_account_produces_consumes_and_administers(tmp_path: Path, kind: SignatureKind) -> None:
    """Routes, sends, heartbeats, rebalancing, pulls, offsets and administration pass the guard."""
    received: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        received.append(message.body)

    mode = "STRICT" if kind is SignatureKind.STRICT else "V1"
    async with guarded_cluster(tmp_path, mode) as (address, _):
        account = ClientSettings(credentials=ORDERS, signature=kind)
        first = ConsumerSettings(start_from=StartFrom.FIRST)
        consumer = PushConsumer(
            address, GROUP, topics={TOPIC: "*"}, handler=handle, settings=first, client_settings=account
        )
        async with Producer(address, client_settings=account) as producer, consumer:
            for number in range(5):
                await producer.send(Message(TOPIC, b"%d" % number))
            await wait_until(lambda: len(received) >= 6)
        assert sorted(received) == [b"0", b"1", b"2", b"3", b"4", b"first"]

        async with Admin(address, client_settings=ClientSettings(credentials=ADMIN, signature=kind)) as admin:
            assert TOPIC in await admin.topics.all()


@pytest.mark.parametrize("credentials", [None, BILLING], ids=["anonymous", "other account"])
async def test_denied_client_gets_the_refusal(tmp_path: Path, credentials: object) -> None:
    """The error has the code and text of the server; nothing is stored."""
    async with guarded_cluster(tmp_path) as (address, broker):
        before = broker.core.store.log.wrote
        account = ClientSettings(credentials=credentials)  # type: ignore[arg-type]
        async with Producer(address, client_settings=account) as producer:
            with pytest.raises((RequestFailed, SendFailed), match=r"16|No accessKey|No default permission"):
                await producer.send(Message(TOPIC, b"x"))
        async with Admin(address, client_settings=account) as admin:
            with pytest.raises(BrokerRefused) as caught:
                await admin.topics.all()
        assert caught.value.code == 16
        assert broker.core.store.log.wrote == before


async def test_v1_client_is_refused_by_strict_server(tmp_path: Path) -> None:
    """The default signature is RocketMQ's; a strict server names the kind that it accepts."""
    settings = ClientSettings(credentials=ADMIN)
    async with guarded_cluster(tmp_path, "STRICT") as (address, _), Admin(address, client_settings=settings) as admin:
        with pytest.raises(BrokerRefused, match="STRICT"):
            await admin.topics.all()


def test_settings_repr_contains_no_secret() -> None:
    """Logging the settings of a client reveals no secret."""
    assert "secret" not in repr(ClientSettings(credentials=ORDERS)).replace("secret_key", "")
