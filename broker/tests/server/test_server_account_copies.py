"""Users and policies on slaves: an answered change is on them, survives a failover, and is made at the master only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_server_account_changes import ALICE, allow, create_user, put_acl, send_as, update_user
from test_server_roles import SYNC, UNASSIGNED, Group, running_group, wait_until_copied, wait_until_following

from gantry_access import Credentials
from gantry_broker.app import Broker
from gantry_broker.ha.master_session import MasterSession
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.store.config_file import ConfigFile
from gantry_testing.accounts import FIRST_USER, SUPER, signed_dialogue
from gantry_testing.local import TOPIC, wait_until
from gantry_wire.fastjson import dumps

SECRET = "secret of the group"


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[Group]:
    (tmp_path / "secret").write_text(SECRET)
    async with running_group(tmp_path) as one:
        yield one


def conf(tmp_path: Path) -> dict[str, str]:
    return {**FIRST_USER, "haSecretPath": str(tmp_path / "secret")}


async def start_pair(members: Group, tmp_path: Path, **more: str) -> tuple[Broker, Broker]:
    """Start a master and its electable slave."""
    settings = {**UNASSIGNED, **conf(tmp_path), **more}
    master = await members.start("one", **settings, brokerId="1")
    slave = await members.start("two", **settings, brokerId="2")
    await master.orders.promote(10, [2], False)
    await slave.orders.follow(10, master.settings.ha_address)
    await wait_until_following(master, 2)
    return master, slave


async def fail_over(slave: Broker) -> None:
    await slave.orders.promise(11, "test")
    await slave.orders.promote(11, [], False)


@pytest.mark.parametrize("mode", [SYNC, {}], ids=["sync", "async"])
async def test_promoted_slave_has_the_answered_changes(members: Group, tmp_path: Path, mode: dict[str, str]) -> None:
    """In sync mode at the answer; in async mode when the slave has the log up to the record of the change."""
    master, slave = await start_pair(members, tmp_path, **mode)
    async with signed_dialogue(master, SUPER) as root:
        await root.send_ok()
        assert (await create_user(root)).code == 0
        assert (await put_acl(root, allow(f"Topic:{TOPIC}", "Pub"))).code == 0
    if not mode:
        await wait_until_copied(master, slave)
    config = tmp_path / "two" / "config"
    assert b"alice-secret" in (config / "accounts.json").read_bytes(), "expected it on the slave's disk at the answer"
    await fail_over(slave)
    assert await send_as(slave, ALICE) in (0, 11)
    assert await send_as(slave, ALICE, "Another") == 16


async def test_joining_slave_gets_all_users(members: Group, tmp_path: Path) -> None:
    """Its own first user is replaced by the users of the master."""
    master = await members.start("one", **UNASSIGNED, **conf(tmp_path), brokerId="1")
    await master.orders.promote(10, [], False)
    async with signed_dialogue(master, SUPER) as root:
        await create_user(root, userType="Super")
    async with signed_dialogue(master, ALICE) as alice:
        await alice.ask(3003, {"username": "root"})
    slave = await members.start("two", **UNASSIGNED, **conf(tmp_path), brokerId="2")
    assert await send_as(slave, SUPER) == 14, "expected the role to be missing, not the user"
    await slave.orders.follow(10, master.settings.ha_address)
    await wait_until_following(master, 2)
    await wait_until(lambda: slave.core.accounts is not None and "alice" in slave.core.accounts.tables.users)
    assert await send_as(slave, SUPER) == 16
    assert await send_as(slave, ALICE) == 14


async def test_slave_accepts_no_change_of_its_own(members: Group, tmp_path: Path) -> None:
    """It answers 0 for a change that it has from its master, so that mqadmin may ask masters and slaves in turn."""
    master, slave = await start_pair(members, tmp_path, **SYNC)
    alice = dumps({"password": "alice-secret"})
    async with signed_dialogue(master, SUPER) as root, signed_dialogue(slave, SUPER) as at_slave:
        refused = await at_slave.ask(3001, {"username": "alice"}, alice)
        assert (refused.code, "execute it from master" in (refused.remark or "")) == (1, True)
        requests = [
            (3001, {"username": "alice"}, alice),
            (3006, {"subject": "User:alice"}, dumps({"policies": [{"entries": [allow("*", "All")]}]})),
            (3002, {"username": "alice"}, dumps({"userStatus": "disable"})),
            (3008, {"subject": "User:alice"}, b""),
            (3003, {"username": "alice"}, b""),
        ]
        for code, ext, body in requests:
            assert (await root.ask(code, ext, body)).code == 0, code
            assert (await at_slave.ask(code, ext, body)).code == 0, code
        other = await at_slave.ask(3001, {"username": "bob"}, dumps({"password": "bob-secret"}))
        assert other.code == 1
    assert slave.core.accounts is not None
    assert set(slave.core.accounts.tables.users) == {"root"}


@pytest.mark.parametrize("is_limited", [True, False], ids=["waits", "does not wait, the twin"])
async def test_answer_waits_for_the_disk_of_the_slave(
    members: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    """A slave acknowledges the record of a change only when it has the change in its file."""
    may_write = threading.Event()
    save = ConfigFile.save

    def save_late(file: ConfigFile, document: dict[str, object]) -> None:
        if file.path.endswith("two/config/accounts.json") and "alice" in str(document):
            may_write.wait(60)
        save(file, document)

    monkeypatch.setattr(ConfigFile, "save", save_late)
    if not is_limited:
        monkeypatch.setattr(TableSync, "ack_limit", lambda tables: None)
    master, slave = await start_pair(members, tmp_path, **SYNC)
    async with signed_dialogue(master, SUPER) as root:
        answer = asyncio.ensure_future(create_user(root))
        try:
            if is_limited:
                await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote > 0)
                session = next(iter(master.replication.master.server.streams)).session
                assert isinstance(session, MasterSession)
                echo_ms = session.echo_ms
                await wait_until(lambda: session.echo_ms > echo_ms)  # an ack that was sent after the record arrived
                assert master.replication.acks.acked_offset() < master.store.log.wrote
                assert not answer.done()
            else:
                assert (await answer).code == 0
                assert b"alice" not in (tmp_path / "two" / "config" / "accounts.json").read_bytes()
        finally:
            may_write.set()
        assert (await answer).code == 0


async def test_change_without_enough_slaves_is_answered_as_not_safe(members: Group, tmp_path: Path) -> None:
    """Code 11 or 12, as for a message; the change applies here and is on the disk."""
    master = await members.start("one", **SYNC, **UNASSIGNED, **conf(tmp_path), slaveTimeout="200", brokerId="1")
    await master.orders.promote(10, [2], False)
    async with signed_dialogue(master, SUPER) as root:
        reply = await create_user(root)
        assert (reply.code in (11, 12), "a failover may lose it" in (reply.remark or "")) == (True, True)
        assert (await root.ask(3004, {"username": "alice"})).body
        again = [(await update_user(root, userStatus="enable")).code for _ in range(2)]
        assert set(again) <= {11, 12}, "a repeated request is as unsafe as the first one"


async def test_former_master_gives_up_changes_that_slaves_lack(members: Group, tmp_path: Path) -> None:
    """A change that no slave had is replaced when the old master follows the new one."""
    master, slave = await start_pair(members, tmp_path, **SYNC, slaveTimeout="200")
    stream = next(iter(master.replication.master.server.streams))
    stream.pause_writing()
    await fail_over(slave)
    async with signed_dialogue(master, SUPER) as root:
        assert (await create_user(root)).code != 0
    assert await send_as(master, Credentials("alice", "wrong")) == 16
    await master.orders.promise(11, "test")
    await master.orders.follow(11, slave.settings.ha_address)
    await wait_until_following(slave, 1)
    await wait_until(lambda: master.core.accounts is not None and "alice" not in master.core.accounts.tables.users)
