"""Where files end (at lines of the grid, at the log's end, between days) for any limit of a run, and their tasks."""

from __future__ import annotations

import random

import pytest

from gantry_pipelines.archive.grid import align_to_grid, line_after, split_on_grid
from gantry_pipelines.archive.layout import Place, day_end_ms, day_of, place_of, quote_name
from gantry_pipelines.archive.manifest import tiling_faults
from gantry_pipelines.archive.planning import plan_tasks, split_into_rounds
from pyspark_rocketmq.model import QueueId, QueueRange, Replica
from pyspark_rocketmq.planning import Extent, SplitOptions, limit_rows

QUEUE = QueueId("orders", "broker-a", 3)


def test_range_is_split_at_every_grid_line() -> None:
    """A range is split at every line of the grid that it crosses, and nowhere else."""
    found = list(split_on_grid(QueueRange(QUEUE, 37, 350), 100))

    assert [(one.begin, one.end) for one in found] == [(37, 100), (100, 200), (200, 300), (300, 350)]
    assert list(split_on_grid(QueueRange(QUEUE, 100, 100), 100)) == []
    assert line_after(100, 100) == 200 and line_after(99, 100) == 100


def batch(starts: dict[QueueId, int], ends: dict[QueueId, int], rows_max: int, grid_rows: int) -> dict[QueueId, int]:
    """Return the end of the next batch of each queue."""
    whole = [QueueRange(queue, starts[queue], end) for queue, end in sorted(ends.items())]
    return {one.queue: one.end for one in align_to_grid(limit_rows(whole, rows_max), whole, grid_rows)}


@pytest.mark.parametrize("seed", range(20))
def test_file_names_do_not_depend_on_batch_limits(seed: int) -> None:
    """A log that is read to its end is split into the same files, for any limit of rows in a batch."""
    draw = random.Random(seed)
    queues = [QueueId("orders", "broker-a", number) for number in range(draw.randint(1, 6))]
    ends = {queue: draw.randint(0, 2000) for queue in queues}
    grid_rows = draw.choice((1, 7, 100, 3000))

    def names(rows_max: int) -> set[str]:
        starts, found = dict.fromkeys(queues, 0), set[str]()
        while starts != ends:
            reached = batch(starts, ends, rows_max, grid_rows)
            assert any(reached[queue] > starts[queue] for queue in queues), "a batch made no progress"
            for queue in queues:
                for piece in split_on_grid(QueueRange(queue, starts[queue], reached[queue]), grid_rows):
                    found.add(Place(piece, "2026-11-22").name)
            starts = reached
        return found

    assert names(1_000_000) == names(draw.randint(1, 500)) == names(draw.randint(1, 5000))


def test_batch_exceeds_its_limit_by_one_cell_at_most() -> None:
    """Cells are taken completely; if all queues together would exceed the limit, some wait."""
    queues = [QueueId("orders", "broker-a", number) for number in range(50)]
    starts, ends = dict.fromkeys(queues, 30), dict.fromkeys(queues, 5000)

    reached = batch(starts, ends, 120, 100)

    assert 0 < sum(reached[queue] - starts[queue] for queue in queues) <= 120 + 100
    assert {reached[queue] for queue in queues} == {30, 100}


def test_short_queue_does_not_starve() -> None:
    """Queues with the fewest rows come first, so that none waits until others are read to their ends."""
    queues = [QueueId("a", "b", number) for number in range(5)]
    starts, ends = dict.fromkeys(queues, 0), dict.fromkeys(queues, 1000000) | {queues[4]: 10}

    reached = batch(starts, ends, 100, 100)

    assert reached[queues[4]] == 10


def test_empty_batch_stays_empty() -> None:
    """Aligning does not extend a batch that its limit left empty."""
    whole = [QueueRange(QUEUE, 0, 50)]

    assert align_to_grid([QueueRange(QUEUE, 0, 0)], whole, 100) == [QueueRange(QUEUE, 0, 0)]


@pytest.mark.parametrize(
    ("topic", "broker"),
    [("orders", "broker-a"), ("%RETRY%group", "b-1-2"), ("a|b", "10.0.0.1:10911"), ("_hidden", ".b/c d")],
    ids=["plain", "retry", "bar", "awkward"],
)
def test_path_of_a_file_encodes_its_range(topic: str, broker: str) -> None:
    """Topic, broker, queue, range and day can be parsed from a path; no part begins like a hidden file."""
    place = Place(QueueRange(QueueId(topic, broker, 12), 100_000, 123_456), "2026-11-22")

    assert place_of(place.path) == place
    assert not any(part.startswith((".", "_")) for part in place.path.split("/"))
    assert place.path.count("/") == 3


def test_foreign_path_has_no_place() -> None:
    """A file name of another program is not parsed as a range."""
    for path in (
        "data/topic=a/day=2026-11-22/part-0.parquet",
        "a.parquet",
        f"data/topic=a/{quote_name('x')}-0-1-2.parquet",
    ):
        assert place_of(path) is None


def test_days_follow_the_time_zone() -> None:
    """A store time belongs to the local date, and a day ends at local midnight."""
    late_us = 1_795_390_200_000_000  # 2026-11-22T23:30Z

    assert day_of(late_us, "UTC") == "2026-11-22" and day_of(late_us, "Europe/Berlin") == "2026-11-23"
    assert day_end_ms("2026-11-22", "UTC") - day_end_ms("2026-11-22", "Europe/Berlin") == 3_600_000


def test_gaps_overlaps_and_empty_ranges_are_reported() -> None:
    """Each fault is named with its range; the first range of a queue may begin at any offset."""

    def faults(*ends: tuple[int, int]) -> list[str]:
        return tiling_faults(QueueRange(QUEUE, begin, end) for begin, end in ends)

    assert faults((5, 10), (10, 20)) == []
    assert faults((0, 10), (12, 20)) == [f"{QUEUE}: [10, 12) is missing"]
    assert faults((0, 10), (8, 20)) == [f"{QUEUE}: [8, 10) is archived twice"]
    assert faults((0, 10), (10, 10)) == [f"{QUEUE}[10, 10) is empty"]


def test_each_piece_is_in_one_task_which_covers_its_stretch_of_the_log() -> None:
    """Each piece is in one task, and the physical range of a task covers all of its pieces."""
    queues = [QueueId("orders", "broker-a", number) for number in range(3)]
    found = [piece for queue in queues for piece in split_on_grid(QueueRange(queue, 0, 450), 100)]
    groups = split_into_rounds(found)
    extents = [
        Extent(one, one.begin * 3000 + one.queue.number, one.end * 3000 + one.queue.number, 1000) for one in found
    ]
    replica = (Replica("broker-a", 0, "127.0.0.1:1", directory="/store"),)

    made = plan_tasks(extents, {"broker-a": replica}, SplitOptions(("offset",), bytes_target=300_000, cores=8))

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
    """Return extents as in a busy broker's log: the pieces of each row of the grid overlap."""
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


def test_row_of_the_grid_is_read_from_a_sidecar_once() -> None:
    """One task has the pieces of all queues; one task each would transfer the same bytes four times."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", sidecar="http://127.0.0.1:2"),)}
    cut = SplitOptions(("offset",), bytes_target=150_000, cores=2)

    made = plan_tasks(row_of_cells(5, 4), replicas, cut)

    assert [len(task.ranges) for task in made] == [4] * 5
    spans = [task.physical for task in made]
    assert all(span is not None for span in spans)
    assert sum(end - begin for begin, end in filter(None, spans)) <= 5 * 400_000


def test_fewer_rows_than_cores_are_split_into_pieces() -> None:
    """Grouping by rows does not leave cores idle: with fewer rows than cores each piece is a task."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", sidecar="http://127.0.0.1:2"),)}

    made = plan_tasks(row_of_cells(1, 4), replicas, SplitOptions(("offset",), bytes_target=150_000, cores=4))

    assert [len(task.ranges) for task in made] == [1] * 4


def test_pieces_of_local_files_are_distributed_evenly() -> None:
    """Reading the same local bytes twice costs nothing, so tasks are small and many."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", directory="/store"),)}

    made = plan_tasks(row_of_cells(5, 4), replicas, SplitOptions(("offset",), bytes_target=150_000, cores=2))

    assert [len(task.ranges) for task in made] == [1] * 20


def test_large_row_is_split_into_several_tasks() -> None:
    """A task has a maximum size, even if some bytes are then read twice."""
    replicas = {"broker-a": (Replica("broker-a", 0, "127.0.0.1:1", sidecar="http://127.0.0.1:2"),)}

    made = plan_tasks(row_of_cells(2, 40), replicas, SplitOptions(("offset",), bytes_target=150_000, cores=2))

    assert max(task.bytes_estimated for task in made) <= 4 * 150_000
