"""Slaves that die, are cut off, come with nothing, lag, or have a disk that fails: under load, and judged."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.processes import ServerFailed
from faults.power import halt
from gantry_histories.events import Outcome
from replication import supervisor
from replication.group import POLL_S, Group, Member
from replication.hardships import wait_unknown
from replication.meddler import Meddler, Mischief
from replication.network import CLIENTS, Network, missing
from replication.plans import Plan
from replication.rounds import Scene, scene
from replication.supervisor import PATIENCE_S

from gantry_status.orders import Follow, HaStatus

SYNC = Plan(1, True, {"brokerRole": "SYNC_MASTER"}, ())
ASYNC = Plan(1, False, {"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}, ())
LEASED = ASYNC._replace(has_lease=True)
PATIENT = {"slaveTimeout": "60000"}
LARGE = (20_000,)
SOME_FILES = 4 << 20
MUCH = 40 << 20
MEMORY_GROWTH_MAX = 16 << 20
CUT_S = 2.0


async def wait_wrote(made: Scene, size: int) -> None:
    """Until the master has written so much more."""
    goal = ((await made.supervisor.master.status()).wrote or 0) + size
    await wait_status(made, lambda status: (status.wrote or 0) >= goal)


async def wait_status(made: Scene, is_so: Callable[[HaStatus], bool]) -> None:
    """Until the master says so."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if is_so(await made.supervisor.master.status()):
                return
            await asyncio.sleep(POLL_S)


def answers_since(made: Scene, at: int) -> set[tuple[Outcome, int]]:
    """How sends were answered that began after a moment."""
    history = made.history
    return {
        (answer.outcome, answer.code) for key, answer in history.answered.items() if history.sent[key].at >= at
    }  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize(
    ("plan", "members"),
    [
        pytest.param(SYNC, 2, id="one-slave-sync"),
        pytest.param(LEASED, 2, id="one-slave-async", marks=pytest.mark.slow),
        pytest.param(SYNC, 3, id="two-slaves-sync"),
        pytest.param(LEASED, 3, id="two-slaves-async"),
    ],
)
async def test_a_slave_that_dies_is_caught_up_with(
    plan: Plan, members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: without its only slave a synchronous master answers 11, with another one 0; an asynchronous one always 0."""
    monkeypatch.setattr(supervisor, "LEASE_MS", 10_000)  # a machine that stands still for a moment takes no key
    async with scene(
        plan._replace(settings=plan.settings | PATIENT), tmp_path, is_root=missing() is None, members=members
    ) as made:
        await made.drama.some()
        slave = made.group[2]
        await slave.kill()
        await wait_status(made, lambda status: slave.number not in {one.number for one in status.slaves})
        at = time.monotonic_ns()
        if plan.is_sync and members == 2:
            await wait_unknown(made, 30)
            assert answers_since(made, at) == {(Outcome.UNKNOWN, 11)}
        else:
            await made.drama.some()
            assert answers_since(made, at) == {(Outcome.OK, 0)}
        await made.drama.come_back(slave)
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.needs_root
@pytest.mark.parametrize("way", ["both", "from-slave", pytest.param("to-slave", marks=pytest.mark.slow)])
async def test_nothing_is_acknowledged_over_a_cut(way: str, tmp_path: Path) -> None:
    """R2: with one slave, sends that begin after the cut get no 0 until it is healed, which takes no manual step."""
    async with scene(SYNC, tmp_path, is_root=True, members=2) as made:
        await made.drama.some()
        if way != "from-slave":
            made.group.network.cut(1, 2)
        if way != "to-slave":
            made.group.network.cut(2, 1)
        at = time.monotonic_ns()
        await wait_unknown(made, 40)
        await asyncio.sleep(CUT_S)
        outcomes = {outcome for outcome, _ in answers_since(made, at)}
        made.group.network.heal()
        await made.drama.some()

        assert outcomes <= {Outcome.UNKNOWN}
        assert await made.judge() == []


@pytest.mark.verify
async def test_a_slave_that_comes_with_nothing_gets_the_whole_log(tmp_path: Path) -> None:
    """R6: from the oldest file on, when the master has several, under load."""
    async with scene(SYNC, tmp_path, is_root=missing() is None, body_bytes=LARGE) as made:
        await wait_wrote(made, SOME_FILES)
        slave = made.group[3]
        await slave.kill()
        shutil.rmtree(slave.store)
        await made.drama.come_back(slave)
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify
async def test_a_slave_whose_place_has_expired_begins_anew(tmp_path: Path) -> None:
    """R6: what it needs next is deleted at the master: it throws its log away and gets what there is."""
    retention = {
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
        "cleanResourceInterval": "500",
    }
    plan = SYNC._replace(settings=SYNC.settings | retention)
    async with scene(plan, tmp_path, is_root=missing() is None, body_bytes=LARGE, without=["youth"]) as made:
        await made.drama.some()
        slave = made.group[3]
        end = (await slave.status()).wrote or 0
        await slave.kill()
        await wait_status(made, lambda status: (status.begin or 0) > end)
        await made.drama.come_back(slave)
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_stream_that_somebody_meddles_with_leaves_a_prefix(seed: int, tmp_path: Path) -> None:
    """R7: cut, changed, repeated, reordered and with foreign bytes in it; then one without makes the slave whole."""
    chance = random.Random(seed)
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        master, slave = made.supervisor.master, made.group[3]
        host = made.group.network.host(CLIENTS)
        async with Meddler(host, (master.host, master.ha_port), chance) as meddler:
            await slave.orders.call(Follow(epoch=made.supervisor.epoch, master=meddler.address))
            await made.load.wait_until(lambda: set(meddler.done) == set(Mischief), PATIENCE_S)
        await made.supervisor.gather([slave])
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.needs_loop
@pytest.mark.needs_root
async def test_a_slave_whose_disk_is_full_holds_nobody_up(tmp_path: Path) -> None:
    """R8: it counts no more, the master goes on with the other; when there is room again it catches up by itself."""
    async with scene(SYNC, tmp_path, is_root=True, has_disks=True, body_bytes=LARGE) as made:
        await made.drama.some()
        disk = made.group[3].disk
        assert disk is not None
        ballast = disk.fill(leave_bytes=0)
        await wait_wrote(made, SOME_FILES)
        await made.drama.some()
        ballast.unlink()

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.needs_loop
@pytest.mark.needs_root
async def test_a_slave_whose_disk_turns_read_only_holds_nobody_up(tmp_path: Path) -> None:
    """R8: it ends, the master goes on with the other; started again on a good disk it catches up."""
    async with scene(SYNC, tmp_path, is_root=True, has_disks=True, body_bytes=LARGE) as made:
        await made.drama.some()
        slave = made.group[3]
        assert slave.disk is not None
        await halt(slave.process.pid)
        slave.disk.make_read_only()
        slave.process.send_signal(signal.SIGCONT)
        await wait_wrote(made, SOME_FILES)
        await made.drama.some()
        await slave.kill()
        slave.disk.restore()
        await made.drama.come_back(slave)

        assert await made.judge() == []


@pytest.mark.verify
async def test_a_slave_whose_writes_fail_holds_nobody_up(tmp_path: Path) -> None:
    """R8: every write and sync of it ends with EIO: it ends, and the master goes on with the other."""
    async with scene(SYNC, tmp_path, is_root=missing() is None, without=["good-disk"]) as made:
        await made.drama.some()
        slave = made.group[3]
        slave.process.send_signal(signal.SIGUSR2)
        assert await slave.process.ends_within(PATIENCE_S)
        await made.drama.some()
        await made.drama.come_back(slave)
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify
async def test_a_slave_that_lags_costs_no_memory_and_no_acks(tmp_path: Path) -> None:
    """R11: one of two hangs while much is written: the other's acks do, and the master holds nothing for the first."""
    async with scene(SYNC, tmp_path, is_root=missing() is None, body_bytes=LARGE) as made:
        await made.drama.some()
        master, slave = made.supervisor.master, made.group[3]
        before = master.process.anonymous_bytes()
        slave.pause()
        await wait_wrote(made, MUCH)
        grown = master.process.anonymous_bytes() - before
        slave.resume()

        assert grown < MEMORY_GROWTH_MAX
        assert await made.judge() == []


SWAPS = (
    {"transientStorePoolEnable": "true", "flushDiskType": "SYNC_FLUSH"},
    {"transientStorePoolEnable": "true", "flushDiskType": "ASYNC_FLUSH"},
    {"transientStorePoolEnable": "false", "flushDiskType": "SYNC_FLUSH"},
    {"transientStorePoolEnable": "false", "flushDiskType": "ASYNC_FLUSH", "haAckLevel": "FLUSHED"},
)


async def restart(made: Scene, member: Member, **settings: str) -> None:
    """With other settings; it follows afterwards."""
    await member.process.stop()
    member.configure(settings, ())
    await made.drama.come_back(member)


@pytest.mark.verify
@pytest.mark.parametrize("swaps", [1, pytest.param(4, marks=pytest.mark.slow)])
async def test_settings_may_be_swapped_while_a_group_serves(swaps: int, tmp_path: Path) -> None:
    """R12: buffers on and off, both kinds of flush, the roles exchanged: each starts from the same bytes."""
    async with scene(SYNC, tmp_path, is_root=missing() is None) as made:
        for swap in SWAPS[:swaps]:
            await made.drama.some()
            for slave in made.group.others(made.supervisor.master):
                await restart(made, slave, **swap)
                await made.supervisor.wait_whole()
            old = made.supervisor.master
            await made.drama.fail_over()
            await restart(made, old, **swap)
            await made.supervisor.wait_whole()
        await made.drama.some()

        assert await made.judge() == []


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"inSyncReplicas": "1"}, ["SYNC_MASTER", "inSyncReplicas"]),
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": "2"}, ["ASYNC_MASTER", "inSyncReplicas"]),
        ({"brokerRole": "SLAVE"}, ["roleAtStart", "SLAVE"]),
        ({"brokerId": "0"}, ["roleAtStart", "brokerId"]),
        ({"roleAtStart": "CONFIGURED"}, ["SYNC_MASTER", "brokerId"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_contradictory_roles_do_not_start(settings: dict[str, str], names: list[str], tmp_path: Path) -> None:
    """R12: and both keys are named."""
    with Network(1, is_isolated=False) as network:
        async with Group(tmp_path, network, members=1, settings=settings) as group:
            with pytest.raises(ServerFailed) as error:
                await group[1].process.start()

    assert all(name in str(error.value) for name in names), error.value
