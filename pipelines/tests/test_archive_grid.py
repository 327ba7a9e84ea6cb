"""Where files begin and end. The rule: it depends on offsets, and on where batches end, never on settings of a run."""

from __future__ import annotations

import random

import pytest

from gantry_pipelines.archive.grid import laid, line_after, pieces
from gantry_pipelines.archive.layout import Place, day_end_ms, day_of, place_of, quoted
from gantry_pipelines.archive.manifest import tiling_faults
from gantry_pipelines.archive.planning import rounds, tasks
from pyspark_rocketmq.model import QueueId, QueueRange, Replica
from pyspark_rocketmq.planning import Cut, Extent, limited_rows

QUEUE = QueueId("orders", "broker-a", 3)


def test_nothing_lies_on_both_sides_of_a_line() -> None:
    """A range is cut on every line of the grid that it crosses, and nowhere else."""
    found = list(pieces(QueueRange(QUEUE, 37, 350), 100))

    assert [(one.begin, one.end) for one in found] == [(37, 100), (100, 200), (200, 300), (300, 350)]
    assert list(pieces(QueueRange(QUEUE, 100, 100), 100)) == []
    assert line_after(100, 100) == 200 and line_after(99, 100) == 100


def batch(starts: dict[QueueId, int], ends: dict[QueueId, int], rows_max: int, grid_rows: int) -> dict[QueueId, int]:
    """Where the next batch ends."""
    whole = [QueueRange(queue, starts[queue], end) for queue, end in sorted(ends.items())]
    return {one.queue: one.end for one in laid(limited_rows(whole, rows_max), whole, grid_rows)}


@pytest.mark.parametrize("seed", range(20))
def test_other_limits_make_the_same_names(seed: int) -> None:
    """However many rows a batch may have, a log that is read to its end is cut into the same files."""
    draw = random.Random(seed)
    queues = [QueueId("orders", "broker-a", number) for number in range(draw.randint(1, 6))]
    ends = {queue: draw.randint(0, 2000) for queue in queues}
    grid_rows = draw.choice((1, 7, 100, 3000))

    def names(rows_max: int) -> set[str]:
        starts, found = dict.fromkeys(queues, 0), set[str]()
        while starts != ends:
            reached = batch(starts, ends, rows_max, grid_rows)
            assert any(reached[queue] > starts[queue] for queue in queues), "a batch gets on"
            for queue in queues:
                for piece in pieces(QueueRange(queue, starts[queue], reached[queue]), grid_rows):
                    found.add(Place(piece, "2026-11-22").name)
            starts = reached
        return found

    assert names(1_000_000) == names(draw.randint(1, 500)) == names(draw.randint(1, 5000))


def test_a_batch_passes_its_limit_by_one_cell_at_most() -> None:
    """Cells are taken whole; when all queues together would be too many, some wait."""
    queues = [QueueId("orders", "broker-a", number) for number in range(50)]
    starts, ends = dict.fromkeys(queues, 30), dict.fromkeys(queues, 5000)

    reached = batch(starts, ends, 120, 100)

    assert 0 < sum(reached[queue] - starts[queue] for queue in queues) <= 120 + 100
    assert {reached[queue] for queue in queues} == {30, 100}


def test_a_short_queue_is_not_left_behind_by_long_ones() -> None:
    """What is nearly done is done first, so no queue waits for others to come to their ends."""
    queues = [QueueId("a", "b", number) for number in range(5)]
    starts, ends = dict.fromkeys(queues, 0), dict.fromkeys(queues, 1000000) | {queues[4]: 10}

    reached = batch(starts, ends, 100, 100)

    assert reached[queues[4]] == 10


def test_a_limit_that_takes_nothing_is_kept() -> None:
    """A batch for which too little has come stays empty."""
    whole = [QueueRange(QUEUE, 0, 50)]

    assert laid([QueueRange(QUEUE, 0, 0)], whole, 100) == [QueueRange(QUEUE, 0, 0)]


@pytest.mark.parametrize(
    ("topic", "broker"),
    [("orders", "broker-a"), ("%RETRY%group", "b-1-2"), ("a|b", "10.0.0.1:10911"), ("_hidden", ".b/c d")],
    ids=["plain", "retry", "bar", "awkward"],
)
def test_a_name_says_its_range(topic: str, broker: str) -> None:
    """Topic, broker, queue, range and day come out of a path as they went in; no part begins as hidden files do."""
    place = Place(QueueRange(QueueId(topic, broker, 12), 100_000, 123_456), "2026-11-22")

    assert place_of(place.path) == place
    assert not any(part.startswith((".", "_")) for part in place.path.split("/"))
    assert place.path.count("/") == 3


def test_what_is_no_file_of_ours_has_no_place() -> None:
    """A name that was made by anybody else is not taken for a range."""
    for path in (
        "data/topic=a/day=2026-11-22/part-0.parquet",
        "a.parquet",
        f"data/topic=a/{quoted('x')}-0-1-2.parquet",
    ):
        assert place_of(path) is None


def test_days_are_those_of_the_time_zone() -> None:
    """A store time belongs to the date that people there write, and a day ends at their midnight."""
    late_us = 1_795_390_200_000_000  # 2026-11-22T23:30Z

    assert day_of(late_us, "UTC") == "2026-11-22" and day_of(late_us, "Europe/Berlin") == "2026-11-23"
    assert day_end_ms("2026-11-22", "UTC") - day_end_ms("2026-11-22", "Europe/Berlin") == 3_600_000


def test_tiling_says_what_is_wrong() -> None:
    """A gap, an overlap and an empty range are each named; where a queue begins does not matter."""

    def faults(*ends: tuple[int, int]) -> list[str]:
        return tiling_faults(QueueRange(QUEUE, begin, end) for begin, end in ends)

    assert faults((5, 10), (10, 20)) == []
    assert faults((0, 10), (12, 20)) == [f"{QUEUE}: nothing has [10, 12)"]
    assert faults((0, 10), (8, 20)) == [f"{QUEUE}: [8, 10) is there twice"]
    assert faults((0, 10), (10, 10)) == [f"{QUEUE}[10, 10) is empty"]


def test_each_piece_is_in_one_task_and_a_task_has_its_stretch_of_the_log() -> None:
    """Tasks have whole pieces, each once, and one that reads the log from end to end reads all that its pieces have."""
    queues = [QueueId("orders", "broker-a", number) for number in range(3)]
    found = [piece for queue in queues for piece in pieces(QueueRange(queue, 0, 450), 100)]
    groups = rounds(found)
    extents = [
        Extent(one, one.begin * 3000 + one.queue.number, one.end * 3000 + one.queue.number, 1000) for one in found
    ]
    replica = (Replica("broker-a", 0, "127.0.0.1:1", directory="/store"),)

    made = tasks(extents, {"broker-a": replica}, Cut(("offset",), bytes_target=300_000, cores=8))

    assert [len(group) for group in groups] == [3, 3, 3, 3, 3]
    assert all(len({one.queue for one in group}) == len(group) for group in groups)
    assert sorted(one for task in made for one in task.ranges) == sorted(found)
    by_range = {one.range: one for one in extents}
    for task in made:
        assert task.physical is not None
        assert all(
            task.physical[0] <= by_range[one].begin and by_range[one].end <= task.physical[1] for one in task.ranges
        )


def row_of_cells(rows: int, queues: int) -> list[Extent]:
    """What a busy broker's log has: the pieces of each row of the grid lie in one another."""
    return [
        Extent(
            QueueRange(QueueId("orders", "broker-a", queue), row * 100, (row + 1) * 100),
            row * 100_000 * queues + queue,
            (row + 1) * 100_000 * queues - queues + queue,
            1000,
        )
        for row in range(rows)
        for queue in range(queues)
    ]


def test_a_row_of_the_grid_comes_from_a_sidecar_once() -> None:
    """One task has its pieces of all queues: with a task for each the same bytes would cross the network four times."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", sidecar="http://127.0.0.1:2"),)}
    cut = Cut(("offset",), bytes_target=150_000, cores=2)

    made = tasks(row_of_cells(5, 4), replicas, cut)

    assert [len(task.ranges) for task in made] == [4] * 5
    spans = [task.physical for task in made]
    assert all(span is not None for span in spans)
    assert sum(end - begin for begin, end in filter(None, spans)) <= 5 * 400_000


def test_no_core_is_idle_so_that_a_row_is_read_once() -> None:
    """Where there are fewer rows than cores each piece is a task of its own."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", sidecar="http://127.0.0.1:2"),)}

    made = tasks(row_of_cells(1, 4), replicas, Cut(("offset",), bytes_target=150_000, cores=4))

    assert [len(task.ranges) for task in made] == [1] * 4


def test_pieces_of_mapped_files_are_dealt_out_evenly() -> None:
    """Looking at the same bytes of this machine twice costs nothing, so that tasks are small and many."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", directory="/store"),)}

    made = tasks(row_of_cells(5, 4), replicas, Cut(("offset",), bytes_target=150_000, cores=2))

    assert [len(task.ranges) for task in made] == [1] * 20


def test_a_row_that_is_too_large_is_shared_out() -> None:
    """A hundred queues are no one task, whatever is read twice."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", sidecar="http://127.0.0.1:2"),)}

    made = tasks(row_of_cells(2, 40), replicas, Cut(("offset",), bytes_target=150_000, cores=2))

    assert max(task.bytes_estimated for task in made) <= 4 * 150_000
