"""Consume queues for their readers: which units can be read, with any fillers and vanished files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gantry_store_files import (
    FILLER_SIZE,
    NO_UNIT,
    UNIT,
    UNIT_BYTES,
    PlainDisk,
    QueueBounds,
    QueueLocation,
    QueueReader,
    Unit,
    list_queue_locations,
    queue_ids,
)
from gantry_store_files.queue_units import head_store_time, parse_queue_id
from gantry_wire.message import StoredMessage, encode_record

SIZE = 100
LEADING: Unit = (0, FILLER_SIZE, 0)


def message(physical: int) -> Unit:
    return (physical, SIZE, 7)


def lost(physical: int) -> Unit:
    """Return the filler for a lost message before the message at ``physical``."""
    return (physical, FILLER_SIZE, 0)


def write_queue(root: Path, units: Sequence[Unit], *, units_per_file: int = 100, queue_id: str = "0") -> QueueLocation:
    """Write a queue of the topic orders with these units; the rest of its last file is empty."""
    directory = root / "consumequeue" / "orders" / queue_id
    directory.mkdir(parents=True)
    for start in range(0, len(units), units_per_file):
        data = b"".join(UNIT.pack(*unit) for unit in units[start : start + units_per_file])
        name = f"{start * UNIT_BYTES:020d}"
        (directory / name).write_bytes(data.ljust(units_per_file * UNIT_BYTES, b"\0"))
    return QueueLocation("orders", 0, str(directory))


MENDED = [
    *(message(SIZE * n) for n in range(10)), *(lost(2000) for _ in range(11)),
    *(message(2000 + SIZE * n) for n in range(10)),
]  # fmt: skip
"""Ten messages, eleven that are lost, and ten more."""


def bounds(location: QueueLocation, log_start: int, log_end: int) -> QueueBounds:
    return QueueReader(PlainDisk(), location).bounds(log_start, log_end)


def test_fillers_in_the_middle_hide_no_message_before_them(tmp_path: Path) -> None:
    """Only a filler at physical offset 0 means that everything before it has expired."""
    location = write_queue(tmp_path, MENDED)

    assert bounds(location, 0, 10_000) == (0, 31)
    assert QueueReader(PlainDisk(), location).first_from(0, 31) == 0
    assert bounds(location, 500, 10_000) == (5, 31)


@pytest.mark.parametrize(
    ("log_start", "log_end", "expected"),
    [(950, 10_000, (10, 31)), (2000, 10_000, (10, 31)), (2001, 10_000, (22, 31)), (0, 2000, (0, 10)),
     (0, 2001, (0, 21)), (0, 2100, (0, 22)), (0, 950, (0, 9))],
)  # fmt: skip
def test_filler_counts_like_the_message_after_it(
    tmp_path: Path, log_start: int, log_end: int, expected: tuple[int, int]
) -> None:
    """It has that message's offset: it expires with it, and is readable where that message begins before the end."""
    found = bounds(write_queue(tmp_path, MENDED), log_start, log_end)

    # A message that ends after the end is not readable; the filler before it is.
    assert found == expected


@pytest.mark.parametrize("place", [-1, 0, 1 << 40], ids=["negative", "the beginning", "far"])
def test_damaged_unit_moves_no_bound(tmp_path: Path, place: int) -> None:
    """One damaged unit ends or begins the queue early for no reader, unless it is at most two from it."""
    units = [message(SIZE * n) for n in range(60)]
    misled = 0
    for damaged in range(60):
        changed = [*units]
        changed[damaged] = message(place)
        location = write_queue(tmp_path / str(damaged), changed)
        reader = QueueReader(PlainDisk(), location)
        begin, end = bounds(location, SIZE * 20, SIZE * 50)
        assert begin == 20 or 18 <= damaged < 22, damaged
        assert end == 50 or 48 <= damaged < 52, damaged
        misled += reader.partition(0, 60, lambda unit: 0 <= unit[0] < SIZE * 50) != 50
        misled += reader.partition(0, 60, lambda unit: unit[0] < SIZE * 20) != 20
    assert misled > 4, "the twin: plain bisection is misled"


def test_leading_fillers_have_expired_and_are_readable_at_any_end(tmp_path: Path) -> None:
    """A queue whose first message has number 20 begins there, and one without messages keeps its next number."""
    started = write_queue(tmp_path / "started", [*[LEADING] * 20, message(0), message(100)])
    empty = write_queue(tmp_path / "empty", [LEADING] * 20)

    assert bounds(started, 0, 200) == (20, 22)
    assert bounds(empty, 0, 0) == (20, 20)
    assert bounds(empty, 0, 500) == (20, 20)


@pytest.mark.parametrize("vanished", [1, 2, 3], ids=["oldest", "two oldest", "all"])
def test_the_end_of_a_queue_is_found_when_its_oldest_files_vanish(tmp_path: Path, vanished: int) -> None:
    """Retention may delete listed files: the units in them have expired, and the others are read."""
    units = [message(SIZE * n) for n in range(27)]
    location = write_queue(tmp_path, units, units_per_file=10)
    queue = QueueReader(PlainDisk(), location)
    for name in sorted(os.listdir(location.directory))[:vanished]:
        os.unlink(f"{location.directory}/{name}")

    end = 27 if vanished < 3 else 30
    assert queue.end() == end
    assert queue.bounds(0, 10_000) == (10 * vanished, end)
    assert queue.unit(0) == NO_UNIT
    assert queue.vanished == f"{location.directory}/{0:020d}"


def test_units_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """A range over several files is read as one; with a file missing the result is None."""
    units = [message(SIZE * n) for n in range(27)]
    location = write_queue(tmp_path, units, units_per_file=10)
    queue = QueueReader(PlainDisk(), location)

    assert queue.read(8, 22) == b"".join(UNIT.pack(*unit) for unit in units[8:22])
    assert queue.read(28, 31) is None
    os.unlink(f"{location.directory}/{10 * UNIT_BYTES:020d}")
    assert queue.read(8, 22) is None
    assert queue.read(20, 27) is not None


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [(0, 0), (5, 5), (10, 10), (30, 10), (31, 22), (35, 26), (40, 31)],
)  # fmt: skip
def test_a_search_by_time_finds_messages_before_fillers(tmp_path: Path, timestamp_ms: int, expected: int) -> None:
    """A filler has the time of the message after it, so times ascend along the queue."""
    queue = QueueReader(PlainDisk(), write_queue(tmp_path, MENDED))

    assert queue.first_stored_at(timestamp_ms, queue.bounds(0, 10_000), 0, store_time) == expected


def store_time(unit: Unit) -> int | None:
    """Return the store time of a message of ``MENDED`` by its offset, or None where none begins."""
    return ({SIZE * n: n for n in range(10)} | {2000 + SIZE * n: 30 + n for n in range(10)}).get(unit[0])


@pytest.mark.parametrize(("timestamp_ms", "expected"), [(5, 5), (9, 9), (10, 10), (30, 10), (31, 22), (50, 31)])
def test_filler_without_a_message_has_no_store_time(tmp_path: Path, timestamp_ms: int, expected: int) -> None:
    """Its offset may be in the middle of a record; then the next unit with another offset is used, not each filler."""
    asked: list[int] = []

    def counted(unit: Unit) -> int | None:
        asked.append(unit[0])
        return store_time(unit)

    units = [one if one != lost(2000) else lost(1234) for one in MENDED]
    queue = QueueReader(PlainDisk(), write_queue(tmp_path, units))

    assert queue.first_stored_at(timestamp_ms, queue.bounds(0, 10_000), 0, counted) == expected
    assert len(asked) <= 10


def test_a_time_is_read_only_where_a_record_begins() -> None:
    """Magic and offset are checked: eight bytes in the middle of a body are no time."""
    record = encode_record(
        StoredMessage(
            topic="orders", queue_id=0, body=bytes(200), physical_offset=4096, store_timestamp_ms=1_700_000_000_123
        )
    )

    assert head_store_time(record, 4096) == 1_700_000_000_123
    assert head_store_time(record, 4097) is None
    assert head_store_time(record[:79], 4096) is None
    assert head_store_time(bytes(4) + record[:200], 4096) is None


@pytest.mark.parametrize(
    ("name", "is_queue"),
    [("0", True), ("7", True), ("007", False), ("²", False), ("٣", False), ("-1", False), ("2147483647", True),
     ("2147483648", False), ("7.foreign", False), ("1" * 200, False)],
)  # fmt: skip
def test_only_canonical_numbers_name_queues(tmp_path: Path, name: str, is_queue: bool) -> None:
    """Names are ASCII digits without leading zeros, up to Java's largest int, as the broker writes them."""
    write_queue(tmp_path, [message(0)], queue_id=name)

    assert queue_ids(PlainDisk(), str(tmp_path), "orders") == ([int(name)] if is_queue else [])
    assert [one.queue_id for one in list_queue_locations(PlainDisk(), str(tmp_path))] == (
        [int(name)] if is_queue else []
    )


def test_a_number_of_any_length_is_parsed_or_refused() -> None:
    """A property may have more digits than ``int`` accepts: that is no queue, and no error."""
    assert parse_queue_id("1" * 30_000) is None


@pytest.mark.parametrize("list_queues", [lambda disk, root: queue_ids(disk, root, "../orders"), list_queue_locations])
def test_invalid_topic_name_has_no_queues(
    tmp_path: Path, list_queues: Callable[[PlainDisk, str], Sequence[object]]
) -> None:
    """No name becomes a path that the broker would not make of it."""
    (tmp_path / "consumequeue" / "or ders" / "0").mkdir(parents=True)
    (tmp_path / "orders" / "0").mkdir(parents=True)

    assert list(list_queues(PlainDisk(), str(tmp_path))) == []
