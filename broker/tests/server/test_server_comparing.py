"""A master that compares its log after a crash: slaves find it by a name server, and clients do not use it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from test_outside_addresses import addresses, name_server
from test_server_roles import SYNC, Group, bodies, running_group, send, wait_until_copied, wait_until_following
from test_server_withdrawn import permission, wait_for_permission

from gantry_broker import registration
from gantry_broker.app import Broker
from gantry_broker.server.roles import roles
from gantry_status.orders import HaRole
from gantry_testing.local import wait_until
from gantry_testing.ports import free_broker_port
from gantry_wire import ResponseCode

NAMED_SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
"""A slave that finds its master by a name server only."""


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "REGISTER_COMPARING_S", 0.0)
    monkeypatch.setattr(registration, "SEARCH_PERIOD_S", 0.05)


async def crashed_pair(members: Group, folder: Path, server: str) -> None:
    """Leave the stores of a synchronous master and its slave, with one message, as after a crash of both."""
    master = await members.start("master", **SYNC, namesrvAddr=server)
    slave = await members.start("slave", **NAMED_SLAVE, namesrvAddr=server)
    await wait_until_following(master, 1)
    assert await send(master, "before") == [0]
    await wait_until_copied(master, slave)
    await slave.close()
    await master.close()
    for name in ("master", "slave"):
        (folder / name / "abort").touch()


async def hidden_master(members: Group, server: str) -> Broker:
    """Start the master without its slave, and wait until it is registered."""
    master = await members.start("master")
    await wait_until(lambda: server in master.registration.registered)
    assert master.roles.role is HaRole.COMPARING
    return master


async def test_pair_serves_again_after_both_crashed(tmp_path: Path) -> None:
    """The slave has no address of its master, which waits for the slave before it is the master again."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        await crashed_pair(members, tmp_path, server)

        slave = await members.start("slave")
        master = await members.start("master")
        await wait_until_following(master, 1)

        assert await send(master, "after") == [0]
        await wait_until_copied(master, slave)
        assert await bodies(master) == await bodies(slave) == [b"before", b"after"]
        await wait_for_permission(server, 6)


async def test_clients_are_not_routed_to_a_comparing_master(tmp_path: Path) -> None:
    """Its topics have no permission in routes, and it refuses requests; both end when it is the master."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        await crashed_pair(members, tmp_path, server)
        master = await hidden_master(members, server)

        assert await permission(server) == 0
        assert await send(master, "early") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        await master.registration.wait_until_published()
        assert await permission(server) == 0

        await members.start("slave")
        await wait_for_permission(server, 6)
        assert master.roles.role is HaRole.MASTER


async def test_slaves_that_know_their_master_are_not_kept_waiting_by_a_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routes do not change during a short comparison: clients would drop the queues for their next period."""
    monkeypatch.setattr(roles, "REGISTER_COMPARING_S", 3600.0)
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        await crashed_pair(members, tmp_path, server)
        master = await members.start("master")
        await wait_until(lambda: server in master.registration._channels)

        assert await permission(server) == -1

        await members.start("slave", haMasterAddress=master.settings.ha_address)
        await wait_for_permission(server, 6)


async def test_comparing_master_yields_to_a_registered_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A slave may have been made the master meanwhile: the old master must not take its place in the routes."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        await crashed_pair(members, tmp_path, server)
        (tmp_path / "slave/abort").unlink()
        promoted = await members.start("slave", brokerRole="ASYNC_MASTER", brokerId="0")
        await wait_until(lambda: server in promoted.registration.registered)

        with caplog.at_level(logging.WARNING):
            master = await members.start("master")
            await wait_until(lambda: "not registered before the log is compared" in caplog.text)

        assert promoted.settings.address in str([record.__dict__ for record in caplog.records])
        assert (master.roles.role, master.registration.registered) == (HaRole.COMPARING, set())
        assert await addresses(server) == {"0": promoted.settings.address}


async def test_comparing_master_unregisters_when_a_slave_knows_a_newer_one(tmp_path: Path) -> None:
    """It is not the master then, and slaves must not find it any more."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        await crashed_pair(members, tmp_path, server)
        away = f"127.0.0.1:{free_broker_port()}"
        slave = await members.start("slave", haMasterAddress=away)
        await slave.orders.promise(300, "another master")
        await slave.close()
        master = await hidden_master(members, server)

        await members.start("slave", haMasterAddress=master.settings.ha_address)
        await wait_until(lambda: master.roles.role is HaRole.UNASSIGNED)
        await wait_until(lambda: not master.registration.registered)

        assert "0" not in await addresses(server)
