"""Queues with numbers that stand for no message, as the sidecar reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gantry_admin.ranges import OFFSET_MAX, Span
from gantry_admin.store_files import StoreFiles, queue_messages
from gantry_store_files import UNIT, UNIT_BYTES, decode_sealed, encode_sealed
from gantry_store_files.store_identity import Epoch, StoreIdentity
from gantry_testing.store_world import StoreWorld, make_world

ORDERS = ("orders", 0)
MESSAGES = 31


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    """A stopped store with ten messages, eleven that are lost, and ten more; one each 10 ms."""
    world = make_world("real", tmp_path / "store")
    world.open()
    for number in range(MESSAGES):
        world.append([world.draft(*ORDERS, body=b"%d" % number)])
        world.clock.advance(10)
    world.close()
    world.fill_units(10, 21)
    return world


def test_lost_messages_do_not_hide_earlier_ones(world: StoreWorld) -> None:
    """The queue begins at its first message, and all of them are shown."""
    files = StoreFiles(Path(world.root))

    assert files.bounds(*ORDERS, 0, OFFSET_MAX) == (0, MESSAGES)
    assert len(files.units(*ORDERS, 0, MESSAGES)) == MESSAGES * UNIT_BYTES
    found = queue_messages(files, Span(0, OFFSET_MAX), *ORDERS, 0, 100)
    assert [one.queue_offset for one in found.messages] == [*range(10), *range(21, 31)]


@pytest.mark.parametrize("is_inside", [False, True], ids=["next message", "inside a record"])
def test_search_by_time_finds_messages_before_lost_ones(world: StoreWorld, is_inside: bool) -> None:
    """A lost message has no time of its own: it has that of the data at its offset, or of the data after it."""
    files = StoreFiles(Path(world.root))
    first = files.stored_at(*ORDERS, 0, 0)
    assert first is not None
    if is_inside:
        place, _, _ = UNIT.unpack(files.units(*ORDERS, 21, 22))
        world.fill_units(10, 21, place=place - 1)

    for number in range(10):
        assert files.offset_at(*ORDERS, first + 10 * number, 0, OFFSET_MAX) == (number, MESSAGES)
    assert files.offset_at(*ORDERS, first + 95, 0, OFFSET_MAX) == (10, MESSAGES)
    assert files.offset_at(*ORDERS, first + 215, 0, OFFSET_MAX) == (22, MESSAGES)
    assert files.stored_at(*ORDERS, 9, 0) == first + 90
    assert files.stored_at(*ORDERS, 15, 0) is None


def test_foreign_file_names_are_ignored(world: StoreWorld) -> None:
    """`007` is not queue 7, and a directory with a name of twenty digits is no file of the log."""
    root = Path(world.root)
    for name in ("007", "70000", "²"):
        (root / "consumequeue" / "orders" / name).mkdir()
    (root / "commitlog" / f"{1 << 40:020d}").mkdir()
    files = StoreFiles(root)

    assert files.queue_ids("orders") == [0]
    assert all(segment.size == world.settings.mapped_file_size_commit_log for segment in files.log_segments())


def test_epochs_come_from_the_newer_copy_of_the_identity(world: StoreWorld) -> None:
    """A `store.json` that was rolled back has less than its copy, and a start would use the copy too."""
    path = Path(world.root) / "store.json"
    newer = decode_sealed(path.read_bytes(), StoreIdentity)
    older = msgspec.structs.replace(newer, generation=newer.generation - 1, epochs=[Epoch(0, 0)])
    path.write_bytes(encode_sealed(older))

    assert StoreFiles(Path(world.root)).epochs() == newer.epochs
