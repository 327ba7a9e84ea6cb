"""A master that keeps its role over a restart, and may have lost the end of its log: it must not go on as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_histories.events import Journal
from gantry_histories.load import Load
from replication.ending import judge
from replication.group import QUEUES, Group
from replication.network import Network
from replication.plans import Plan
from replication.supervisor import PATIENCE_S, Supervisor

from gantry_status.orders import HaRole

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_loop]
NO_FLUSH = {"flushIntervalCommitLog": "3600000", "flushCommitLogThoroughInterval": "3600000"}
SOME = 40


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[Group, Supervisor, Load]]:
    """A master for ever and its slave, by configuration alone; nothing comes to the master's disk but by chance."""
    with Network(2) as network, (directory / "history.jsonl").open("wb") as file:
        journal = Journal(file)
        async with Group(directory, network, members=2, settings=NO_FLUSH, has_disks=True) as group:
            group[1].configure({"roleAtStart": "CONFIGURED", "brokerId": "0", "haElectable": "2"})
            group[2].configure(
                {"roleAtStart": "CONFIGURED", "brokerRole": "SLAVE", "haMasterAddress": group[1].ha_address}
            )
            await group.start()
            supervisor = Supervisor(group, journal)
            await supervisor.wait_for(group[1], HaRole.MASTER)
            await group.create_topic(group[1])
            async with Load(group.name_server_address, QUEUES, journal, 1) as load:
                yield group, supervisor, load


@pytest.mark.parametrize("is_slave_there", [True, False], ids=["slave-stays", "slave-comes-later"])
async def test_a_master_that_has_lost_its_tail_gets_it_back_before_it_serves(
    is_slave_there: bool, tmp_path: Path
) -> None:
    """R4: after a power loss it refuses writes and says why, until a slave has given back what the disk had not."""
    async with pair(tmp_path) as (group, supervisor, load):
        master, slave = group[1], group[2]
        await load.wait_acknowledged(SOME, PATIENCE_S)
        wrote = (await slave.status()).wrote
        if not is_slave_there:
            await slave.kill()
        await master.lose_power()
        await master.process.start()
        if not is_slave_there:
            status = await supervisor.wait_for(master, HaRole.COMPARING)
            assert status.wrote < wrote
            assert "compare" in status.trouble
            await slave.process.start()
        await supervisor.wait_for(master, HaRole.MASTER)
        await load.wait_acknowledged(SOME, PATIENCE_S)
        await load.stop()

        assert await judge(group, supervisor, load, Plan(1, True, {}, ()).mode) == []
