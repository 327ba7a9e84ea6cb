"""File sizes come from an existing store unless they are set explicitly."""

from pathlib import Path

import pytest

from gantry_broker.ports import RealDisk
from gantry_broker.store.existing_sizes import with_existing_file_sizes
from gantry_broker.store.settings import StoreSettings


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(65536))
    queue = tmp_path / "consumequeue" / "orders" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020d}").write_bytes(bytes(4000))
    return tmp_path


def test_sizes_of_an_existing_store_win_over_defaults(store: Path) -> None:
    """A store with other sizes opens without repeating them in the settings."""
    settings = with_existing_file_sizes(str(store), StoreSettings(), {}, RealDisk())

    assert settings.mapped_file_size_commit_log == 65536
    assert settings.mapped_file_size_consume_queue == 4000


def test_explicit_sizes_are_kept(store: Path) -> None:
    """An explicit size is never silently overruled; opening the store compares it and refuses."""
    written = StoreSettings(mapped_file_size_commit_log=131072, mapped_file_size_consume_queue=2000)
    given = {"mappedFileSizeCommitLog": "131072", "mappedFileSizeConsumeQueue": "2000"}

    assert with_existing_file_sizes(str(store), written, given, RealDisk()) == written


def test_an_empty_or_missing_store_keeps_the_defaults(tmp_path: Path) -> None:
    """An unfinished file does not determine a size."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").touch()

    assert with_existing_file_sizes(str(tmp_path), StoreSettings(), {}, RealDisk()) == StoreSettings()
    assert with_existing_file_sizes(str(tmp_path / "nowhere"), StoreSettings(), {}, RealDisk()) == StoreSettings()


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [([5 << 20], StoreSettings().mapped_file_size_commit_log), ([5 << 20, 6 << 20], 1 << 20)],
    ids=["one", "two"],
)
def test_name_of_one_truncated_file_determines_no_size(tmp_path: Path, offsets: list[int], expected: int) -> None:
    """A name is a multiple of the size and not the size; the names of two neighbours determine it."""
    (tmp_path / "commitlog").mkdir()
    for offset in offsets:
        (tmp_path / "commitlog" / f"{offset:020d}").write_bytes(bytes(1001))

    settings = with_existing_file_sizes(str(tmp_path), StoreSettings(), {}, RealDisk())

    assert settings.mapped_file_size_commit_log == expected
