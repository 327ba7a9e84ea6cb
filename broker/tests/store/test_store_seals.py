"""Where a Gantry master wrote, a record without its seal is no record; where somebody else did, it is one."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from gantry_broker.store import recovery
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import STORE_HOST, StoreWorld, make_world
from gantry_wire.message import RecordCheck, StoredMessage, check_record, encode_record
from gantry_wire.seal import seal

LOG = "commitlog/00000000000000000000"


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    made = make_world(request.param, tmp_path)
    made.open()
    return made


@pytest.fixture
def memory() -> StoreWorld:
    made = StoreWorld(FaultyDisk(), "/data/store")
    made.open()
    return made


def flip(world: StoreWorld, offset: int, bit: int = 0) -> None:
    """Change one bit of the log's first file behind everybody's back."""
    world.overwrite(LOG, offset, bytes([world.disk.read_file(world.path(LOG))[offset] ^ 1 << bit]))


def become_rocketmqs(world: StoreWorld, *properties: bytes) -> list[int]:
    """After a clean stop: append a record for each, without a seal, and rewrite the checkpoint, as RocketMQ does."""
    end, offsets = world.sent[-1][0], []
    for number, data in enumerate(properties):
        message = StoredMessage(
            topic="orders",
            queue_id=0,
            body=b"theirs %d" % number,
            queue_offset=len(world.sent) + number,
            physical_offset=end,
            store_timestamp_ms=world.clock.wall_ms(),
            store_host=STORE_HOST,
            properties_bytes=data,
        )
        record = encode_record(message)
        world.overwrite(LOG, end, record)
        offsets.append(end)
        end += len(record)
    world.overwrite("checkpoint", 0, struct.pack(">q", world.clock.wall_ms()))
    return offsets


def test_no_changed_byte_of_the_last_record_is_believed(memory: StoreWorld) -> None:
    """D9: whichever byte of the unflushed tail is wrong, the log ends before its record."""
    memory.send(count=3)
    start, end = memory.sent[1][0], memory.sent[2][0]
    memory.kill()
    whole = memory.disk.read_file(memory.path(LOG))

    for offset in range(start, end):
        memory.overwrite(LOG, 0, whole[:end])
        flip(memory, offset, offset % 8)
        memory.disk.remove(memory.path("recovery-point.json"))
        memory.disk.remove(memory.path("checkpoint"))

        assert memory.open().end == start, f"byte {offset - start} of the record changed, and it was believed"

        memory.kill()


def test_a_recovery_that_asks_for_no_seals_is_found(memory: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above: by the body's CRC alone a record with a changed property is whole."""

    def credulous(*arguments: object, **options: object) -> RecordCheck:
        return check_record(*arguments, **(options | {"is_sealed": False}))  # type: ignore[arg-type]

    memory.send(count=3)
    end = memory.sent[2][0]
    memory.kill()
    flip(memory, end - 30)
    monkeypatch.setattr(recovery, "check_record", credulous)

    assert memory.open().end == end


def test_rot_behind_the_body_of_a_flushed_record_is_reported(world: StoreWorld) -> None:
    """Flushed bytes that changed are damage, not the end of the log: the neighbours are served, the record is not."""
    world.send(count=5)
    world.store.flush()
    world.store.flush_step()
    start, end = world.sent[1][0], world.sent[2][0]
    world.close()
    flip(world, end - 25)
    world.disk.remove(world.path("recovery-point.json"))

    report = world.open()

    assert report.damaged == [(start, end)]
    assert world.store.guard.message_at(start) is None
    expected = world.sent_bodies()
    assert world.bodies() == [*expected[:2], *expected[3:]]


@pytest.mark.parametrize("field", [12, 20, 28], ids=["queue id", "queue offset", "physical offset"])
def test_a_record_that_rots_while_it_is_served_does_not_stop_its_queue(world: StoreWorld, field: int) -> None:
    """A record that says it is another one is rot if its seal is broken: passed over, and the queue is not blamed."""
    world.send(count=5)
    start = world.sent[1][0]
    file = world.store.log.at(start)
    assert file is not None
    file.view[start + field + 3] ^= 1

    bodies = world.bodies()

    expected = world.sent_bodies()
    assert bodies == [*expected[:2], *expected[3:]]
    assert world.store.guard.message_at(start) is None


def test_what_another_writer_appended_is_read_by_the_bodys_crc(world: StoreWorld) -> None:
    """RocketMQ's records have no seal, or a copy of another record's: they are served after any number of crashes."""
    world.send(count=3)
    world.close()
    stale = seal(b"some other record")
    offsets = become_rocketmqs(world, b"", b"a\x01b", b"a\x01b\x02" + stale, stale + b"a\x01b\x02")

    for _ in range(3):
        report = world.open()

        assert report.damaged == [] and report.lost_flushed_bytes == 0
        assert [message.body for message in world.messages()][3:7] == [b"theirs %d" % number for number in range(4)]
        assert [world.store.identity.is_ours(offset) for offset in offsets] == [False] * 4
        assert all(world.store.guard.message_at(offset) is not None for offset in offsets)
        world.send()
        assert world.store.identity.is_ours(world.sent[-1][0] - 1)
        world.kill()


@pytest.mark.parametrize("damage", ["truncated", "emptied", "one bit", "zeros"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("has_point", [True, False], ids=["point", "no point"])
def test_a_damaged_checkpoint_is_not_taken_for_another_writer(
    world: StoreWorld, damage: str, is_clean: bool, has_point: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """All records are sealed, so nobody else wrote them: an epoch more would part a member from its group."""
    world.send(count=3)
    world.store.flush_step()
    world.send(count=3)
    epochs = world.store.identity.epochs
    world.close() if is_clean else world.kill()
    path = world.path("checkpoint")
    data = bytearray(world.disk.read_file(path) if world.disk.exists(path) else bytes(4096))
    data[3] ^= 4
    kept = {"truncated": bytes(data[:34]), "emptied": b"", "one bit": bytes(data), "zeros": bytes(4096)}[damage]
    world.disk.write_file(path, kept)
    if not has_point and world.disk.exists(world.path("recovery-point.json")):
        world.disk.remove(world.path("recovery-point.json"))

    report = world.open()

    assert world.store.identity.epochs == epochs
    assert "the checkpoint is damaged" in caplog.text
    assert report.damaged == [] and world.bodies() == world.sent_bodies()


def test_our_records_behind_another_writers_are_sealed_again(world: StoreWorld) -> None:
    """After somebody else had the store, the tail is ours again and as strict as ever."""
    world.send(count=3)
    world.close()
    [theirs] = become_rocketmqs(world, b"a\x01b\x02")
    world.open()
    world.send(count=2)
    start, end = world.sent[-2][0], world.sent[-1][0]
    world.kill()
    flip(world, end - 30)

    report = world.open()

    assert report.end == start
    assert world.store.guard.message_at(theirs) is not None


def test_a_store_from_before_there_was_an_identity_is_opened(world: StoreWorld) -> None:
    """Without the file everything in the log is somebody else's: nothing is refused, and what follows is sealed."""
    world.send(count=3)
    world.close()
    become_rocketmqs(world, b"a\x01b\x02")
    for name in ("store.json", "store.json.bak", "recovery-point.json", "checkpoint"):
        world.disk.remove(world.path(name))

    report = world.open()

    assert report.damaged == [] and len(world.messages()) == 4
    assert not world.store.identity.is_ours(report.end - 1)
    assert world.store.identity.is_ours(report.end)
    world.send()
    world.kill()
    world.open()
    assert len(world.messages()) == 5


def test_each_start_is_another_generation_of_the_same_store(world: StoreWorld) -> None:
    """The name stays, the count rises, cleanly stopped or not: buffers of an older start are told apart by it."""
    first = world.store.identity
    world.send()
    world.kill()
    world.open()
    second = world.store.identity
    world.close()
    world.open()
    third = world.store.identity

    assert first.uuid == second.uuid == third.uuid
    assert (first.generation, second.generation, third.generation) == (1, 2, 3)
    assert first.epochs == second.epochs == third.epochs


def test_properties_without_room_for_a_seal_survive_a_crash(memory: StoreWorld) -> None:
    """The longest properties that RocketMQ allows are stored unsealed, served and recovered."""
    world = StoreWorld(
        memory.disk, "/data/other", dataclasses.replace(memory.settings, mapped_file_size_commit_log=80_000)
    )
    world.open()
    world.append([world.draft()._replace(properties=b"a\x01" + b"x" * 32764 + b"\x02", keys=()), world.draft()])
    world.kill()

    world.open()

    assert world.bodies() == world.sent_bodies()
    assert world.altered() is None
