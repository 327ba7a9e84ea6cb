"""A wrong tags code, at rest or while the broker runs, hides no message from a filter.

The broker keeps a *sum* in memory, a checksum of each page of a queue that it knows to match the log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.errors import QueueRebuilding
from gantry_broker.store.queue_repair import QueueRepair
from gantry_broker.store.queue_sums import UnitSums
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.hashing import tags_code
from gantry_wire.message import decode_records

COUNT = 130
UNIT_BYTES = 20
WANTED = frozenset({tags_code("t1")})


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """A queue over three files in which every third message is wanted."""
    made = make_world(request.param, tmp_path)
    made.open()
    for number in range(COUNT):
        made.append([made.draft(tag=f"t{number % 3}")])
    made.store.flush()
    made.store.flush_step()
    return made


def damage(world: StoreWorld, offset: int, position: int = 19, mask: int = 0x01) -> None:
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    file = queue.files.at(offset * UNIT_BYTES)
    assert file is not None
    file.view[offset * UNIT_BYTES - file.base_offset + position] ^= mask


def filtered_offsets(world: StoreWorld) -> list[int]:
    """Return the queue offsets that a consumer of one tag gets."""
    found: list[int] = []
    offset = 0
    while True:
        try:
            result = world.store.read("orders", 0, offset, count_max=32, bytes_max=1 << 20, accept=WANTED)
        except QueueRebuilding:
            world.repair()
            continue
        found += [message.queue_offset for message in decode_records(result.body)]
        if result.next_offset == offset:
            return found
        offset = result.next_offset


RIGHT = list(range(1, COUNT, 3))


@pytest.mark.parametrize("bit", range(0, 64, 7))
@pytest.mark.parametrize("offset", [1, 49, 70, COUNT - 3])
def test_tags_code_flipped_at_rest_hides_no_message(world: StoreWorld, offset: int, bit: int) -> None:
    """After a start there are no sums: pages are compared with the log before a filter skips their units."""
    assert offset in RIGHT
    world.close()
    file, place = divmod(offset, 50)
    name = f"consumequeue/orders/0/{file * 1000:020d}"
    data = bytearray(world.disk.read_file(world.path(name)))
    data[place * UNIT_BYTES + 12 + bit // 8] ^= 1 << bit % 8
    world.overwrite(name, 0, bytes(data))
    world.open()

    assert filtered_offsets(world) == RIGHT
    assert world.store.repair.queues.units_rebuilt == 1


@pytest.mark.parametrize("is_read_before", [True, False])
@pytest.mark.parametrize("offset", [1, 49, 70])
def test_tags_code_flipped_while_running_hides_no_message(
    world: StoreWorld, offset: int, *, is_read_before: bool
) -> None:
    """Every pull with a filter compares the sums of written and compared pages."""
    if is_read_before:
        assert filtered_offsets(world) == RIGHT
    damage(world, offset)

    assert filtered_offsets(world) == RIGHT
    assert world.store.repair.queues.units_rebuilt == 1


@pytest.mark.parametrize("is_restarted", [True, False])
def test_partly_filled_page_is_verified_from_its_first_read_on(world: StoreWorld, *, is_restarted: bool) -> None:
    """Its sum covers the units that were read; units that are appended later are added to it."""
    if is_restarted:
        world.close()
        world.open()
    assert filtered_offsets(world) == RIGHT
    damage(world, COUNT - 3)
    world.append([world.draft(tag="t1")])

    assert filtered_offsets(world) == [*RIGHT, COUNT]
    damage(world, COUNT)
    assert filtered_offsets(world) == [*RIGHT, COUNT]


def test_page_filled_after_a_flip_is_not_known(world: StoreWorld) -> None:
    """No sum of a full page is taken over bytes that contradict the sum of its first units."""
    assert filtered_offsets(world) == RIGHT
    damage(world, COUNT - 3)
    for _ in range(60):
        world.append([world.draft(tag="t0")])

    assert filtered_offsets(world) == RIGHT


def test_known_pages_need_no_read_of_the_log(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that this process wrote, or compared once, are verified by their sums alone."""
    assert filtered_offsets(world) == RIGHT
    monkeypatch.setattr(QueueRepair, "_matches_log", None)

    assert filtered_offsets(world) == RIGHT


def test_pull_compares_a_bounded_number_of_units(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pull compares the rest, so that none blocks the loop for long."""
    monkeypatch.setattr("gantry_broker.store.queue_repair.COMPARED_UNITS_MAX", 50)
    world.close()
    world.open()

    result = world.store.read("orders", 0, 0, count_max=32, bytes_max=1 << 20, accept=frozenset())

    assert (result.status.name, result.next_offset) == ("NO_MATCHED_MESSAGE", 50)


def test_without_sums_a_flip_hides_a_message(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every page is taken as known, the message is not returned."""
    monkeypatch.setattr(UnitSums, "read_known", lambda self, offset, end: b"")
    monkeypatch.setattr(UnitSums, "known_end", lambda self, offset: 1 << 40)
    damage(world, 1)

    assert filtered_offsets(world) == RIGHT[1:]
