"""Due files hold any number of entries, and the window loads them in order and in bounded memory."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gantry_broker.server.timers import due_files, due_index, due_merge
from gantry_broker.server.timers.due_files import HOUR_MS, DamagedDueFile, DueFiles, IndexedPosition
from gantry_broker.server.timers.due_index import DueIndex
from gantry_broker.server.timers.entries import ENTRY_BYTES, MESSAGE, RECALL, Entry, decode_entry, first_key
from gantry_broker.server.timers.marks import TimerState
from gantry_broker.server.timers.window import DueWindow
from gantry_broker.store.sealed_file import write_sealed
from gantry_testing.faulty_disk import FaultyDisk

START_HOUR = 472_222
START_MS = START_HOUR * HOUR_MS
DAYS = 40


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directory("/store")
    made.sync_directory("/")
    return made


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks, chunks and rounds have few entries, so that few entries need many of them."""
    monkeypatch.setattr(due_files, "BLOCK_ENTRIES_MAX", 50)
    monkeypatch.setattr(due_index, "BLOCK_ENTRIES_MAX", 50)
    monkeypatch.setattr(due_files, "READ_BYTES", 40 * ENTRY_BYTES)
    monkeypatch.setattr(due_index, "FILES_PER_STEP", 2)
    monkeypatch.setattr(due_merge, "ROUND_ENTRIES", 40)
    monkeypatch.setattr(due_merge, "CHUNK_ENTRIES_MIN", 4)
    monkeypatch.setattr(due_merge, "ENTRIES_PER_SLICE", 7)


def opened(disk: FaultyDisk) -> tuple[DueIndex, IndexedPosition]:
    files = DueFiles(disk, "/store")
    position = files.open()
    return DueIndex(files), position


def message(due_ms: int, offset: int) -> Entry:
    return Entry(due_ms, MESSAGE, offset, offset, 0)


async def split(index: DueIndex, due_ms: int) -> None:
    """Move all entries to the files of their hours."""
    await index.split_step(due_ms)
    while index.is_split_needed(0):
        await index.split_step(due_ms)


async def load_all(
    index: DueIndex, state: TimerState, read: int, *, until_ms: int = START_MS + 10 * HOUR_MS
) -> tuple[list[Entry], int]:
    """Load everything as a service does; return the entries in order, and the largest number in memory."""
    window, found, largest = DueWindow(), [], 0
    window.restart(START_MS, keeps_recalls=False)
    while window.covered < first_key(until_ms):
        await index.load(window, state, read=read, horizon_ms=until_ms)
        largest = max(largest, len(window))
        while window.peek() is not None:
            found.append(decode_entry(window.pop()))
    return found, largest


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("is_ahead", [False, True], ids=["files of hours", "later"])
async def test_hour_with_more_entries_than_memory_is_loaded_in_order(disk: FaultyDisk, is_ahead: bool) -> None:
    """A thousand entries of one millisecond, and others around them, come in order, in rounds of bounded size."""
    rng = random.Random(1)
    entries = [message(START_MS + 500, offset) for offset in range(1_000)]
    entries += [message(START_MS + rng.randrange(3 * HOUR_MS), offset) for offset in range(1_000, 2_000)]
    rng.shuffle(entries)
    index, _ = opened(disk)
    await split(index, START_MS - HOUR_MS if is_ahead else START_MS + 9 * HOUR_MS)
    for number, entry in enumerate(entries):
        index.add(entry.encode())
        if number % 700 == 699:
            await index.flush(IndexedPosition(number))
    assert (index.buffered, bool(index.files.hours)) == (600, not is_ahead)

    found, largest = await load_all(index, TimerState(), 2_000)

    assert found == sorted(entries)
    assert largest <= 200


@pytest.mark.usefixtures("small_runs")
async def test_split_of_a_full_hour_has_few_entries_as_objects(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split of `later` makes objects of one block at a time, even when all entries are due in the same hour."""
    sizes: list[int] = []

    def split_entries(data: bytes, name: str) -> list[bytes]:
        sizes.append(len(data) // ENTRY_BYTES)
        return due_files.split_entries(data, name)

    monkeypatch.setattr(due_index, "split_entries", split_entries)
    index, _ = opened(disk)
    for offset in range(500):
        index.add(message(START_MS + HOUR_MS + offset, offset).encode())
    await index.flush(IndexedPosition(500))
    assert index.files.later.size == 500 * ENTRY_BYTES
    await split(index, START_MS)
    assert sum(sizes) == 1000
    assert max(sizes) == 50
    assert (await load_all(index, TimerState(), 500))[0] == [message(START_MS + HOUR_MS + n, n) for n in range(500)]


@pytest.mark.usefixtures("small_runs")
async def test_entries_that_are_added_during_a_load_are_not_lost(disk: FaultyDisk) -> None:
    """An hour that is partly loaded gets further blocks, before and behind what was taken."""
    rng = random.Random(2)
    index, _ = opened(disk)
    await split(index, START_MS)
    window, found, added, seen = DueWindow(), list[Entry](), list[Entry](), 0
    window.restart(START_MS, keeps_recalls=False)
    while window.covered < first_key(START_MS + HOUR_MS):
        for _ in range(60 if seen < 1_500 else 0):
            entry = message(START_MS + rng.randrange(HOUR_MS), seen)
            seen += 1
            if entry.encode() >= window.covered:
                index.add(entry.encode())
                added.append(entry)
        if rng.random() < 0.5:
            await index.flush(IndexedPosition(seen))
        await index.load(window, TimerState(), read=seen, horizon_ms=START_MS + HOUR_MS)
        while window.peek() is not None:
            found.append(decode_entry(window.pop()))

    assert len(added) > 300
    assert found == sorted(added)


@pytest.mark.usefixtures("small_runs")
async def test_window_that_is_set_back_is_loaded_again(disk: FaultyDisk) -> None:
    """A window that is restarted at an earlier time gets the same entries again: the merge has passed them."""
    index, _ = opened(disk)
    await split(index, START_MS)
    entries = [message(START_MS + number * 997 % 50_000, number) for number in range(2_000)]
    for entry in entries:
        index.add(entry.encode())
    await index.flush(IndexedPosition(2_000))
    window = DueWindow()
    window.restart(START_MS, keeps_recalls=False)
    for _ in range(5):
        await index.load(window, TimerState(), read=2_000, horizon_ms=START_MS + HOUR_MS)
    assert len(window) > 100

    found, _ = await load_all(index, TimerState(), 2_000)

    assert found == sorted(entries)


async def test_flush_of_all_hours_of_forty_days_syncs_few_files(disk: FaultyDisk) -> None:
    """However far ahead messages are due, a flush syncs `later`, the position, and the file of this hour."""
    synced: Counter[str] = Counter()
    disk.on_operation = lambda kind, path: synced.update([path] if kind == "sync" else [])
    index, _ = opened(disk)
    await split(index, START_MS)
    for number in range(20_000):
        index.add(message(START_MS + number * DAYS * 24 * HOUR_MS // 20_000, number).encode())
    await index.flush(IndexedPosition(20_000))

    assert synced == {f"/store/timers/{name}": 1 for name in (f"{START_HOUR:08d}", "later", "position.tmp")}
    await split(index, START_MS)
    assert len(disk.list("/store/timers")) == DAYS * 24 + 2
    assert max(synced.values()) == 2


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


@pytest.mark.parametrize("split_hour", [START_HOUR - 1, START_HOUR + 9])
@pytest.mark.parametrize("seed", range(3))
async def test_positions_are_believed_only_after_their_entries(disk: FaultyDisk, split_hour: int, seed: int) -> None:
    """A crash at any moment leaves a position whose entries are all in the files, and nothing behind them."""
    index, _ = opened(disk)
    await split(index, split_hour * HOUR_MS)
    for offset in range(3):
        index.add(message(START_MS + offset * HOUR_MS, offset).encode())
    await index.flush(IndexedPosition(3, 100, "aa"))
    for offset in range(3, 6):
        index.add(message(START_MS + offset * HOUR_MS, offset).encode())
    disk.fail_next("rename", 5)
    with pytest.raises(OSError, match="Input/output error"):
        await index.flush(IndexedPosition(6))
    assert index.buffered == 0
    disk.tear(seed)

    again, position = opened(disk)

    assert position == IndexedPosition(3, 100, "aa")
    found, _ = await load_all(again, TimerState(), 9)
    assert [entry.queue_offset for entry in found] == [0, 1, 2]


async def test_failed_flush_is_completed_later(disk: FaultyDisk) -> None:
    """Entries that could not be written stay in memory, are loaded from there, and are written by the next flush."""
    index, _ = opened(disk)
    await split(index, START_MS + 9 * HOUR_MS)
    for offset in range(3):
        index.add(message(START_MS + offset * HOUR_MS, offset).encode())
    disk.fail_next("write", 28)
    with pytest.raises(OSError, match="No space left"):
        await index.flush(IndexedPosition(3))

    found, _ = await load_all(index, TimerState(), 3)
    assert [entry.queue_offset for entry in found] == [0, 1, 2]
    await index.flush(IndexedPosition(3))
    assert index.buffered == 0
    assert opened(disk)[1].queue_offset == 3


@pytest.mark.parametrize("step", range(6))
@pytest.mark.usefixtures("small_runs")
async def test_split_survives_errors_and_crashes(disk: FaultyDisk, step: int) -> None:
    """A split that fails at any step is completed later, and one that a crash ends is restarted: no entry is lost."""
    index, _ = opened(disk)
    await split(index, START_MS - HOUR_MS)
    for offset in range(100):
        index.add(message(START_MS + offset % 5 * HOUR_MS, offset).encode())
    await index.flush(IndexedPosition(100))
    for number in range(8):
        if number == step:
            for kind in ("read", "write", "sync"):
                disk.fail_next(kind, 28)
        try:
            await index.split_step(START_MS)
        except OSError:
            crashed, position = opened(disk.copy())
            assert position.queue_offset == 100
            assert len((await load_all(crashed, TimerState(), 100))[0]) == 100
    disk.kill()

    found, _ = await load_all(index, TimerState(), 100)

    assert sorted(entry.queue_offset for entry in found) == list(range(100))


def damage_flip(disk: FaultyDisk, path: str) -> None:
    disk.flip(path, 3 * ENTRY_BYTES + 11)


def damage_head(disk: FaultyDisk, path: str) -> None:
    disk.flip(path, 7)


def damage_other_hour(disk: FaultyDisk, path: str) -> None:
    disk.append_file(path, disk.read_file(f"/store/timers/{START_HOUR + 1:08d}"), end=0)


@pytest.mark.parametrize("damage", [damage_flip, damage_head, damage_other_hour])
async def test_damaged_file_is_found(disk: FaultyDisk, damage: object) -> None:
    """A changed bit in an entry or a block's head, and the file of another hour, end the load with its name."""
    index, _ = opened(disk)
    await split(index, START_MS + 9 * HOUR_MS)
    for offset in range(20):
        index.add(message(START_MS + offset % 2 * HOUR_MS, offset).encode())
    await index.flush(IndexedPosition(20))
    assert callable(damage)
    damage(disk, f"/store/timers/{START_HOUR:08d}")

    with pytest.raises(DamagedDueFile, match=f"timers/{START_HOUR:08d}: "):
        await load_all(index, TimerState(), 20)


@pytest.mark.parametrize("name", [f"{START_HOUR:08d}", "later"])
@pytest.mark.parametrize("is_missing", [False, True])
async def test_file_without_its_end_is_not_used(disk: FaultyDisk, name: str, is_missing: bool) -> None:
    """If a file is missing or shorter than the position says, a start removes all files, and reads the log again."""
    index, _ = opened(disk)
    await split(index, START_MS)
    for offset in range(20):
        index.add(message(START_MS + offset % 2 * HOUR_MS, offset).encode())
    await index.flush(IndexedPosition(20))
    path = f"/store/timers/{name}"
    if is_missing:
        disk.remove(path)
    else:
        disk.append_file(path, b"", end=3 * ENTRY_BYTES)

    again, position = opened(disk)

    assert position == IndexedPosition()
    assert (disk.list("/store/timers"), again.files.is_empty) == ([], True)


def test_files_of_the_first_format_are_built_again(disk: FaultyDisk) -> None:
    """A folder with a file for each minute, of the format before, is removed, and the log is read from its start."""
    disk.make_directory("/store/timers")
    disk.append_file("/store/timers/0028333333", message(START_MS, 0).encode())
    write_sealed(disk, "/store/timers/position", IndexedPosition(1, 0, message(START_MS, 0).encode().hex()))

    index, position = opened(disk)

    assert (position, index.files.hours) == (IndexedPosition(), {})
    assert disk.list("/store/timers") == []


async def test_old_files_are_removed(disk: FaultyDisk) -> None:
    """Files of past hours are removed, those with entries in memory are kept until these are written."""
    index, _ = opened(disk)
    await split(index, START_MS + 9 * HOUR_MS)
    for number in range(5):
        index.add(message(START_MS + number * HOUR_MS, number).encode())
    await index.flush(IndexedPosition(5))
    index.add(message(START_MS + HOUR_MS, 5).encode())

    assert await index.remove_before(START_HOUR + 3)
    assert not await index.remove_before(START_HOUR + 3)

    kept = [f"{START_HOUR + number:08d}" for number in (1, 3, 4)]
    assert disk.list("/store/timers") == [*kept, "position"]
    assert opened(disk)[1].queue_offset == 5


async def test_name_of_a_removed_file_that_a_crash_brought_back_is_removed_again(disk: FaultyDisk) -> None:
    """A start removes files that the position does not name."""
    index, _ = opened(disk)
    await split(index, START_MS + 9 * HOUR_MS)
    index.add(message(START_MS, 0).encode())
    await index.flush(IndexedPosition(1))
    disk.fail_next("remove", 5)
    with pytest.raises(OSError, match="Input/output error"):
        await index.remove_before(START_HOUR + 1)

    again, position = await asyncio.to_thread(opened, disk)

    assert (position.queue_offset, again.files.hours, disk.list("/store/timers")) == (1, {}, ["position"])
