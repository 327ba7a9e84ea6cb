"""The compiled path and the Python path leave the same files and give the same answers, byte for byte.

Each test runs an operation of the store by both paths, on copies of one disk, and compares what is left.
"""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ports import RealDisk
from gantry_broker.store import append, copying, dispatcher, key_index, reader, scan_dispatcher
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.reader import ReadResult
from gantry_broker.store.scan_dispatcher import ScanDispatcher
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_speedups import load_native
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, encode_record
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.plain_records import PlainRun
from gantry_wire.seal import sealable_properties

pytestmark = pytest.mark.needs_speedups

FILE_BYTES = 16 * 1024
SETTINGS = dataclasses.replace(TINY, mapped_file_size_commit_log=FILE_BYTES)
V6_HOST = bytes(range(16)) + b"\0\0\x27\x10"
TOPICS = ("orders", "orders", "bills", SCHEDULE_TOPIC, "topic" * 40)

pieces = st.sampled_from((
    "KEYS\x01", "TAGS\x01", "UNIQ_KEY\x01", "XKEYS\x01", "\x02", "\x02", "\x01", " ", "a", "b c", "é", "漢", "😀",
    "DELAY\x013", "INNER_NUM\x013\x02", "INNER_BASE\x010\x02",
    "KEYS\x01k1 k2\x02", "TAGS\x01größe\x02", "UNIQ_KEY\x017F0000010A3C18B4AAC2000000000001\x02", "color\x01red\x02",
))  # fmt: skip
properties = st.lists(pieces, max_size=6).map("".join)


@contextmanager
def path(name: str) -> Iterator[None]:
    """Let the store use one of the two paths."""
    native = load_native()[0] if name == "compiled" else None
    scan = None if native is None else native.LogScan
    release = dispatcher.release_units_in_python if native is None else native.release_units
    with (
        patch.object(scan_dispatcher, "CompiledScan", scan),
        patch.object(copying, "CompiledScan", scan),
        patch.object(reader, "native", native),
        patch.object(dispatcher, "release_units", release),
        patch.object(append, "CompiledBatch", () if native is None else native.SendBatch),
        patch.object(key_index, "CompiledKeys", () if native is None else native.Keys),
    ):
        yield


def open_store(disk: FaultyDisk, clock: FakeClock) -> MessageStore:
    store = MessageStore("/store", SETTINGS, disk=disk, clock=clock, store_host=bytes(8), on_fatal=lambda exc: None)
    store.open(is_flushing=False)
    return store


def files_of(disk: FaultyDisk) -> dict[str, bytes]:
    """Return all files of queues and index, without the time in an index file's name."""
    found = {}
    for number, name in enumerate(disk.list("/store/index")) if disk.exists("/store/index") else ():
        found[f"index {number}"] = disk.read_file(f"/store/index/{name}")
    for topic in disk.list("/store/consumequeue") if disk.exists("/store/consumequeue") else ():
        for queue in disk.list(f"/store/consumequeue/{topic}"):
            for name in disk.list(f"/store/consumequeue/{topic}/{queue}"):
                place = f"consumequeue/{topic}/{queue}/{name}"
                found[place] = disk.read_file(f"/store/{place}")
    return found


# -- a log that is found at the start ----------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw a log of one file: records of every kind in several queues, the last of which may be damaged."""
    data = bytearray()
    ends: dict[tuple[str, int], int] = {}
    for number in range(draw(st.integers(1, 30))):
        name, queue_id = draw(st.sampled_from(TOPICS)), draw(st.integers(0, 1))
        host = draw(st.sampled_from((bytes(8), bytes(8), bytes(8), V6_HOST)))
        offset = ends.get((name, queue_id), 0) + draw(st.sampled_from((0, 0, 0, 0, 0, 1)))
        ends[name, queue_id] = offset + 1
        record = encode_record(
            StoredMessage(
                topic=name, queue_id=queue_id, body=bytes(draw(st.integers(0, 80))), queue_offset=offset,
                physical_offset=len(data), sys_flag=draw(st.sampled_from((0, 0, 0, 0, 1, 4, 8, 12, 0xC0))),
                born_host=host, store_host=host,
                store_timestamp_ms=1_700_000_000_000 + number // 3 * draw(st.sampled_from((1, 1500))),
                properties_bytes=draw(properties).encode()[:400],
            ),
            is_sealed=draw(st.booleans()),
        )  # fmt: skip
        if len(data) + len(record) > FILE_BYTES - 200:
            break
        data += record
    for _ in range(draw(st.integers(0, 1))):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data)


def start_and_read(log: bytes, reads: list[tuple[int, int, int]]) -> tuple[dict[str, bytes], object, list[ReadResult]]:
    """Start a store with this log only; return its files, where the log ends, and the results of the reads."""
    disk, clock = FaultyDisk(), FakeClock()
    disk.make_directory("/store/commitlog")
    disk.write_file("/store/commitlog/00000000000000000000", log + bytes(FILE_BYTES - len(log)))
    store = open_store(disk, clock)
    results = []
    for offset, count, size in reads:
        for queue in sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id)):
            try:
                results.append(store.read(queue.topic, queue.queue_id, offset, count_max=count, bytes_max=size))
            except Exception as error:  # noqa: BLE001 - both paths must raise the same
                results.append(repr(error))  # type: ignore[arg-type]
    return files_of(disk), (store.log.wrote, store.dispatcher.last_dispatched), results


@settings(max_examples=200, deadline=None)
@given(log=logs(), reads=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 32), st.integers(1, 4000)), max_size=4))
def test_any_log_is_dispatched_and_read_alike(log: bytes, reads: list[tuple[int, int, int]]) -> None:
    """Queues, index, end and pulls are equal for logs of RocketMQ and of Gantry, with gaps, odd properties, damage."""
    with path("python"):
        expected = start_and_read(log, reads)
    with path("compiled"):
        assert start_and_read(log, reads) == expected


# -- messages that wait until they are confirmed -----------------------------------------------------------------------


def draft_of(store: MessageStore, number: int) -> Draft:
    unique = f"7F0000010A3C18B4AAC2{number:012X}"
    text = f"UNIQ_KEY\x01{unique}\x02KEYS\x01key {number}\x02TAGS\x01tag{number % 3}\x02"
    queue = store.queues.get_or_create("orders" if number % 3 else "bills", number % 2)
    code = tags_code(f"tag{number % 3}")
    return Draft(queue, b"x" * 40, text.encode(), 0, 0, 0, bytes(8), 0, 0, code, 0, (unique, "key", str(number)))


def hold_and_release(steps: list[int], append_batch: Callable[[MessageStore, list[Draft]], object]) -> list[object]:
    """Append batches while dispatch is held, and confirm a part of the log after each."""
    disk, clock = FaultyDisk(), FakeClock()
    store = open_store(disk, clock)
    store.dispatcher.hold()
    number, found = 0, []
    for step in steps:
        append_batch(store, [draft_of(store, number + more) for more in range(step % 7 + 1)])
        number += step % 7 + 1
        clock.advance(step)
        confirmed = store.log.wrote - step * 50
        found.append((store.dispatcher.release(confirmed), [(q.readable_end, q.end) for q in store.queues]))
    return [*found, files_of(disk), bytes(store.log.newest(0))]


def append_compiled(store: MessageStore, drafts: list[Draft]) -> object:
    """Append by a compiled batch, as the send path does."""
    native = load_native()[0]
    assert native is not None, "needs_speedups"
    batch = native.SendBatch(Draft, sealable_properties)
    for draft in drafts:
        batch.add(draft, (b"", draft.keys[0].encode(), 1))
    return store.append(batch)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_held_messages_become_visible_alike(steps: list[int]) -> None:
    """Units, ends and index are equal after each part of a held log is confirmed, over many batches."""
    with path("python"):
        expected = hold_and_release(steps, lambda store, drafts: store.append(drafts))
    with path("compiled"):
        assert hold_and_release(steps, append_compiled) == expected


def test_full_disk_stops_at_the_same_unit() -> None:
    """Where a queue gets no space, the units before it are visible, the rest waits, and later both continue."""
    ends = []
    for name in ("python", "compiled"):
        with path(name):
            disk, clock = FaultyDisk(), FakeClock()
            store = open_store(disk, clock)
            store.dispatcher.hold()
            for first in range(0, 240, 40):
                store.append([draft_of(store, first + more) for more in range(40)])
            with patch.object(disk, "create", side_effect=OSError(28, "No space left on device")):
                first_try = store.dispatcher.release(store.log.wrote)
                middle = sorted((q.topic, q.queue_id, q.readable_end) for q in store.queues)
            assert store.dispatcher.release(store.log.wrote)
            last = sorted((q.topic, q.queue_id, q.readable_end) for q in store.queues)
            ends.append((first_try, middle, last, files_of(disk)))

    assert ends[0] == ends[1]
    assert ends[0][0] is False and ends[0][1] != ends[0][2]


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["python", "compiled"])
@pytest.mark.parametrize("is_closed_first", [False, True])
def test_deletion_during_a_scan_reaches_no_file_of_another_queue(
    name: str, is_closed_first: bool, tmp_path: Path
) -> None:
    """The thread that syncs queues closes those of a deleted topic, while the loop waits for a system call."""
    store = MessageStore(
        str(tmp_path), SETTINGS, disk=RealDisk(), clock=FakeClock(), store_host=bytes(8), on_fatal=lambda exc: None
    )
    store.open(is_flushing=False)
    with path(name):
        scan_dispatcher = ScanDispatcher(store.log, store.queues, None, ())
        kept = store.queues.get_or_create("kept", 0)
        extend = ConsumeQueue.extend

        def extend_while_deleted(queue: ConsumeQueue, offset: int) -> None:
            if queue is not kept:
                return extend(queue, offset)
            store.queues.delete_topic("gone", 0)
            if is_closed_first:
                store.queues.sync()
            extend(queue, offset)
            store.queues.sync()

        data = bytearray()
        for topic, offset in (("gone", 0), ("gone", 1), ("kept", 0), ("gone", 2)):
            message = StoredMessage(
                topic=topic, queue_id=0, body=b"x", queue_offset=offset, physical_offset=len(data), store_timestamp_ms=1
            )
            data += encode_record(message, is_sealed=True)
        run = PlainRun(memoryview(bytes(data)), 0, len(data), 0, is_sealed=True)
        with patch.object(ConsumeQueue, "extend", extend_while_deleted):
            assert scan_dispatcher.dispatch_plain_records(run, 0) == len(data)

        assert [unit[1] for unit in kept.units(0, 9)] == [len(data) // 4]
        file = kept.files.files[0]
        assert not any(file.view[CONSUME_UNIT_BYTES:])
        assert "gone" not in store.queues.topics()
    store.close()


def test_released_units_move_the_assigned_end_alike() -> None:
    """Also where the offsets of a queue begin again, after its topic was deleted and created again."""
    ends = {}
    for name in ("python", "compiled"):
        with path(name):
            queue = open_store(FaultyDisk(), FakeClock()).queues.get_or_create("orders", 0)
            units = deque((queue, number, number * 100, 100, 0) for number in range(10))
            queue.reserve_offset(1)
            dispatcher.release_units(units, 1000)
            ends[name] = queue.readable_end, queue.end
    assert ends["compiled"] == ends["python"] == (10, 10)


def test_batches_and_scans_return_their_memory() -> None:
    """Thousands of batches, held and released, and scans of the log take no more memory than the first hundred."""
    native = load_native()[0]
    assert native is not None, "needs_speedups"
    with path("compiled"):
        store = open_store(FaultyDisk(), FakeClock())
        drafts = [draft_of(store, number) for number in range(16)]
        record = encode_record(StoredMessage(topic="orders", queue_id=0, body=b"x", queue_offset=0, physical_offset=0))

        def use() -> None:
            batch = native.SendBatch(Draft, sealable_properties)
            for draft in drafts:
                batch.add(draft, (b"%d %d %b %d", b"id", 1))
            assert batch.pack(0, 0, FILE_BYTES, bytes(8), 1, []) is not None
            assert batch.encode_answers([(None, 16)], True, True)[0][1] == len(batch.to_drafts()) == 16
            scan = native.LogScan(None)
            assert scan.check(memoryview(record), 0, len(record), 0, False, True) == len(record)
            for queue in store.queues:
                queue.end = queue.readable_end
                queue.forget_sums()

        for _ in range(100):
            use()
        tracemalloc.start()
        try:
            use()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(2_000):
                use()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert after - before < 20_000


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_packed_once() -> None:
    """A second call is an error of the caller, and not an access outside of memory."""
    native = load_native()[0]
    assert native is not None, "needs_speedups"
    store = open_store(FaultyDisk(), FakeClock())
    batch = native.SendBatch(Draft, sealable_properties)
    batch.add(draft_of(store, 1), (b"", b"id", 1))
    assert batch.pack(0, 0, FILE_BYTES, bytes(8), 1, None) is not None

    with pytest.raises(AssertionError, match="packed once"):
        batch.pack(0, 0, FILE_BYTES, bytes(8), 1, None)


@pytest.mark.parametrize(
    ("slots", "first", "position"), [(0, 0, 1_000), (1 << 30, 0, 1_000), (10, 0, 1 << 40), (10, 9, 1_000), (10, 0, -20)]
)
def test_entries_outside_of_an_index_file_are_refused(slots: int, first: int, position: int) -> None:
    """A wrong place is an error, and nothing is written there."""
    native = load_native()[0]
    assert native is not None, "needs_speedups"
    store = open_store(FaultyDisk(), FakeClock())
    batch = native.SendBatch(Draft, sealable_properties)
    batch.add(draft_of(store, 1), (b"", b"id", 1))
    file = bytearray(2_000)

    with pytest.raises(IndexError):
        batch.keys.put(memoryview(file), slots, first, 1, 100, position, 0)
    assert not any(file)
