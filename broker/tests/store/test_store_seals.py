"""Where a Gantry master wrote, a record must have its seal; where another broker wrote, it need not."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from gantry_broker.store import recovery
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import STORE_HOST, StoreWorld
from gantry_wire.message import RecordCheck, StoredMessage, check_record, encode_record
from gantry_wire.seal import seal

LOG = "commitlog/00000000000000000000"


@pytest.fixture
def memory() -> StoreWorld:
    made = StoreWorld(FaultyDisk(), "/data/store")
    made.open()
    return made


def flip(world: StoreWorld, offset: int, bit: int = 0) -> None:
    """Change one bit of the log's first file, bypassing the store."""
    world.overwrite(LOG, offset, bytes([world.disk.read_file(world.path(LOG))[offset] ^ 1 << bit]))


def append_as_rocketmq(world: StoreWorld, *properties: bytes) -> list[int]:
    """After a clean stop, append records without a seal and rewrite the checkpoint, as RocketMQ does."""
    end, offsets = world.sent[-1].end, []
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


def test_changed_byte_of_the_last_record_ends_the_log(memory: StoreWorld) -> None:
    """With any wrong byte in the unflushed tail, the log ends before its record."""
    memory.send(count=3)
    start, end = memory.sent[1].end, memory.sent[2].end
    memory.kill()
    whole = memory.disk.read_file(memory.path(LOG))

    for offset in range(start, end):
        memory.overwrite(LOG, 0, whole[:end])
        flip(memory, offset, offset % 8)
        memory.disk.remove(memory.path("recovery-point.json"))
        memory.disk.remove(memory.path("checkpoint"))

        assert memory.open().end == start, f"byte {offset - start} of the record changed, and it was accepted"

        memory.kill()


def test_recovery_without_seals_accepts_a_changed_property(memory: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the body's CRC alone a record with a changed property is valid."""

    def credulous(*arguments: object, **options: object) -> RecordCheck:
        return check_record(*arguments, **(options | {"is_sealed": False}))  # type: ignore[arg-type]

    memory.send(count=3)
    end = memory.sent[2].end
    memory.kill()
    flip(memory, end - 30)
    monkeypatch.setattr(recovery, "check_record", credulous)

    assert memory.open().end == end


def test_rot_after_the_body_of_a_flushed_record_is_reported(world: StoreWorld) -> None:
    """Changed flushed bytes are damage, not the end of the log: the neighbours are served, the record is not."""
    world.send(count=5)
    world.store.flush()
    world.store.flush_step()
    start, end = world.sent[1].end, world.sent[2].end
    world.close()
    flip(world, end - 25)
    world.disk.remove(world.path("recovery-point.json"))

    report = world.open()

    assert report.damaged == [(start, end)]
    assert world.store.guard.message_at(start) is None
    expected = world.sent_bodies()
    assert world.bodies() == [*expected[:2], *expected[3:]]


@pytest.mark.parametrize("field", [12, 20, 28], ids=["queue id", "queue offset", "physical offset"])
def test_record_damaged_while_served_does_not_block_its_queue(world: StoreWorld, field: int) -> None:
    """A record with another identity and a broken seal is damaged: it is skipped, and the queue is right."""
    world.send(count=5)
    start = world.sent[1].end
    file = world.store.log.at(start)
    assert file is not None
    file.view[start + field + 3] ^= 1

    bodies = world.bodies()

    expected = world.sent_bodies()
    assert bodies == [*expected[:2], *expected[3:]]
    assert world.store.guard.message_at(start) is None


def test_records_of_another_writer_are_verified_by_the_body_crc(world: StoreWorld) -> None:
    """RocketMQ's records have no seal, or a copy of another one's: they are served after any number of crashes."""
    world.send(count=3)
    world.close()
    stale = seal(b"some other record")
    offsets = append_as_rocketmq(world, b"", b"a\x01b", b"a\x01b\x02" + stale, stale + b"a\x01b\x02")

    for _ in range(3):
        report = world.open()

        assert report.damaged == [] and report.lost_flushed_bytes == 0
        assert [message.body for message in world.messages()][3:7] == [b"theirs %d" % number for number in range(4)]
        assert [world.store.identity.is_ours(offset) for offset in offsets] == [False] * 4
        assert all(world.store.guard.message_at(offset) is not None for offset in offsets)
        world.send()
        assert world.store.identity.is_ours(world.sent[-1].end - 1)
        world.kill()


@pytest.mark.parametrize("damage", ["truncated", "emptied", "one bit", "zeros"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("has_point", [True, False], ids=["point", "no point"])
def test_damaged_checkpoint_is_not_taken_for_another_writer(
    world: StoreWorld, damage: str, is_clean: bool, has_point: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If all records are sealed, none are foreign: a new epoch would separate a member from its group."""
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
    assert "checkpoint is damaged" in caplog.text
    assert report.damaged == [] and world.bodies() == world.sent_bodies()


def test_our_records_after_another_writers_are_sealed_again(world: StoreWorld) -> None:
    """After another broker has used the store, new records must have seals again."""
    world.send(count=3)
    world.close()
    [theirs] = append_as_rocketmq(world, b"a\x01b\x02")
    world.open()
    world.send(count=2)
    start, end = world.sent[-2].end, world.sent[-1].end
    world.kill()
    flip(world, end - 30)

    report = world.open()

    assert report.end == start
    assert world.store.guard.message_at(theirs) is not None


def test_store_without_an_identity_is_opened(world: StoreWorld) -> None:
    """Without the file all records count as foreign: none is refused, and new ones are sealed."""
    world.send(count=3)
    world.close()
    append_as_rocketmq(world, b"a\x01b\x02")
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
    """The uuid stays, the generation rises after any stop: it distinguishes buffers of older starts."""
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
    assert world.find_altered() is None
