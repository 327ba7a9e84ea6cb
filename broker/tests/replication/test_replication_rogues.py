"""Peers on the replication port that have no business there, at a real broker under load."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from replication.hardships import STRANGER, take_all_and_keep_nothing
from replication.network import missing
from replication.plans import Plan
from replication.rounds import scene

from gantry_broker.ha.frames import PREAMBLE, Ack, encode

SYNC = Plan(1, True, {"brokerRole": "SYNC_MASTER"}, ())


@pytest.mark.verify
async def test_a_stranger_with_the_number_of_a_slave_is_sent_away(tmp_path: Path) -> None:
    """R5: as long as that slave is here, nobody else has its number, and its acks are none."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        await take_all_and_keep_nothing(made, STRANGER, 2)

        assert await made.judge() == []
    assert "a slave with brokerId 2, or this very store, is here" in (tmp_path / "broker-1.log").read_text()


async def test_nonsense_on_the_replication_port_harms_nobody(tmp_path: Path) -> None:
    """R5: random bytes, huge, negative and unsent offsets: closed at once, and sends go on."""
    chance = random.Random(5)
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        master = made.supervisor.master
        await made.drama.some()
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
        await made.drama.some()

        assert {slave.number for slave in (await master.status()).slaves} == {2, 3}
        assert await made.judge() == []
