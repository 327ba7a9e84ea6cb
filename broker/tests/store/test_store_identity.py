"""The identity of a store: its uuid, its number of starts, and the ranges that must have seals.

The number of starts is its *generation*. A range without seals is one that RocketMQ may have written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.store.identity import (
    LOG_END_MAX,
    Epoch,
    IdentityFile,
    OwnershipRange,
    StoreIdentity,
    create_identity,
)
from gantry_store_files import decode_sealed, encode_sealed
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld

UUID = "0123456789abcdef0123456789abcdef"


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    disk: Disk = RealDisk() if request.param == "real" else FaultyDisk()
    root = str(tmp_path / "store") if request.param == "real" else "/store"
    disk.make_directory(root)
    return disk, root


def identity(*epochs: Epoch, generation: int = 7) -> StoreIdentity:
    return StoreIdentity(UUID, generation, list(epochs), pool_path="/mnt/buffers")


def test_new_store_is_gantrys_from_its_first_byte() -> None:
    """No other program wrote before, so every record must be sealed; each store has its own uuid."""
    new = create_identity(0)

    assert new.ownership_at(0) == OwnershipRange(True, LOG_END_MAX)
    assert (new.generation, new.epoch, new.pool_path) == (0, 1, "")
    assert new.uuid != create_identity(0).uuid


def test_content_of_an_unknown_store_needs_no_seal() -> None:
    """A store without identity may be RocketMQ's: only records after its end must have a seal."""
    found = create_identity(1000)

    assert found.ownership_at(0) == OwnershipRange(False, 1000)
    assert not found.is_ours(999)
    assert found.is_ours(1000)


def test_start_after_a_gantry_stop_changes_only_the_generation() -> None:
    """No other program wrote meanwhile, so the epoch continues."""
    before = identity(Epoch(1, 0))

    after = before.with_new_start(500, rocketmq_start=None)

    assert after == msgspec.structs.replace(before, generation=8, log_end=500)
    assert (after.uuid, after.pool_path) == (UUID, "/mnt/buffers")


def test_range_of_another_writer_lies_between_two_of_gantry() -> None:
    """From the possible start of the other writer to the end of the log no seal is required; epochs keep rising."""
    after = identity(Epoch(1, 0)).with_new_start(500, rocketmq_start=300)

    assert after.epochs == [Epoch(1, 0), Epoch(2, 300, is_ours=False), Epoch(3, 500)]
    assert [after.ownership_at(offset) for offset in (0, 299, 300, 499, 500)] == [
        OwnershipRange(True, 300), OwnershipRange(True, 300), OwnershipRange(False, 500), OwnershipRange(False, 500),
        OwnershipRange(True, LOG_END_MAX),
    ]  # fmt: skip


def test_other_writer_without_writes_leaves_no_epoch() -> None:
    """RocketMQ may have opened a store and closed it: the range is empty, so there is no epoch for it."""
    before = identity(Epoch(1, 0))

    assert before.with_new_start(500, rocketmq_start=500).epochs == before.epochs
    assert before.with_new_start(500, rocketmq_start=600).epochs == before.epochs


def test_other_writer_may_replace_several_epochs() -> None:
    """Epochs after the position are removed, and their numbers are not used again."""
    before = identity(Epoch(1, 0, is_ours=False), Epoch(2, 100), Epoch(5, 400))

    after = before.with_new_start(900, rocketmq_start=50)

    assert after.epochs == [Epoch(1, 0, is_ours=False), Epoch(6, 900)]


def test_cut_log_loses_the_epochs_after_the_cut() -> None:
    """An epoch that begins exactly at the end stays, because the next record belongs to it."""
    before = identity(Epoch(1, 0), Epoch(2, 300, is_ours=False), Epoch(3, 500))

    assert before.with_truncated_log(499).epochs == before.epochs[:2]
    assert before.with_truncated_log(500).epochs == before.epochs
    cut = before.with_truncated_log(400).with_new_start(400, rocketmq_start=None)
    assert cut.ownership_at(300) == OwnershipRange(False, 400)
    assert cut.is_ours(400)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 60), st.none() | st.integers(0, 1000), st.none() | st.integers(0, 1000)), max_size=12
    )
)
def test_only_ranges_written_by_gantry_need_seals_over_any_history(
    steps: list[tuple[int, int | None, int | None]],
) -> None:
    """Starts, cuts and other writers: a byte needs a seal only if Gantry wrote it and no other program could since."""
    now, end, ours = create_identity(0), 0, set[int]()
    for wrote, others_from, cut_at in steps:
        before = now
        if cut_at is not None and cut_at < end:
            end = cut_at
            now = now.with_truncated_log(end)
        kept = now
        if others_from is not None:
            ours -= set(range(others_from, end + 1))
        ours -= set(range(end, 10_000))
        now = now.with_new_start(end, rocketmq_start=others_from)

        assert now.is_ours(end), "expected that the next record needs a seal"
        assert [now.is_ours(offset) for offset in range(end)] == [offset in ours for offset in range(end)]
        assert now.generation == before.generation + 1 and now.epoch >= kept.epoch
        assert decode_sealed(encode_sealed(now), StoreIdentity) == now, "expected an identity with rising epochs"
        offset = 0
        while offset < end:
            stretch = now.ownership_at(offset)
            assert stretch.end > offset
            assert all(now.is_ours(inside) == stretch.is_ours for inside in range(offset, min(stretch.end, end)))
            offset = stretch.end

        ours |= set(range(end, end + wrote))
        end += wrote


def test_identity_that_was_rolled_back_alone_is_not_used(
    place: tuple[Disk, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its copy counts more starts of the same store; a copy of another store, or an older one, is ignored."""
    disk, root = place
    file = IdentityFile(disk, root)
    older, newer = identity(Epoch(1, 0), generation=1), identity(Epoch(1, 0), Epoch(2, 300), generation=3)
    file.write(newer)
    disk.write_file(file.path, encode_sealed(older))

    assert file.read() == newer and "rolled back" in caplog.text

    caplog.clear()
    for copy in (older, msgspec.structs.replace(newer, uuid="f" * 32, generation=9)):
        file.write(newer)
        disk.write_file(file.backup_path, encode_sealed(copy))
        assert file.read() == newer
    assert caplog.text == ""


def test_no_file_is_no_identity(place: tuple[Disk, str]) -> None:
    """A store that Gantry never opened has no identity, which is not an error."""
    assert IdentityFile(*place).read() is None


def test_written_identity_is_read(place: tuple[Disk, str]) -> None:
    """A new object on the same files reads the last identity."""
    last = identity(Epoch(1, 0, is_ours=False), Epoch(2, 1 << 40))
    IdentityFile(*place).write(identity(Epoch(1, 0)))
    IdentityFile(*place).write(last)

    assert IdentityFile(*place).read() == last


@pytest.mark.parametrize("name", ["store.json", "store.json.bak"])
@pytest.mark.parametrize("damage", [None, b"", b"00000000\n{}", b"\0" * 200, b"garbage"], ids=repr)
def test_one_damaged_copy_costs_nothing(
    place: tuple[Disk, str], name: str, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Both copies are equal and current: no start is numbered twice and no writer is lost."""
    disk, root = place
    IdentityFile(disk, root).write(identity(Epoch(1, 0), generation=1))
    IdentityFile(disk, root).write(identity(Epoch(1, 0), generation=2))
    if damage is None:
        disk.remove(f"{root}/{name}")
    else:
        disk.write_file(f"{root}/{name}", damage)

    assert IdentityFile(disk, root).read() == identity(Epoch(1, 0), generation=2)

    assert ("using store.json.bak" in caplog.text) == (name == "store.json")


def test_start_is_refused_with_both_copies_damaged(place: tuple[Disk, str]) -> None:
    """A guess would either refuse RocketMQ's records or accept torn ones, so a person must decide."""
    disk, root = place
    file = IdentityFile(disk, root)
    file.write(identity(Epoch(1, 0)))
    disk.write_file(file.path, b"")
    disk.write_file(file.backup_path, b"00000000\n{}")

    with pytest.raises(ConfigCorrupt, match=r"store\.json.*CRC.*store\.json\.bak.*CRC"):
        IdentityFile(disk, root).read()


def test_a_directory_in_its_place_is_no_proof_of_a_new_store(tmp_path: Path) -> None:
    """An unreadable path stops the start; only a path that does not exist means that there is no identity."""
    (tmp_path / "store.json").mkdir()

    with pytest.raises(OSError, match="directory"):
        IdentityFile(RealDisk(), str(tmp_path)).read()


@pytest.mark.needs_root
def test_read_only_identity_is_read(tmp_path: Path) -> None:
    """Files restored from a backup may be read-only: reading the identity needs no right to write."""
    place = tmp_path / "store"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    written = identity(Epoch(1, 0))
    IdentityFile(RealDisk(), str(place)).write(written)
    for name in ("store.json", "store.json.bak"):
        (place / name).chmod(0o444)

    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.chdir(place)  # The parent directories are closed to other users.
        os.setuid(65534)
        try:
            found = IdentityFile(RealDisk(), ".").read()
            os.write(write, b"same" if found == written else b"other")
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 1000) == b"same"


def test_every_flipped_bit_of_the_identity_is_detected() -> None:
    """Each bit of the file is flipped, one at a time."""
    data = encode_sealed(identity(Epoch(1, 0), Epoch(2, 4096, is_ours=False)))

    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"."):
            decode_sealed(bytes(changed), StoreIdentity)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"uuid": UUID[1:]}, "uuid"),
        ({"uuid": UUID.upper()}, "uuid"),
        ({"generation": -1}, "negative numbers"),
        ({"epochs": []}, "no epochs"),
        ({"epochs": [Epoch(1, -1)]}, "negative numbers"),
        ({"epochs": [Epoch(1, 5), Epoch(2, 4)]}, "not in ascending order"),
        ({"epochs": [Epoch(2, 0), Epoch(2, 4)]}, "not in ascending order"),
        ({"format": 2}, "format is 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_identity_is_refused(fields: dict[str, object], reason: str) -> None:
    """An intact file with a valid CRC can still be invalid, or of a newer version."""
    whole = msgspec.structs.asdict(identity(Epoch(1, 0))) | fields

    with pytest.raises(ValueError, match=reason):
        StoreIdentity(**whole)


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory", None])
@pytest.mark.parametrize("copy", [0, 1], ids=["file", "backup"])
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_while_it_is_written_leaves_one_of_the_two_states(operation: str | None, copy: int, seed: int) -> None:
    """For any failing call and any power loss afterwards the old or the new identity is intact."""
    disk, root = FaultyDisk(), "/store"
    disk.make_directory(root)
    disk.sync_directory("/")
    states = [identity(Epoch(1, 0), generation=number) for number in (1, 2)]
    file = IdentityFile(disk, root)
    file.write(states[0])
    if copy == 1:
        disk.write_file(file.path, encode_sealed(states[1]))
    if operation is not None:
        disk.fail_next(operation, 5)
        with pytest.raises(OSError, match=re.escape(root)):
            disk.write_file((file.path, file.backup_path)[copy], encode_sealed(states[1]))
    disk.tear(seed)

    found = IdentityFile(disk, root).read()

    assert found in states
    assert copy == 0 or found == states[1], "expected the identity that was already durable in the file"


def test_a_store_with_both_copies_damaged_is_not_opened_and_not_touched(tmp_path: Path) -> None:
    """The start is refused before a byte is written: put a copy back, or remove both on purpose."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=3)
    world.close()
    good = world.disk.read_file(world.path("store.json"))
    for name in ("store.json", "store.json.bak"):
        world.disk.write_file(world.path(name), b"x")
    before = world.files("")

    with pytest.raises(ConfigCorrupt):
        world.open()

    world.disk.kill()
    assert {name: data for name, data in world.files("").items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    world.disk.write_file(world.path("store.json"), good)
    world.open()
    assert world.bodies() == world.sent_bodies()
