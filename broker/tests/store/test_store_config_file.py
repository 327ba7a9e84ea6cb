"""Config files survive crashes, corruption and RocketMQ's JSON dialect."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.identity import create_identity
from gantry_store_files import encode_sealed
from gantry_testing.faulty_disk import FaultyDisk


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    return (RealDisk(), str(tmp_path / "store")) if request.param == "real" else (FaultyDisk(), "/store")


def replace(disk: Disk, path: str, data: bytes) -> None:
    disk.write_file(path, data)


def test_saved_document_is_loaded(place: tuple[Disk, str]) -> None:
    """A new object on the same files loads the last document; before the first save there is none."""
    assert ConfigFile(*place, "topics").load() is None
    ConfigFile(*place, "topics").save({"a": {"0": 1}})

    assert ConfigFile(*place, "topics").load() == {"a": {"0": 1}}


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 100, b"[1]", b'{"a":', b"\xff\xfe"], ids=repr)
def test_a_corrupt_file_falls_back_to_its_copy(
    place: tuple[Disk, str], damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is used, and that is logged; the file is never silently replaced by empty data."""
    file = ConfigFile(*place, "consumerOffset")
    file.save({"generation": 1})
    file.save({"generation": 2})
    replace(place[0], file.path, damage)

    assert ConfigFile(*place, "consumerOffset").load() == {"generation": 2}
    assert "using its .bak copy" in caplog.text


def test_start_is_refused_with_both_copies_corrupt(place: tuple[Disk, str]) -> None:
    """Empty offsets would make every consumer start over, so an administrator must decide."""
    file = ConfigFile(*place, "consumerOffset")
    file.save({"generation": 1})
    file.save({"generation": 2})
    replace(place[0], file.path, b"")
    replace(place[0], file.backup_path, b"{")

    with pytest.raises(ConfigCorrupt, match="consumerOffset"):
        ConfigFile(*place, "consumerOffset").load()


def test_saving_after_a_fallback_keeps_a_good_copy(place: tuple[Disk, str]) -> None:
    """The corrupt file must not become the next copy."""
    file = ConfigFile(*place, "topics")
    file.save({"generation": 1})
    file.save({"generation": 2})
    replace(place[0], file.path, b"garbage")
    again = ConfigFile(*place, "topics")
    again.load()
    again.save({"generation": 3})
    replace(place[0], file.path, b"garbage")

    assert ConfigFile(*place, "topics").load() == {"generation": 3}


def test_rocketmqs_bare_integer_keys_are_read(place: tuple[Disk, str]) -> None:
    """Java writes queue ids as bare numbers; they are read as strings, like quoted ones."""
    file = ConfigFile(*place, "consumerOffset")
    file.save({})
    replace(place[0], file.path, b'{\n\t"offsetTable":{"orders@g":{0:12,1:9}}\n}')

    assert file.load() == {"offsetTable": {"orders@g": {"0": 12, "1": 9}}}


def test_an_unchanged_document_is_not_written_again() -> None:
    """Offsets are saved every five seconds; without a change nothing is written."""
    disk = FaultyDisk()
    file = ConfigFile(disk, "/store", "topics")
    file.save({"a": 1})
    writes = disk.operations["write"]

    file.save({"a": 1})

    assert disk.operations["write"] == writes


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("seed", range(8))
def test_a_crash_at_any_step_of_a_save_leaves_the_old_or_the_new_document(operation: str, seed: int) -> None:
    """A power loss after a save that succeeded, or that failed at one of its system calls, leaves a good document."""
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


@pytest.mark.parametrize(
    "document", [{"offsetTable": {"orders@group": {0: 35, 1: 40}}}, {"a": 1.5, "b": [None, "ü"]}, {}]
)
def test_every_flipped_bit_of_a_config_file_is_detected(document: dict[str, object]) -> None:
    """A flipped bit in a number leaves valid JSON: the checksum detects it, and the copy is used."""
    disk = FaultyDisk()
    disk.make_directory("/data/store")
    file = ConfigFile(disk, "/data/store", "consumerOffset")
    file.save({"offsetTable": {}})
    older = disk.read_file(file.path)
    file.save(document)
    whole = disk.read_file(file.path)
    expected = ConfigFile(disk, "/data/store", "consumerOffset").load()
    disk.write_file(file.backup_path, older)
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        disk.write_file(file.path, bytes(data))

        found = ConfigFile(disk, "/data/store", "consumerOffset").load()

        assert found is not None
        # A flip in the name of the checksum field leaves an unknown field, and a document without a checksum.
        assert found == {"offsetTable": {}} or expected is None or {**found, **expected} == found, bit


def test_file_without_checksum_is_trusted() -> None:
    """RocketMQ writes no checksum, nor does an administrator who edits the file as the error suggests."""
    disk = FaultyDisk()
    disk.make_directory("/data/store/config")
    file = ConfigFile(disk, "/data/store", "topics")
    disk.write_file(file.path, b'{"topicConfigTable":{},"dataVersion":{"counter":7}}')
    assert file.load() == {"topicConfigTable": {}, "dataVersion": {"counter": 7}}

    file.save({"counter": 7})
    data = disk.read_file(file.path)
    disk.remove(file.backup_path)
    disk.write_file(file.path, data.replace(b'"counter":7', b'"counter":8', 1))
    with pytest.raises(ConfigCorrupt, match="remove the field gantryCrc32"):
        ConfigFile(disk, "/data/store", "topics").load()
    disk.write_file(file.path, b'{"counter":8}')
    assert ConfigFile(disk, "/data/store", "topics").load() == {"counter": 8}


def store_at(disk: FaultyDisk, uuid: str) -> None:
    """Write the identity of a store beside its tables."""
    disk.make_directory("/store")
    identity = msgspec.structs.replace(create_identity(0), uuid=uuid)
    disk.write_file("/store/store.json", encode_sealed(identity))


def saved(uuid: str, *generations: int) -> tuple[FaultyDisk, ConfigFile, list[bytes]]:
    """Save a file with each generation in turn; return the disk, the file, and its bytes after each save."""
    disk = FaultyDisk()
    store_at(disk, uuid)
    file = ConfigFile(disk, "/store", "consumerOffset")
    contents = []
    for generation in generations:
        file.save({"generation": generation})
        contents.append(disk.read_file(file.path))
    return disk, file, contents


@pytest.mark.parametrize("older", [0, 1])
def test_rolled_back_file_is_not_used(older: int, caplog: pytest.LogCaptureFixture) -> None:
    """An older file has a valid checksum, but would redeliver messages. The newer copy is used."""
    disk, file, contents = saved("a" * 32, 1, 2, 3)
    disk.write_file(file.path, contents[older])

    again = ConfigFile(disk, "/store", "consumerOffset")

    assert again.load() == {"generation": 3}
    assert [record.path for record in caplog.records] == [file.path]  # type: ignore[attr-defined]
    assert "it is older than its copy" in str(vars(caplog.records[0]))
    again.save({"generation": 3})
    assert ConfigFile(disk, "/store", "consumerOffset").load() == {"generation": 3}
    assert len(caplog.records) == 1, "expected no second report of a file that was replaced"


def test_rolled_back_copy_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As after a crash between the two writes, the file is the newer one."""
    disk, file, contents = saved("a" * 32, 1, 2, 3)
    disk.write_file(file.backup_path, contents[0])

    assert ConfigFile(disk, "/store", "consumerOffset").load() == {"generation": 3}
    assert not caplog.records


def test_file_of_another_store_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """It is used neither as the file nor as its .bak copy, regardless of its edition number."""
    _, _, foreign = saved("b" * 32, *range(10, 20))
    for name in ("path", "backup_path"):
        disk, file, _ = saved("a" * 32, 1, 2)
        disk.write_file(getattr(file, name), foreign[-1])

        assert ConfigFile(disk, "/store", "consumerOffset").load() == {"generation": 2}

    assert [record.getMessage() for record in caplog.records] == ["config file is unusable; using its .bak copy"]
    assert "it was written by another store" in str(vars(caplog.records[0]))


def test_a_file_of_another_store_without_a_copy_is_used_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Tables may have been moved on purpose; that is logged."""
    _, _, foreign = saved("b" * 32, 10)
    disk, file, _ = saved("a" * 32, 1)
    disk.write_file(file.path, foreign[0])
    disk.remove(file.backup_path)

    assert ConfigFile(disk, "/store", "consumerOffset").load() == {"generation": 10}
    assert "written by another store" in caplog.text


def test_edited_file_wins_over_a_newer_copy() -> None:
    """A file without an edition, as RocketMQ and administrators write it, is trusted."""
    disk, file, _ = saved("a" * 32, 1, 2)
    disk.write_file(file.path, b'{"generation":7}')

    assert ConfigFile(disk, "/store", "consumerOffset").load() == {"generation": 7}
