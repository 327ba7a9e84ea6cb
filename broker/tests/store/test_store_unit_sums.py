"""A wrong tags code, at rest or while the broker runs, hides no message from a filter."""

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
    """A queue over three files of which every third message is wanted."""
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


def filtered(world: StoreWorld) -> list[int]:
    """The queue offsets that a consumer of one tag is given."""
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
def test_a_bit_of_a_tags_code_that_flips_at_rest_hides_nothing(world: StoreWorld, offset: int, bit: int) -> None:
    """A start knows no sums: pages are compared with the log before a filter passes over their units."""
    assert offset in RIGHT
    world.close()
    file, place = divmod(offset, 50)
    name = f"consumequeue/orders/0/{file * 1000:020d}"
    data = bytearray(world.disk.read_file(world.path(name)))
    data[place * UNIT_BYTES + 12 + bit // 8] ^= 1 << bit % 8
    world.overwrite(name, 0, bytes(data))
    world.open()

    assert filtered(world) == RIGHT
    assert world.store.repair.queues.units_rebuilt == 1


@pytest.mark.parametrize("is_read_before", [True, False])
@pytest.mark.parametrize("offset", [1, 49, 70])
def test_a_tags_code_that_flips_while_the_broker_runs_hides_nothing(
    world: StoreWorld, offset: int, *, is_read_before: bool
) -> None:
    """Sums of what this process wrote, and of what was compared, are looked at by every pull with a filter."""
    if is_read_before:
        assert filtered(world) == RIGHT
    damage(world, offset)

    assert filtered(world) == RIGHT
    assert world.store.repair.queues.units_rebuilt == 1


@pytest.mark.parametrize("is_restarted", [True, False])
def test_the_page_that_is_being_filled_is_guarded_from_its_first_read_on(
    world: StoreWorld, *, is_restarted: bool
) -> None:
    """Its sum covers what was read; what is appended then is added to it."""
    if is_restarted:
        world.close()
        world.open()
    assert filtered(world) == RIGHT
    damage(world, COUNT - 3)
    world.append([world.draft(tag="t1")])

    assert filtered(world) == [*RIGHT, COUNT]
    damage(world, COUNT)
    assert filtered(world) == [*RIGHT, COUNT]


def test_a_page_that_is_filled_after_a_flip_is_not_taken_for_right(world: StoreWorld) -> None:
    """The sum of a full page is not taken over bytes that the page's own sum contradicts."""
    assert filtered(world) == RIGHT
    damage(world, COUNT - 3)
    for _ in range(60):
        world.append([world.draft(tag="t0")])

    assert filtered(world) == RIGHT


def test_known_pages_cost_no_look_at_the_log(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process wrote, and what was compared once, is believed by its sum."""
    assert filtered(world) == RIGHT
    monkeypatch.setattr(QueueRepair, "_is_right", None)

    assert filtered(world) == RIGHT


def test_a_pull_compares_a_bounded_number_of_units(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one pull leaves out the next one compares: none keeps the loop for long."""
    monkeypatch.setattr("gantry_broker.store.queue_repair.COMPARED_UNITS_MAX", 50)
    world.close()
    world.open()

    result = world.store.read("orders", 0, 0, count_max=32, bytes_max=1 << 20, accept=frozenset())

    assert (result.status.name, result.next_offset) == ("NO_MATCHED_MESSAGE", 50)


def test_without_sums_a_flip_hides_a_message(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: where every page is believed the message is not given."""
    monkeypatch.setattr(UnitSums, "known", lambda self, offset, end: b"")
    monkeypatch.setattr(UnitSums, "known_end", lambda self, offset: 1 << 40)
    damage(world, 1)

    assert filtered(world) == RIGHT[1:]
