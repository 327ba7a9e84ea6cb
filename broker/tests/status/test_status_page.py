"""A status page between processes: publications never mix, the file is never truncated, and the last one survives."""

import errno
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from gantry_status import (
    Moment,
    PageDamaged,
    PageForeign,
    PageInUse,
    PageNotFound,
    PageReader,
    PageTooShort,
    PageTorn,
    PageUnreadable,
    PageWriter,
    Phase,
    Status,
    StatusPageError,
    new_origin,
)
from gantry_status.layout import COPY_BYTES, HEADER_BYTES, PAGE_BYTES
from gantry_testing.tree import PYTHON_PATH

KILLS: Final = 25
DEADLINE_S: Final = 120.0
CHUNK_BYTES: Final = 64
EQUAL: Final = (
    "published_wall_ms", "wrote", "committed", "flushed", "confirmed", "min_physical", "epoch", "generation",
    "disk_used_bytes", "connections", "held_sends", "last_error_wall_ms",
)  # fmt: skip
"""The fields that the writer below fills with one number: a mixture of two publications has two."""

WRITER: Final = f"""
import os, sys
from gantry_status import PageWriter, Phase, Status, new_origin, now

def status(number):
    fields = dict.fromkeys({EQUAL!r}, number)
    fields["published_wall_ms"] = number
    return Status(published_boottime_ns=now().boottime_ns, phase=Phase.SERVING, last_error=str(number), **fields)

path, first, chunk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if chunk:
    # Write in small pieces, so that a kill, a stop or a read is likely to come between two of them.
    whole = PageWriter._write
    def piecemeal(self, data, position):
        for start in range(0, len(data), chunk):
            whole(self, data[start : start + chunk], position + start)
    PageWriter._write = piecemeal
page = PageWriter(path, new_origin("b", "0"), status(first))
print("ready", flush=True)
number = first
while True:
    number += 1
    page.publish(status(number))
"""


def status_number(number: int, phase: Phase = Phase.SERVING) -> Status:
    return Status(published_boottime_ns=number * 1_000_000, published_wall_ms=number, phase=phase, wrote=number)


def writer(path: Path, number: int = 1) -> PageWriter:
    """Return the writer of a page of this process."""
    return PageWriter(str(path), new_origin("broker-a", "0.1.0"), status_number(number))


@contextmanager
def publishing_process(path: Path, first: int, *, chunk: int = CHUNK_BYTES) -> Iterator[subprocess.Popen[bytes]]:
    """Run another process that publishes continuously, numbered from `first`."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", WRITER, str(path), str(first), str(chunk)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def number_of_whole_status(status: Status) -> int:
    """Return the number of a publication. Fails if its fields belong to two publications."""
    numbers = {getattr(status, name) for name in EQUAL} | {int(status.last_error)}
    assert len(numbers) == 1, f"a mixture of publications: {numbers}"
    [number] = numbers
    assert isinstance(number, int)
    return number


def test_a_killed_writer_never_leaves_a_mixture(tmp_path: Path) -> None:
    """Whenever a writer is killed, before, during and after a read, each read gives one whole publication."""
    path = tmp_path / "status"
    first, boots, torn = 1_000_000, set(), 0
    with PageReader(str(path)) as reader:
        for _ in range(KILLS):
            with publishing_process(path, first) as process:
                newest, reads = 0, 0
                while reads < 200 or newest < first + 20:
                    reading = reader.read()
                    number = number_of_whole_status(reading.status)
                    assert number >= max(newest, first), "time went backward"
                    assert reading.is_writer_alive
                    newest, reads = number, reads + 1
                process.kill()
                process.wait()
            data = path.read_bytes()
            torn += any(data[start + 7] % 2 for start in (HEADER_BYTES, HEADER_BYTES + COPY_BYTES))
            last = reader.read()
            assert number_of_whole_status(last.status) >= newest
            assert not last.is_writer_alive and last.is_stale()
            boots.add(last.origin.boot_id)
            first += 1_000_000
    assert len(boots) == KILLS
    assert torn > 0, "no kill came between two pieces of a publication: this proves nothing"


def test_a_stopped_writer_is_recognised_by_its_age(tmp_path: Path) -> None:
    """After SIGSTOP, also during a publication, the page can be read and its age grows; SIGCONT renews it."""
    path = tmp_path / "status"
    with publishing_process(path, 1) as process, PageReader(str(path)) as reader:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        stopped = reader.read()
        wait_until(lambda: reader.read().is_stale(after_ms=100))
        later = reader.read()

        assert later.status == stopped.status
        assert number_of_whole_status(later.status) > 0
        assert later.age_ms is not None and later.age_ms > 100
        assert later.is_writer_alive, "expected a stopped process to count as alive"

        process.send_signal(signal.SIGCONT)
        wait_until(lambda: reader.read().status.wrote != stopped.status.wrote)
        wait_until(lambda: not reader.read().is_stale())


def wait_until(predicate: "object", deadline_s: float = DEADLINE_S) -> None:
    """Wait for another process; fail after a timeout."""
    assert callable(predicate)
    end = time.monotonic() + deadline_s
    while not predicate():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.005)


def test_a_restart_is_a_new_file_and_is_followed(tmp_path: Path) -> None:
    """The old file keeps its size and its bytes, and the reader switches to the new one."""
    path = tmp_path / "status"
    first = writer(path, 1)
    reader = PageReader(str(path))
    before = reader.read()
    with path.open("rb") as old:
        first.close()
        second = writer(path, 2)
        after = reader.read()

        assert os.fstat(old.fileno()).st_ino != path.stat().st_ino
        assert len(old.read()) == PAGE_BYTES == path.stat().st_size

    assert (before.status.wrote, after.status.wrote) == (1, 2)
    assert before.origin.boot_id == first.origin.boot_id != second.origin.boot_id == after.origin.boot_id
    assert not path.with_name("status.new").exists()
    reader.close()
    second.close()


def test_page_written_over_another_is_detected_by_its_header(tmp_path: Path) -> None:
    """Also in the same inode, as `cp` leaves it, another boot id means another start."""
    path, other = tmp_path / "status", tmp_path / "other"
    first, second = writer(path, 1), writer(other, 2)
    with PageReader(str(path)) as reader:
        reader.read()
        inode = path.stat().st_ino
        path.write_bytes(other.read_bytes())

        after = reader.read()

        assert path.stat().st_ino == inode
        assert (after.status.wrote, after.origin.boot_id) == (2, second.origin.boot_id)
    first.close()
    second.close()


def test_publications_alternate_and_the_newest_is_read(tmp_path: Path) -> None:
    """Each publication replaces the one before the last."""
    path = tmp_path / "status"
    page = writer(path, 1)
    with PageReader(str(path)) as reader:
        for number in range(2, 8):
            page.publish(status_number(number))
            assert reader.read().status == status_number(number)
    page.close()


@pytest.mark.parametrize("position", [8, HEADER_BYTES + 7, HEADER_BYTES + 40, HEADER_BYTES + COPY_BYTES + 40, 4090])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("first", [2, 3], ids=["newest-is-copy-0", "newest-is-copy-1"])
def test_overtaken_reader_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int, count: int, first: int
) -> None:
    """However often the writer publishes during a read, the reader returns one whole publication."""
    path = tmp_path / "status"
    page = PageWriter(str(path), new_origin("b", "0"), distinct_status(1))
    for number in range(2, first + 1):
        page.publish(distinct_status(number))
    reads, read = [0], os.pread

    def overtaken(descriptor: int, length: int, start: int) -> bytes:
        reads[0] += 1
        if length < PAGE_BYTES or reads[0] > 10:
            return read(descriptor, length, start)
        head = read(descriptor, position, 0)
        newest = reads[0] * 10
        for number in range(newest, newest + count):
            page.publish(distinct_status(number))
        return head + read(descriptor, length - position, position)

    monkeypatch.setattr(os, "pread", overtaken)
    with PageReader(str(path)) as reader:
        assert number_of_whole_status(reader.read().status) > 0
    page.close()


def distinct_status(number: int) -> Status:
    """Return a publication whose mixture with another one can be detected."""
    numbers: dict[str, Any] = dict.fromkeys(EQUAL, number)
    return Status(published_boottime_ns=0, phase=Phase.SERVING, last_error=str(number), **numbers)


def test_damage_to_both_copies_is_an_error(tmp_path: Path) -> None:
    """A flipped bit gives the previous publication; with both copies damaged the reader raises an error."""
    path = tmp_path / "status"
    page = writer(path, 1)
    page.publish(status_number(2))
    newest, older = HEADER_BYTES, HEADER_BYTES + COPY_BYTES
    with PageReader(str(path)) as reader:
        flip_bit(path, newest + 40)
        assert reader.read().status == status_number(1)

        flip_bit(path, older + 40)
        with pytest.raises(PageTorn, match="no whole publication in 100 attempts"):
            reader.read()

        flip_bit(path, newest + 40)
        assert reader.read().status == status_number(2)

        flip_bit(path, 100)
        with pytest.raises(PageDamaged, match="CRC of its header"):
            reader.read()
    page.close()


def flip_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_each_kind_of_unusable_file_has_its_error(tmp_path: Path) -> None:
    """A missing, unreadable, foreign or short file each has its own error, which names the path."""
    page = writer(tmp_path / "whole")
    page.close()
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "foreign").write_text("checkpoint")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(whole[:-1])
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    cases: list[tuple[str, type[StatusPageError], str]] = [
        ("absent", PageNotFound, "there is no status page"),
        ("foreign", PageForeign, "GANTRYST"),
        ("empty", PageTooShort, "0 bytes"),
        ("short", PageTooShort, "4095 bytes of 4096"),
        ("directory", PageUnreadable, "not a regular file"),
        ("pipe", PageUnreadable, "not a regular file"),
        ("foreign/below", PageUnreadable, "Not a directory"),
    ]
    for name, error, text in cases:
        reader = PageReader(str(tmp_path / name))
        with pytest.raises(error, match=text) as caught:
            reader.read()
        assert str(tmp_path / name) in str(caught.value)
        assert repr(reader) == f"<PageReader {tmp_path / name} closed>"


def test_page_truncated_during_a_read_is_an_error(tmp_path: Path) -> None:
    """A file that is truncated under the reader raises an exception and no signal."""
    path = tmp_path / "status"
    page = writer(path)
    with PageReader(str(path)) as reader:
        reader.read()
        os.truncate(path, HEADER_BYTES + 10)

        with pytest.raises(PageTooShort, match="522 bytes"):
            reader.read()
    page.close()


def test_reader_recovers_after_errors(tmp_path: Path) -> None:
    """A reader may be created before the page, and errors do not end it."""
    path = tmp_path / "status"
    reader = PageReader(str(path))
    with pytest.raises(PageNotFound):
        reader.read()
    page = writer(path)

    assert reader.read().status == status_number(1)
    path.unlink()
    with pytest.raises(PageNotFound):
        reader.read()
    page.close()
    writer(path, 3).close()
    assert reader.read().status == status_number(3)
    reader.close()


def test_running_writer_is_not_replaced(tmp_path: Path) -> None:
    """A second process is refused and changes nothing until the writer ends; readers do not matter."""
    path = tmp_path / "status"
    with publishing_process(path, 1) as process, PageReader(str(path)) as reader:
        before = reader.read().origin

        with pytest.raises(PageInUse, match=str(path)):
            writer(path)

        assert reader.read().origin == before
        assert os.listdir(tmp_path) == ["status"]
        process.kill()
        process.wait()
        assert reader.read().is_writer_alive is False
        writer(path).close()
        assert reader.read().origin.broker_name == "broker-a"


def test_a_page_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed start keeps the previous page, and leaves no part of a new one."""
    path = tmp_path / "status"
    writer(path, 1).close()

    def refuse(descriptor: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="No space left"):
            writer(path, 2)

    with PageReader(str(path)) as reader:
        assert reader.read().status == status_number(1)
    assert os.listdir(tmp_path) == ["status"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        writer(tmp_path / "nowhere" / "status")


def test_a_publication_that_fails_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a publication fails, the previous one can be read, and the next one succeeds."""
    path = tmp_path / "status"
    page = writer(path, 1)
    page.publish(status_number(2))
    write, failing = os.pwrite, [0]

    def fail_at(descriptor: int, data: bytes, position: int) -> int:
        failing[0] -= 1
        if failing[0] == 0:
            raise OSError(errno.EIO, "Input/output error")
        return write(descriptor, data[:100], position)  # and short, as any write may be

    monkeypatch.setattr(os, "pwrite", fail_at)
    with PageReader(str(path)) as reader:
        for step in (1, 2, 5, 2, 19):
            failing[0] = step
            with pytest.raises(OSError, match="Input/output error"):
                page.publish(status_number(3))
            assert reader.read().status == status_number(2)
        failing[0] = 0
        page.publish(status_number(4))
        assert reader.read().status == status_number(4)
    page.close()


@pytest.mark.parametrize(
    ("phase", "age_ms", "is_stale"),
    [
        (Phase.SERVING, 2_000, False),
        (Phase.SERVING, 2_001, True),
        (Phase.RECOVERING, 2_001, True),
        (Phase.UNKNOWN, 2_001, True),
        (Phase.STOPPED, 10_000_000, False),
        (Phase.FAILED, 10_000_000, False),
    ],
)
def test_publication_becomes_stale_unless_its_phase_is_final(
    tmp_path: Path, phase: Phase, age_ms: int, is_stale: bool
) -> None:
    """Two seconds without a publication are too long in every phase but the final ones."""
    path = tmp_path / "status"
    page = PageWriter(str(path), new_origin("b", "0"), status_number(1, phase))
    with PageReader(str(path), clock=lambda: Moment((1 + age_ms) * 1_000_000, 0)) as reader:
        reading = reader.read()

    assert (reading.age_ms, reading.is_stale()) == (age_ms, is_stale)
    page.close()


def test_a_page_from_before_a_reboot_has_no_age(tmp_path: Path) -> None:
    """Boot-time clocks of two boots are not compared: such a page is stale."""
    path = tmp_path / "status"
    origin = replace(new_origin("b", "0"), machine_boot_id=uuid.uuid4())
    page = PageWriter(str(path), origin, status_number(1))
    with PageReader(str(path), clock=lambda: Moment(2_000_000, 0)) as reader:
        reading = reader.read()

    assert reading.age_ms is None and reading.is_stale()
    page.close()
