"""A pair with fixed roles whose slave finds its master by a name server: it comes back by itself after both failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replication.group import TOPIC, Group, Member
from replication.network import Network, namespaces_missing
from replication.supervisor import PATIENCE_S

from gantry_remoting import RemotingError
from gantry_testing.local import Dialogue
from gantry_wire import ResponseCode

SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}
"""With it an acknowledged message survives if both members lose power."""
POWER_LOSS = pytest.param(True, marks=[pytest.mark.needs_root, pytest.mark.needs_loop])


async def code_of_send(member: Member, body: bytes) -> int:
    """Send a message over a new connection: a broker that becomes the master closes those of its clients."""
    try:
        peer = await Dialogue.open(member.address)
        code = (await peer.send(body, topic=TOPIC)).code
        await peer.close()
    except RemotingError:
        return ResponseCode.SYSTEM_ERROR
    return code


async def send_until_acknowledged(member: Member, body: bytes) -> None:
    """Send a message until it is acknowledged, as a producer does."""
    async with asyncio.timeout(PATIENCE_S):
        while await code_of_send(member, body) != ResponseCode.SUCCESS:  # noqa: ASYNC110 - over a socket
            await asyncio.sleep(0.1)


async def stored_bodies(member: Member) -> list[bytes]:
    peer = await Dialogue.open(member.address)
    found = [message.body for message in await peer.read(0, topic=TOPIC)]
    await peer.close()
    return found


@pytest.mark.verify
@pytest.mark.parametrize("is_power_lost", [POWER_LOSS, False], ids=["power-loss", "kill"])
async def test_named_pair_serves_again_after_both_failed(tmp_path: Path, is_power_lost: bool) -> None:
    """The master waits for its slave before it serves, and the slave learns the master's address all the same."""
    with Network(2, is_isolated=namespaces_missing() is None) as network:
        async with Group(tmp_path, network, members=2, settings=SYNC_FLUSH, has_disks=is_power_lost) as group:
            master, slave = group[1], group[2]
            master.configure({"roleAtStart": "CONFIGURED", "brokerId": "0"})
            slave.configure({"roleAtStart": "CONFIGURED", "brokerRole": "SLAVE"})
            await group.start()
            await group.create_topic(master)
            await send_until_acknowledged(master, b"before")

            for member in (master, slave):
                await (member.lose_power() if is_power_lost else member.kill())
            await asyncio.gather(master.process.start(), slave.process.start())

            await send_until_acknowledged(master, b"after")
            found = await stored_bodies(master)
            assert (found[0], found[-1]) == (b"before", b"after")
            assert set(found) == {b"before", b"after"}, "a repeated send may have been stored more than once"
