"""Slaves that die, are cut off, start empty, lag, have a failing disk or get a corrupted stream: under load, checked.

The last tests change settings of a group that serves, and start a broker with contradictory settings.

R1 to R12 are rows of the fault catalogue (`faults/rows.py`).
"""

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
from faults.power import suspend
from gantry_histories.events import Outcome
from replication import supervisor
from replication.corrupting_proxy import CorruptingProxy, Corruption
from replication.final_checks import stop_and_check
from replication.group import POLL_S, Group, Member
from replication.guard_scenarios import wait_for_unknown_sends
from replication.network import CLIENTS, Network, namespaces_missing
from replication.plans import Plan
from replication.seeded_run import Scene, start_scene
from replication.supervisor import PATIENCE_S

from gantry_status.orders import Follow, HaStatus

SYNC = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"}, faults=())
ASYNC = Plan(seed=1, is_sync=False, settings={"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}, faults=())
LEASED = ASYNC._replace(has_lease=True)
PATIENT = {"slaveTimeout": "60000"}
"""A send waits a minute for a slave's ack, so that a slow slave on a busy machine is no failure."""

LARGE = (20_000,)
"""The size of bodies, in bytes, that fill several files of the log soon."""

SOME_FILES_BYTES = 4 << 20
MUCH_BYTES = 40 << 20
MEMORY_GROWTH_MAX = 16 << 20
"""Bytes of anonymous memory by which a master may grow while a slave lags."""

CUT_S = 2.0


async def wait_wrote(scene: Scene, size: int) -> None:
    """Wait until the master has written ``size`` more bytes to its log."""
    goal = ((await scene.supervisor.master.status()).wrote or 0) + size
    await wait_status(scene, lambda status: (status.wrote or 0) >= goal)


async def wait_status(scene: Scene, condition: Callable[[HaStatus], bool]) -> None:
    """Wait until the status of the master meets the condition."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition(await scene.supervisor.master.status()):
                return
            await asyncio.sleep(POLL_S)


def answers_since(scene: Scene, at: int) -> set[tuple[Outcome, int]]:
    """Return the outcomes and codes of sends that began at or after ``at``, in monotonic nanoseconds."""
    history = scene.history
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
async def test_killed_slave_catches_up(
    plan: Plan, members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: without its only slave a synchronous master answers 11, with another one 0; an asynchronous one always 0."""
    monkeypatch.setattr(supervisor, "LEASE_MS", 10_000)  # a pause of this machine must not end the Lease
    async with start_scene(
        plan._replace(settings=plan.settings | PATIENT), tmp_path, is_root=namespaces_missing() is None, members=members
    ) as scene:
        await scene.faults.send_some()
        slave = scene.group[2]
        await slave.kill()
        await wait_status(scene, lambda status: slave.number not in {one.number for one in status.slaves})
        at = time.monotonic_ns()
        if plan.is_sync and members == 2:
            await wait_for_unknown_sends(scene, 30)
            assert answers_since(scene, at) == {(Outcome.UNKNOWN, 11)}
        else:
            await scene.faults.send_some()
            assert answers_since(scene, at) == {(Outcome.OK, 0)}
        await scene.faults.restart_and_follow(slave)
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.needs_root
@pytest.mark.parametrize("way", ["both", "from-slave", pytest.param("to-slave", marks=pytest.mark.slow)])
async def test_nothing_is_acknowledged_across_a_cut(way: str, tmp_path: Path) -> None:
    """R2: with one slave, sends that begin after the cut get no 0 until it is healed, which takes no manual step."""
    async with start_scene(SYNC, tmp_path, is_root=True, members=2) as scene:
        await scene.faults.send_some()
        if way != "from-slave":
            scene.group.network.drop_packets(1, 2)
        if way != "to-slave":
            scene.group.network.drop_packets(2, 1)
        at = time.monotonic_ns()
        await wait_for_unknown_sends(scene, 40)
        await asyncio.sleep(CUT_S)
        outcomes = {outcome for outcome, _ in answers_since(scene, at)}
        scene.group.network.heal()
        await scene.faults.send_some()

        assert outcomes <= {Outcome.UNKNOWN}
        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_empty_slave_gets_the_whole_log_under_load(tmp_path: Path) -> None:
    """R6: it copies from the oldest file on, when the master has several, under load."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None, body_bytes=LARGE) as scene:
        await wait_wrote(scene, SOME_FILES_BYTES)
        slave = scene.group[3]
        await slave.kill()
        shutil.rmtree(slave.store)
        await scene.faults.restart_and_follow(slave)
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_slave_behind_expired_log_copies_again(tmp_path: Path) -> None:
    """R6: the next bytes it needs are deleted on the master: it deletes its log and copies what exists."""
    retention = {
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
        "cleanResourceInterval": "500",
    }
    plan = SYNC._replace(settings=SYNC.settings | retention)
    is_root = namespaces_missing() is None
    async with start_scene(plan, tmp_path, is_root=is_root, body_bytes=LARGE, without=["retention-age"]) as scene:
        await scene.faults.send_some()
        slave = scene.group[3]
        end = (await slave.status()).wrote or 0
        await slave.kill()
        await wait_status(scene, lambda status: (status.begin or 0) > end)
        await scene.faults.restart_and_follow(slave)
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_corrupted_stream_leaves_a_prefix_under_load(seed: int, tmp_path: Path) -> None:
    """R7: cut, changed, repeated, reordered and with foreign bytes; then a clean stream completes the slave."""
    chance = random.Random(seed)
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        master, slave = scene.supervisor.master, scene.group[3]
        host = scene.group.network.host(CLIENTS)
        async with CorruptingProxy(host, (master.host, master.ha_port), chance) as proxy:
            await slave.orders.call(Follow(epoch=scene.supervisor.epoch, master=proxy.address))
            await scene.load.wait_until(lambda: set(proxy.applied) == set(Corruption), PATIENCE_S)
        await scene.supervisor.order_to_follow([slave])
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.needs_loop
@pytest.mark.needs_root
async def test_slave_with_full_disk_does_not_block_others(tmp_path: Path) -> None:
    """R8: its acks no longer count, the master continues with the other; with room again it catches up by itself."""
    async with start_scene(SYNC, tmp_path, is_root=True, has_disks=True, body_bytes=LARGE) as scene:
        await scene.faults.send_some()
        disk = scene.group[3].disk
        assert disk is not None
        ballast = disk.fill(leave_bytes=0)
        await wait_wrote(scene, SOME_FILES_BYTES)
        await scene.faults.send_some()
        ballast.unlink()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
@pytest.mark.needs_loop
@pytest.mark.needs_root
async def test_slave_with_read_only_disk_does_not_block_others(tmp_path: Path) -> None:
    """R8: it ends, the master continues with the other; restarted on a good disk it catches up."""
    async with start_scene(SYNC, tmp_path, is_root=True, has_disks=True, body_bytes=LARGE) as scene:
        await scene.faults.send_some()
        slave = scene.group[3]
        assert slave.disk is not None
        await suspend(slave.process.pid)
        slave.disk.make_read_only()
        slave.process.send_signal(signal.SIGCONT)
        await wait_wrote(scene, SOME_FILES_BYTES)
        await scene.faults.send_some()
        await slave.kill()
        slave.disk.restore()
        await scene.faults.restart_and_follow(slave)

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_slave_with_failing_writes_does_not_block_others(tmp_path: Path) -> None:
    """R8: every write and sync of it fails with EIO: it ends, and the master continues with the other."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None, without=["working-disk"]) as scene:
        await scene.faults.send_some()
        slave = scene.group[3]
        slave.process.send_signal(signal.SIGUSR2)
        assert await slave.process.ends_within(PATIENCE_S)
        await scene.faults.send_some()
        await scene.faults.restart_and_follow(slave)
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_lagging_slave_costs_no_memory_and_no_acks(tmp_path: Path) -> None:
    """R11: one of two hangs while much is written: the acks of the other suffice, and the master buffers little."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None, body_bytes=LARGE) as scene:
        await scene.faults.send_some()
        master, slave = scene.supervisor.master, scene.group[3]
        before = master.process.anonymous_bytes()
        slave.pause()
        await wait_wrote(scene, MUCH_BYTES)
        grown = master.process.anonymous_bytes() - before
        slave.resume()

        assert grown < MEMORY_GROWTH_MAX
        assert await scene.stop_and_check() == []


SETTING_CHANGES = (
    {"transientStorePoolEnable": "true", "flushDiskType": "SYNC_FLUSH"},
    {"transientStorePoolEnable": "true", "flushDiskType": "ASYNC_FLUSH"},
    {"transientStorePoolEnable": "false", "flushDiskType": "SYNC_FLUSH"},
    {"transientStorePoolEnable": "false", "flushDiskType": "ASYNC_FLUSH", "haAckLevel": "FLUSHED"},
)


async def restart(scene: Scene, member: Member, **settings: str) -> None:
    """Restart a member with other settings; it follows afterwards."""
    await member.process.stop()
    member.configure(settings, ())
    await scene.faults.restart_and_follow(member)


@pytest.mark.verify
@pytest.mark.parametrize("changes", [1, pytest.param(4, marks=pytest.mark.slow)])
async def test_settings_may_change_while_a_group_serves(changes: int, tmp_path: Path) -> None:
    """R12: buffers on and off, both kinds of flush, the roles exchanged: each starts from the same bytes."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        for change in SETTING_CHANGES[:changes]:
            await scene.faults.send_some()
            for slave in scene.group.others(scene.supervisor.master):
                await restart(scene, slave, **change)
                await scene.supervisor.wait_until_caught_up()
            old = scene.supervisor.master
            await scene.faults.fail_over()
            await restart(scene, old, **change)
            await scene.supervisor.wait_until_caught_up()
        await scene.faults.send_some()

        # With ASYNC_FLUSH, a buffer in anonymous memory shows messages only when they are committed.
        mode = scene.mode._replace(shows_acknowledged=changes == 1)
        await scene.load.stop()
        assert list((await stop_and_check(scene.group, scene.supervisor, scene.load, mode)).findings) == []


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
    """R12: the error names both contradictory keys."""
    with Network(1, is_isolated=False) as network:
        async with Group(tmp_path, network, members=1, settings=settings) as group:
            with pytest.raises(ServerFailed) as error:
                await group[1].process.start()

    assert all(name in str(error.value) for name in names), error.value
