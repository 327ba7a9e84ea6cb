"""Row D9 of the fault catalogue: one bit of a stored record changes, in each field, in the middle or at the end.

In the middle it is damage: the record is reported with its offset and skipped, its neighbours are served, and nothing
after it is cut. In an unflushed tail it ends the log after a power cut, since it may be a torn write; after a kill it
is damage, too.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.log_walk import log_files
from faults.fields import FIELDS, field_ranges
from faults.scene import Scene

from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.message import StoredMessage

MIDDLE, FLUSHED, SENT = 20, 40, 60
"""The number of the message that is damaged, and how many are flushed and sent."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.slow), "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    """Return a store with sixty messages in two queues, forty of them before recovery point and checkpoint."""
    made = make_world(request.param, tmp_path)
    made.open()
    for number in range(SENT):
        if number == FLUSHED:
            made.clock.advance(20_000)
            made.store.flush_step()
        made.send("orders", queue_id=number % 2)
    assert made.store.log.flushed == sorted(made.records)[FLUSHED]
    yield made
    made.disk.kill()


def flip_bit_of_field(world: StoreWorld, number: int, field: str, seed: int = 0) -> tuple[int, int]:
    """Change one bit of a field of the record with this number; return the record's half-open range."""
    start = sorted(world.records)[number]
    record = world.records[start]
    first, end = field_ranges(record)[field]
    rng = random.Random(f"{field}/{seed}")
    size = world.settings.mapped_file_size_commit_log
    at = rng.randrange(first, end)
    name = f"commitlog/{start - start % size:020d}"
    world.overwrite(name, start % size + at, bytes([record[at] ^ 1 << rng.randrange(8)]))
    return start, start + len(record)


def flip_bit_at(store: Path, offset: int) -> None:
    """Change one bit of the log at this offset, without the broker."""
    path = next(path for path in log_files(store) if int(path.name) + path.stat().st_size > offset)
    with path.open("r+b") as file:
        file.seek(offset - int(path.name))
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def everything_but(world: StoreWorld, lost: int | None, count: int = SENT) -> None:
    """Check that every message but one is served as it was sent, at its offset."""
    for queue_id in (0, 1):
        expected = [
            (offset, body) for number, (_, _, queue, offset, body) in enumerate(world.sent[:count])
            if queue == queue_id and number != lost
        ]  # fmt: skip
        messages: list[StoredMessage] = world.messages("orders", queue_id)
        assert [(message.queue_offset, message.body) for message in messages] == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_clean", [False, True], ids=["after-a-kill", "after-a-stop"])
@pytest.mark.parametrize("field", FIELDS)
def test_damage_in_the_middle_is_reported_and_skipped(
    world: StoreWorld, field: str, is_clean: bool, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: when the whole log is read, one changed bit costs one message, and report and log name its offset."""
    world.close() if is_clean else world.kill()
    world.disk.remove(world.path("recovery-point.json"))
    start, end = flip_bit_of_field(world, MIDDLE, field, seed)

    report = world.open()

    assert report.damaged == [(start, end)]
    assert report.end == world.sent[-1].end and report.lost_flushed_bytes == 0
    everything_but(world, MIDDLE)
    assert start in [getattr(record, "offset", None) for record in caplog.records]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("field", FIELDS)
def test_damage_in_the_middle_costs_one_message_when_queues_are_rebuilt(
    world: StoreWorld, field: str, seed: int
) -> None:
    """D9: queues that are rebuilt from a damaged log have every other message at its own offset."""
    world.kill()
    world.disk.remove_tree(world.path("consumequeue/orders/0"))
    world.disk.remove_tree(world.path("consumequeue/orders/1"))
    start, end = flip_bit_of_field(world, MIDDLE, field, seed)

    report = world.open()

    assert report.damaged == [(start, end)]
    assert report.end == world.sent[-1].end
    everything_but(world, MIDDLE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("field", FIELDS)
def test_damage_in_the_tail_ends_the_log_after_a_power_cut(world: StoreWorld, field: str, seed: int) -> None:
    """D9: in an unflushed tail a changed bit ends the log after a power cut, for good: later records stay lost."""
    world.kill()
    world.clock.reboot(0)
    start, _ = flip_bit_of_field(world, FLUSHED + 10, field, seed)

    report = world.open()

    assert report.end == start and report.damaged == []
    everything_but(world, None, FLUSHED + 10)
    world.forget_after(start)
    world.send("orders")
    world.kill()
    assert world.open().end == world.sent[-1].end
    everything_but(world, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("field", FIELDS)
def test_damage_in_the_tail_costs_one_message_after_a_kill(world: StoreWorld, field: str, seed: int) -> None:
    """D9: no write was torn, so records after the damage were acknowledged and are served, at their offsets."""
    world.kill()
    start, end = flip_bit_of_field(world, FLUSHED + 10, field, seed)

    report = world.open()

    assert report.damaged == [(start, end)] and report.missing == []
    assert report.end == world.sent[-1].end
    everything_but(world, FLUSHED + 10)


def test_the_places_of_all_fields_are_right(world: StoreWorld) -> None:
    """`field_ranges` finds each field where it is, so that `flip_bit_of_field` changes the field that a test names."""
    start = sorted(world.records)[MIDDLE]
    record = world.records[start]
    found = field_ranges(record)

    assert tuple(found) == FIELDS
    assert record[slice(*found["topic"])] == b"orders"
    assert record[slice(*found["body"])] == world.sent[MIDDLE].body
    assert int.from_bytes(record[slice(*found["physical-offset"])], "big") == start
    assert record[slice(*found["seal"])].startswith(b"__CRC32#")


async def test_broker_serves_around_damage(tmp_path: Path) -> None:
    """D9, as a process: one changed bit in a stopped broker's log costs that message, and the log names it."""
    async with Scene(tmp_path) as scene:
        await scene.start()
        await scene.send_once(300)
        await scene.broker.stop()
        victim = next(sent for sent in scene.history.sent.values() if sent.queue_offset == 5)
        flip_bit_at(scene.store, victim.physical_offset + 91)
        (scene.store / "recovery-point.json").unlink()

        await scene.start()

        assert str(victim.physical_offset) in scene.log
        assert await scene.unserved_messages() == [victim.mark]
