"""A promise is durable before it counts, and is never revoked."""

from __future__ import annotations

import errno
from contextlib import suppress
from zlib import crc32

import pytest

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ha.role_files import Promise, PromiseFile, PromiseRefused
from gantry_store_files import decode_sealed
from gantry_testing.faulty_disk import FaultyDisk


def make_promise_file() -> tuple[FaultyDisk, PromiseFile]:
    disk = FaultyDisk()
    disk.make_directory("/store")
    disk.sync_directory("/")
    return disk, PromiseFile(disk, "/store")


def test_promise_survives_power_loss() -> None:
    """A promise that was returned to the caller is on the disk."""
    disk, file = make_promise_file()
    assert file.load() == Promise(0)
    file.give(7, "an operator")
    disk.lose_unsynced()

    again = PromiseFile(disk, "/store")

    assert again.load() == Promise(7, "an operator")
    with pytest.raises(PromiseRefused, match="epoch 7 was promised to an operator"):
        again.give(6, "another master")
    assert again.give(7, "another master").to == "an operator", "expected that asking again changes nothing"
    assert again.give(8, "another master").epoch == 8


def test_unwritten_promise_was_not_given() -> None:
    """The same promise may be given later."""
    disk, file = make_promise_file()
    disk.fail_next("sync", errno.EIO)

    with pytest.raises(OSError, match="Input"):
        file.give(3, "x")

    assert file.promise == Promise(0)
    assert file.give(3, "x").epoch == 3


@pytest.mark.parametrize("data", [b"", b"00000000\n{}", b"zz\n", b"garbage"])
def test_unreadable_promise_stops_the_start(data: bytes) -> None:
    """A damaged file without a copy stops the start; the error names it and the remedy."""
    disk, file = make_promise_file()
    disk.write_file("/store/promise.json", data)

    with pytest.raises(
        ConfigCorrupt, match=r"promise\.json.*in a group, move the store away and start empty"
    ) as raised:
        file.load()
    assert "invalid literal" not in str(raised.value)


OLDER_PROMISE = b"%08x\n" % crc32(b'{"epoch":5,"to":"x"}') + b'{"epoch":5,"to":"x"}'


@pytest.mark.parametrize("data", [None, b"", b"garbage", b"00000000\n{}", OLDER_PROMISE])
@pytest.mark.parametrize("name", ["promise.json", "promise.json.bak"])
def test_damaged_or_older_file_does_not_revoke_a_promise(
    name: str, data: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the two files is enough, and the higher epoch counts; the other file is rewritten."""
    disk, file = make_promise_file()
    file.give(5, "x")
    file.give(9, "y")
    if data is None:
        disk.remove(f"/store/{name}")
    else:
        disk.write_file(f"/store/{name}", data)

    assert PromiseFile(disk, "/store").load() == Promise(9, "y")
    if data is not None or name == "promise.json":
        assert [record.path for record in caplog.records] == [f"/store/{name}"]  # type: ignore[attr-defined]
    caplog.clear()
    for path in ("/store/promise.json", "/store/promise.json.bak"):
        assert decode_sealed(disk.read_file(path), Promise) == Promise(9, "y")
    PromiseFile(disk, "/store").load()
    assert not caplog.records


@pytest.mark.parametrize("seed", range(8))
def test_power_loss_during_a_promise_lowers_no_promise(seed: int) -> None:
    """Wherever the write ends, no epoch below the earlier promise's is left."""
    for operation in ("write", "sync", "rename", "sync_directory"):
        for failures in (1, 2):
            disk, file = make_promise_file()
            file.give(5, "x")
            for number in range(failures):
                disk.fail_next(operation, errno.EIO)
                with suppress(OSError):
                    file.give(9 + number, "y")
            disk.tear(seed)
            assert PromiseFile(disk, "/store").load().epoch >= 5
