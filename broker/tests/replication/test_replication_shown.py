"""What consumers see, of masters and of slaves, while nobody is sure yet: it never vanishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replication.hardships import MEANWHILE_S, wait_unknown
from replication.network import missing
from replication.plans import Plan
from replication.rounds import scene

SYNC = Plan(1, True, {"brokerRole": "SYNC_MASTER"}, ())
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


@pytest.mark.verify
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, plan in PLANS.items()
    ],
)  # fmt: skip
async def test_what_is_shown_is_there_after_a_crash(plan: Plan, tmp_path: Path) -> None:
    """R9 and R10: consumers ask a master whose slaves hang, then it is killed; they were shown nothing that is gone."""
    async with scene(plan, tmp_path, is_root=missing() is None) as made:
        drama, group, supervisor = made.drama, made.group, made.supervisor
        old = supervisor.master
        await drama.some()
        for slave in group.others(old):
            slave.pause()
        await wait_unknown(made, 20)
        await asyncio.sleep(MEANWHILE_S)
        await old.kill()
        for slave in group.others(old):
            slave.resume()
        await drama.fail_over()
        await drama.come_back(old)
        await drama.some()

        assert await made.judge() == []


@pytest.mark.verify
async def test_a_slave_shows_no_more_than_its_master(tmp_path: Path) -> None:
    """R9: a slave that has bytes which too few others have shows them to nobody: with two acks needed, one hangs."""
    plan = SYNC._replace(settings=SYNC.settings | {"inSyncReplicas": "3"})
    async with scene(plan, tmp_path, is_root=missing() is None) as made:
        drama, group, supervisor = made.drama, made.group, made.supervisor
        supervisor.acks_needed = 2
        old = supervisor.master
        await drama.some()
        here, away = group.others(old)
        away.pause()
        await wait_unknown(made, 20)
        await asyncio.sleep(MEANWHILE_S)
        status = await here.status()
        assert status.wrote is not None and status.confirmed is not None
        assert status.wrote > status.confirmed
        await old.kill()
        await here.kill()
        away.resume()
        await supervisor.promote_among([away], tells_others=False)
        await drama.come_back(old)
        await drama.come_back(here)
        await drama.some()

        assert await made.judge() == []
