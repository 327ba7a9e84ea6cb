"""Our own client with an account: everything it says is signed, in both ways of signing."""

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
async def test_a_client_with_an_account_produces_consumes_and_administers(tmp_path: Path, kind: SignatureKind) -> None:
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


@pytest.mark.parametrize("credentials", [None, BILLING], ids=["nobody", "somebody else"])
async def test_a_client_that_may_not_is_told_so(tmp_path: Path, credentials: object) -> None:
    """The error is the server's refusal, with its code and text; nothing was stored."""
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


async def test_a_client_that_signs_as_v1_is_refused_by_a_strict_server(tmp_path: Path) -> None:
    """The default way of signing is RocketMQ's, and a strict server says which one it takes."""
    settings = ClientSettings(credentials=ADMIN)
    async with guarded_cluster(tmp_path, "STRICT") as (address, _), Admin(address, client_settings=settings) as admin:
        with pytest.raises(BrokerRefused, match="STRICT"):
            await admin.topics.all()


def test_settings_show_no_secret() -> None:
    """Whoever logs a client's settings logs no secret."""
    assert "secret" not in repr(ClientSettings(credentials=ORDERS)).replace("secret_key", "")
