"""Row D15 of the fault catalogue: an fsync that takes seconds, or that does not return before any deadline.

With SYNC_FLUSH a producer gets code 10 at its deadline: stored, but not acknowledged. Only waiting answers accumulate,
and when the disk works again one fsync is enough for all earlier messages.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Final

import pytest
from crash.history import Outcome
from crash.producer import TOPICS, WINDOW
from faults.modes import Medium, Mode
from faults.scene import Scene
from faults.strace import injected

from gantry_remoting import Channel
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.send import SendMessageV2

HANGING: Final = Path(__file__).resolve().parent / "hanging_disk.py"
DEADLINE_MS: Final = 300
"""How long a send waits for its flush before it is answered with code 10."""
DELAY_S: Final = 5
"""How long strace delays each fdatasync."""
OUTSTANDING: Final = 200
"""The number of sends that wait for the disk at the same time."""
UNDER_WAY_MAX: Final = 2 * WINDOW * 8
"""Limit of messages in flight: two producers, their pending requests, and the largest batch."""
MODES: Final = (Mode(True, Medium.OFF), Mode(True, Medium.TMPFS))
REQUEST_TIMEOUT_MS: Final = 60_000
NO_ROLL: Final = {"mappedFileSizeCommitLog": str(16 << 20)}
"""No roll, because a new log file is synced before it is used, so that a roll may wait for the disk."""


def slow_scene(mode: Mode, directory: Path, buffers: Path) -> Scene:
    return Scene(directory, settings=mode.settings(buffers) | {"syncFlushTimeout": str(DEADLINE_MS)} | NO_ROLL)


def make_send(number: int) -> Command:
    """Return the request of a send outside of the history, whose answer the test checks itself."""
    fields = SendMessageV2(
        producer_group="SlowDisk", topic=TOPICS[0], default_topic="TBW102", default_topic_queue_nums=4,
        queue_id=0, sys_flag=0, born_timestamp=1_700_000_000_000, flag=0, properties=f"UNIQ_KEY\x01SLOW{number}\x02",
        batch=False,
    )  # fmt: skip
    return Command(code=RequestCode.SEND_MESSAGE_V2, ext=fields.write(), body=b"slow")


def threads(scene: Scene) -> int:
    return len(os.listdir(f"/proc/{scene.broker.pid}/task"))


async def sync_count(channel: Channel) -> int:
    """Return how many fsyncs of its log the broker reports."""
    reply = await channel.request(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), REQUEST_TIMEOUT_MS)
    return int(json.loads(reply.body)["table"]["commitLogSyncs"])


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_hanging_disk_is_answered_with_code_10(mode: Mode, tmp_path: Path, buffers: Path) -> None:
    """D15: while no sync returns producers get code 10 at their deadline and no thread is added; then all is good."""
    async with slow_scene(mode, tmp_path, buffers) as scene:
        hang = tmp_path / "hang"
        scene.set_broker_program(str(HANGING), str(hang), "-m", "gantry_broker")
        await scene.start()
        await scene.send_once(50)
        channel = await Channel.connect(scene.address)
        threads_before, syncs_before = threads(scene), await sync_count(channel)

        hang.touch()
        sends = [asyncio.ensure_future(channel.request(make_send(n), REQUEST_TIMEOUT_MS)) for n in range(OUTSTANDING)]
        replies = await asyncio.gather(*sends)

        assert {reply.code for reply in replies} == {ResponseCode.FLUSH_DISK_TIMEOUT}
        assert len({reply.ext["queueOffset"] for reply in replies}) == OUTSTANDING, "two sends have the same offset"
        assert threads(scene) <= threads_before
        hang.unlink()
        late = 0
        while (await channel.request(make_send(OUTSTANDING + late), REQUEST_TIMEOUT_MS)).code != ResponseCode.SUCCESS:
            late += 1  # A busy machine may need longer than the deadline for one fsync.
        assert await sync_count(channel) - syncs_before <= 5 + late, "more syncs than a group commit needs"
        await channel.close()


@pytest.mark.verify
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_nothing_is_acknowledged_while_the_disk_hangs(mode: Mode, tmp_path: Path, buffers: Path) -> None:
    """D15: under load, too; messages acknowledged before and after survive a kill of the broker."""
    async with slow_scene(mode, tmp_path, buffers) as scene:
        hang, history = tmp_path / "hang", scene.history
        scene.set_broker_program(str(HANGING), str(hang), "-m", "gantry_broker")
        await scene.start()
        async with scene.load():
            await scene.wait_acked(100)
            hang.touch()
            # More sends than can be in flight: some were answered with neither success nor refusal. A busy machine may
            # have answered others so before.
            before = history.count(Outcome.UNKNOWN)
            await scene.wait_until(lambda: history.count(Outcome.UNKNOWN) > before + UNDER_WAY_MAX, "late answers")
            acked = history.count(Outcome.ACKED)
            await scene.wait_until(lambda: history.count(Outcome.UNKNOWN) > before + 2 * UNDER_WAY_MAX, "more of them")
            assert history.count(Outcome.ACKED) == acked
            hang.unlink()
            await scene.wait_acked(50)
        await scene.broker.kill()
        scene.set_broker_options()

        await scene.start()

        assert await scene.lost_messages() == []


@pytest.mark.slow
@pytest.mark.needs_strace
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_sync_of_five_seconds_is_code_10(mode: Mode, tmp_path: Path, buffers: Path) -> None:
    """D15: the same with the system call itself delayed, in a broker as it is shipped."""
    async with slow_scene(mode, tmp_path, buffers) as scene:
        await scene.start()
        await scene.send_once(50)
        channel = await Channel.connect(scene.address)
        async with injected(scene.broker.pid, "fdatasync", f"delay_enter={DELAY_S}s", tmp_path / "trace") as injection:
            sends = [
                asyncio.ensure_future(channel.request(make_send(n), REQUEST_TIMEOUT_MS)) for n in range(OUTSTANDING)
            ]
            codes = {reply.code for reply in await asyncio.gather(*sends)}
            await scene.wait_until(lambda: injection.hits() != [], "delayed sync")

        assert codes == {ResponseCode.FLUSH_DISK_TIMEOUT}
        assert (await channel.request(make_send(OUTSTANDING), REQUEST_TIMEOUT_MS)).code == ResponseCode.SUCCESS
        await channel.close()


@pytest.mark.verify
async def test_async_flush_does_not_wait_for_the_disk(tmp_path: Path, buffers: Path) -> None:
    """D15: ASYNC_FLUSH keeps acknowledging on the same disk, so in the tests above only SYNC_FLUSH waited for it."""
    async with slow_scene(Mode(False, Medium.OFF), tmp_path, buffers) as scene:
        hang = tmp_path / "hang"
        scene.set_broker_program(str(HANGING), str(hang), "-m", "gantry_broker")
        await scene.start()
        async with scene.load():
            await scene.wait_acked(50)
            hang.touch()
            await scene.wait_acked(100)
            hang.unlink()
