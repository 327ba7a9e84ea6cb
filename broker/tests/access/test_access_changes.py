"""Row S6 of the fault catalogue (`faults/rows.py`) over time: replays, strict servers, accounts that change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_access import AccountFile, Credentials, SignatureKind, signer
from gantry_broker.app import Broker
from gantry_remoting import Channel
from gantry_testing.accounts import (
    ACCOUNTS,
    ADMIN,
    ORDERS,
    fill_topics,
    guarded_broker,
    protected_state,
    raw_dialogue,
    signed_dialogue,
    write_accounts,
)
from gantry_testing.local import TOPIC, dialogue, wait_until
from gantry_wire import Command, ResponseCode

DENIED = ResponseCode.NO_PERMISSION
V1, STRICT = SignatureKind.V1, SignatureKind.STRICT


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A guarded broker that has the topics of both accounts, with a message in each."""
    async with guarded_broker(tmp_path) as one:
        await fill_topics(one)
        yield one


# ------- replays


class Recorder:
    """A signer that keeps the signed commands."""

    def __init__(self, kind: SignatureKind, **options: Any) -> None:
        sign = signer(ORDERS, kind, **options)
        assert sign is not None
        self._sign = sign
        self.signed_commands: list[Command] = []

    def __call__(self, command: Command) -> None:
        self._sign(command)
        copy = Command(code=command.code, opaque=command.opaque, flag=command.flag, ext=dict(command.ext))
        copy.body = command.body
        self.signed_commands.append(copy)


async def replay(broker: Broker, command: Command, **changes: Any) -> Command:
    """Replay a recorded command on the connection of another client."""
    again = Command(code=command.code, opaque=command.opaque, flag=command.flag, ext=command.ext, body=command.body)
    for name, value in changes.items():
        setattr(again, name, value)
    channel = await Channel.connect(f"127.0.0.1:{broker.port}")
    try:
        return await channel.request(again, 30_000)
    finally:
        await channel.close()


async def test_strictly_signed_request_cannot_be_replayed(broker: Broker) -> None:
    """S6: neither on another connection nor with another code or number; nothing is stored."""
    recorder = Recorder(STRICT)
    async with raw_dialogue(broker, recorder) as client:
        assert (await client.send()).code == 0
        assert (await client.send()).code == 0
    before = protected_state(broker)
    first, last = recorder.signed_commands

    for command in (first, last):
        assert (await replay(broker, command)).code == DENIED
    assert (await replay(broker, last, code=320)).code == DENIED
    assert (await replay(broker, last, ext={**last.ext, "GantryNumber": "3"})).code == DENIED
    assert protected_state(broker) == before


async def test_v1_signed_request_can_be_replayed(broker: Broker) -> None:
    """S6's twin, and a documented weakness of RocketMQ's scheme: v1 signs neither time nor number."""
    recorder = Recorder(V1)
    async with raw_dialogue(broker, recorder) as client:
        assert (await client.send()).code == 0
    before = protected_state(broker)

    assert (await replay(broker, recorder.signed_commands[0])).code == 0
    assert protected_state(broker)[0] > before[0]


@pytest.mark.parametrize("shift_ms", [-61_000, 61_000, -3_600_000])
async def test_strict_request_outside_time_window_is_denied(broker: Broker, shift_ms: int) -> None:
    """S6: a clock that deviates by more than the window is reported, even if the signature is valid."""
    now = broker.core.clock.wall_ms()
    recorder = Recorder(STRICT, now_ms=lambda: now + shift_ms)

    async with raw_dialogue(broker, recorder) as client:
        reply = await client.send()

    assert reply.code == DENIED and "clock" in (reply.remark or "")


async def test_strict_mode_denies_v1_signatures(tmp_path: Path) -> None:
    """S6: aclMode=STRICT denies v1 signatures, also of plain sends, for which the fast path is off then."""
    async with guarded_broker(tmp_path, aclMode="STRICT") as broker:
        async with signed_dialogue(broker, ADMIN, STRICT) as admin:
            await admin.send_ok()
        before = protected_state(broker)
        async with signed_dialogue(broker, ORDERS, V1) as client:
            assert (await client.send()).code == DENIED
            assert (await client.pull()).code == DENIED
        assert protected_state(broker) == before
        async with signed_dialogue(broker, ORDERS, STRICT) as client:
            assert (await client.send()).code == 0
            assert len(await client.read()) == 2


# ------- changes of the file


async def test_changed_accounts_apply_to_open_connections(tmp_path: Path) -> None:
    """S6: once a new file is loaded, it applies to open connections, too; a broken file changes nothing."""
    path = tmp_path / "plain_acl.yml"
    async with (
        guarded_broker(tmp_path) as broker,
        signed_dialogue(broker, ORDERS) as orders,
        signed_dialogue(broker, ADMIN) as admin,
    ):
        await admin.send_ok()
        assert broker.guard is not None
        file = broker.guard.source
        assert isinstance(file, AccountFile)
        assert (await orders.send()).code == 0

        write_accounts(path, ACCOUNTS.replace("TopicTest=PUB|SUB", "TopicTest=SUB"))
        await wait_until(lambda: not file.accounts.by_key["orders-key"].topic_permission(TOPIC) & 1)
        assert (await orders.send()).code == DENIED
        assert (await orders.pull()).code == 0

        write_accounts(path, "accounts: nonsense\n")
        await wait_until(lambda: file.fault is not None)
        assert (await orders.pull()).code == 0 and (await admin.send()).code == 0

        write_accounts(path, ACCOUNTS.replace("orders-secret", "another-secret"))
        await wait_until(lambda: file.fault is None)
        assert (await orders.pull()).code == DENIED
        async with signed_dialogue(broker, Credentials("orders-key", "another-secret")) as renewed:
            assert (await renewed.send()).code == 0


async def test_replaced_kubernetes_secret_is_reloaded(tmp_path: Path) -> None:
    """S6: a mounted Secret changes by moving the link `..data`, which is detected like any other change."""
    for name, text in (("one", ACCOUNTS), ("two", ACCOUNTS.replace("orders-secret", "another-secret"))):
        (tmp_path / name).mkdir()
        write_accounts(tmp_path / name / "plain_acl.yml", text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "mounted.yml").symlink_to("..data/plain_acl.yml")
    async with guarded_broker(tmp_path, aclFile=str(tmp_path / "mounted.yml")) as broker:
        assert broker.guard is not None
        file = broker.guard.source

        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(tmp_path / "..data")

        await wait_until(lambda: file.accounts.by_key["orders-key"].secret == b"another-secret")


async def test_trusted_address_needs_no_signature(tmp_path: Path) -> None:
    """S6: as in RocketMQ, for peers that the file lists; but peers of an account have only its permissions."""
    path = tmp_path / "other.yml"
    write_accounts(path, ACCOUNTS.replace("    defaultTopicPerm: DENY\n", "    whiteRemoteAddress: 127.0.0.*\n"))
    async with guarded_broker(tmp_path, aclFile=str(path)) as broker:
        broker_state = protected_state(broker)
        async with raw_dialogue(broker, lambda command: command.ext.update(AccessKey="orders-key")) as client:
            assert (await client.send(topic="Billing")).code == DENIED
            assert protected_state(broker) == broker_state
            assert (await client.send()).code == 0

        write_accounts(path, "globalWhiteRemoteAddresses:\n  - 127.0.0.1\n" + ACCOUNTS)
        assert broker.guard is not None
        file = broker.guard.source
        await wait_until(lambda: bool(file.accounts.trusted_addresses))
        async with dialogue(broker) as client:
            assert (await client.send(topic="Billing")).code == 0
