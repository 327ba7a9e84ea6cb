"""Row D12 of the fault catalogue: derived files are deleted or damaged, alone and together, and are rebuilt.

The log is the source of truth. Queues, index, checkpoint, recovery point and abort marker only speed up access to it: a
store that has lost them reads more of the log, and serves the same messages.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gantry_testing.store_world import StoreWorld, make_world

PARTS = ("consumequeue", "index", "checkpoint", "abort", "recovery-point.json")
"""The files and folders that a store rebuilds from its log."""
QUEUES = (("orders", 0), ("orders", 1), ("bills", 0))
# All combinations of these parts; one part, and all of them, run without --slow.
TOGETHER = [
    pytest.param(parts, marks=[] if count in (1, len(PARTS)) else pytest.mark.slow)
    for count in range(1, len(PARTS) + 1)
    for parts in itertools.combinations(PARTS, count)
]


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.slow), "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    """Return a store with three queues over several files of each kind, mostly before the recovery point."""
    made = make_world(request.param, tmp_path)
    made.open()
    for number in range(240):
        made.append([made.draft(*QUEUES[number % 3], tag=f"t{number % 2}", keys=f"key-{number}")])
        made.clock.advance(1)
        if number == 200:
            made.clock.advance(20_000)
            made.store.flush_step()
    made.store.flush()
    yield made
    made.disk.kill()


def files_of(world: StoreWorld, part: str) -> list[str]:
    """Return the files of one kind, by their names in the store."""
    if world.disk.is_directory(world.path(part)):
        return sorted(world.files(part))
    return [part] if world.disk.exists(world.path(part)) else []


def delete(world: StoreWorld, part: str) -> None:
    if world.disk.is_directory(world.path(part)):
        world.disk.remove_tree(world.path(part))
    elif world.disk.exists(world.path(part)):
        world.disk.remove(world.path(part))


def replace(world: StoreWorld, name: str, data: bytes) -> None:
    """Replace a file by another one under the same name."""
    world.disk.remove(world.path(name))
    file = world.disk.create(world.path(name), len(data), reserve=len(data))
    if data:
        file.pwrite(data, 0)
    file.sync()
    file.close()


def empty(world: StoreWorld, part: str) -> None:
    for name in files_of(world, part):
        replace(world, name, b"")


def garble(world: StoreWorld, part: str) -> None:
    rng = random.Random(f"garble/{part}")
    for name in files_of(world, part):
        replace(world, name, rng.randbytes(world.disk.file_size(world.path(name))))


def zero(world: StoreWorld, part: str) -> None:
    for name in files_of(world, part):
        replace(world, name, bytes(world.disk.file_size(world.path(name))))


def flip_bits(world: StoreWorld, part: str) -> None:
    """Flip one bit at each end of every file, and one in the middle."""
    for name in files_of(world, part):
        data = bytearray(world.disk.read_file(world.path(name)))
        if data:
            data[0] ^= 0x01
            data[len(data) // 2] ^= 0x10
            data[-1] ^= 0x80
            replace(world, name, bytes(data))


DAMAGES: dict[str, Callable[[StoreWorld, str], None]] = {
    "deleted": delete, "emptied": empty, "zeroed": zero, "garbled": garble, "flipped": flip_bits,
}  # fmt: skip


def everything_is_served(world: StoreWorld, *, is_index_exact: bool = True) -> None:
    """Check that all queues serve all messages in order, at dense offsets, and keys find them."""
    for topic, queue_id in QUEUES:
        messages = world.messages(topic, queue_id)
        assert [message.body for message in messages] == world.sent_bodies(topic, queue_id)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        for message in messages[::10]:
            found, _, _ = world.store.keys.records(topic, message.properties["UNIQ_KEY"], 64, 0, 1 << 60)
            assert world.store.guard.message_at(message.physical_offset) in found or not is_index_exact


@pytest.mark.parametrize(
    "is_clean", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["after-a-kill", "after-a-stop"]
)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("parts", TOGETHER, ids="+".join)
def test_derived_files_are_rebuilt(world: StoreWorld, parts: tuple[str, ...], damage: str, is_clean: bool) -> None:
    """D12: after any damage of derived files every message is at its offset and found, and sends work."""
    world.close() if is_clean else world.kill()
    end = world.sent[-1].end
    for part in parts:
        DAMAGES[damage](world, part)

    report = world.open()

    assert (report.end, report.lost_flushed_bytes, report.damaged) == (end, 0, [])
    if {"checkpoint", "recovery-point.json"} <= set(parts):
        assert report.start == 0, "expected a start that reads everything, without a recovery point"
    # RocketMQ's index has no checksums: a single flipped bit can hide a message from queries by its key, until
    # `gantry store verify` finds it. It cannot hide a message from its queue.
    is_index_exact = not (damage == "flipped" and "index" in parts)
    everything_is_served(world, is_index_exact=is_index_exact)
    world.send("orders", 20)
    world.kill()
    world.open()
    everything_is_served(world, is_index_exact=is_index_exact)


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_rebuilt_queues_are_identical_and_a_rebuilt_index_finds_messages(world: StoreWorld, part: str) -> None:
    """D12: rebuilt queues equal the former ones byte for byte; a rebuilt index finds every tenth message by its key."""
    world.close()
    before = world.files("consumequeue")
    delete(world, part)

    world.open()

    everything_is_served(world)
    world.close()
    assert world.files("consumequeue") == before
