"""Offsets and topics survive crashes, corruption and Java's dialect."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.store.config_file import ConfigFile
from gantry_broker.testing.faulty_disk import FaultyDisk


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    return (RealDisk(), str(tmp_path / "store")) if request.param == "real" else (FaultyDisk(), "/store")


def replace(disk: Disk, path: str, data: bytes) -> None:
    disk.write_file(path, data)


def test_what_was_saved_is_loaded(place: tuple[Disk, str]) -> None:
    """A fresh object on the same files sees the last document; before the first save there is none."""
    assert ConfigFile(*place, "topics").load() is None
    ConfigFile(*place, "topics").save({"a": {"0": 1}})

    assert ConfigFile(*place, "topics").load() == {"a": {"0": 1}}


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 100, b"[1]", b'{"a":', b"\xff\xfe"], ids=repr)
def test_a_corrupt_file_falls_back_to_its_predecessor(
    place: tuple[Disk, str], damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Never zeroed silently: the good predecessor is used, and that is said."""
    file = ConfigFile(*place, "consumerOffset")
    file.save({"generation": 1})
    file.save({"generation": 2})
    replace(place[0], file.path, damage)

    assert ConfigFile(*place, "consumerOffset").load() == {"generation": 1}
    assert "its predecessor is used" in caplog.text


def test_with_both_copies_corrupt_nothing_starts(place: tuple[Disk, str]) -> None:
    """Empty offsets would make every consumer start over; better to ask somebody."""
    file = ConfigFile(*place, "consumerOffset")
    file.save({"generation": 1})
    file.save({"generation": 2})
    replace(place[0], file.path, b"")
    replace(place[0], file.backup_path, b"{")

    with pytest.raises(ConfigCorrupt, match="consumerOffset"):
        ConfigFile(*place, "consumerOffset").load()


def test_saving_after_a_fallback_keeps_a_good_predecessor(place: tuple[Disk, str]) -> None:
    """The corrupt file must not become the predecessor of the next one."""
    file = ConfigFile(*place, "topics")
    file.save({"generation": 1})
    file.save({"generation": 2})
    replace(place[0], file.path, b"garbage")
    again = ConfigFile(*place, "topics")
    again.load()
    again.save({"generation": 3})
    replace(place[0], file.path, b"garbage")

    assert ConfigFile(*place, "topics").load() == {"generation": 1}


def test_rocketmqs_bare_integer_keys_are_read(place: tuple[Disk, str]) -> None:
    """Java writes queue ids as bare numbers; they come back as text, like the quoted ones."""
    file = ConfigFile(*place, "consumerOffset")
    file.save({})
    replace(place[0], file.path, b'{\n\t"offsetTable":{"orders@g":{0:12,1:9}}\n}')

    assert file.load() == {"offsetTable": {"orders@g": {"0": 12, "1": 9}}}


def test_an_unchanged_document_is_not_written_again() -> None:
    """Offsets are saved every five seconds; when nothing moved, the disk is left alone."""
    disk = FaultyDisk()
    file = ConfigFile(disk, "/store", "topics")
    file.save({"a": 1})
    writes = disk.operations["write"]

    file.save({"a": 1})

    assert disk.operations["write"] == writes


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("seed", range(8))
def test_a_crash_at_any_step_of_a_save_leaves_the_old_or_the_new_document(operation: str, seed: int) -> None:
    """Write, sync, rename, directory sync: wherever the power goes, a good document is there."""
    for number in range(2):
        disk = FaultyDisk()
        file = ConfigFile(disk, "/store", "topics")
        file.save({"generation": 1})
        file.save({"generation": 2})
        for _ in range(number):
            disk.fail_next(operation, errno.EIO)
        try:
            file.save({"generation": 3})
        except OSError:
            assert number == 1
        disk.tear(seed)

        loaded = ConfigFile(disk, "/store", "topics").load()

        assert loaded in ([{"generation": 3}] if number == 0 else [{"generation": 2}, {"generation": 3}])
