"""A withdrawn master refuses sends until the next promotion, and name servers do not offer it for sends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from test_outside_addresses import ask, name_server
from test_server_roles import SYNC, UNASSIGNED, Group, running_group, wait_until_following

from gantry_broker.app import Broker
from gantry_status import RefusalReason
from gantry_status.orders import OrderRefused
from gantry_testing.local import TOPIC, dialogue, properties_text, wait_until
from gantry_wire import RequestCode, ResponseCode

EPOCH: Final = 1 << 8


async def permission(server: str) -> int:
    """Return the permission of the topic's queues in its route."""
    _, route = await ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    return int(route["queueDatas"][0]["perm"]) if route else -1


async def wait_for_permission(server: str, wanted: int) -> None:
    async with asyncio.timeout(120):
        while await permission(server) != wanted:  # noqa: ASYNC110 - the answer comes over a socket
            await asyncio.sleep(0.01)


async def code_of_send(broker: Broker) -> int:
    async with dialogue(broker) as peer:
        return (await peer.send(b"late")).code


async def master_without_its_slave(members: Group, server: str) -> Broker:
    """Return a synchronous master whose only slave is gone, so that it cannot hand over."""
    first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1", namesrvAddr=server, slaveTimeout="200")
    second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2", namesrvAddr=server)
    await first.orders.promote(EPOCH, [2], False)
    await second.orders.follow(EPOCH, first.settings.ha_address)
    await wait_until_following(first, 2)
    async with asyncio.timeout(120):
        while await code_of_send(first) != 0:  # as long as a busy machine lets its slave be late
            pass
    await second.close()
    await wait_until(lambda: not list(first.replication.acks))
    assert await code_of_send(first) == ResponseCode.SLAVE_NOT_AVAILABLE
    return first


async def test_withdrawn_master_stays_withdrawn_after_a_timeout(tmp_path: Path) -> None:
    """A timeout is no reason to accept sends again; routes show it, and the next promotion ends it."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        first = await master_without_its_slave(members, server)
        await wait_for_permission(server, 6)

        status = await first.orders.drain(100, withdraw=True)

        assert status.is_draining
        assert await code_of_send(first) == ResponseCode.SERVICE_NOT_AVAILABLE
        await wait_for_permission(server, 4)
        await first.orders.promote(EPOCH, [2], False)
        await wait_for_permission(server, 6)
        assert await code_of_send(first) != ResponseCode.SERVICE_NOT_AVAILABLE


async def test_drained_master_accepts_sends_again_after_a_timeout(tmp_path: Path) -> None:
    """The twin: a role that cannot move is kept, and the routes never changed."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        first = await master_without_its_slave(members, server)

        with pytest.raises(OrderRefused, match="sends are accepted again"):
            await first.orders.drain(100)

        assert await code_of_send(first) != ResponseCode.SERVICE_NOT_AVAILABLE
        assert await permission(server) == 6


@pytest.mark.parametrize("clients_only", [True, False], ids=["clients", "all"])
async def test_refused_drain_does_not_lift_an_earlier_withdrawal(tmp_path: Path, clients_only: bool) -> None:
    """A drain that times out restores the state before it, and that of a withdrawn master is to refuse sends."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        first = await master_without_its_slave(members, server)
        before = await first.orders.drain(100, withdraw=True, clients_only=clients_only)
        await wait_for_permission(server, 4)

        with pytest.raises(OrderRefused, match="sends are refused as before"):
            await first.orders.drain(100)

        after = await first.orders.status()
        assert (after.is_withdrawn, after.is_draining) == (before.is_withdrawn, before.is_draining)
        assert (after.is_withdrawn, after.is_draining) == (True, not clients_only)
        assert await code_of_send(first) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (first.core.gate.write_refusal is None) is clients_only, "unexpected write refusal"
        await first.registration.wait_until_published()
        assert await permission(server) == 4


@pytest.mark.parametrize("clients_only", [True, False], ids=["clients", "all"])
async def test_sends_refused_by_a_drain_are_counted_as_draining(tmp_path: Path, clients_only: bool) -> None:
    """The reason distinguishes a master under planned work from a slave that producers have in an old route."""
    async with running_group(tmp_path) as members:
        first = await members.start("one", **UNASSIGNED, brokerId="1")
        await first.orders.promote(EPOCH, [], False)
        await first.orders.drain(5_000, withdraw=clients_only, clients_only=clients_only)

        assert await code_of_send(first) == ResponseCode.SERVICE_NOT_AVAILABLE

        counts = first.status.snapshot().refused_requests
        assert (counts[RefusalReason.DRAINING], counts[RefusalReason.NOT_MASTER]) == (1, 0)


async def test_routes_are_read_only_after_a_registration_while_withdrawn(tmp_path: Path) -> None:
    """Every registered table has only read permission while withdrawn, and the broker's own tables are unchanged."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        first = await members.start("one", **UNASSIGNED, brokerId="1", namesrvAddr=server)
        await first.orders.promote(EPOCH, [], False)
        assert await code_of_send(first) == 0
        await wait_for_permission(server, 6)
        await first.orders.drain(5_000, withdraw=True)
        await wait_for_permission(server, 4)

        first.registration.schedule_update()
        await first.registration.wait_until_published()

        assert await permission(server) == 4
        assert {one.perm for one in first.core.topics.document().topic_config_table.values()} <= {6, 7}


async def test_withdrawn_master_still_delivers_delayed_messages(tmp_path: Path) -> None:
    """Clients' sends are refused, and routes show it; delayed messages are delivered."""
    async with name_server(tmp_path) as (server, _), running_group(tmp_path) as members:
        first = await members.start("one", **UNASSIGNED, brokerId="1", namesrvAddr=server, messageDelayLevel="1s 2s")
        await first.orders.promote(EPOCH, [], False)
        async with dialogue(first) as peer:
            assert (await peer.send(b"now")).code == 0
            assert (await peer.send(b"later", properties=properties_text(DELAY="1"))).code == 0
        await wait_for_permission(server, 6)

        status = await first.orders.drain(0, withdraw=True, clients_only=True)

        assert (status.is_withdrawn, status.is_draining) == (True, False)
        assert await code_of_send(first) == ResponseCode.SERVICE_NOT_AVAILABLE
        await wait_for_permission(server, 4)
        await wait_until(lambda: first.core.store.queues.get(TOPIC, 0).end == 2)  # type: ignore[union-attr]
        assert (await first.orders.promote(EPOCH, [], False)).is_withdrawn is False
        await wait_for_permission(server, 6)
