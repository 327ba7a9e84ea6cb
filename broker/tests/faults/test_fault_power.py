"""Row D1 of the fault catalogue: the node loses its power under load, in every mode of flushing and buffering.

The guarantee of docs/promises.md: SYNC_FLUSH loses no acknowledged message. ASYNC_FLUSH loses a suffix and no flushed
message, with any buffer; lost messages never reappear. A twin is the same test without a sync: it must find the loss.
"""

from pathlib import Path

import pytest
from crash.history import Outcome
from faults.loop_disk import LoopDisk
from faults.modes import MODES, Medium, Mode
from faults.power import lose_power
from faults.scene import NO_FLUSH, QUICK_FLUSH, Scene, lowest

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_loop]

ROUNDS = 5
ACKED_PER_ROUND = 400


async def power_round(scene: Scene, disk: LoopDisk, buffers: Path, mode: Mode, *, acked: int) -> int:
    """Load, lose power and restart; return the number of lost acknowledged messages, which the mode must allow."""
    before = scene.history.count(Outcome.ACKED)
    await scene.start()
    async with scene.load():
        await scene.wait_acked(acked)
        await lose_power(scene, disk, buffers)
    durable = scene.checkpoint_flushed
    await scene.start()
    lost = await scene.lost_messages()
    if mode.is_sync:
        assert lost == [], f"SYNC_FLUSH lost {len(lost)} of {scene.history.count(Outcome.ACKED) - before}"
    if lost:
        assert lowest(lost) >= durable, "what the checkpoint called flushed is gone"
    await scene.broker.kill()
    await scene.start()
    assert await scene.lost_messages() == []
    await scene.broker.kill()
    return len(lost)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("mode", [Mode(False, Medium.OFF), Mode(True, Medium.TMPFS)], ids=str)
async def test_power_loss_loses_no_more_than_the_mode_allows(
    mode: Mode, disk: LoopDisk, buffers: Path, tmp_path: Path
) -> None:
    """D1, one round: no flushed message is lost, lost messages are a suffix, and they do not reappear."""
    settings = mode.settings(buffers) | QUICK_FLUSH
    async with Scene(tmp_path, store=disk.path / "store", settings=settings) as scene:
        await power_round(scene, disk, buffers, mode, acked=ACKED_PER_ROUND)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ROUNDS), ids=lambda seed: f"seed{seed}")
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_repeated_power_losses(mode: Mode, seed: int, disk: LoopDisk, buffers: Path, tmp_path: Path) -> None:
    """D1, several losses of one store: each is judged as strictly as the first."""
    settings = mode.settings(buffers) | QUICK_FLUSH
    async with Scene(tmp_path, store=disk.path / "store", settings=settings, seed=seed) as scene:
        for number in range(3):
            await power_round(scene, disk, buffers, mode, acked=100 + 300 * number)


@pytest.mark.slow
async def test_simulated_power_loss_loses_unflushed_messages(disk: LoopDisk, buffers: Path, tmp_path: Path) -> None:
    """D1's twin: a broker that never flushes loses acknowledged messages, so the simulated loss is real."""
    async with Scene(tmp_path, store=disk.path / "store", settings=NO_FLUSH) as scene:
        assert await power_round(scene, disk, buffers, Mode(False, Medium.OFF), acked=ACKED_PER_ROUND) > 0


@pytest.mark.slow
async def test_flushed_messages_survive_a_power_loss(disk: LoopDisk, buffers: Path, tmp_path: Path) -> None:
    """D1: all messages that the checkpoint declared flushed survive, without exception."""
    async with Scene(tmp_path, store=disk.path / "store", settings=QUICK_FLUSH) as scene:
        await scene.start()
        await scene.send_once(300)
        end = max(sent.physical_offset for sent in scene.history.sent.values())
        await scene.wait_until(lambda: scene.checkpoint_flushed > end, "flush of everything")

        await lose_power(scene, disk, buffers)

        await scene.start()
        assert await scene.lost_messages() == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_disk_that_ignores_syncs_is_detected(mode: Mode, disk: LoopDisk, buffers: Path, tmp_path: Path) -> None:
    """D1's twin: with syncs that do nothing, messages before the flushed offset are lost, and the test finds that."""
    settings = mode.settings(buffers) | QUICK_FLUSH
    async with Scene(tmp_path, store=disk.path / "store", settings=settings) as scene:
        scene.set_broker_options("--without", "syncs")
        await scene.start()
        await scene.send_once(300)
        end = max(sent.physical_offset for sent in scene.history.sent.values())
        await scene.wait_until(lambda: scene.checkpoint_flushed > end, "flush that is none")
        await lose_power(scene, disk, buffers)
        scene.set_broker_options()

        await scene.start()

        assert len(await scene.lost_messages()) > 0
