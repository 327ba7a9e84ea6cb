"""Groups of brokers under load while the master's role moves: the checker finds no violation in what clients saw.

R2, K1 and the like are rows of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from gantry_histories.events import Outcome
from gantry_histories.findings import Loss
from replication.guard_scenarios import wait_for_unknown_sends
from replication.network import namespaces_missing
from replication.plans import NETWORK_FAULTS, POWER_FAULTS, Fault, Plan, plan_for
from replication.seeded_run import run_plan, start_scene

SYNC = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"}, faults=())
ASYNC = Plan(seed=1, is_sync=False, settings={"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}, faults=())
LEASED = ASYNC._replace(has_lease=True)
"""An asynchronous group whose master acknowledges by a Lease, and not only by the grants of its slaves."""

PAUSE_S = 30.0
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))]


@pytest.mark.verify
@pytest.mark.parametrize(
    ("plan", "members"),
    [
        pytest.param(SYNC, 2, id="sync-one-slave"),
        pytest.param(SYNC, 3, id="sync-two-slaves"),
        pytest.param(ASYNC, 2, id="async-one-slave"),
        pytest.param(ASYNC, 3, id="async-two-slaves", marks=pytest.mark.slow),
        pytest.param(LEASED, 2, id="leased-one-slave", marks=pytest.mark.slow),
        pytest.param(LEASED, 3, id="leased-two-slaves"),
    ],
)
async def test_killed_master_loses_no_more_than_its_mode_allows(plan: Plan, members: int, tmp_path: Path) -> None:
    """R3: a slave is promoted under load and clients continue; a synchronous group loses nothing."""
    plan = plan._replace(faults=(Fault.KILL_MASTER,))

    result = await run_plan(plan, tmp_path, is_root=namespaces_missing() is None, members=members)

    assert list(result.findings) == []
    assert result.promotions >= 1
    assert result.answers[Outcome.OK] > 0


@pytest.mark.verify
@pytest.mark.parametrize(
    ("is_sync", "flush", "has_buffers"),
    [
        pytest.param(*mode, marks=() if number in (0, 7) else pytest.mark.slow)
        for number, mode in enumerate(itertools.product([False, True], ["ASYNC_FLUSH", "SYNC_FLUSH"], [False, True]))
    ],
)
async def test_group_loses_nothing_over_kills(is_sync: bool, flush: str, has_buffers: bool, tmp_path: Path) -> None:
    """K1: in all eight modes; where the log stays with its master, an asynchronous group loses nothing, either."""
    plan = (SYNC if is_sync else ASYNC)._replace(
        has_buffers=has_buffers, faults=(Fault.RESTART_MASTER, Fault.KILL_SLAVE, Fault.RESTART_MASTER)
    )
    settings = {"flushDiskType": flush, "transientStorePoolEnable": str(has_buffers).lower()}
    plan = plan._replace(settings=plan.settings | settings)
    assert plan.mode.loss is Loss.NOTHING

    result = await run_plan(plan, tmp_path, is_root=namespaces_missing() is None)

    assert list(result.findings) == []


@pytest.mark.needs_root
@pytest.mark.slow
@pytest.mark.parametrize("members", [2, 3], ids=["one-slave", "two-slaves"])
@pytest.mark.parametrize(
    "fault", sorted((NETWORK_FAULTS | POWER_FAULTS | {Fault.PAUSE_MASTER}) - {Fault.PARTITION_SLAVE})
)
@pytest.mark.parametrize("plan", [SYNC, ASYNC], ids=["sync", "async"])
async def test_group_survives_cuts_and_power_losses(plan: Plan, fault: Fault, members: int, tmp_path: Path) -> None:
    """R2, R3, R4 and K4: a member is cut off in one direction or both, stopped, or without power; then it follows."""
    result = await run_plan(plan._replace(faults=(fault,)), tmp_path, is_root=True, members=members)

    assert list(result.findings) == []


@pytest.mark.verify
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "30-s"])
async def test_paused_master_is_fenced_by_a_promotion(is_long: bool, tmp_path: Path) -> None:
    """K4: SIGSTOP, a promotion, SIGCONT: it acknowledges nothing that began after its successor's first answer."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        old = scene.supervisor.master
        await scene.faults.send_some()
        old.pause()
        if is_long:
            await asyncio.sleep(PAUSE_S)
        await scene.faults.fail_over()
        await scene.faults.send_some()
        old.resume()
        await scene.faults.send_some()
        await scene.supervisor.order_to_follow([old])

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_paused_master_continues_without_a_promotion(tmp_path: Path) -> None:
    """K4: no member was promoted meanwhile, so its slaves and its clients are still connected."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        master = scene.supervisor.master
        await scene.faults.send_some()
        master.pause()
        await asyncio.sleep(3.0)
        master.resume()
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []
    assert len(scene.history.terms) == 1


async def test_master_killed_right_after_promotion_loses_nothing(tmp_path: Path) -> None:
    """R3: two masters are lost in a row, the second before any member was ordered to follow it."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        faults, group, supervisor = scene.faults, scene.group, scene.supervisor
        await faults.send_some()
        first = supervisor.master
        await first.kill()
        second = await supervisor.promote_among(group.others(first), orders_others=False)
        await second.kill()
        await first.process.start()
        await faults.fail_over()
        await faults.restart_and_follow(second)
        await faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_killed_group_returns_with_all_acknowledged_messages(tmp_path: Path) -> None:
    """R3, K1: all members are killed at once, under load; then an election among the former slaves."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        await scene.faults.send_some()
        for member in scene.group.members:
            await member.kill()
        for member in scene.group.members:
            await member.process.start()
        await scene.faults.fail_over()
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_no_promotion_without_enough_promises(tmp_path: Path) -> None:
    """R2: with one ack needed of two slaves both must promise; with one of them away no member is promoted."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        faults, group, supervisor = scene.faults, scene.group, scene.supervisor
        old = supervisor.master
        slaves = group.others(old)
        await faults.send_some()
        slaves[0].pause()
        await old.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await faults.fail_over()
        slaves[0].resume()
        await faults.fail_over()
        await faults.restart_and_follow(old)
        await faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.needs_root
async def test_cut_tail_never_returns(tmp_path: Path) -> None:
    """R3: killed right after the cut, and again when records of the same size have filled its place."""
    async with start_scene(SYNC, tmp_path, is_root=True, body_bytes=(100,)) as scene:
        faults, group, supervisor = scene.faults, scene.group, scene.supervisor
        old = supervisor.master
        await faults.send_some()
        for slave in group.others(old):
            group.network.partition(old.number, slave.number)
        old.is_cut_off = True
        await wait_for_unknown_sends(scene, 30)
        await faults.fail_over()
        group.network.heal()
        old.is_cut_off = False
        log_start = old.process.log_bytes
        await supervisor.order_to_follow([old])
        for _ in range(3):
            await old.process.wait_logged("following the master", log_start)
            await old.kill()
            log_start = old.process.log_bytes
            await faults.restart_and_follow(old)
            await faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.parametrize("seed", SEEDS)
async def test_seeded_run_breaks_no_promise(seed: int, tmp_path: Path) -> None:
    """R2, R3 and R9: a part of what `run_replication.py` does."""
    is_root = namespaces_missing() is None

    result = await run_plan(plan_for(seed, is_root=is_root), tmp_path, is_root=is_root)

    assert list(result.findings) == []


def test_seeds_cover_every_fault() -> None:
    """Plans are random, and cover everything; without root no connection is cut, and no power is lost."""
    without_root = set(Fault) - NETWORK_FAULTS - POWER_FAULTS
    assert {fault for seed in range(200) for fault in plan_for(seed).faults} == set(Fault)
    assert {fault for seed in range(200) for fault in plan_for(seed, is_root=False).faults} == without_root
