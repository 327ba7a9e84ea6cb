"""File sizes come from an existing store unless somebody wrote them down."""

from pathlib import Path

import pytest

from gantry_broker.ports import RealDisk
from gantry_broker.store.existing import settings_of_store
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
    """A store made with other sizes opens without anybody repeating them."""
    settings = settings_of_store(str(store), StoreSettings(), {}, RealDisk())

    assert settings.mapped_file_size_commit_log == 65536
    assert settings.mapped_file_size_consume_queue == 4000


def test_sizes_that_were_written_down_are_kept(store: Path) -> None:
    """A written size is never overruled in silence; opening the store compares it and refuses."""
    written = StoreSettings(mapped_file_size_commit_log=131072, mapped_file_size_consume_queue=2000)
    given = {"mappedFileSizeCommitLog": "131072", "mappedFileSizeConsumeQueue": "2000"}

    assert settings_of_store(str(store), written, given, RealDisk()) == written


def test_an_empty_or_missing_store_keeps_the_defaults(tmp_path: Path) -> None:
    """Nothing is read from a file that was never finished."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").touch()

    assert settings_of_store(str(tmp_path), StoreSettings(), {}, RealDisk()) == StoreSettings()
    assert settings_of_store(str(tmp_path / "nowhere"), StoreSettings(), {}, RealDisk()) == StoreSettings()
