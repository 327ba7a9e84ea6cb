"""Row K6 of the fault catalogue: a broker that runs out of descriptors, address space, or the memory of its container.

It refuses requests that need more and serves the others; if the kernel ends it, no acknowledged message is lost that
its mode keeps when the process ends.
"""

import asyncio
import errno
import itertools
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from crash.history import Outcome
from crash.processes import HOST
from faults.memory_group import memory_group
from faults.modes import MODES, Mode
from faults.scene import Scene

from gantry_broker.errors import OutOfDescriptors, StoreFull
from gantry_broker.server.core.refusals import store_refusal
from gantry_remoting import Channel, RemotingError
from gantry_status import RefusalReason
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_wire import Command, RequestCode
from gantry_wire.frame import FRAME_HEAD

SPARE_DESCRIPTORS = 20
"""How many files the broker may still open when its limit is set."""
SPARE_BYTES = 24 << 20
"""How much memory it may still take when its limit is set."""
FRAME_BYTES = 15 << 20
"""The announced size of an incomplete frame."""
ROOMY_FILES = {
    "mappedFileSizeCommitLog": str(256 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 300_000),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "1000000",
}
"""Files so large that no load here fills them: only a recovery point needs a descriptor, for its new file."""


def descriptors(pid: int) -> int:
    """Return how many files the process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def status_bytes(pid: int, name: str) -> int:
    """Return the value of a line of /proc/<pid>/status that is in kB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


async def half_frames(scene: Scene, stack: AsyncExitStack, count: int) -> None:
    """Open connections that each announce a large frame and send most of it, which the broker must keep in memory."""
    for _ in range(count):
        _, writer = await asyncio.open_connection(HOST, scene.port)
        stack.callback(writer.close)
        writer.write(FRAME_HEAD.pack(FRAME_BYTES, 100) + bytes(FRAME_BYTES - 4096))
        async with asyncio.timeout(20):
            await writer.drain()


async def is_served(address: str) -> bool:
    """Return whether a new connection gets an answer."""
    try:
        channel = await Channel.connect(address)
    except (RemotingError, OSError):
        return False
    try:
        await channel.request(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), 2_000)
    except RemotingError:
        return False
    finally:
        await channel.close()
    return True


@pytest.mark.verify
async def test_without_descriptors_new_connections_are_refused_and_old_ones_served(tmp_path: Path) -> None:
    """K6: at the limit of open files connected producers continue; when others disconnect, new ones are accepted."""
    async with Scene(tmp_path, settings=ROOMY_FILES) as scene:
        scene.set_broker_program("-m", "gantry_testing.crashing_broker", "--point-interval", "50", "--")
        await scene.start()
        async with scene.load(), AsyncExitStack() as others:
            await scene.wait_acked(50)
            limit = descriptors(scene.broker.pid) + SPARE_DESCRIPTORS
            resource.prlimit(scene.broker.pid, resource.RLIMIT_NOFILE, (limit, limit))
            for _ in range(3 * SPARE_DESCRIPTORS):
                _, writer = await asyncio.open_connection(HOST, scene.port)
                others.callback(writer.close)

            assert not await is_served(scene.address)
            await scene.wait_acked(50)
            await scene.wait_until(lambda: "recovery point postponed" in scene.log, "refused recovery point")
            await others.aclose()
            async with asyncio.timeout(120):
                while not await is_served(scene.address):  # noqa: ASYNC110 - asking is the only way to see it
                    await asyncio.sleep(0.05)
            await scene.wait_acked(50)
        await scene.broker.kill()
        await scene.start()
        assert await scene.lost_messages() == []


def test_message_is_stored_even_if_no_file_can_be_preallocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """K6: a failing start of the preallocation thread refuses nothing: the message is in log and queue."""

    def no_thread(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", no_thread)
    world = StoreWorld(FaultyDisk(), "/data/store", replace(TINY, is_preallocating=True))
    world.open()

    world.send(count=200)

    assert world.store.log.wrote > 2 * world.settings.mapped_file_size_commit_log
    assert world.bodies() == world.sent_bodies()


def test_preallocated_file_need_not_be_in_memory() -> None:
    """K6: reading a new file ahead is an optimization; its failure does not prevent the use of the file."""
    world = StoreWorld(FaultyDisk(), "/data/store", replace(TINY, is_preallocating=True))
    world.open()
    world.faulty_disk.fail_next("read", errno.ENOMEM)

    world.send(count=200)

    assert world.bodies() == world.sent_bodies()
    world.close()


def test_a_send_without_a_descriptor_names_the_limit(tmp_path: Path) -> None:
    """K6: a send to a new queue is refused with the limit of open files and the remedy; sends to others are stored."""
    world = StoreWorld(KillableDisk(), str(tmp_path / "store"))
    world.open()
    world.send("orders")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
    stack = [os.dup(0) for _ in range(limit - len(os.listdir("/proc/self/fd")))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with suppress(OSError):
            while True:
                stack.append(os.dup(0))
        with pytest.raises(OutOfDescriptors) as error:
            world.send("bills")
        world.send("orders")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in stack:
            os.close(descriptor)

    refusal = store_refusal(error.value)
    assert refusal.reason is RefusalReason.OUT_OF_DESCRIPTORS
    assert f"too many open files to open {tmp_path}" in refusal.remark
    assert f"the limit of this process is {limit}; raise its hard limit" in refusal.remark
    assert "disk" not in refusal.remark.replace(str(tmp_path), "")
    world.send("bills")
    assert world.bodies("orders") == world.sent_bodies("orders")
    assert world.bodies("bills") == world.sent_bodies("bills")
    world.close()


@pytest.mark.parametrize(("code", "text"), [(errno.ENFILE, "fs.file-max"), (errno.EMFILE, "LimitNOFILE=")])
def test_without_a_descriptor_for_the_log_the_refusal_stays_the_same(code: int, text: str) -> None:
    """K6: until the creation of a log file is tried again, sends are refused with its reason, and not as "no space"."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    while world.store.log.wrote < world.settings.mapped_file_size_commit_log - 1000:
        world.send()
    world.faulty_disk.fail_next("create", code)
    texts = []
    for _ in range(12):
        try:
            world.send()
        except StoreFull as error:
            texts.append((type(error), str(error)))

    assert len(texts) > 1
    assert len(set(texts)) == 1
    assert texts[0][0] is OutOfDescriptors
    assert text in texts[0][1]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("number", range(6))
def test_a_recovery_point_without_a_descriptor_is_written_later(number: int) -> None:
    """K6: a failure to open a directory is no failed sync: the broker continues, and the next point is complete.

    It holds for any directory; everything that the point calls durable survives a power loss.
    """
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send("orders", 300)
    world.send("bills", 10)
    world.clock.advance(60_000)
    met = fail_one(world, "sync_directory", number)

    world.store.flush_step()
    assert (len(met), world.fatal) == (1, [])
    world.send()
    world.clock.advance(60_000)
    world.store.flush_step()
    end = world.store.log.flushed
    world.lose_power()
    report = world.open()

    assert (report.start, report.end, report.queues_rebuilt, report.is_index_rebuilt) == (end, end, [], False)
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)


def fail_one(world: StoreWorld, operation: str, number: int) -> list[str]:
    """Let the `number`-th of these operations fail for want of a descriptor; return which one, once it happened."""
    meet_fault, count, met = world.faulty_disk.meet_fault, itertools.count(), list[str]()

    def meeting(kind: str, path: str) -> None:
        if kind == operation and next(count) == number:
            met.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        meet_fault(kind, path)

    world.faulty_disk.meet_fault = meeting  # type: ignore[assignment, method-assign]
    return met


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_without_address_space_the_mode_keeps_its_promise(mode: Mode, tmp_path: Path, buffers: Path) -> None:
    """K6: when allocations fail the broker refuses or ends, never by a signal, and loses only what the mode allows."""
    async with Scene(tmp_path, settings=mode.settings(buffers)) as scene, AsyncExitStack() as others:
        await scene.start()
        async with scene.load():
            await scene.wait_acked(50)
            limit = status_bytes(scene.broker.pid, "VmSize") + SPARE_BYTES
            resource.prlimit(scene.broker.pid, resource.RLIMIT_AS, (limit, limit))
            with suppress(OSError, TimeoutError):
                await half_frames(scene, others, 8)
            await others.aclose()
        if scene.broker.is_running:
            await scene.broker.kill()
        else:
            assert await scene.wait_ended() > 0, "ended by a signal"
        assert scene.history.count(Outcome.ACKED) > 50

        await scene.start()
        assert await scene.lost_messages() == [] or mode.may_lose_tail


@pytest.mark.parametrize("operation", ["map", "reserve", "create", "sync", "sync_directory"])
def test_failed_log_file_creation_can_be_retried(operation: str) -> None:
    """K6: after any failure to create the next file a later attempt succeeds."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    base = world.settings.mapped_file_size_commit_log
    while world.store.log.wrote < base - 1000:
        world.send()
    world.faulty_disk.fail_next(operation, errno.ENOMEM)
    with pytest.raises(StoreFull):
        for _ in range(10):
            world.send()
    world.clock.advance(60_000)

    world.send(count=20)

    assert world.store.log.wrote > base
    world.kill()
    world.open()
    assert world.bodies() == world.sent_bodies()


@pytest.mark.slow
@pytest.mark.needs_memory_group
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_mode_keeps_its_promise_after_a_kill_at_the_memory_limit(
    mode: Mode, tmp_path: Path, buffers: Path
) -> None:
    """K6: at its container's limit the kernel kills the broker; it loses only what the mode allows."""
    with memory_group() as group:
        async with Scene(tmp_path, settings=mode.settings(buffers)) as scene, AsyncExitStack() as others:
            await scene.start()
            group.add(scene.broker.pid)
            async with scene.load():
                await scene.wait_acked(200)
                group.limit(status_bytes(scene.broker.pid, "VmRSS") + SPARE_BYTES)
                with suppress(OSError, TimeoutError):
                    await half_frames(scene, others, 20)
                code = await scene.wait_ended()

            assert code == -9, f"the kernel did not kill it: {code}\n{scene.log}"
            await scene.start()
            assert await scene.lost_messages() == [] or mode.may_lose_tail
