"""A store's files, read by the sidecar while retention and administrators delete in them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from gantry_admin.bundle import make_bundle
from gantry_admin.errors import Problem
from gantry_admin.ranges import OFFSET_MAX
from gantry_admin.store_files import StoreFiles
from gantry_testing.store_world import StoreWorld, make_world

MESSAGES = 60
ORDERS = ("orders", 0)


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    """A stopped store whose log has several files, without the first of them; its queue is as it was."""
    world = make_world("real", tmp_path / "store")
    world.open()
    for number in range(MESSAGES):
        world.append([world.draft(*ORDERS, body=b"%d " % number + bytes(1000))])
        world.clock.advance(10)
    world.close()
    log = sorted((Path(world.root) / "commitlog").iterdir())
    assert len(log) > 2, "expected a log of several files"
    log[0].unlink()
    return world


def test_message_deleted_while_its_time_is_read_counts_as_older(world: StoreWorld) -> None:
    """Retention may delete a log file after the bounds were read: the search continues in the remaining files."""
    files = StoreFiles(Path(world.root))
    oldest = files.log_segments()[0].base_offset
    found, end = files.offset_at(*ORDERS, 0, 0, OFFSET_MAX)

    assert 0 < found < end == MESSAGES
    assert files.bounds(*ORDERS, oldest, OFFSET_MAX).begin == found
    assert files.stored_at(*ORDERS, 0, 0) is None


def test_message_in_a_hole_of_the_log_is_not_expired(world: StoreWorld) -> None:
    """A log file that is missing in the middle is an error (503), and not taken for retention."""
    files = StoreFiles(Path(world.root))
    oldest, lost, _ = files.log_segments()[:3]
    first_lost = files.bounds(*ORDERS, lost.base_offset, OFFSET_MAX).begin
    os.unlink(lost.path)

    with pytest.raises(Problem) as refused:
        files.stored_at(*ORDERS, first_lost, oldest.base_offset)
    assert refused.value.status == 503


def test_topic_deleted_during_a_bundle_hides_no_other(
    world: StoreWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may be deleted while its files are listed: the bundle has the files of the others."""
    root = Path(world.root)
    vanished = root / "consumequeue" / "bills"
    (vanished / "0").mkdir(parents=True)
    real = os.listdir

    def listdir(folder: str) -> list[str]:
        if Path(folder) == vanished:
            raise FileNotFoundError(folder)
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)

    bundle = make_bundle(root, tmp_path / "page", None, {}, "")

    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        file = archive.extractfile("gantry-bundle/files.json")
        assert file is not None
        listed = json.loads(file.read())
    assert "consumequeue/orders/0" in listed
