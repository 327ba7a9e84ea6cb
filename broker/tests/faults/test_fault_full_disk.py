"""Row D6 of the fault catalogue: the disk fills up under load, and gets space again.

Sends stop before it is full, reads continue, and with space sends resume. Nothing is restarted in between. Acknowledged
messages survive, a process that touches its maps on a full disk does not crash, and the broker deletes the oldest files
itself once consumers have consumed them. A twin is the same test without one guard: it must find the damage.
"""

import os
from pathlib import Path

import pytest
from crash.history import Outcome
from crash.readback import pull_everything
from faults.loop_disk import LoopDisk
from faults.modes import MODES, Medium, Mode
from faults.scene import QUICK_FLUSH, Scene

from gantry_remoting import Channel
from gantry_wire import Command, RequestCode

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_loop]

MIB = 1 << 20
HIGH_DISK_LEVELS = {
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
}
"""Disk levels so high that only the space for the next file decides."""
VISIBLE_AT_ONCE = [
    mode if mode == Mode(True, Medium.TMPFS) else pytest.param(mode, marks=pytest.mark.slow)
    for mode in MODES
    if mode.medium is not Medium.ANONYMOUS
]
"""Modes in which an acknowledged message is visible at once, so that the check after a load finds all of them."""


def percent_used(disk: LoopDisk) -> float:
    facts = os.statvfs(disk.path)
    used = facts.f_blocks - facts.f_bfree
    return used * 100 / (used + facts.f_bavail)


async def fill_until_refused(scene: Scene) -> None:
    """Send until sends are refused because the disk is full, and not only because the broker is busy."""
    async with scene.load():
        await scene.wait_until(lambda: "refusing sends" in scene.log, "the refusal of sends in the log")
        await scene.wait_until_refused()


@pytest.mark.verify
@pytest.mark.parametrize("mode", VISIBLE_AT_ONCE, ids=str)
@pytest.mark.parametrize("levels", [{}, HIGH_DISK_LEVELS], ids=["at-the-warning-level", "at-the-last-file"])
async def test_sends_stop_before_the_disk_is_full_and_resume(
    levels: dict[str, str], mode: Mode, disk: LoopDisk, tmp_path: Path, buffers: Path
) -> None:
    """D6: refused with space left; every acknowledged message is readable; with space sends resume by themselves."""
    keys = QUICK_FLUSH | mode.settings(buffers) | levels
    async with Scene(tmp_path, store=disk.path / "store", settings=keys) as scene:
        await scene.start()
        process = scene.broker.pid
        ballast = disk.fill(leave_bytes=20 * MIB)

        await fill_until_refused(scene)

        assert disk.free_bytes >= MIB
        assert await scene.lost_messages() == []
        assert "No space left" not in scene.log
        ballast.unlink()
        await scene.send_once(100)
        assert scene.broker.pid == process
        assert await scene.lost_messages() == []


@pytest.mark.verify
async def test_without_the_refusal_the_log_fills_the_disk(disk: LoopDisk, tmp_path: Path) -> None:
    """D6's twin: without the reserve, and with high levels, sends continue until almost no space is left."""
    async with Scene(tmp_path, store=disk.path / "store", settings=QUICK_FLUSH | HIGH_DISK_LEVELS) as scene:
        scene.set_broker_options("--without", "disk-reserve")
        await scene.start()
        disk.fill(leave_bytes=20 * MIB)

        await fill_until_refused(scene)

        assert disk.free_bytes < MIB


@pytest.mark.verify
async def test_broker_survives_a_completely_full_disk(disk: LoopDisk, tmp_path: Path) -> None:
    """D6: with no block left the broker serves reads, refuses sends, can be killed and started, and continues."""
    async with Scene(tmp_path, store=disk.path / "store", settings=QUICK_FLUSH) as scene:
        await scene.start()
        await scene.send_once(300)
        ballast = disk.fill(leave_bytes=0)
        assert disk.free_bytes < 8192

        await fill_until_refused(scene)

        assert await scene.lost_messages() == []
        await scene.broker.kill()
        await scene.start()
        assert await scene.lost_messages() == []
        ballast.unlink()
        await scene.send_once(100)
        assert await scene.lost_messages() == []


@pytest.mark.verify
async def test_consumed_files_are_deleted_on_a_full_disk(disk: LoopDisk, tmp_path: Path) -> None:
    """D6: full and unconsumed means refused; once every group has consumed, files are deleted and sends resume."""
    quick = QUICK_FLUSH | {"cleanResourceInterval": "200"}
    async with Scene(tmp_path, store=disk.path / "store", settings=quick) as scene:
        await scene.start()
        disk.fill(leave_bytes=20 * MIB)
        await fill_until_refused(scene)
        commit_log = disk.path / "store" / "commitlog"
        assert (commit_log / f"{0:020d}").exists(), "deleted although no group has consumed it"
        await scene.wait_until(lambda: "not consumed" in scene.log, "the reason why nothing is deleted")
        assert await scene.lost_messages() == []

        channel = await Channel.connect(scene.address)
        for (topic, queue_id), messages in (await pull_everything(channel)).items():
            await commit_offset(channel, topic, queue_id, len(messages))
        await channel.close()
        await scene.wait_until(lambda: "accepting sends" in scene.log, "sends are accepted again")

        assert not (commit_log / f"{0:020d}").exists()
        assert percent_used(disk) < 90
        before = scene.history.count(Outcome.ACKED)
        await scene.send_once(100)
        assert scene.history.count(Outcome.ACKED) >= before + 100


async def commit_offset(channel: Channel, topic: str, queue_id: int, offset: int) -> None:
    ext = {"consumerGroup": "done", "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    known = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"done"}')
    assert (await channel.request(known, 10_000)).code == 0
    reply = await channel.request(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext), 10_000)
    assert reply.code == 0, reply.remark
