"""The plan of a read from archive and brokers: every wanted message from exactly one of them, or missing in both."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_pipelines.archive import read_planning
from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind
from gantry_pipelines.archive.read_planning import FilePart, ReadPlan, available_bounds, live_ranges, plan_read
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange

QUEUES = (QueueId("orders", "broker-a", 0), QueueId("orders", "broker-b", 0), QueueId("paid", "broker-a", 1))
Scene = tuple[dict[QueueId, list[ArchivedFile]], dict[QueueId, Bounds], list[QueueRange]]


def archived(queue: QueueId, begin: int, end: int, kind: RangeKind = RangeKind.DATA) -> ArchivedFile:
    """Return a live range of a queue; of the kind DATA it has a file."""
    return ArchivedFile(Place(QueueRange(queue, begin, end), "2026-11-22"), end - begin, 1, "c", kind=kind)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw the live ranges of some queues, what their brokers have, and what is wanted."""
    files: list[ArchivedFile] = []
    bounds: dict[QueueId, Bounds] = {}
    wanted: list[QueueRange] = []
    for queue in draw(st.sets(st.sampled_from(QUEUES), min_size=1)):
        at = draw(st.integers(0, 5))
        for size, kind in draw(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(RangeKind)), max_size=5)):
            files.append(archived(queue, at, at + size, kind))
            at += size
        begin = draw(st.integers(0, 30))
        if draw(st.booleans()):
            bounds[queue] = Bounds(begin, draw(st.integers(begin, 40)))
        low = draw(st.integers(0, 40))
        wanted.append(QueueRange(queue, low, draw(st.integers(low, 45))))
    return live_ranges(files, frozenset(QUEUES)), bounds, wanted


def sources_of(plan: ReadPlan) -> Counter[tuple[QueueId, int, str]]:
    """Return each planned message with its source."""
    found: Counter[tuple[QueueId, int, str]] = Counter()
    for part in plan.parts:
        found.update((part.file.range.queue, offset, "archive") for offset in range(part.begin, part.end))
    for name, ranges in (("broker", plan.ranges), ("missing", plan.missing)):
        found.update((one.queue, offset, name) for one in ranges for offset in range(one.begin, one.end))
    return found


def expected_sources(scene: Scene) -> Counter[tuple[QueueId, int, str]]:
    """Return the same, decided message by message."""
    live, bounds, wanted = scene
    found: Counter[tuple[QueueId, int, str]] = Counter()
    for one in wanted:
        data = [file.range for file in live.get(one.queue, ()) if file.kind is RangeKind.DATA]
        for offset in range(one.begin, one.end):
            is_archived = any(some.begin <= offset < some.end for some in data)
            at = bounds.get(one.queue)
            is_at_broker = at is not None and at.begin <= offset < at.end
            source = "archive" if is_archived else "broker" if is_at_broker else "missing"
            found[one.queue, offset, source] += 1
    return found


@given(scenes())
def test_plan_has_no_gap_and_no_overlap(scene: Scene) -> None:
    """Each wanted message is read once: from the archive if it is there, else from the broker, else it is missing."""
    live, bounds, wanted = scene
    plan = plan_read(wanted, live, bounds)
    assert sources_of(plan) == expected_sources(scene)
    assert all(part.begin < part.end for part in plan.parts)
    assert all(one.begin < one.end for one in (*plan.ranges, *plan.missing))


def test_plan_without_holes_misses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: if brokers are only read after the archived end, the test above fails."""
    monkeypatch.setattr(read_planning, "_fill", lambda *_: None)
    queue = QUEUES[0]
    scene: Scene = ({queue: [archived(queue, 5, 10)]}, {queue: Bounds(0, 12)}, [QueueRange(queue, 0, 12)])
    assert sources_of(plan_read(scene[2], scene[0], scene[1])) != expected_sources(scene)


@given(scenes())
def test_available_bounds_begin_at_the_first_message_of_either(scene: Scene) -> None:
    """The earliest message is one that the archive or the broker has, and nothing begins before it."""
    live, bounds, _ = scene
    for queue, found in available_bounds(live, bounds).items():
        whole = plan_read([QueueRange(queue, 0, 60)], live, bounds)
        offsets = sorted(offset for _, offset, source in sources_of(whole) if source != "missing")
        assert found.begin == offsets[0] if offsets else found.begin <= found.end
        assert not offsets or found.end > offsets[-1]


def test_queue_whose_archive_has_expired_begins_at_the_broker() -> None:
    """Neither expired nor lost ranges move the earliest message."""
    queue = QUEUES[0]
    live = {queue: [archived(queue, 0, 5, RangeKind.EXPIRED), archived(queue, 5, 9, RangeKind.LOST)]}
    assert available_bounds(live, {queue: Bounds(12, 20)}) == {queue: Bounds(12, 20)}
    assert available_bounds(live, {}) == {queue: Bounds(9, 9)}


def test_part_of_a_file_is_not_whole() -> None:
    """A file is read in part where the wanted range ends in it."""
    file = archived(QUEUES[0], 5, 10)
    plan = plan_read([QueueRange(QUEUES[0], 7, 10)], {QUEUES[0]: [file]}, {})
    assert plan.parts == (FilePart(file, 7, 10),) and not plan.parts[0].is_whole
    assert FilePart(file, 5, 10).is_whole
