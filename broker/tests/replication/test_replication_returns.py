"""A master that keeps its role over a restart, and may have lost the end of its log: it must not just continue.

R4 is a row of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_histories.events import Journal
from gantry_histories.findings import Loss, Mode
from gantry_histories.load import Load
from replication.final_checks import stop_and_check
from replication.group import QUEUES, Group
from replication.network import Network, namespaces_missing
from replication.plans import Plan
from replication.seeded_run import start_scene
from replication.supervisor import PATIENCE_S, Supervisor

from gantry_status.orders import HaRole

NO_FLUSH = {"flushIntervalCommitLog": "3600000", "flushCommitLogThoroughInterval": "3600000"}
NO_COMMIT = NO_FLUSH | {"transientStorePoolEnable": "true", "commitIntervalCommitLog": "3600000",
                       "commitCommitLogThoroughInterval": "3600000", "commitCommitLogLeastPages": "1000"}  # fmt: skip
"""Settings with which nothing is flushed, nor committed from the write buffer, during a test."""

SOME_MESSAGES = 40
POWER_LOSS = pytest.param(True, marks=[pytest.mark.needs_root, pytest.mark.needs_loop])


@asynccontextmanager
async def pair(directory: Path, *, has_disks: bool) -> AsyncIterator[tuple[Group, Supervisor, Load]]:
    """Start a master and its slave, whose roles are in their configuration; the master rarely flushes."""
    with (
        Network(2, is_isolated=namespaces_missing() is None) as network,
        (directory / "history.jsonl").open("wb") as file,
    ):
        journal = Journal(file)
        settings = NO_FLUSH if has_disks else NO_COMMIT
        async with Group(directory, network, members=2, settings=settings, has_disks=has_disks) as group:
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


@pytest.mark.verify
@pytest.mark.parametrize("is_power_lost", [POWER_LOSS, False], ids=["power-loss", "kill"])
@pytest.mark.parametrize(
    "is_slave_there", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["slave-stays", "slave-comes-later"]
)
async def test_master_restores_its_lost_tail_before_serving(
    is_slave_there: bool, is_power_lost: bool, tmp_path: Path
) -> None:
    """R4: after a power loss, or a kill without persistent buffers, it refuses writes until a slave has helped."""
    async with pair(tmp_path, has_disks=is_power_lost) as (group, supervisor, load):
        master, slave = group[1], group[2]
        await load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        wrote = (await slave.status()).wrote
        if not is_slave_there:
            await slave.kill()
        await (master.lose_power() if is_power_lost else master.kill())
        await master.process.start()
        if not is_slave_there:
            status = await supervisor.wait_for(master, HaRole.COMPARING)
            assert status.wrote is not None and wrote is not None and status.wrote < wrote
            assert "compare" in status.problem
            await slave.process.start()
        await supervisor.wait_for(master, HaRole.MASTER)
        await load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        await load.stop()

        # A buffer in anonymous memory shows messages only when they are committed, which is rare here.
        mode = Mode(Loss.NOTHING, shows_acknowledged=is_power_lost)
        assert list((await stop_and_check(group, supervisor, load, mode)).findings) == []


@pytest.mark.verify
@pytest.mark.needs_root
@pytest.mark.needs_loop
@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"flushDiskType": "SYNC_FLUSH"}, Loss.NOTHING),
        ({"flushDiskType": "SYNC_FLUSH", "haAckLevel": "FLUSHED", "transientStorePoolEnable": "true"}, Loss.NOTHING),
        ({"flushDiskType": "ASYNC_FLUSH"} | NO_FLUSH, Loss.SUFFIX),
    ],
    ids=["sync-flush", "flushed-acks-with-buffer", "async-flush"],
)
async def test_group_survives_a_power_loss(settings: dict[str, str], loss: Loss, tmp_path: Path) -> None:
    """R4: with SYNC_FLUSH nothing acknowledged is lost; with ASYNC_FLUSH only the end of the log may be."""
    plan = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"} | settings, faults=())
    async with start_scene(plan, tmp_path, is_root=True, has_disks=True) as scene:
        await scene.faults.send_some()
        members = scene.group.members
        await asyncio.gather(*(member.lose_power() for member in members))
        await asyncio.gather(*(member.process.start() for member in members))
        await scene.supervisor.promote_most_complete()
        await scene.faults.send_some()
        await scene.load.stop()

        judgement = await stop_and_check(scene.group, scene.supervisor, scene.load, Mode(loss))
        assert list(judgement.findings) == []
