"""A promise is durable before it counts, and is never taken back."""

from __future__ import annotations

import errno

import pytest

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ha.promise import Promise, PromiseFile, PromiseRefused
from gantry_broker.testing.faulty_disk import FaultyDisk


def make() -> tuple[FaultyDisk, PromiseFile]:
    disk = FaultyDisk()
    disk.make_directory("/store")
    disk.sync_directory("/")
    return disk, PromiseFile(disk, "/store")


def test_a_promise_outlives_a_power_cut() -> None:
    """Whoever was told has it in writing."""
    disk, file = make()
    assert file.load() == Promise(0)
    file.give(7, "an operator")
    disk.lose_unsynced()

    again = PromiseFile(disk, "/store")

    assert again.load() == Promise(7, "an operator")
    with pytest.raises(PromiseRefused, match="epoch 7 was promised to an operator"):
        again.give(6, "somebody else")
    assert again.give(7, "somebody else").to == "an operator", "asking again changes nothing"
    assert again.give(8, "somebody else").epoch == 8


def test_a_promise_that_could_not_be_written_was_not_given() -> None:
    """And it may be given later."""
    disk, file = make()
    disk.fail_next("sync", errno.EIO)

    with pytest.raises(OSError, match="Input"):
        file.give(3, "x")

    assert file.promise == Promise(0)
    assert file.give(3, "x").epoch == 3


@pytest.mark.parametrize("data", [b"", b"00000000\n{}", b"zz\n", b"garbage"])
def test_who_has_forgotten_what_it_promised_has_no_voice(data: bytes) -> None:
    """A damaged file stops the start."""
    disk, file = make()
    disk.write_file("/store/promise.json", data)

    with pytest.raises(ConfigCorrupt, match=r"promise\.json"):
        file.load()
