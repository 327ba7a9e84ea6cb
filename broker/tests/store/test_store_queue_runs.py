"""Any number of damaged units of a consume queue that point before the log mislead no search by physical offset."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_store_queue_search import COUNT, NEW, end_at, is_complete, place_of, queue_of, send

from gantry_broker.store import queue_search
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.queue_search import QueueSearch
from gantry_store_files import UNIT
from gantry_store_files.queue_units import Unit
from gantry_testing.log_head import remove_files, write_recovery_point
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.message import RECORD_BYTES_MIN

FIRST: Final = 97
"""The first offset of a queue that has lost its first messages with two log files."""
END: Final = 300

Damages = dict[int, int]
"""Damaged units, and for each the physical offset in it, modulo that of the newest expired unit."""


def damages(first: int, end: int) -> st.SearchStrategy[Damages]:
    """Draw single units, and runs of neighbours whose physical offsets ascend, like a page of an older file."""
    single = st.dictionaries(st.integers(first, end - 1), st.integers(0, 1 << 30), max_size=8)
    run = st.builds(
        lambda start, count, place: {offset: place + 100 * offset for offset in range(start, min(end, start + count))},
        st.integers(first, end - 1), st.integers(2, end - first), st.integers(0, 5_000),
    )  # fmt: skip
    return st.builds(lambda *drawn: drawn[0] | drawn[1] | drawn[2], run, run, single)


def damage_all(world: StoreWorld, units: Damages, below: int) -> None:
    """Let units point before physical offset ``below``, as expired ones do."""
    for offset, place in units.items():
        world.overwrite(*place_of(offset), UNIT.pack(place % below, RECORD_BYTES_MIN, 0))


def filled_world(folder: Path, count: int) -> StoreWorld:
    world = make_world("faulty", folder)
    world.open()
    send(world, count)
    write_recovery_point(world)
    return world


PAIR: Final = {111: 300, 112: 400, 113: 500}
"""Units that a bisection reads, or that confirm one which it reads."""
FIRST_PAIR: Final = {FIRST: 300, FIRST + 1: 400}
ALL: Final = {offset: 100 * (offset - FIRST) for offset in range(FIRST, END)}


@settings(max_examples=25, deadline=None)
@given(units=damages(FIRST, END))
@example(units=PAIR)
@example(units=FIRST_PAIR)
@example(units=ALL)
def test_start_after_a_deletion_skips_no_message_of_damaged_units(units: Damages) -> None:
    """The recovery point is older than the deletion, so that only the units show where a queue begins."""
    with TemporaryDirectory() as folder:
        world = filled_world(Path(folder), END)
        remove_files(world.store, 2)
        assert queue_of(world).min_offset == FIRST
        below = queue_of(world).stored_unit(FIRST - 1)[0]
        world.kill()
        damage_all(world, units, below)
        world.open()
        assert is_complete(world)


@settings(max_examples=25, deadline=None)
@given(units=damages(FIRST, END))
@example(units=PAIR)
@example(units=FIRST_PAIR)
@example(units=ALL)
def test_retention_skips_no_message_of_damaged_units(units: Damages) -> None:
    """Each queue keeps all units whose messages the log still has."""
    with TemporaryDirectory() as folder:
        world = filled_world(Path(folder), END)
        remove_files(world.store, 1)
        below = queue_of(world).stored_unit(queue_of(world).min_offset)[0]
        damage_all(world, units, below)
        remove_files(world.store, 1)
        assert queue_of(world).min_offset <= FIRST
        assert is_complete(world)


@settings(max_examples=25, deadline=None)
@given(units=damages(0, COUNT))
@example(units={offset: 30 * offset for offset in range(COUNT - 8, COUNT)})
def test_truncation_keeps_the_messages_of_damaged_units(units: Damages) -> None:
    """A former master truncates its log: messages before the cut stay in their queues, and none after it does."""
    with TemporaryDirectory() as folder:
        world = filled_world(Path(folder), COUNT)
        end = world.sent[-1].end
        send(world, NEW)
        damage_all(world, units, 2_000)
        assert end_at(world, COUNT) == COUNT
        world.store.truncate(end)
        world.forget_after(end)
        assert queue_of(world).readable_end == COUNT


@pytest.mark.parametrize("units", [PAIR, FIRST_PAIR], ids=["later", "first"])
def test_start_that_believes_neighbours_skips_messages(units: Damages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: two adjacent units that have seemingly expired confirm each other."""
    monkeypatch.setattr(queue_search, "_follows_earlier_units", lambda *_: True)
    test = test_start_after_a_deletion_skips_no_message_of_damaged_units.hypothesis.inner_test  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        test(units)


def test_retention_that_believes_neighbours_skips_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: units before the log count as expired although no message of the queue has expired."""
    monkeypatch.setattr(queue_search, "_follows_earlier_units", lambda *_: True)
    monkeypatch.setattr(QueueSearch, "_oldest_physical", lambda *_: 0)
    test = test_retention_skips_no_message_of_damaged_units.hypothesis.inner_test  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        test(PAIR)


def test_search_reads_a_limited_part_of_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with thousands of queues reads some units of each, however many messages have expired."""
    monkeypatch.setattr(queue_search, "ORDERED_UNITS", 10)
    world = filled_world(tmp_path, END)
    remove_files(world.store, 2)
    queue = queue_of(world)
    read: set[int] = set()
    read_unit, read_units = ConsumeQueue.stored_unit, ConsumeQueue.stored_units

    def count_unit(one: ConsumeQueue, number: int) -> Unit:
        read.add(number)
        return read_unit(one, number)

    def count_units(one: ConsumeQueue, start: int, stop: int) -> list[Unit]:
        read.update(range(start, stop))
        return read_units(one, start, stop)

    monkeypatch.setattr(ConsumeQueue, "stored_unit", count_unit)
    monkeypatch.setattr(ConsumeQueue, "stored_units", count_units)

    first, end = queue.limit_to_files(0, END)
    assert QueueSearch(world.store.log, world.store.queues).find_start(queue, first, end) == FIRST
    assert len(read) < 30


@pytest.mark.parametrize(("first", "end"), [(0, 0), (3, 4), (0, 120), (45, 105), (99, 140)])
def test_units_are_read_across_files(tmp_path: Path, first: int, end: int) -> None:
    """A file has fifty units; outside of the files there is none."""
    world = filled_world(tmp_path, 110)
    queue = queue_of(world)

    units = queue.stored_units(first, end)

    assert units == [queue.stored_unit(number) for number in range(first, end)]
    assert all(unit[0] < following[0] for unit, following in pairwise(units[: max(0, 110 - first)]))
