"""A store whose disk loses its power while a random part of the writes has reached it, in any order (torn writes).

    sends and flushes -> some dirty pages are written, others not -> power loss -> recovery -> what must be true

On ext4 the pages are written by `msync` of single pages from a second map of the same files, which is what the kernel's
own write-back may do at any moment. On the disk in memory `tear` does the same with sectors. Every step follows from
the seed.
"""

import mmap
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.loop_disk import LoopDisk

from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import StoreWorld

TOPICS: Final = (("orders", 0), ("orders", 1), ("bills", 0))
BODY_SIZES: Final = (0, 10, 100, 300, 1500, 5000)
PAGE: Final = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Torn:
    """The outcome of one such power loss with torn writes."""

    cut: int
    """Number of written records that are lost."""

    whole_after_hole: int
    """Number of lost records that were whole on the disk, after the hole that ended the log."""


def run_until_torn(world: StoreWorld, seed: int, disk: LoopDisk | None = None) -> Torn:
    """Run one store until a power loss, and check it afterwards. Without a `disk` it is in memory."""
    rng = random.Random(f"torn/{seed}")
    world.open()
    flushed = _send_and_flush(world, rng)
    if disk is None:
        world.lose_power(seed)
    else:
        _write_some_pages(Path(world.root), rng)
        disk.cut_power()
        world.kill()
        world.clock.reboot(
            0
        )  # Otherwise only the file system would have been shut down, in the same boot of the machine.
        disk.restore()
    whole = _whole_on_disk(world)

    report = world.open()

    assert report.end >= flushed, f"flushed up to {flushed}, and the log ends at {report.end}"
    assert report.lost_flushed_bytes == 0 and report.damaged == []
    written = len(world.records)
    whole_after_hole = {start for start in whole if start >= report.end}
    world.forget_after(report.end)
    assert world.find_altered() is None, "half a record is served"
    _check(world)
    _refill(world, rng)
    return Torn(written - len(world.records), len(whole_after_hole))


def _send_and_flush(world: StoreWorld, rng: random.Random) -> int:
    """Send some messages with a flush or two among them; return the flushed end."""
    flushed = 0
    for _ in range(rng.randrange(10, 60)):
        _send(world, rng)
        if rng.random() < 0.05:
            flushed = world.store.flush()
        if rng.random() < 0.05:
            world.clock.advance(20_000)
            world.store.flush_step()
            flushed = max(flushed, world.store.log.flushed)
    return flushed


def _send(world: StoreWorld, rng: random.Random) -> None:
    drafts = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        topic, queue_id = rng.choice(TOPICS)
        drafts.append(world.draft(topic, queue_id, body=rng.randbytes(rng.choice(BODY_SIZES)), keys="k"))
    world.append(drafts)
    world.clock.advance(1)


def _write_some_pages(root: Path, rng: random.Random) -> None:
    """Let the kernel write a random part of the pages of log, queues and index, one by one."""
    share = rng.random()
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size >= PAGE):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
            for position in range(0, len(pages), PAGE):
                if rng.random() < share:
                    pages.flush(position, min(PAGE, len(pages) - position))


def _whole_on_disk(world: StoreWorld) -> set[int]:
    """Return the offsets of records that are complete on the disk."""
    files = {int(name.rpartition("/")[2]): data for name, data in world.files("commitlog").items()}
    size = world.settings.mapped_file_size_commit_log
    found = set()
    for start, record in world.records.items():
        data = files.get(start - start % size, b"")
        if data[start % size : start % size + len(record)] == record:
            found.add(start)
    return found


def _check(world: StoreWorld) -> None:
    """Check that served messages equal the sent ones, from the first on, complete and dense."""
    for topic, queue_id in TOPICS:
        messages = world.messages(topic, queue_id)
        assert [message.body for message in messages] == world.sent_bodies(topic, queue_id)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        for message in messages[-3:]:
            found, _, _ = world.store.keys.records(topic, message.properties["UNIQ_KEY"], 64, 0, 1 << 60)
            assert world.store.guard.message_at(message.physical_offset) in found


def _refill(world: StoreWorld, rng: random.Random) -> None:
    """Write over the place of the cut and crash again: no record of the old tail may reappear after the new ones."""
    for _ in range(rng.randrange(4)):
        _send(world, rng)
    end = world.store.log.wrote
    world.kill()
    report = world.open()
    assert report.end == end, "something follows the last record that was written"
    _check(world)
    world.kill()


def in_memory() -> StoreWorld:
    return StoreWorld(FaultyDisk(), "/data/store")


def on_disk(disk: LoopDisk, name: str) -> StoreWorld:
    return StoreWorld(KillableDisk(), str(disk.path / name))
