"""A master whose process crashed regains its role by one order, and is then as good as one that was only slow.

Its sidecar decides whether the order is right (``gantry_spec.role_recovery``): here some orders are wrong.
K1 is a row of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replication.network import namespaces_missing
from replication.plans import Plan
from replication.seeded_run import start_scene
from replication.supervisor import PATIENCE_S

from gantry_broker.ports import RealDisk
from gantry_broker.store.data_completeness import CompletenessRecord
from gantry_broker.store.sealed_file import write_sealed
from gantry_status.orders import Drain, Fence, HaRole, OrderRefused, PromiseRequest, Regain

SYNC = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"}, faults=())
ASYNC = Plan(seed=1, is_sync=False, settings={"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}, faults=())
SOME_MESSAGES = 40
IS_ROOT = namespaces_missing() is None
SITUATION_S = 2.0


@pytest.mark.verify
@pytest.mark.parametrize("kind", ["sync", "sync, buffers", "async"])
async def test_crashed_master_regains_its_role(kind: str, tmp_path: Path) -> None:
    """K1: it has everything that was acknowledged, and its slaves acknowledge, or grant, as before."""
    plan, has_buffers = ASYNC if kind == "async" else SYNC, "buffers" in kind
    settings = plan.settings | {"transientStorePoolEnable": str(has_buffers).lower()}
    plan = plan._replace(has_buffers=has_buffers, settings=settings)
    async with start_scene(plan, tmp_path, is_root=IS_ROOT) as scene:
        master, epoch = scene.supervisor.master, scene.supervisor.epoch
        for _ in range(2):
            await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
            await master.kill()
            await master.process.start()
            await master.orders.call(Regain(epoch=epoch))
            await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)

        assert ((await master.status()).role, (await master.status()).epoch) == (HaRole.MASTER, epoch)
        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.parametrize("plan", [SYNC, ASYNC], ids=["sync", "async"])
async def test_regained_master_beside_another_acknowledges_nothing(plan: Plan, tmp_path: Path) -> None:
    """K1: another member was promoted meanwhile, and the order is wrong: its slaves have promised not to follow."""
    async with start_scene(plan, tmp_path, is_root=IS_ROOT) as scene:
        old, epoch = scene.supervisor.master, scene.supervisor.epoch
        await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        await old.kill()
        await scene.supervisor.promote_among(scene.group.others(old))
        await old.process.start()
        await old.orders.call(Regain(epoch=epoch))
        await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        await asyncio.sleep(SITUATION_S)

        await scene.supervisor.order_to_follow([old])
        await scene.supervisor.wait_for(old, HaRole.SLAVE)
        await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_master_that_has_promised_is_not_regained(tmp_path: Path) -> None:
    """K1: the promise is on the disk, and overrules its last role."""
    async with start_scene(SYNC, tmp_path, is_root=IS_ROOT) as scene:
        master = scene.supervisor.master
        await master.orders.call(PromiseRequest(epoch=scene.supervisor.epoch + 1000, to="another"))
        await master.kill()
        await master.process.start()
        with pytest.raises(OrderRefused, match="promised"):
            await master.orders.call(Regain(epoch=scene.supervisor.epoch))

        assert (await master.status()).role is HaRole.UNASSIGNED


@pytest.mark.verify
@pytest.mark.parametrize("order", ["fenced", "withdrawn", "routes withdrawn"])
async def test_fenced_or_withdrawn_master_is_not_regained(order: str, tmp_path: Path) -> None:
    """K1: a crash undoes no fence and no withdrawal in this epoch; the sender of that order decides."""
    async with start_scene(SYNC, tmp_path, is_root=IS_ROOT) as scene:
        master = scene.supervisor.master
        orders: dict[str, Drain | Fence] = {
            "fenced": Fence(epoch=scene.supervisor.epoch),
            "withdrawn": Drain(timeout_ms=5_000, withdraw=True),
            "routes withdrawn": Drain(timeout_ms=5_000, clients_only=True),
        }
        await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        await master.orders.call(orders[order])
        await master.kill()
        await master.process.start()
        with pytest.raises(OrderRefused, match="revoked"):
            await master.orders.call(Regain(epoch=scene.supervisor.epoch))

        assert (await master.status()).role is HaRole.UNASSIGNED


@pytest.mark.verify
async def test_master_is_not_regained_after_a_reboot(tmp_path: Path) -> None:
    """K1: after a power loss it may have lost acknowledged messages."""
    async with start_scene(SYNC, tmp_path, is_root=IS_ROOT) as scene:
        master = scene.supervisor.master
        await scene.load.wait_acknowledged(SOME_MESSAGES, PATIENCE_S)
        await master.kill()
        before = CompletenessRecord(is_complete=True, machine="another run", is_crash_safe=True)
        write_sealed(RealDisk(), str(master.store / "completeness.json"), before)
        await master.process.start()
        with pytest.raises(OrderRefused, match="may have lost"):
            await master.orders.call(Regain(epoch=scene.supervisor.epoch))

        status = await master.status()
        assert (status.role, status.is_complete) == (HaRole.UNASSIGNED, False)
