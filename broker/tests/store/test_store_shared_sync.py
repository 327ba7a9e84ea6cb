"""A stop with many queues: their files are written together and synced in several threads, and all of them are."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from gantry_broker.ports.real_disk import RealFile
from gantry_broker.store import point_writer, worker
from gantry_broker.store.queue_table import SHARED_QUEUES_MIN, QueueTable
from gantry_broker.store.worker import sync_together
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import StoreWorld

QUEUES = SHARED_QUEUES_MIN + 10
THREADS = 4


def filled_world(disk: FaultyDisk | KillableDisk, root: str) -> StoreWorld:
    """Return an open store with a message in each of many queues."""
    world = StoreWorld(disk, root)
    world.open()
    for number in range(QUEUES):
        world.send(f"topic-{number}")
    return world


# -- the shared work ---------------------------------------------------------------------------------------------------


def meet(threads: int) -> None:
    """Sync items of which each waits until ``THREADS`` of them are being synced at once."""
    barrier = threading.Barrier(THREADS)
    sync_together(lambda _: barrier.wait(10 if threads > 1 else 0.01), range(2 * THREADS), threads=threads)


def test_items_are_synced_at_the_same_time() -> None:
    """As many syncs as there are threads run at once."""
    meet(THREADS)


def test_one_thread_syncs_one_item_at_a_time() -> None:
    """The twin: in one thread, the first sync would wait for the second forever."""
    with pytest.raises(threading.BrokenBarrierError):
        meet(1)


@pytest.mark.parametrize("threads", [1, THREADS])
def test_an_error_in_any_thread_is_raised(threads: int) -> None:
    """A failed sync is final: it is raised, and no other sync is begun afterwards."""
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        raise OSError(errno.EIO, "failed", str(number))

    with pytest.raises(OSError, match="failed"):
        sync_together(fail, range(100), threads=threads)

    assert 1 <= len(begun) <= threads


def test_without_a_free_thread_all_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system starts no thread, the caller's thread does everything."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []

    sync_together(done.append, range(10), threads=THREADS)

    assert done == list(range(10))


# -- a store -----------------------------------------------------------------------------------------------------------


def synced_paths(world: StoreWorld) -> tuple[set[str], set[str]]:
    """Close the store; return the topics of the synced queue files, and the names of the threads that synced."""
    topics, threads = set[str](), set[str]()

    def record(operation: str, path: str) -> None:
        if operation == "sync" and "/consumequeue/" in path:
            topics.add(path.split("/")[-3])
            threads.add(threading.current_thread().name)

    world.faulty_disk.on_operation = record
    world.close()
    world.faulty_disk.on_operation = lambda operation, path: None
    return topics, threads


def test_all_queues_are_durable_after_a_stop() -> None:
    """After a stop and a loss of power, each queue has its message, and none has to be rebuilt."""
    world = filled_world(FaultyDisk(), "/data/store")
    topics, _ = synced_paths(world)
    world.lose_power()

    report = world.open()

    assert len(topics) == QUEUES
    assert (report.is_clean, report.queues_rebuilt, report.records) == (True, [], 0)
    for topic in topics:
        assert world.bodies(topic) == world.sent_bodies(topic)


def test_a_queue_that_is_not_synced_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a stop that forgot a queue would be noticed: the queue has to be rebuilt after a loss of power."""
    sync = QueueTable._sync_queue
    forgotten = f"topic-{QUEUES - 1}"
    monkeypatch.setattr(QueueTable, "_sync_queue", lambda table, queue: queue.topic == forgotten or sync(table, queue))
    world = filled_world(FaultyDisk(), "/data/store")
    world.close()
    world.lose_power()

    assert world.open().queues_rebuilt == [(forgotten, 0)]


def test_a_failed_sync_in_a_helper_thread_ends_the_store() -> None:
    """If one of many queues cannot be synced, the stop is not clean, and everything is recovered."""
    world = filled_world(FaultyDisk(), "/data/store")

    def fail(operation: str, path: str) -> None:
        if operation == "sync" and f"/topic-{QUEUES // 2}/" in path:
            raise OSError(errno.EIO, "failed", path)

    world.faulty_disk.on_operation = fail
    world.close()
    world.faulty_disk.on_operation = lambda operation, path: None

    assert len(world.fatal) == 1
    report = world.open()
    assert not report.is_clean
    assert all(world.bodies(f"topic-{number}") for number in range(QUEUES))


def test_while_the_store_is_in_use_one_thread_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Periodic recovery points start no threads, which would compete with the loop."""
    started: list[int] = []

    def record(sync: object, items: object, *, threads: int) -> None:
        started.append(threads)
        sync_together(sync, items, threads=threads)  # type: ignore[arg-type]

    monkeypatch.setattr("gantry_broker.store.queue_table.sync_together", record)
    world = filled_world(FaultyDisk(), "/data/store")
    world.clock.advance(60_000)
    world.store.flush_step()
    assert set(started) == {1}

    started.clear()
    world.send("topic-1")
    world.close()
    assert point_writer.SYNC_THREADS in started
    assert worker.sync_together is sync_together


def test_all_files_are_being_written_before_the_first_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk gets the work of all queues at once: writeback of each file begins before any queue is synced."""
    calls: list[tuple[str, str]] = []
    for name in ("start_writeback", "sync"):
        call = getattr(RealFile, name)

        def record(file: RealFile, name: str = name, call: object = call) -> None:
            if "/consumequeue/" in file.path:
                calls.append((name, file.path))
            call(file)  # type: ignore[operator]

        monkeypatch.setattr(RealFile, name, record)
    world = filled_world(KillableDisk(), str(tmp_path / "store"))
    calls.clear()
    world.close()

    hints = [path for name, path in calls if name == "start_writeback"]
    assert [name for name, _ in calls[:QUEUES]] == ["start_writeback"] * QUEUES
    assert set(hints) == {path for name, path in calls if name == "sync"}
    assert len(set(hints)) == QUEUES
