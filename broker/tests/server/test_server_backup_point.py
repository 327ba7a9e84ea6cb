"""The point of a backup: a copy of the volume that is made after it has the tables and the log of that time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantry_broker.ports import RealDisk
from gantry_broker.server.roles.backup_point import BackupPoint
from gantry_broker.store.sealed_file import read_sealed
from gantry_status.orders import HaStatus, OrderRefused
from gantry_testing.local import GROUP, TOPIC, dialogue, running_broker
from gantry_testing.running_store import copy_running_store
from gantry_wire import RequestCode

RARELY_WRITTEN: dict[str, Any] = {"flushConsumerOffsetInterval": "3600000", "flushIntervalCommitLog": "3600000"}
COMMIT = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "2"}


async def copy_after_flush(folder: Path, backup: str) -> tuple[HaStatus, Path]:
    """Send messages, commit an offset, flush, and copy the store of the running broker."""
    async with running_broker(folder / "store", **RARELY_WRITTEN) as broker, dialogue(broker) as peer:
        for body in (b"0", b"1", b"2"):
            await peer.send_ok(body)
        await peer.make_group(GROUP)
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)).code == 0
        status = await broker.orders.flush(backup)
        return status, copy_running_store(folder / "store", folder / "copy")


async def test_copy_after_the_point_has_log_and_offsets(tmp_path: Path) -> None:
    """The file in the copy names the backup and the position, which the copy's log reaches."""
    status, copy = await copy_after_flush(tmp_path, "nightly")
    point = read_sealed(RealDisk(), f"{copy}/backup-point.json", BackupPoint)
    assert point is not None
    assert (point.backup, point.flushed, point.identity) == ("nightly", status.flushed, status.identity)
    assert status.flushed == status.wrote
    async with running_broker(copy) as broker, dialogue(broker) as peer:
        assert broker.core.offsets.find(GROUP, TOPIC, 0) == 2
        assert [message.body for message in await peer.read()] == [b"0", b"1", b"2"]
        assert broker.store.log.wrote >= point.flushed


async def test_plain_flush_writes_no_tables(tmp_path: Path) -> None:
    """The twin: without a backup the offset is only in memory, and the copy lacks it."""
    _, copy = await copy_after_flush(tmp_path, "")
    assert not (copy / "backup-point.json").exists()
    async with running_broker(copy) as broker:
        assert broker.core.offsets.find(GROUP, TOPIC, 0) is None


async def test_broker_without_a_role_marks_no_point(tmp_path: Path) -> None:
    """Its log may be cut by the next master: a copy of it is no backup. A plain flush is executed."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        with pytest.raises(OrderRefused, match="is no backup: its role is UNASSIGNED"):
            await broker.orders.flush("nightly")
        assert (await broker.orders.flush()).flushed == 0
    assert not (tmp_path / "backup-point.json").exists()
