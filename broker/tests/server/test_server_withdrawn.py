"""A master that is withdrawn: it refuses sends for as long as it takes, and name servers tell nobody to send there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from test_outside_addresses import ask, name_server
from test_server_roles import MOVED, SYNC, Group, follows, group

from gantry_broker.app import Broker
from gantry_status.orders import OrderRefused
from gantry_testing.local import TOPIC, dialogue, properties_text, wait_until
from gantry_wire import RequestCode, ResponseCode

EPOCH: Final = 1 << 8


async def permission(server: str) -> int:
    """Of the topic's queues in its route."""
    _, route = await ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    return int(route["queueDatas"][0]["perm"]) if route else -1


async def told(server: str, wanted: int) -> None:
    async with asyncio.timeout(120):
        while await permission(server) != wanted:  # noqa: ASYNC110 - the answer comes over a socket
            await asyncio.sleep(0.01)


async def code_of_send(broker: Broker) -> int:
    async with dialogue(broker) as peer:
        return (await peer.send(b"late")).code


async def deaf_slave(members: Group, server: str) -> Broker:
    """A synchronous master whose only slave is gone, so that it can hand over nothing."""
    first = await members.start("one", **SYNC, **MOVED, brokerId="1", namesrvAddr=server, slaveTimeout="200")
    second = await members.start("two", **SYNC, **MOVED, brokerId="2", namesrvAddr=server)
    await first.orders.promote(EPOCH, [2], False)
    await second.orders.follow(EPOCH, first.settings.ha_address)
    await follows(first, 2)
    async with asyncio.timeout(120):
        while await code_of_send(first) != 0:  # as long as a busy machine lets its slave be late
            pass
    await second.close()
    await wait_until(lambda: not list(first.replication.acks))
    assert await code_of_send(first) == ResponseCode.SLAVE_NOT_AVAILABLE
    return first


async def test_a_withdrawn_master_stays_so_though_it_cannot_hand_over(tmp_path: Path) -> None:
    """Too late is no reason to take sends again; routes say so, and the next promotion ends it."""
    async with name_server(tmp_path) as (server, _), group(tmp_path) as members:
        first = await deaf_slave(members, server)
        await told(server, 6)

        status = await first.orders.drain(100, withdraw=True)

        assert status.is_draining
        assert await code_of_send(first) == ResponseCode.SERVICE_NOT_AVAILABLE
        await told(server, 4)
        await first.orders.promote(EPOCH, [2], False)
        await told(server, 6)
        assert await code_of_send(first) != ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_drained_master_takes_sends_again_when_it_is_too_late(tmp_path: Path) -> None:
    """The twin: a role that cannot move is not given up, and routes never said anything."""
    async with name_server(tmp_path) as (server, _), group(tmp_path) as members:
        first = await deaf_slave(members, server)

        with pytest.raises(OrderRefused, match="sends are taken again"):
            await first.orders.drain(100)

        assert await code_of_send(first) != ResponseCode.SERVICE_NOT_AVAILABLE
        assert await permission(server) == 6


async def test_a_topic_that_changes_meanwhile_cannot_be_sent_to_either(tmp_path: Path) -> None:
    """Every table that is registered while it is withdrawn is one to read from, and its own tables stay as they are."""
    async with name_server(tmp_path) as (server, _), group(tmp_path) as members:
        first = await members.start("one", **MOVED, brokerId="1", namesrvAddr=server)
        await first.orders.promote(EPOCH, [], False)
        assert await code_of_send(first) == 0
        await told(server, 6)
        await first.orders.drain(5_000, withdraw=True)
        await told(server, 4)

        first.registration.changed()
        await first.registration.published()

        assert await permission(server) == 4
        assert {one.perm for one in first.core.topics.document().topic_config_table.values()} <= {6, 7}


async def test_a_master_that_is_emptied_goes_on_with_what_it_has(tmp_path: Path) -> None:
    """Clients send nothing more, and routes say so; what was delayed before is delivered."""
    async with name_server(tmp_path) as (server, _), group(tmp_path) as members:
        first = await members.start("one", **MOVED, brokerId="1", namesrvAddr=server, messageDelayLevel="1s 2s")
        await first.orders.promote(EPOCH, [], False)
        async with dialogue(first) as peer:
            assert (await peer.send(b"now")).code == 0
            assert (await peer.send(b"later", properties=properties_text(DELAY="1"))).code == 0
        await told(server, 6)

        status = await first.orders.drain(0, withdraw=True, goes_on=True)

        assert (status.is_withdrawn, status.is_draining) == (True, False)
        assert await code_of_send(first) == ResponseCode.SERVICE_NOT_AVAILABLE
        await told(server, 4)
        await wait_until(lambda: first.core.store.queues.get(TOPIC, 0).end == 2)  # type: ignore[union-attr]
        assert (await first.orders.promote(EPOCH, [], False)).is_withdrawn is False
        await told(server, 6)
