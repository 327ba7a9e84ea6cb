"""Files that another process shortens while the store runs: searches do not raise, and no mapping ends the process."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.errors import QueueRebuilding
from gantry_broker.ports.real_disk import RealFile
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_testing.log_head import remove_before
from gantry_testing.store_world import TINY, StoreWorld, make_world

PAGE_BYTES = 4096
LARGE = replace(TINY, mapped_file_size_consume_queue=1_024 * 20, max_hash_slot_num=5_000)
"""Queue and index files of several pages, so that a mapping of a shortened one has pages that raise SIGBUS."""

COUNT = 1_000


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    """A store on a real disk with two queues of a file each, several pages of which are in use."""
    made = make_world("real", tmp_path, LARGE)
    made.open()
    for number in range(COUNT // 10):
        made.append([made.draft("orders", keys=f"key-{number}") for _ in range(10)])
        made.append([made.draft("bills") for _ in range(10)])
        made.clock.advance(1)
    made.store.flush()
    made.store.flush_step()
    return made


def queue_of(world: StoreWorld, topic: str) -> ConsumeQueue:
    queue = world.store.queues.get(topic, 0)
    assert queue is not None
    return queue


def shorten(world: StoreWorld, size: int) -> str:
    """Cut the file of one queue as another process does. Return its path."""
    path = queue_of(world, "orders").files.files[0].path
    os.truncate(path, size)
    return path


def exit_status(work: Callable[[], object]) -> int:
    """Return how a forked process that does ``work`` ends: 0, 1 after an exception, or minus a signal."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "shortened" in record.getMessage()]


@pytest.mark.parametrize("size", [0, 5, 20, PAGE_BYTES, 10_001, COUNT * 20 - 1, COUNT * 20 + 40])
def test_shortened_queue_file_loses_no_message(world: StoreWorld, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every message is served once and in order, including new ones, and the damage is reported once."""
    path = shorten(world, size)

    assert world.bodies("orders") == world.sent_bodies("orders")
    world.send("orders", 20)
    world.repair()

    assert world.bodies("orders") == world.sent_bodies("orders")
    assert world.bodies("bills") == world.sent_bodies("bills")
    assert len(reports(caplog)) == 1
    assert os.path.getsize(path) == LARGE.mapped_file_size_consume_queue
    assert not queue_of(world, "orders").is_corrupt
    world.store.flush_step()
    world.kill()
    world.open()
    assert world.bodies("orders") == world.sent_bodies("orders")


@pytest.mark.parametrize("touch", ["read", "filter", "extend"])
def test_shortened_queue_file_does_not_end_the_process(world: StoreWorld, touch: str) -> None:
    """Before any first access to the mapping, the file gets its size back."""
    shorten(world, 5)

    def work() -> None:
        match touch:
            case "read":
                world.bodies("orders")
            case "filter":
                with suppress(QueueRebuilding):
                    world.store.read("orders", 0, 900, count_max=8, bytes_max=4_096, accept=lambda code: False)
            case _:
                queue = queue_of(world, "orders")
                queue.extend(queue.readable_end // queue.unit_sums.page_units * queue.unit_sums.page_units)
                queue.view[-1] = 0

    assert exit_status(work) == 0


def test_without_restored_size_the_process_ends(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a file whose size was not restored is a SIGBUS."""
    monkeypatch.setattr(RealFile, "regrow", lambda file: None)
    shorten(world, 5)

    assert exit_status(lambda: world.bodies("orders")) == -signal.SIGBUS


def test_retention_continues_while_a_queue_is_shortened(world: StoreWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A search in the short file does not raise: other queues are trimmed now, this one after its rebuild."""
    removal, offset = world.store.removal, 5 * LARGE.mapped_file_size_commit_log
    shorten(world, 5)

    remove_before(world.store, offset)

    assert world.store.log.min_physical == offset
    assert queue_of(world, "bills").min_offset > 0
    assert queue_of(world, "orders").min_offset == 0, "expected a search among zeros to keep the begin"
    assert len(reports(caplog)) == 1
    assert removal.waiting_count == 0

    world.repair()

    assert removal.waiting_count == 1
    remove_before(world.store, offset)
    assert removal.waiting_count == 0
    expected = [body for end, topic, *_, body in world.sent if topic == "orders" and end > offset]
    assert queue_of(world, "orders").min_offset == COUNT - len(expected)
    assert world.bodies("orders") == expected


def test_age_of_shortened_log_files_is_that_of_the_next_file(world: StoreWorld) -> None:
    """Without a readable time they count as young as the next file, and retention continues."""
    store = world.store
    before = [file.newest_ms for file in store.removal.describe_oldest_files()]
    store.removal._newest_ms.clear()
    for file in store.log.files.files[:2]:
        os.truncate(file.path, 10)

    after = [file.newest_ms for file in store.removal.describe_oldest_files()]

    assert after[2:] == before[2:]
    assert before[0] < before[1] <= after[0] == after[1] <= before[2]


def test_recovery_point_lists_a_shortened_queue(world: StoreWorld) -> None:
    """A start after a crash before the rebuild rebuilds the whole queue."""
    shorten(world, 5)
    world.store.removal.measure(LARGE.mapped_file_size_commit_log)
    assert queue_of(world, "orders").is_corrupt

    world.clock.advance(1 << 20)
    world.store.flush_step()
    world.kill()
    world.open()

    assert world.bodies("orders") == world.sent_bodies("orders")


@pytest.mark.parametrize("size", [0, 39, 10_000])
@pytest.mark.parametrize("is_read_first", [True, False])
def test_shortened_index_file_is_rebuilt(world: StoreWorld, size: int, is_read_first: bool) -> None:
    """The next lookup or entry detects it; afterwards every key is found."""
    index = world.store._lifecycle.index
    assert index is not None
    os.truncate(index.files[-1].file.path, size)

    if is_read_first:
        matches = world.store.keys.matches("orders", f"key-{COUNT // 10 - 1}", 64, 0, 1 << 60)
    else:
        world.append([world.draft("orders", keys="late")])
        matches = world.store.keys.matches("orders", "late", 64, 0, 1 << 60)
    assert not matches.is_complete
    world.repair()

    for number in range(COUNT // 10):
        assert len(world.store.keys.records("orders", f"key-{number}", 64, 0, 1 << 60)[0]) == 10
    if not is_read_first:
        assert len(world.store.keys.records("orders", "late", 64, 0, 1 << 60)[0]) == 1
