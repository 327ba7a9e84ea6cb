"""Rogue peers on the replication port of a real broker under load.

R5 is a row of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from replication.guard_scenarios import UNKNOWN_IDENTITY, peer_acknowledges_and_keeps_nothing
from replication.network import namespaces_missing
from replication.plans import Plan
from replication.seeded_run import start_scene

from gantry_broker.ha.frames import PREAMBLE, Ack, encode

SYNC = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"}, faults=())


@pytest.mark.verify
@pytest.mark.needs_root
async def test_peer_with_the_broker_id_of_a_slave_is_refused(tmp_path: Path) -> None:
    """R5: while that slave is connected, no other peer has its broker id, and its acks do not count."""
    async with start_scene(SYNC, tmp_path, is_root=True) as scene:
        await peer_acknowledges_and_keeps_nothing(scene, UNKNOWN_IDENTITY, 2)

        assert await scene.stop_and_check() == []
    log = (tmp_path / "broker-1.log").read_text()
    assert "a slave with brokerId 2 or with the same store is connected already" in log


async def test_garbage_on_the_replication_port_is_harmless(tmp_path: Path) -> None:
    """R5: after random bytes, and huge, negative or unsent offsets, the peer is disconnected, and sends continue."""
    chance = random.Random(5)
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        master = scene.supervisor.master
        await scene.faults.send_some()
        async with asyncio.timeout(60):
            while {slave.number for slave in (await master.status()).slaves} != {2, 3}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for offset in (2**62, -1, -(2**62)):
            for data in (
                offset.to_bytes(8, "big", signed=True),
                PREAMBLE + encode(Ack(2, offset, offset, 0, 0)),
                PREAMBLE + chance.randbytes(200),
                chance.randbytes(200),
            ):
                reader, writer = await asyncio.open_connection(master.host, master.ha_port)
                try:
                    writer.write(data)
                    async with asyncio.timeout(30):
                        while await reader.read(1 << 16):
                            pass
                finally:
                    writer.transport.abort()
        await scene.faults.send_some()

        assert {slave.number for slave in (await master.status()).slaves} == {2, 3}
        assert await scene.stop_and_check() == []
