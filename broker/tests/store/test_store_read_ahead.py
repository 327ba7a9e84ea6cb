"""A recovery maps the log ahead of its scan, and reads only what may have been written in the rest of a file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gantry_broker.ports import RealDisk
from gantry_broker.ports.disk import DiskFile
from gantry_broker.ports.real_disk import RealFile
from gantry_broker.store.mapped_file import MappedFile, find_used_end, rewrite, zero_range
from gantry_broker.store.read_ahead import MAPPED_AT_ONCE_BYTES, WRITEBACK_STEPS, ReadAhead
from gantry_broker.store.worker import Worker

MEBIBYTE = 1 << 20
THREAD_NAME = "gantry-ahead"


class RecordingFile:
    """A log file that records what is mapped, and by which thread."""

    base_offset = 0
    end_offset = 64 * MEBIBYTE
    view = memoryview(b"")

    def __init__(self) -> None:
        self.advised: list[tuple[int, int]] = []
        self.mapped: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self.is_mapped = threading.Event()

    def advise(self, start: int, end: int) -> None:
        """Record the advice that the scan gives."""
        self.advised.append((start, end))

    def map_ahead(self, start: int, end: int) -> None:
        """Record a call of the thread."""
        self.mapped.append((start, end))
        self.threads.add(threading.current_thread().name)
        if end == self.end_offset:
            self.is_mapped.set()


def running_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD_NAME]


def test_thread_maps_what_the_scan_reads_next() -> None:
    """From the second step on the range is mapped by another thread, in pieces; the thread ends with the scan."""
    recording = RecordingFile()
    with ReadAhead() as ahead:
        [file] = ahead.wrap([recording])
        file.advise(0, 32 * MEBIBYTE)
        assert not running_threads()
        file.advise(32 * MEBIBYTE, 96 * MEBIBYTE)
        assert recording.is_mapped.wait(30)
    assert not running_threads()
    assert recording.advised == [(0, 32 * MEBIBYTE), (32 * MEBIBYTE, 64 * MEBIBYTE)]
    pieces = range(32 * MEBIBYTE, 64 * MEBIBYTE, MAPPED_AT_ONCE_BYTES)
    assert recording.mapped == [(start, start + MAPPED_AT_ONCE_BYTES) for start in pieces]
    assert recording.threads == {THREAD_NAME}


def test_nothing_is_mapped_after_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the scan ends, the thread stops before its next piece, so that a start does not wait for a slow disk."""
    monkeypatch.setattr(Worker, "start", lambda worker: None)
    monkeypatch.setattr(Worker, "stop", lambda worker: None)

    class EndingFile(RecordingFile):
        def map_ahead(self, start: int, end: int) -> None:
            super().map_ahead(start, end)
            ahead.__exit__(None, None, None)

    recording, ahead = EndingFile(), ReadAhead()
    with ahead:
        [file] = ahead.wrap([recording])
        file.advise(0, 64 * MEBIBYTE)
        file.advise(0, 64 * MEBIBYTE)
        assert ahead.step()
    assert recording.mapped == [(0, MAPPED_AT_ONCE_BYTES)]


def test_scan_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, the scan's advice still reaches the file."""

    def fail(worker: Worker) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Worker, "start", fail)
    recording = RecordingFile()
    with ReadAhead() as ahead:
        [file] = ahead.wrap([recording])
        for start in range(3):
            file.advise(start, 9)
    assert recording.advised == [(0, 9), (1, 9), (2, 9)]
    assert recording.mapped == []


def test_thread_lets_the_disk_begin_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some steps the writing of the files that the scan builds begins, once for these steps."""
    started: list[str] = []
    monkeypatch.setattr(RealFile, "start_writeback", lambda file: started.append(file.path))
    monkeypatch.setattr(Worker, "start", lambda worker: None)
    monkeypatch.setattr(Worker, "stop", lambda worker: None)
    built: DiskFile = RealDisk().create(str(tmp_path / "queue"), 4096, reserve=4096)
    with ReadAhead(lambda: [built]) as ahead:
        [file] = ahead.wrap([RecordingFile()])
        for step in range(2 * WRITEBACK_STEPS):
            file.advise(step, step + 1)
            assert ahead.step()
    assert started == [built.path] * 2
    built.close()


def test_mapped_pages_have_the_bytes_of_the_file(tmp_path: Path) -> None:
    """Mapping ahead changes nothing, and no range makes it fail, not even one beyond the file."""
    file = MappedFile.create(RealDisk(), str(tmp_path), 0, size=MEBIBYTE, reserve=MEBIBYTE)
    file.file.pwrite(b"data", 70_000)
    for start, end in ((0, MEBIBYTE), (69_999, 70_001), (5, 5), (9, 3), (0, 2 * MEBIBYTE)):
        file.map_ahead(start, end)
    assert bytes(file.view[70_000:70_004]) == b"data"
    file.close()
    file.map_ahead(0, MEBIBYTE)


@pytest.mark.parametrize("has_holes", [True, False], ids=["holes are found", "no holes are known, the twin"])
def test_unwritten_rest_of_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_holes: bool) -> None:
    """Reading lets the kernel read ahead, whose pages would count as written: so the ranges are found before."""
    if not has_holes:
        monkeypatch.setattr(RealFile, "next_hole", lambda file, position: file.size)
    size = 64 * MEBIBYTE
    file = RealDisk().create(str(tmp_path / "log"), size, reserve=size)
    assert file.next_data(0) == size, "the file system of the tests has no holes"
    file.pwrite(b"x" * 5000, 100_000)
    file.pwrite(b"y", 9 * MEBIBYTE)
    read_bytes = 0
    pread = RealFile.pread

    def count(one: RealFile, length: int, position: int) -> bytes:
        nonlocal read_bytes
        data = pread(one, length, position)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(RealFile, "pread", count)
    for _ in range(2):
        assert find_used_end(file, 0) == 9 * MEBIBYTE + 1
    assert (read_bytes < 8 * MEBIBYTE) == has_holes
    file.close()


def test_every_written_byte_is_found(tmp_path: Path) -> None:
    """A range is zeroed completely, with many short pieces of data in it, and in the page cache only."""
    size = 4 * MEBIBYTE
    file = RealDisk().create(str(tmp_path / "queue"), size, reserve=size)
    positions = [number * 37_000 for number in range(size // 37_000)]
    for position in positions:
        file.view[position] = 1
    assert find_used_end(file, 0) == positions[-1] + 1
    assert zero_range(file, positions[2], positions[-2]) > 0
    assert [position for position in positions if file.view[position]] == [*positions[:2], *positions[-2:]]
    assert bytes(file.view).count(1) == 4
    file.close()


def test_rewritten_bytes_are_the_same(tmp_path: Path) -> None:
    """Rewriting changes no byte, and lets the disk begin meanwhile."""
    size = 3 * MEBIBYTE
    file = RealDisk().create(str(tmp_path / "log"), size, reserve=size)
    data = bytes(range(256)) * (size // 256)
    file.pwrite(data, 0)
    rewrite(file, 5, size - 7)
    assert bytes(file.view) == data
    file.close()
