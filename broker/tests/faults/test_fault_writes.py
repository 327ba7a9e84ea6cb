"""Row D5 of the fault catalogue: a write of only a part of the bytes, and one of nothing that reports success.

RocketMQ's `commit0` writes once, ignores the result, and treats all bytes as committed. Gantry writes the rest, or the
log becomes read-only. A lost write is a false success of the disk: it cannot be prevented, and checksums detect it.
A twin is the same test without one guard: it must find the damage.
"""

import os
import resource
from pathlib import Path

import pytest
from crash.log_walk import log_files
from faults.modes import MODES, Medium, Mode
from faults.scene import QUICK_FLUSH, Scene, lowest
from faults.strace import injected

from gantry_broker.errors import LogReadOnly
from gantry_testing.faulty_disk import FaultyDisk, FaultyFile
from gantry_testing.store_world import StoreWorld

LIMIT_BYTES = 700 * 1024
"""File size limit of the kernel: beyond half of a file, so that the next one is being created."""
NO_ROLL = {"mappedFileSizeCommitLog": str(16 << 20)}
"""No roll, because a full and committed file returns its buffer, and then no good copy of a lost write remains."""
TMPFS = Mode(False, Medium.TMPFS)
BOTH = [Mode(False, Medium.OFF), TMPFS]
slow = pytest.mark.slow


@pytest.mark.parametrize("mode", BOTH, ids=str)
async def test_the_rest_of_a_short_write_is_written(mode: Mode, tmp_path: Path, buffers: Path) -> None:
    """D5: with every write cut in half, nothing is missing in the files, and a kill finds all of it."""
    async with Scene(tmp_path, settings=mode.settings(buffers) | QUICK_FLUSH) as scene:
        scene.set_broker_options("--halve-writes")
        await scene.start()
        await scene.send_once(200)
        await scene.broker.kill()

        await scene.start()

        assert await scene.lost_messages() == []


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("guard", "mode"),
    [
        (True, BOTH[0]), (True, BOTH[1]), (False, BOTH[0]),
        *(pytest.param(True, mode, marks=slow) for mode in MODES if mode not in BOTH),
    ],
    ids=lambda value: {True: "guarded", False: "unguarded, the twin"}.get(value, str(value)),
)  # fmt: skip
async def test_a_write_that_cannot_be_finished_ends_the_log(
    guard: bool, mode: Mode, tmp_path: Path, buffers: Path
) -> None:
    """D5: the kernel takes the first part of a write and refuses the rest: what did not fit is not acknowledged.

    Without the guard it is acknowledged, and gone.
    """
    async with Scene(tmp_path, settings=mode.settings(buffers) | QUICK_FLUSH) as scene:
        scene.set_broker_options(*(() if guard else ("--without", "whole-writes")))
        await scene.start()
        resource.prlimit(scene.broker.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
        async with scene.load():
            await scene.wait_until_refused_or_ended()
        with log_files(scene.store)[0].open("rb") as file:
            assert os.pread(file.fileno(), 1 << 20, LIMIT_BYTES).strip(b"\0") == b"", "written beyond the limit"
        if guard:  # Sends may be refused before the failed thread has logged the reason.
            await scene.wait_until(lambda: "File too large" in scene.log, "the failed write in the log")
        await scene.broker.kill()
        scene.set_broker_options()

        await scene.start()

        lost = await scene.lost_messages()
        if guard:
            assert lost == [] or mode.may_lose_tail
            await scene.send_once(50)
            assert await scene.broker.stop() == 0
            await scene.start()
            assert await scene.lost_messages() == []
        else:
            assert len(lost) > 0


@pytest.mark.verify
@pytest.mark.needs_strace
async def test_a_lost_write_of_a_commit_is_repaired_from_the_buffer(tmp_path: Path, buffers: Path) -> None:
    """D5: what a commit wrote into nothing is still in its buffer at the next start, and is written then."""
    async with Scene(tmp_path, settings=TMPFS.settings(buffers) | NO_ROLL) as scene:
        await scene.start()
        async with scene.load():
            await scene.wait_acked(20)
            [log] = log_files(scene.store)
            fault = injected(scene.broker.pid, "pwrite64", "retval=64:when=1", tmp_path / "trace", file=log)
            async with fault as injection:
                await scene.wait_until(lambda: injection.hits() != [], "lost write")
            await scene.broker.kill()
        assert len(scene.lost_in_files()) > 0, "nothing was in danger"

        await scene.start()

        assert await scene.lost_messages() == []


@pytest.mark.needs_strace
async def test_lost_write_of_the_log_is_detected(tmp_path: Path, buffers: Path) -> None:
    """D5: bytes of a lost write are no message: the next start serves nothing altered, and reports it."""
    async with Scene(tmp_path, settings=QUICK_FLUSH) as scene:
        await scene.start()
        async with scene.load():
            await scene.wait_acked(20)
            async with injected(scene.broker.pid, "pwrite64", "retval=64:when=5", tmp_path / "trace") as injection:
                await scene.wait_until(lambda: injection.hits() != [], "lost write")
        await scene.broker.kill()
        hole = lowest(scene.lost_in_files())

        await scene.start()

        assert str(hole) in scene.log or f"end={hole}" in scene.log, scene.log
        missing = await scene.unserved_messages()
        assert hole in {scene.history.sent[mark].physical_offset for mark in missing}


def test_a_lost_write_is_not_shown_to_a_consumer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D5: a reader that finds no record where one should be skips it, reports it, and serves its neighbours."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=3)
    with monkeypatch.context() as losing:
        losing.setattr(FaultyFile, "pwrite", lambda file, data, position: len(data))
        world.send()
    world.send(count=3)
    bodies = world.sent_bodies()

    assert world.bodies() == bodies[:3] + bodies[4:]
    assert "damaged" in caplog.text
    assert world.sent[2].end in [getattr(record, "offset", None) for record in caplog.records]


@pytest.mark.parametrize("taken", [(1, 1, 1), (100, 7), (0, 50), (0, 0)], ids=str)
def test_a_short_write_of_the_log_is_continued(taken: tuple[int, ...]) -> None:
    """D5, in memory: for any short write, even of nothing, the rest follows or it is an error, never a hole."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=3)
    for length in taken:
        world.faulty_disk.short_write(length)
    if taken == (0, 0):
        with pytest.raises(LogReadOnly):
            world.send()
    else:
        world.send(count=2)
    world.kill()

    world.open()

    assert world.bodies() == world.sent_bodies()
