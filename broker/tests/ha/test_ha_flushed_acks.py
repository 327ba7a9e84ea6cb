"""A slave whose disk a master waits for flushes as soon as it has received anything, also between its intervals."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_testing.local import dialogue, running_broker, wait_until
from gantry_testing.ports import free_ports

RARE = {"flushIntervalCommitLog": "3600000", "flushCommitLogThoroughInterval": "3600000"}
"""A flush by interval comes when the test has ended."""
REPLICATION_TIMED_OUT = 12


async def send(target: Broker, count: int) -> set[int]:
    """Send messages, each after the reply to the one before, and return their codes."""
    async with dialogue(target) as one:
        return {(await one.send()).code for _ in range(count)}


async def start_pair(stack: AsyncExitStack, path: Path, *, slave_level: str) -> tuple[Broker, Broker]:
    """Start a master that waits for the disk of its slave, and the slave."""
    ha_port = str(free_ports(1)[0])
    common = {**RARE, "haListenPort": ha_port}
    master = await stack.enter_async_context(
        running_broker(
            path / "master", disk=None, clock=None, brokerRole="SYNC_MASTER", haAckLevel="FLUSHED", slaveTimeout="2000",
            **common,
        )
    )  # fmt: skip
    slave = await stack.enter_async_context(
        running_broker(
            path / "slave", disk=None, clock=None, brokerRole="SLAVE", brokerId="1", haAckLevel=slave_level,
            haMasterAddress=f"127.0.0.1:{ha_port}", **{**RARE, "haListenPort": "-1"},
        )
    )  # fmt: skip
    await wait_until(lambda: len(master.replication.acks) == 1)
    return master, slave


async def test_slave_flushes_what_the_master_waits_for(tmp_path: Path) -> None:
    """Every send is acknowledged, and on the slave's disk by then."""
    async with AsyncExitStack() as stack:
        master, slave = await start_pair(stack, tmp_path, slave_level="FLUSHED")

        assert await send(master, 20) == {0}
        assert slave.store.log.flushed == slave.store.log.wrote == master.store.log.wrote
        assert master.store.log.flushed < master.store.log.wrote, "the master's disk is not waited for"


async def test_slave_that_flushes_by_interval_only_is_too_late(tmp_path: Path) -> None:
    """The twin: a slave that does not know that its disk is waited for."""
    async with AsyncExitStack() as stack:
        master, slave = await start_pair(stack, tmp_path, slave_level="RECEIVED")

        assert await send(master, 1) == {REPLICATION_TIMED_OUT}
        await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)
        assert slave.store.log.flushed < slave.store.log.wrote


@pytest.mark.parametrize("is_promoted", [True, False])
async def test_promoted_slave_flushes_by_interval_again(tmp_path: Path, is_promoted: bool) -> None:
    """A master's own disk is not waited for, so it has no cost. The twin is still a slave."""
    member = {"brokerRole": "SYNC_MASTER", "haAckLevel": "FLUSHED", "haDegrade": "ASYNC", "roleAtStart": "UNASSIGNED"}
    async with running_broker(tmp_path / "one", disk=None, clock=None, brokerId="1", **member, **RARE) as one:
        store = one.store
        assert not one.replication.slave_store.store.is_flush_awaited
        await asyncio.to_thread(one.replication.slave_store.prepare_copying)
        assert store.is_flush_awaited
        if is_promoted:
            await one.orders.promote(store.identity.epoch + 1, [], force=False)

        assert store.is_flush_awaited is not is_promoted
