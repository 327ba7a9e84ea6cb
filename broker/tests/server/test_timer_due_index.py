"""Due files hold any number of entries, and the window loads them in order and in bounded memory."""

from __future__ import annotations

import asyncio
import random

import pytest

from gantry_broker.server.timers import due_index, window
from gantry_broker.server.timers.due_files import MINUTE_MS, DueFiles, IndexedPosition
from gantry_broker.server.timers.due_index import DamagedDueFile, DueIndex
from gantry_broker.server.timers.entries import ENTRY_BYTES, MESSAGE, RECALL, Entry, decode_entry
from gantry_broker.server.timers.progress import TimerState
from gantry_broker.server.timers.window import DueWindow
from gantry_testing.faulty_disk import FaultyDisk

START_MS = 28_333_333 * MINUTE_MS
HORIZON_MS = START_MS + 10 * MINUTE_MS


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directory("/store")
    made.sync_directory("/")
    return made


def opened(disk: FaultyDisk) -> tuple[DueIndex, IndexedPosition]:
    files = DueFiles(disk, "/store")
    position = files.open()
    return DueIndex(files), position


def message(due_ms: int, offset: int) -> Entry:
    return Entry(due_ms, MESSAGE, offset, offset, 0)


async def load_all(index: DueIndex, state: TimerState, read: int) -> tuple[list[Entry], int]:
    """Load everything as a service does; return the entries in order, and the largest number in memory."""
    cache, found, largest = DueWindow(), [], 0
    cache.restart(START_MS, keeps_recalls=False)
    while True:
        before = cache.covered
        await index.load(cache, state, read=read, horizon_ms=HORIZON_MS)
        largest = max(largest, len(cache))
        while cache.peek() is not None:
            found.append(decode_entry(cache.pop()))
        if cache.covered == before:
            return found, largest


async def test_minute_with_more_entries_than_memory_is_loaded_in_order(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand entries of one millisecond, and others around them, come in order, ten at a time."""
    for module in (window, due_index):
        monkeypatch.setattr(module, "RUN_MAX", 10)
        monkeypatch.setattr(module, "SORTED_MAX", 20)
    monkeypatch.setattr(due_index, "ENTRIES_PER_SLICE", 7)
    rng = random.Random(1)
    entries = [message(START_MS + 500, offset) for offset in range(1_000)]
    entries += [message(START_MS + rng.randrange(3 * MINUTE_MS), offset) for offset in range(1_000, 2_000)]
    rng.shuffle(entries)
    index, _ = opened(disk)
    for number, entry in enumerate(entries):
        index.add(entry.encode())
        if number % 700 == 699:
            await index.flush(IndexedPosition(number))
    assert index.buffered == 600

    found, largest = await load_all(index, TimerState(), 2_000)

    assert found == sorted(entries)
    assert largest <= 10


async def test_repeated_and_unread_entries_are_left_out(disk: FaultyDisk) -> None:
    """Entries beyond the read offset are read again from the log; delivered ones are not loaded, recalls always are."""
    index, _ = opened(disk)
    recall = Entry(START_MS + 10, RECALL, 3, 3, 7)
    for entry in (*(message(START_MS + number, number) for number in range(6)), message(START_MS + 2, 2), recall):
        index.add(entry.encode())
    await index.flush(IndexedPosition(6))
    state = TimerState().advance(START_MS + 1, 1, 6)

    found, _ = await load_all(index, state, 5)

    assert [entry.queue_offset for entry in found] == [2, 2, 3, 4]


async def test_positions_are_believed_only_after_their_entries(disk: FaultyDisk) -> None:
    """A power loss at any moment leaves a position whose entries are all in the files."""
    index, _ = opened(disk)
    for offset in range(3):
        index.add(message(START_MS + offset * MINUTE_MS, offset).encode())
    await index.flush(IndexedPosition(3, 100, "aa"))
    for offset in range(3, 6):
        index.add(message(START_MS + offset * MINUTE_MS, offset).encode())
    disk.fail_next("sync", 5)
    with pytest.raises(OSError, match="Input/output error"):
        await index.flush(IndexedPosition(6))
    assert index.buffered == 3
    disk.lose_unsynced()

    again, position = opened(disk)

    assert position == IndexedPosition(3, 100, "aa")
    found, _ = await load_all(again, TimerState(), 3)
    assert [entry.queue_offset for entry in found] == [0, 1, 2]


async def test_failed_flush_is_completed_later(disk: FaultyDisk) -> None:
    """Entries that could not be written stay in memory, are loaded from there, and are written by the next flush."""
    index, _ = opened(disk)
    for offset in range(3):
        index.add(message(START_MS + offset * MINUTE_MS, offset).encode())
    disk.fail_next("write", 28)
    with pytest.raises(OSError, match="No space left"):
        await index.flush(IndexedPosition(3))

    found, _ = await load_all(index, TimerState(), 3)
    assert [entry.queue_offset for entry in found] == [0, 1, 2]
    await index.flush(IndexedPosition(3))
    assert index.buffered == 0
    assert opened(disk)[1].queue_offset == 3


@pytest.mark.parametrize("size", [1, ENTRY_BYTES - 1, ENTRY_BYTES + 5])
async def test_torn_append_is_found(disk: FaultyDisk, size: int) -> None:
    """The rest of a torn append is padded by the next one, and makes the file invalid when it is loaded."""
    index, _ = opened(disk)
    index.add(message(START_MS, 0).encode())
    await index.flush(IndexedPosition(1))
    disk.append_file(f"/store/timers/{START_MS // MINUTE_MS:010d}", (message(START_MS, 1).encode() * 2)[:size])
    index.add(message(START_MS, 2).encode())
    await index.flush(IndexedPosition(3))

    with pytest.raises(DamagedDueFile):
        await load_all(index, TimerState(), 3)


async def test_old_files_are_removed_in_steps(disk: FaultyDisk) -> None:
    """Files of past minutes are removed, those with entries in memory are kept until these are written."""
    index, _ = opened(disk)
    for number in range(5):
        index.add(message(START_MS + number * MINUTE_MS, number).encode())
    await index.flush(IndexedPosition(5))
    index.add(message(START_MS + MINUTE_MS, 5).encode())
    first = START_MS // MINUTE_MS

    old = index.minutes_before(first + 3)
    assert old == [first, first + 2]
    await asyncio.to_thread(index.files.remove, [*old, first + 99])
    assert disk.list("/store/timers") == [f"{first + number:010d}" for number in (1, 3, 4)] + ["position"]
