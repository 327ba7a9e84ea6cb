"""The scrubber finds damage in data that is not read, heals it from a replica, and does not disturb clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk
from gantry_broker.server.admin.scrubber import READ_BYTES, Scrubber, ScrubProgress
from gantry_broker.store.damage import Integrity
from gantry_broker.store.sealed_file import read_sealed
from gantry_testing.local import dialogue, running_broker, truncate_log, wait_until

MESSAGES = 60
SMALL_FILES = {"mappedFileSizeCommitLog": "262144", "maxMessageSize": "65536"}
BODY = bytes(range(256)) * 160
"""40 KiB: some messages cross the end of a read."""


@asynccontextmanager
async def filled_broker(folder: Path, **conf: str) -> AsyncIterator[Broker]:
    async with running_broker(folder, disk=None, clock=None, **conf) as broker:
        async with dialogue(broker) as client:
            for number in range(MESSAGES):
                await client.send_ok(BODY + bytes((number,)))
        await flush_store(broker)
        yield broker


async def flush_store(broker: Broker) -> None:
    await asyncio.to_thread(broker.store.flush)


def scrubber_of(broker: Broker, disk: RealDisk | None = None) -> Scrubber:
    """Return a scrubber whose steps the test calls."""
    return Scrubber(broker.core, disk or RealDisk(), broker.retention.deletion_lock(), bytes_per_second=1 << 20)


async def scrub_all(scrubber: Scrubber) -> int:
    """Run a whole pass; return its bytes."""
    total, passes = 0, scrubber.passes
    while scrubber.passes == passes:
        total += await scrubber.step()
    return total


def record_offset(broker: Broker, number: int) -> int:
    queue = broker.store.queues.get("TopicTest", 0)
    assert queue is not None
    unit = queue.unit(number)
    assert unit is not None
    return unit[0]


def change_byte(broker: Broker, offset: int) -> None:
    """Change a byte of the log as another process would."""
    file_size = broker.store.settings.mapped_file_size_commit_log
    path = Path(broker.store.root) / "commitlog" / f"{offset - offset % file_size:020d}"
    with path.open("r+b") as file:
        file.seek(offset % file_size)
        byte = file.read(1)[0]
        file.seek(offset % file_size)
        file.write(bytes((byte ^ 4,)))


async def test_pass_ends_after_a_last_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It does not begin anew within the same pass, and the next one waits for its interval."""
    async with filled_broker(tmp_path, **SMALL_FILES) as broker:
        scrubber = scrubber_of(broker)
        while scrubber.position + 262144 <= broker.store.log.flushed:
            await scrubber.step()
        assert scrubber._skip_to_next_file() > 0

        assert (await scrubber.step(), scrubber.passes) == (0, 1)
        assert await scrubber.step() == 0


@pytest.mark.parametrize(
    "conf", [{}, {"mappedFileSizeCommitLog": "262144", "maxMessageSize": "65536"}], ids=["one file", "many files"]
)
async def test_pass_reads_the_whole_intact_log(tmp_path: Path, conf: dict[str, str]) -> None:
    """The pass handles ends of files, and records that cross the end of a read."""
    async with filled_broker(tmp_path, **conf) as broker:
        scrubber = scrubber_of(broker)

        assert await scrub_all(scrubber) == broker.store.log.flushed > READ_BYTES
        assert broker.store.guard.damage.integrity.damaged_records_found == 0
        shown = scrubber.add_progress(Integrity())
        assert shown.scrubbed_bytes == broker.store.log.flushed and shown.scrub_pass_ended_wall_ms > 0


async def test_unread_damage_is_found_once(tmp_path: Path) -> None:
    """Every damaged record, each counted once however often the log is scrubbed."""
    async with filled_broker(tmp_path) as broker:
        scrubber = scrubber_of(broker)
        places = [record_offset(broker, number) for number in (3, 4, 40)]
        for place, position in zip(places, (200, 5, 30), strict=True):
            change_byte(broker, place + position)

        await scrub_all(scrubber)
        scrubber._pass_began_at = -1e9
        await scrub_all(scrubber)

        assert broker.store.guard.damage.integrity.damaged_records_found in (2, 3)  # two neighbours may be one range
        found = broker.store.guard.damage.damaged
        assert found[0].start == places[0] and found[-1].start == places[2]
        assert all(any(one.start <= place < one.end for one in found) for place in places)


async def test_repaired_damage_is_not_reported_any_more(tmp_path: Path) -> None:
    """An administrator may put a good file in the place of the damaged one."""
    async with filled_broker(tmp_path) as broker:
        scrubber, place = scrubber_of(broker), record_offset(broker, 20)
        change_byte(broker, place + 500)
        await scrub_all(scrubber)
        assert broker.store.guard.damage.integrity.damaged_records == 1

        change_byte(broker, place + 500)
        scrubber._pass_began_at = -1e9
        await scrub_all(scrubber)

        assert broker.store.guard.damage.integrity.damaged_records == 0


async def test_record_damaged_only_on_disk_is_rewritten(tmp_path: Path) -> None:
    """A good copy in the page cache would hide the damage until the page is dropped, and then it is too late."""

    class RottenMedia(RealDisk):  # type: ignore[misc]  # final, but for this
        place = -1

        def read_uncached(self, path: str, position: int, length: int) -> bytes:
            data = bytearray(super().read_uncached(path, position, length))
            if position <= self.place < position + len(data) and not writes:
                data[self.place - position] ^= 1
            return bytes(data)

    writes: list[int] = []
    async with filled_broker(tmp_path) as broker:
        media = RottenMedia()
        media.place = record_offset(broker, 20) + 700
        scrubber = scrubber_of(broker, media)
        prepare_rewrite = broker.store.guard.prepare_rewrite

        def counted(offset: int, data: bytes):  # type: ignore[no-untyped-def]
            writes.append(offset)
            return prepare_rewrite(offset, data)

        broker.store.guard.prepare_rewrite = counted  # type: ignore[method-assign]
        await scrub_all(scrubber)

        assert writes == [record_offset(broker, 20)]
        assert (
            broker.store.guard.damage.integrity.damaged_records == 0
            and broker.store.guard.damage.integrity.healed_records == 1
        )


async def test_restart_continues_in_the_file_of_the_pass(tmp_path: Path) -> None:
    """A log of terabytes would never be scrubbed to its end by a broker that is restarted every week."""
    async with filled_broker(tmp_path, **SMALL_FILES) as broker:
        scrubber = scrubber_of(broker)
        while scrubber.position < 600_000:
            await scrubber.step()
        await scrubber._save_progress()
        kept = read_sealed(RealDisk(), f"{broker.store.root}/scrub.json", ScrubProgress)
        assert kept is not None and kept.position == scrubber.position

        later = scrubber_of(broker)
        later._load()
        assert later.position == 2 * 262144


async def test_scrubbed_log_is_not_read_again_at_once(tmp_path: Path) -> None:
    """A small log must not be read continuously."""
    async with filled_broker(tmp_path) as broker:
        scrubber = scrubber_of(broker)
        await scrub_all(scrubber)

        assert [await scrubber.step() for _ in range(5)] == [0] * 5


async def test_log_under_change_is_not_scrubbed(tmp_path: Path) -> None:
    """While the store is lent to another thread the log must not be read."""
    async with filled_broker(tmp_path) as broker:
        scrubber = scrubber_of(broker)
        with broker.core.gate.lend_store():
            assert await scrubber.step() == 0
        assert await scrubber.step() > 0


async def test_abandoned_change_of_the_log_reopens_the_gate(tmp_path: Path) -> None:
    """An order may be cancelled while it waits for a deletion to end: then nothing was changed."""
    async with filled_broker(tmp_path) as broker:
        async with broker.retention.deletion_lock():
            change = asyncio.ensure_future(broker.run_exclusively(lambda: None))
            await wait_until(lambda: broker.core.gate.request_refusal is not None)
            change.cancel()
            await asyncio.wait([change])

        assert broker.core.gate.request_refusal is None and broker.core.gate.write_refusal is None
        async with dialogue(broker) as client:
            await client.send_ok()


async def test_pass_continues_where_the_log_was_cut(tmp_path: Path) -> None:
    """Other records are stored after the cut: all of them are verified, and none is taken for damage."""
    async with filled_broker(tmp_path, scrubBytesPerSecond="0") as broker:
        scrubber, end = broker.scrubber, record_offset(broker, 2)
        while scrubber.position <= end:
            await scrubber.step()
        await truncate_log(broker, end)
        async with dialogue(broker) as client:
            for _ in range(MESSAGES):
                await client.send_ok(BODY + b"of another length")
        await flush_store(broker)

        assert await scrub_all(scrubber) == broker.store.log.flushed - end
        assert broker.store.guard.damage.counters.found == 0


async def test_rate_of_zero_disables_the_scrubber(tmp_path: Path) -> None:
    """The broker runs without the task."""
    async with filled_broker(tmp_path, scrubBytesPerSecond="0") as broker:
        assert not broker.scrubber.is_enabled
    async with filled_broker(tmp_path / "other") as broker:
        assert broker.scrubber.is_enabled


async def test_scrubber_task_keeps_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each piece it sleeps for as long as that piece may take."""
    monkeypatch.setattr("gantry_broker.server.admin.scrubber.START_DELAY_S", 0.0)
    async with filled_broker(tmp_path) as broker:
        slept: list[float] = []
        sleep = asyncio.sleep

        async def note(seconds: float) -> None:
            if seconds:
                slept.append(seconds)
            await sleep(0)

        monkeypatch.setattr("gantry_broker.server.admin.scrubber.asyncio.sleep", note)
        scrubber = Scrubber(broker.core, RealDisk(), broker.retention.deletion_lock(), bytes_per_second=1 << 10)
        task = asyncio.ensure_future(scrubber.run())
        try:
            await wait_until(lambda: scrubber.passes == 1)
        finally:
            task.cancel()
            await asyncio.wait([task])

        assert sum(slept[:-1]) > 0.9 * broker.store.log.flushed / 1024 - 60


def test_uncached_read_works_at_any_offset(tmp_path: Path) -> None:
    """Reads around the page cache need whole pages; the requested range need not be aligned."""
    path, data = tmp_path / "file", bytes(range(256)) * 64
    path.write_bytes(data)
    disk = RealDisk()

    for position, length in ((0, 16384), (1, 1), (4095, 2), (5000, 9000), (16000, 1000), (20000, 10)):
        assert disk.read_uncached(str(path), position, length) == data[position : position + length]
