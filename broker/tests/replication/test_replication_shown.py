"""Unconfirmed messages are hidden from consumers, on masters and slaves: no message vanishes that a consumer received.

R9 and R10 are rows of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replication.guard_scenarios import SITUATION_S, wait_for_unknown_sends
from replication.network import namespaces_missing
from replication.plans import Plan
from replication.seeded_run import start_scene

SYNC = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER"}, faults=())
BUFFER = {"brokerRole": "SYNC_MASTER", "transientStorePoolEnable": "true"}
WITH_BUFFER = SYNC._replace(settings=BUFFER)
PLANS = {
    "no-buffer": SYNC,
    "anonymous-buffer": WITH_BUFFER,
    "lasting-buffer": WITH_BUFFER._replace(has_buffers=True),
    "sync-flush": WITH_BUFFER._replace(settings=BUFFER | {"flushDiskType": "SYNC_FLUSH"}),
    "flushed-acks": WITH_BUFFER._replace(settings=BUFFER | {"haAckLevel": "FLUSHED"}),
}

SLOW = {"sync-flush", "flushed-acks"}
"""Plans that run only with `--slow`."""


@pytest.mark.verify
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, plan in PLANS.items()
    ],
)  # fmt: skip
async def test_visible_messages_survive_a_crash(plan: Plan, tmp_path: Path) -> None:
    """R9 and R10: consumers pull from a master whose slaves hang, then it is killed; no message they saw is lost."""
    async with start_scene(plan, tmp_path, is_root=namespaces_missing() is None) as scene:
        faults, group, supervisor = scene.faults, scene.group, scene.supervisor
        old = supervisor.master
        await faults.send_some()
        for slave in group.others(old):
            slave.pause()
        await wait_for_unknown_sends(scene, 20)
        await asyncio.sleep(SITUATION_S)
        await old.kill()
        for slave in group.others(old):
            slave.resume()
        await faults.fail_over()
        await faults.restart_and_follow(old)
        await faults.send_some()

        assert await scene.stop_and_check() == []


@pytest.mark.verify
async def test_slave_shows_no_unconfirmed_message(tmp_path: Path) -> None:
    """R9: a slave hides bytes that too few others have: with two acks needed, one slave hangs."""
    plan = SYNC._replace(settings=SYNC.settings | {"inSyncReplicas": "3"})
    async with start_scene(plan, tmp_path, is_root=namespaces_missing() is None) as scene:
        faults, group, supervisor = scene.faults, scene.group, scene.supervisor
        supervisor.acks_needed = 2
        old = supervisor.master
        await faults.send_some()
        following, paused = group.others(old)
        paused.pause()
        await wait_for_unknown_sends(scene, 20)
        await asyncio.sleep(SITUATION_S)
        status = await following.status()
        assert status.wrote is not None and status.confirmed is not None
        assert status.wrote > status.confirmed
        await old.kill()
        await following.kill()
        paused.resume()
        await supervisor.promote_among([paused], orders_others=False)
        await faults.restart_and_follow(old)
        await faults.restart_and_follow(following)
        await faults.send_some()

        assert await scene.stop_and_check() == []
