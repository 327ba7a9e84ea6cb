"""A store knows its name, how often it started, and which records it may ask for a seal."""

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
    StoreIdentity,
    Stretch,
    new_identity,
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


def test_a_new_store_is_ours_from_its_first_byte() -> None:
    """Nobody wrote before us, so every record must be sealed; each store has a name of its own."""
    new = new_identity(0)

    assert new.ours_from(0) == Stretch(True, LOG_END_MAX)
    assert (new.generation, new.epoch, new.pool_path) == (0, 1, "")
    assert new.uuid != new_identity(0).uuid


def test_what_an_unknown_store_holds_is_somebody_elses() -> None:
    """A store without identity may be RocketMQ's: before its end nothing is asked for a seal, behind it all is."""
    found = new_identity(1000)

    assert found.ours_from(0) == Stretch(False, 1000)
    assert not found.is_ours(999)
    assert found.is_ours(1000)


def test_a_start_after_our_own_stop_changes_the_generation_only() -> None:
    """Nobody else wrote: one epoch goes on."""
    before = identity(Epoch(1, 0))

    after = before.started(500, written_by_others_from=None)

    assert after == msgspec.structs.replace(before, generation=8, log_end=500)
    assert (after.uuid, after.pool_path) == (UUID, "/mnt/buffers")


def test_a_range_that_others_may_have_written_is_theirs_between_two_of_ours() -> None:
    """From where they may have begun to the end of the log nothing is asked; epoch numbers go on rising."""
    after = identity(Epoch(1, 0)).started(500, written_by_others_from=300)

    assert after.epochs == [Epoch(1, 0), Epoch(2, 300, is_ours=False), Epoch(3, 500)]
    assert [after.ours_from(offset) for offset in (0, 299, 300, 499, 500)] == [
        Stretch(True, 300), Stretch(True, 300), Stretch(False, 500), Stretch(False, 500), Stretch(True, LOG_END_MAX),
    ]  # fmt: skip


def test_others_who_wrote_nothing_leave_no_trace() -> None:
    """RocketMQ may have opened a store and closed it: the range is empty, so there is no epoch for it."""
    before = identity(Epoch(1, 0))

    assert before.started(500, written_by_others_from=500).epochs == before.epochs
    assert before.started(500, written_by_others_from=600).epochs == before.epochs


def test_others_may_have_written_over_several_of_our_epochs() -> None:
    """What began behind the place is forgotten, and its numbers are not used again."""
    before = identity(Epoch(1, 0, is_ours=False), Epoch(2, 100), Epoch(5, 400))

    after = before.started(900, written_by_others_from=50)

    assert after.epochs == [Epoch(1, 0, is_ours=False), Epoch(6, 900)]


def test_a_log_that_was_cut_forgets_what_began_behind_the_cut() -> None:
    """An epoch that begins exactly at the end stays: what comes next belongs to it."""
    before = identity(Epoch(1, 0), Epoch(2, 300, is_ours=False), Epoch(3, 500))

    assert before.truncated(499).epochs == before.epochs[:2]
    assert before.truncated(500).epochs == before.epochs
    cut = before.truncated(400).started(400, written_by_others_from=None)
    assert cut.ours_from(300) == Stretch(False, 400)
    assert cut.is_ours(400)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 60), st.none() | st.integers(0, 1000), st.none() | st.integers(0, 1000)), max_size=12
    )
)
def test_over_any_life_only_what_we_wrote_is_asked_for_a_seal(
    steps: list[tuple[int, int | None, int | None]],
) -> None:
    """Starts, cuts, and others who may have written: a byte is ours only if we wrote it and nobody could have since."""
    now, end, ours = new_identity(0), 0, set[int]()
    for wrote, others_from, cut_at in steps:
        before = now
        if cut_at is not None and cut_at < end:
            end = cut_at
            now = now.truncated(end)
        if others_from is not None:
            ours -= set(range(others_from, end + 1))
        ours -= set(range(end, 10_000))
        now = now.started(end, written_by_others_from=others_from)

        assert now.is_ours(end), "what is appended next is ours"
        assert [now.is_ours(offset) for offset in range(end)] == [offset in ours for offset in range(end)]
        assert now.generation == before.generation + 1 and now.epoch >= before.epochs[0].epoch
        assert decode_sealed(encode_sealed(now), StoreIdentity) == now, "the epochs rise, or it could not be read"
        offset = 0
        while offset < end:
            stretch = now.ours_from(offset)
            assert stretch.end > offset
            assert all(now.is_ours(inside) == stretch.is_ours for inside in range(offset, min(stretch.end, end)))
            offset = stretch.end

        ours |= set(range(end, end + wrote))
        end += wrote


def test_an_identity_that_was_rolled_back_alone_is_not_believed(
    place: tuple[Disk, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its twin knows of more starts of the same store; the twin of another store, or an older one, says nothing."""
    disk, root = place
    file = IdentityFile(disk, root)
    older, newer = identity(Epoch(1, 0), generation=1), identity(Epoch(1, 0), Epoch(2, 300), generation=3)
    file.write(newer)
    disk.write_file(file.path, encode_sealed(older))

    assert file.read() == newer and "rolled back" in caplog.text

    caplog.clear()
    for twin in (older, msgspec.structs.replace(newer, uuid="f" * 32, generation=9)):
        file.write(newer)
        disk.write_file(file.twin_path, encode_sealed(twin))
        assert file.read() == newer
    assert caplog.text == ""


def test_no_file_is_no_identity(place: tuple[Disk, str]) -> None:
    """A store that was never opened by us has none, which is not an error."""
    assert IdentityFile(*place).read() is None


def test_what_was_written_is_read(place: tuple[Disk, str]) -> None:
    """A fresh object on the same files sees the last one."""
    last = identity(Epoch(1, 0, is_ours=False), Epoch(2, 1 << 40))
    IdentityFile(*place).write(identity(Epoch(1, 0)))
    IdentityFile(*place).write(last)

    assert IdentityFile(*place).read() == last


@pytest.mark.parametrize("name", ["store.json", "store.json.bak"])
@pytest.mark.parametrize("damage", [None, b"", b"00000000\n{}", b"\0" * 200, b"garbage"], ids=repr)
def test_one_damaged_copy_costs_nothing(
    place: tuple[Disk, str], name: str, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Both copies say the same, the newest: no start is numbered twice and no writer is forgotten."""
    disk, root = place
    IdentityFile(disk, root).write(identity(Epoch(1, 0), generation=1))
    IdentityFile(disk, root).write(identity(Epoch(1, 0), generation=2))
    if damage is None:
        disk.remove(f"{root}/{name}")
    else:
        disk.write_file(f"{root}/{name}", damage)

    assert IdentityFile(disk, root).read() == identity(Epoch(1, 0), generation=2)

    assert ("its twin is used" in caplog.text) == (name == "store.json")


def test_with_both_copies_damaged_nothing_starts(place: tuple[Disk, str]) -> None:
    """A guess would either refuse RocketMQ's records or believe torn ones; better to ask somebody."""
    disk, root = place
    file = IdentityFile(disk, root)
    file.write(identity(Epoch(1, 0)))
    disk.write_file(file.path, b"")
    disk.write_file(file.twin_path, b"00000000\n{}")

    with pytest.raises(ConfigCorrupt, match=r"store\.json.*CRC.*store\.json\.bak.*CRC"):
        IdentityFile(disk, root).read()


def test_a_directory_in_its_place_is_no_proof_of_a_new_store(tmp_path: Path) -> None:
    """What cannot be read stops the start; only where there is nothing by that name the store has no identity."""
    (tmp_path / "store.json").mkdir()

    with pytest.raises(OSError, match="directory"):
        IdentityFile(RealDisk(), str(tmp_path)).read()


@pytest.mark.needs_root
def test_a_copy_that_may_only_be_read_is_used(tmp_path: Path) -> None:
    """As one that was put back from a backup: its successor is renamed into its place, so nothing opens it to write."""
    place = tmp_path / "store"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    written = identity(Epoch(1, 0))
    IdentityFile(RealDisk(), str(place)).write(written)
    for name in ("store.json", "store.json.bak"):
        (place / name).chmod(0o444)

    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.chdir(place)  # the folders above are closed to others
        os.setuid(65534)
        try:
            found = IdentityFile(RealDisk(), ".").read()
            os.write(write, b"same" if found == written else b"other")
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000) == b"same"


def test_no_flipped_bit_is_read_as_something_else() -> None:
    """Every bit of the file, one at a time."""
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
        ({"generation": -1}, "below zero"),
        ({"epochs": []}, "no epochs"),
        ({"epochs": [Epoch(1, -1)]}, "below zero"),
        ({"epochs": [Epoch(1, 5), Epoch(2, 4)]}, "do not rise"),
        ({"epochs": [Epoch(2, 0), Epoch(2, 4)]}, "do not rise"),
        ({"format": 2}, "format is 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_identity_that_cannot_be_is_refused(fields: dict[str, object], reason: str) -> None:
    """A whole file with a right CRC can still say nonsense, or be of a newer Gantry."""
    whole = msgspec.structs.asdict(identity(Epoch(1, 0))) | fields

    with pytest.raises(ValueError, match=reason):
        StoreIdentity(**whole)


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory", None])
@pytest.mark.parametrize("copy", [0, 1], ids=["file", "twin"])
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_while_it_is_written_leaves_one_of_the_two_states(operation: str | None, copy: int, seed: int) -> None:
    """Whichever call fails and whatever the power loss then takes, the old or the new identity is there, whole."""
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
            disk.write_file((file.path, file.twin_path)[copy], encode_sealed(states[1]))
    disk.tear(seed)

    found = IdentityFile(disk, root).read()

    assert found in states
    assert copy == 0 or found == states[1], "what a start was told is durable stays"


def test_a_store_with_both_copies_damaged_is_not_opened_and_not_touched(tmp_path: Path) -> None:
    """Refused before a byte is written: put a copy back, or remove both on purpose."""
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
