"""A master whose process crashed goes on by itself where that is as good as a long pause, and nowhere else.

Nobody who gives orders is there: a supervisor speaks only where a test says so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replication.network import missing
from replication.plans import Plan
from replication.rounds import scene
from replication.supervisor import PATIENCE_S

from gantry_broker.ha.sealed_file import write_sealed
from gantry_broker.ha.wholeness import WholeRecord
from gantry_broker.ports import RealDisk
from gantry_status.orders import AskPromise, HaRole

REMEMBERS = {"roleAtStart": "REMEMBERED"}
SYNC = Plan(1, True, {"brokerRole": "SYNC_MASTER"} | REMEMBERS, ())
ASYNC = Plan(1, False, {"brokerRole": "ASYNC_MASTER", "haGrant": "1000"} | REMEMBERS, ())
SOME = 40
IS_ROOT = missing() is None
A_WHILE_S = 2.0


@pytest.mark.parametrize("has_buffers", [False, True], ids=["files", "buffers"])
async def test_a_crashed_master_goes_on_when_nobody_gives_orders(has_buffers: bool, tmp_path: Path) -> None:
    """K1: in its epoch, with all that was acknowledged, and its slaves acknowledge as before."""
    settings = SYNC.settings | {"transientStorePoolEnable": str(has_buffers).lower()}
    plan = SYNC._replace(has_buffers=has_buffers, settings=settings)
    async with scene(plan, tmp_path, is_root=IS_ROOT) as made:
        master, epoch = made.supervisor.master, made.supervisor.epoch
        for _ in range(2):
            await made.load.wait_acknowledged(SOME, PATIENCE_S)
            await master.kill()
            await master.process.start()
            status = await made.supervisor.wait_for(master, HaRole.MASTER)
            await made.load.wait_acknowledged(SOME, PATIENCE_S)

        assert status.epoch == epoch
        assert await made.judge() == []


async def test_a_master_that_goes_on_beside_another_acknowledges_nothing(tmp_path: Path) -> None:
    """K1: others were promoted while it was away, and nobody has told it: its slaves have promised not to hear it."""
    async with scene(SYNC, tmp_path, is_root=IS_ROOT) as made:
        old = made.supervisor.master
        await made.load.wait_acknowledged(SOME, PATIENCE_S)
        await old.kill()
        await made.supervisor.promote_among(made.group.others(old))
        await old.process.start()
        await made.supervisor.wait_for(old, HaRole.MASTER)
        await made.load.wait_acknowledged(SOME, PATIENCE_S)
        await asyncio.sleep(A_WHILE_S)

        await made.supervisor.gather([old])
        await made.supervisor.wait_for(old, HaRole.SLAVE)
        await made.load.wait_acknowledged(SOME, PATIENCE_S)
        assert await made.judge() == []


async def test_a_master_that_waits_for_nobody_does_not_go_on(tmp_path: Path) -> None:
    """K1: whoever elects counts the end of its process as the end of its acknowledgements."""
    async with scene(ASYNC, tmp_path, is_root=IS_ROOT) as made:
        master = made.supervisor.master
        await made.load.wait_acknowledged(SOME, PATIENCE_S)
        await master.kill()
        await master.process.start()
        await asyncio.sleep(A_WHILE_S)
        assert (await master.status()).role is HaRole.UNASSIGNED

        await made.supervisor.reinstate()
        await made.load.wait_acknowledged(SOME, PATIENCE_S)
        assert await made.judge() == []


async def test_a_master_that_has_promised_does_not_go_on(tmp_path: Path) -> None:
    """K1: the promise is on the disk, and stronger than what it was."""
    async with scene(SYNC, tmp_path, is_root=IS_ROOT) as made:
        master = made.supervisor.master
        await master.orders.call(AskPromise(epoch=made.supervisor.epoch + 1000, to="another"))
        await master.kill()
        await master.process.start()
        await asyncio.sleep(A_WHILE_S)

        assert (await master.status()).role is HaRole.UNASSIGNED


async def test_a_master_on_another_run_of_its_machine_does_not_go_on(tmp_path: Path) -> None:
    """K1: after a power loss it may lack what it has acknowledged."""
    async with scene(SYNC, tmp_path, is_root=IS_ROOT) as made:
        master = made.supervisor.master
        await made.load.wait_acknowledged(SOME, PATIENCE_S)
        await master.kill()
        before = WholeRecord(is_whole=True, machine="another run", is_crash_safe=True)
        write_sealed(RealDisk(), str(master.store / "whole.json"), before)
        await master.process.start()
        await asyncio.sleep(A_WHILE_S)

        status = await master.status()
        assert (status.role, status.is_whole) == (HaRole.UNASSIGNED, False)
