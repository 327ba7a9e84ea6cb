"""From units to ranges: every wanted record once, in the task's order, with any gaps between records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_store_files import FILLER_SIZE
from gantry_wire.hashing import tags_code
from pyspark_rocketmq.errors import DamagedRecord
from pyspark_rocketmq.model import QueueId, QueueRange, Task, TransportKind
from pyspark_rocketmq.replica_view import Bytes, Piece
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport import pieces
from pyspark_rocketmq.transport.pieces import UNIT, Units, find_runs, locate_unit, log_pieces

A, B = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
TAGS = ("red", "green")


class GeneratedLog:
    """Units of two queues, and zeros in place of the bytes of their records."""

    where = "a generated log"

    def __init__(self, sizes: Sequence[tuple[int, int, int]], *, first: int = 0) -> None:
        """Create records in log order: (queue, size, foreign bytes in front)."""
        self.requested: list[tuple[int, int]] = []
        self.unit_reads = 0
        made: dict[QueueId, list[tuple[int, int, int]]] = {A: [], B: []}
        self.order: list[tuple[QueueId, int, int]] = []
        """(queue, queue offset, physical) in the order of the log."""
        at = first
        for queue_number, size, gap in sizes:
            queue, at = (A, B)[queue_number], at + gap
            self.order.append((queue, len(made[queue]), at))
            made[queue].append((at, size, tags_code(TAGS[len(made[queue]) % 2])))
            at += size
        self.begin, self.end = first, at
        self.made = {queue: np.array(rows, dtype=UNIT) for queue, rows in made.items()}

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        assert end - begin <= pieces.UNITS_PER_REQUEST
        self.unit_reads += 1
        return self.made[queue][begin:end]

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        for begin, end in wanted:
            self.requested.append((begin, end))
            yield np.zeros(end - begin, np.uint8)

    def task(self, **more: object) -> Task:
        ranges = tuple(QueueRange(queue, 0, len(rows)) for queue, rows in self.made.items())
        return Task("broker-a", (), TransportKind.FILE, ranges, ("offset",), **more)  # type: ignore[arg-type]


def read(log: GeneratedLog, task: Task, reading: ReadSettings) -> tuple[list[tuple[QueueId, int, int]], list[Piece]]:
    """Return (queue, queue offset, physical offset) of each record in the pieces, in turn."""
    parts = list(log_pieces(task, log, reading))
    found: list[tuple[QueueId, int, int]] = []
    for piece in parts:
        expected = piece.expected
        if not len(piece.starts):
            continue  # it only marks the progress of the task
        assert expected.physical is not None and expected.size is not None
        assert (piece.starts >= 0).all() and (np.diff(piece.starts) > 0).all()
        assert (piece.starts + expected.size <= len(piece.data)).all()
        found += [
            (task.ranges[queue].queue, offset, physical)
            for queue, offset, physical in zip(
                expected.queue.tolist(), expected.offset.tolist(), expected.physical.tolist(), strict=True
            )
        ]
    return found, parts


def read_settings(**more: int) -> ReadSettings:
    return ReadSettings(name_servers="127.0.0.1:1", **more)  # type: ignore[arg-type]


LOGS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(91, 400), st.sampled_from([0, 0, 0, 100, 5000])), min_size=1, max_size=60
).map(GeneratedLog)
READINGS = st.builds(
    read_settings, range_bytes=st.sampled_from([1, 500, 4000, 1 << 20]), gap_bytes_max=st.sampled_from([0, 200, 10_000])
)


@settings(max_examples=40, deadline=None)
@given(LOGS, READINGS)
def test_task_by_queue_returns_each_message_once_in_order(log: GeneratedLog, settings_: ReadSettings) -> None:
    """The order is (queue, offset), and the last piece leaves nothing of the task."""
    found, parts = read(log, log.task(), settings_)

    assert found == sorted(log.order)
    assert all(one.begin == one.end for one in parts[-1].rest.ranges)


@settings(max_examples=40, deadline=None)
@given(LOGS, READINGS)
def test_task_by_chunk_returns_each_message_once_in_log_order(log: GeneratedLog, settings_: ReadSettings) -> None:
    """The order is that of the log, whose bytes are requested once."""
    found, parts = read(log, log.task(physical=(0, log.end)), settings_)

    assert found == log.order
    assert log.requested == sorted(log.requested)
    assert all(before[1] <= after[0] for before, after in zip(log.requested, log.requested[1:], strict=False))
    assert parts[-1].rest.physical == (log.end, log.end)


@settings(max_examples=40, deadline=None)
@given(LOGS, READINGS, st.data())
def test_chunks_together_have_every_message_once(
    log: GeneratedLog, settings_: ReadSettings, data: st.DataObject
) -> None:
    """The log may be cut anywhere, also inside of records."""
    cuts = sorted(data.draw(st.sets(st.integers(1, log.end - 1), max_size=4)))
    found: list[tuple[QueueId, int, int]] = []
    for begin, end in zip([0, *cuts], [*cuts, log.end], strict=True):
        found += read(log, log.task(physical=(begin, end)), settings_)[0]

    assert found == log.order


@settings(max_examples=40, deadline=None)
@given(LOGS, READINGS, st.booleans(), st.data())
def test_read_continues_where_a_piece_ended(
    log: GeneratedLog, settings_: ReadSettings, is_physical: bool, data: st.DataObject
) -> None:
    """The part before an interruption and the rest after it are together the whole, without repetition."""
    task = log.task(physical=(0, log.end)) if is_physical else log.task()
    whole, parts = read(log, task, settings_)
    cut = data.draw(st.integers(0, len(parts) - 1))
    before = sum(len(piece.starts) for piece in parts[: cut + 1])

    after, _ = read(log, parts[cut].rest, settings_)

    assert whole[:before] + after == whole


@settings(max_examples=40, deadline=None)
@given(LOGS, READINGS, st.booleans(), st.sampled_from([("red",), ("red", "green"), ("blue",)]))
def test_units_with_another_tag_are_not_read(
    log: GeneratedLog, settings_: ReadSettings, is_physical: bool, tags: tuple[str, ...]
) -> None:
    """The index has the hashes of tags; a unit that cannot match costs no byte, and the task still ends."""
    task = log.task(tags=frozenset(tags), physical=(0, log.end) if is_physical else None)
    order = log.order if is_physical else sorted(log.order)

    found, parts = read(log, task, settings_)

    assert found == [one for one in order if TAGS[one[1] % 2] in tags]
    rest = parts[-1].rest
    assert rest.physical == (log.end, log.end) if is_physical else all(one.begin == one.end for one in rest.ranges)


def test_near_records_are_read_together_and_far_ones_apart() -> None:
    """A gap is read up to the limit; a range ends at its limit, or has one record that is longer."""
    physical, size = np.array([0, 100, 264, 500, 10_000]), np.array([100, 100, 100, 9000, 100])

    assert find_runs(physical, size, read_settings(gap_bytes_max=64, range_bytes=1 << 20)) == [(0, 3), (3, 4), (4, 5)]
    assert find_runs(physical, size, read_settings(gap_bytes_max=64, range_bytes=200)) == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 5),
    ]
    assert find_runs(physical, size, read_settings(gap_bytes_max=1000, range_bytes=1 << 20)) == [(0, 5)]
    assert find_runs(physical[:0], size[:0], read_settings()) == []


def test_chunk_of_a_long_queue_is_found_by_binary_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with more units than one request takes is bisected, and a long one is read in parts."""
    monkeypatch.setattr(pieces, "UNITS_PER_REQUEST", 8)
    monkeypatch.setattr(pieces, "UNITS_PER_PROBE", 4)
    log = GeneratedLog([(0, 91, 0)] * 1000)

    found, _ = read(log, log.task(physical=(91 * 500, 91 * 510)), read_settings())

    assert [offset for _, offset, _ in found] == list(range(500, 510))
    assert log.unit_reads < 30
    assert read(log, log.task(), read_settings())[0] == log.order


@pytest.mark.parametrize("size", [0, 90, 0x7FFFFFFE, -1], ids=["zero", "short", "long", "negative"])
def test_invalid_unit_is_named(size: int) -> None:
    """A hole in an index is an error, never a missing message."""
    log = GeneratedLog([(0, 100, 0)] * 3)
    log.made[A]["size"][1] = size

    with pytest.raises(DamagedRecord, match=r"orders/broker-a/0 at offset 1 is damaged"):
        read(log, log.task(), read_settings())


@pytest.mark.parametrize("physical", [None, (0, 300)], ids=["by queue", "by chunk"])
def test_filler_is_an_offset_without_a_message(physical: tuple[int, int] | None) -> None:
    """The broker writes it for a lost message: it is no damage, and no record is read for it."""
    log = GeneratedLog([(0, 100, 0)] * 3)
    log.made[A]["size"][1] = FILLER_SIZE
    log.made[A]["physical"][1] = 200

    found, parts = read(log, log.task(physical=physical), read_settings())

    assert [offset for _, offset, _ in found] == [0, 2]
    assert locate_unit(log.made[A][1:2]) == (200, 0)
    assert physical is not None or all(one.begin == one.end for one in parts[-1].rest.ranges)


def test_units_for_the_same_bytes_are_named() -> None:
    """Queues that overlap in the log are a damaged index."""
    log = GeneratedLog([(0, 100, 0), (1, 100, 0)])
    log.made[B]["physical"][0] = 50

    with pytest.raises(DamagedRecord, match="claim the same bytes"):
        read(log, log.task(physical=(0, 200)), read_settings())
