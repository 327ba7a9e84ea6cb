"""Groups of brokers under load, the master's role moving: what clients saw is judged in the end."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from gantry_histories.events import Outcome
from gantry_histories.findings import Loss
from replication.hardships import wait_unknown
from replication.network import missing
from replication.plans import CUTS, POWER, Fault, Plan, plan_for
from replication.rounds import run, scene

SYNC = Plan(1, True, {"brokerRole": "SYNC_MASTER"}, ())
ASYNC = Plan(1, False, {"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}, ())
LEASED = ASYNC._replace(has_lease=True)
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
async def test_a_killed_master_costs_no_more_than_its_mode_says(plan: Plan, members: int, tmp_path: Path) -> None:
    """R3: a slave is promoted under load and clients go on; a synchronous group loses nothing."""
    plan = plan._replace(faults=(Fault.KILL_MASTER,))

    verdict = await run(plan, tmp_path, is_root=missing() is None, members=members)

    assert list(verdict.findings) == []
    assert verdict.promotions >= 1
    assert verdict.answers[Outcome.OK] > 0


@pytest.mark.verify
@pytest.mark.parametrize(
    ("is_sync", "flush", "has_buffers"),
    [
        pytest.param(*mode, marks=() if number in (0, 7) else pytest.mark.slow)
        for number, mode in enumerate(itertools.product([False, True], ["ASYNC_FLUSH", "SYNC_FLUSH"], [False, True]))
    ],
)
async def test_a_group_keeps_everything_over_kills(
    is_sync: bool, flush: str, has_buffers: bool, tmp_path: Path
) -> None:
    """K1: in all eight modes; where the log stays with its master, an asynchronous group loses nothing, either."""
    plan = (SYNC if is_sync else ASYNC)._replace(
        has_buffers=has_buffers, faults=(Fault.RESTART_MASTER, Fault.KILL_SLAVE, Fault.RESTART_MASTER)
    )
    settings = {"flushDiskType": flush, "transientStorePoolEnable": str(has_buffers).lower()}
    plan = plan._replace(settings=plan.settings | settings)
    assert plan.mode.loss is Loss.NOTHING

    verdict = await run(plan, tmp_path, is_root=missing() is None)

    assert list(verdict.findings) == []


@pytest.mark.needs_root
@pytest.mark.slow
@pytest.mark.parametrize("members", [2, 3], ids=["one-slave", "two-slaves"])
@pytest.mark.parametrize("fault", sorted((CUTS | POWER | {Fault.PAUSE_MASTER}) - {Fault.PART_SLAVE}))
@pytest.mark.parametrize("plan", [SYNC, ASYNC], ids=["sync", "async"])
async def test_every_fault_of_a_master_is_survived(plan: Plan, fault: Fault, members: int, tmp_path: Path) -> None:
    """R2, R3, R4 and K4: cut off in one direction or both, stopped, without power; then it returns and follows."""
    verdict = await run(plan._replace(faults=(fault,)), tmp_path, is_root=True, members=members)

    assert list(verdict.findings) == []


@pytest.mark.verify
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "30-s"])
async def test_a_master_that_was_stopped_finds_itself_deposed(is_long: bool, tmp_path: Path) -> None:
    """K4: SIGSTOP, a promotion, SIGCONT: it acknowledges nothing that began after its successor's first answer."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        old = made.supervisor.master
        await made.drama.some()
        old.pause()
        if is_long:
            await asyncio.sleep(PAUSE_S)
        await made.drama.fail_over()
        await made.drama.some()
        old.resume()
        await made.drama.some()
        await made.supervisor.gather([old])

        assert await made.judge() == []


@pytest.mark.verify
async def test_a_master_that_was_stopped_and_not_deposed_goes_on(tmp_path: Path) -> None:
    """K4: nobody was promoted meanwhile: its slaves are there, and so are its clients."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        master = made.supervisor.master
        await made.drama.some()
        master.pause()
        await asyncio.sleep(3.0)
        master.resume()
        await made.drama.some()

        assert await made.judge() == []
    assert len(made.history.reigns) == 1


async def test_a_master_that_dies_right_after_its_promotion_takes_nothing_along(tmp_path: Path) -> None:
    """R3: two masters are lost in a row, the second before it had to do anything."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        drama, group, supervisor = made.drama, made.group, made.supervisor
        await drama.some()
        first = supervisor.master
        await first.kill()
        second = await supervisor.promote_among(group.others(first), tells_others=False)
        await second.kill()
        await first.process.start()
        await drama.fail_over()
        await drama.come_back(second)
        await drama.some()

        assert await made.judge() == []


@pytest.mark.verify
async def test_a_whole_group_that_is_killed_comes_back_with_all_it_acknowledged(tmp_path: Path) -> None:
    """R3, K1: all members at once, under load; then an election among those who were slaves."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        await made.drama.some()
        for member in made.group.members:
            await member.kill()
        for member in made.group.members:
            await member.process.start()
        await made.drama.fail_over()
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify
async def test_no_promotion_without_enough_promises(tmp_path: Path) -> None:
    """R2: with one ack needed of two slaves both must promise; with one of them away nobody is promoted."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        drama, group, supervisor = made.drama, made.group, made.supervisor
        old = supervisor.master
        slaves = group.others(old)
        await drama.some()
        slaves[0].pause()
        await old.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await drama.fail_over()
        slaves[0].resume()
        await drama.fail_over()
        await drama.come_back(old)
        await drama.some()

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.needs_root
async def test_a_tail_that_was_cut_never_rises(tmp_path: Path) -> None:
    """R3: killed right after the cut, and again when records of the same size have filled its place."""
    async with scene(SYNC, tmp_path, is_root=True, body_bytes=(100,)) as made:
        drama, group, supervisor = made.drama, made.group, made.supervisor
        old = supervisor.master
        await drama.some()
        for slave in group.others(old):
            group.network.part(old.number, slave.number)
        old.is_cut_off = True
        await wait_unknown(made, 30)
        await drama.fail_over()
        group.network.heal()
        old.is_cut_off = False
        log_start = old.process.log_bytes
        await supervisor.gather([old])
        for _ in range(3):
            await old.process.wait_logged("following the master", log_start)
            await old.kill()
            log_start = old.process.log_bytes
            await drama.come_back(old)
            await drama.some()

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_seeded_run_breaks_no_promise(seed: int, tmp_path: Path) -> None:
    """R2, R3 and R9: a slice of what `run_replication.py` does."""
    is_root = missing() is None

    verdict = await run(plan_for(seed, is_root=is_root), tmp_path, is_root=is_root)

    assert list(verdict.findings) == []


def test_every_fault_can_be_met_by_a_seed() -> None:
    """Plans are by chance, and leave nothing out; without root nothing is cut, and no power is lost."""
    assert {fault for seed in range(200) for fault in plan_for(seed).faults} == set(Fault)
    assert {fault for seed in range(200) for fault in plan_for(seed, is_root=False).faults} == set(Fault) - CUTS - POWER
