"""Apache's broker is a slave of our store: its log is ours byte for byte, and its acks count."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gantry_interop import ha_store, java, peers, store_tool
from gantry_interop.ha_store import FILE_BYTES
from gantry_interop.processes import Nursery

from gantry_testing.local import wait_until

pytestmark = pytest.mark.needs_java

TIMEOUT_S = 240.0


@pytest.mark.slow
async def test_java_slave_has_our_log_byte_for_byte_and_continues_after_a_restart(tmp_path: Path) -> None:
    """It attaches to a log of two messages, follows three rolls, is stopped, and catches up two files after its
    restart."""
    await asyncio.to_thread(java.build)
    layout = peers.Layout(tmp_path / "java")
    with Nursery(tmp_path / "logs") as nursery:
        async with (
            ha_store.run_gantry_master(tmp_path / "ours") as master,
            ha_store.register_master(nursery, layout, master.server.port),
        ):
            await master.send(2)
            slave = ha_store.start_java_slave(nursery, layout)
            await wait_until(lambda: master.has_all, TIMEOUT_S)
            await master.send(3_500)
            await wait_until(lambda: master.has_all, TIMEOUT_S)
            assert [one.broker_id for one in master.slaves] == [-2]
            await asyncio.to_thread(slave.stop, peers.CLEAN_STOP_SECONDS_MAX)
            await wait_until(lambda: len(master.slaves) == 0)
            assert master.slaves.acked_offset() == -1

            await master.send(2_500)
            slave = ha_store.start_java_slave(nursery, layout)
            await wait_until(lambda: master.has_all, TIMEOUT_S)
            await master.send(500)
            await wait_until(lambda: master.has_all, TIMEOUT_S)
            await asyncio.to_thread(slave.stop, peers.CLEAN_STOP_SECONDS_MAX)
            end = master.store.log.wrote

    assert end > 6 * FILE_BYTES
    assert ha_store.log_bytes(layout.store, 0, end) == ha_store.log_bytes(tmp_path / "ours", 0, end)
    found = store_tool.read_store(layout.store, tmp_path, shape=store_tool.SMALL, keys=["interop_ha#key-6500"])
    assert found.physical_offset_max == end
    assert [found.topics["interop_ha"][queue].readable for queue in (0, 1)] == [3_251, 3_251]
    assert len(found.keys["interop_ha#key-6500"]) == 1


@pytest.mark.slow
async def test_late_and_empty_java_slave_gets_the_last_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ's master does the same; a slave whose log is ahead of ours is refused, and gets nothing."""
    await asyncio.to_thread(java.build)
    layout = peers.Layout(tmp_path / "java")
    with Nursery(tmp_path / "logs") as nursery:
        async with (
            ha_store.run_gantry_master(tmp_path / "ours") as master,
            ha_store.register_master(nursery, layout, master.server.port),
        ):
            await master.send(3_000)
            slave = ha_store.start_java_slave(nursery, layout)
            await wait_until(lambda: master.has_all, TIMEOUT_S)
            await asyncio.to_thread(slave.stop, peers.CLEAN_STOP_SECONDS_MAX)
            end = master.store.log.wrote
        last = end - end % FILE_BYTES
        assert min(path.name for path in (layout.store / "commitlog").iterdir()) == f"{last:020d}"
        assert ha_store.log_bytes(layout.store, last, end) == ha_store.log_bytes(tmp_path / "ours", last, end)

        async with (
            ha_store.run_gantry_master(tmp_path / "another") as other,
            ha_store.register_master(nursery, layout, other.server.port),
        ):
            await other.send(20)
            slave = ha_store.start_java_slave(nursery, layout)
            refusal = f"the slave requested offset {end}, but this log is 0 to {other.store.log.wrote}"
            await wait_until(lambda: refusal in [getattr(one, "reason", "") for one in caplog.records], TIMEOUT_S)
            assert len(other.slaves) == 0
            await asyncio.to_thread(slave.kill)
        assert ha_store.log_bytes(layout.store, last, end) == ha_store.log_bytes(tmp_path / "ours", last, end)
