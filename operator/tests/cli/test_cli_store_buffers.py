"""`gantry store` with write buffers on a real tmpfs, from a process that was killed with messages in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gantry_broker.ports.real_buffers import file_system_of
from gantry_cli.main import cli

SHARED_MEMORY = "/dev/shm"
COUNT = 60
WRITE = """
import dataclasses, sys
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import PoolSettings
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import STORE_HOST, TINY, StoreWorld
pool = PoolSettings(is_enabled=True, buffers_count=3, path=sys.argv[2])
world = StoreWorld(KillableDisk(), sys.argv[1], dataclasses.replace(TINY, pool=pool))
store = MessageStore(world.root, world.settings, disk=world.disk, clock=world.clock, store_host=STORE_HOST,
                     on_fatal=world.fatal.append)
store.open(is_flushing=False)
world.adopt(store)
world.send("orders", 20)
world.clock.advance(60_000)
store.commit_step()
store.flush_step()
world.send("orders", 40)
print(store.log.wrote, store.log.committed, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def buffers() -> Iterator[Path]:
    """A directory on a tmpfs."""
    if not os.path.isdir(SHARED_MEMORY) or file_system_of(SHARED_MEMORY) != "tmpfs":
        pytest.skip(f"no tmpfs at {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def killed(tmp_path: Path, buffers: Path) -> tuple[str, int, int]:
    """The root, `wrote` and `committed` of a store whose process was killed."""
    root = str(tmp_path / "store")
    words = [sys.executable, "-c", WRITE, root, str(buffers)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wrote, committed = map(int, process.stdout.readline().split())
        shown = document("inspect", root)
        assert shown["buffers"]["holder"] is not None, "no holder of the buffers is shown, although the process runs"
        process.send_signal(signal.SIGKILL)
    return root, wrote, committed


def gantry(*words: str) -> Result:
    return CliRunner().invoke(cli, ["store", *words])


def document(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gantry(*words, "--json").output)
    return found


def test_inspect_shows_write_buffers(killed: tuple[str, int, int], buffers: Path) -> None:
    """The summary shows each buffer with its medium, store, start, and the data that is not in the log."""
    root, wrote, committed = killed

    directory = document("inspect", root)["buffers"]
    live = [one for one in directory["buffers"] if one["state"] == "live"]

    assert (directory["path"], directory["medium"], directory["holder"]) == (str(buffers), "tmpfs", None)
    assert [one["state"] for one in directory["buffers"]].count("free") == 2
    assert [(one["committed"], one["stop"], one["records_not_committed"]) for one in live] == [(committed, wrote, 40)]
    assert (live[0]["is_of_this_store"], live[0]["generation"], live[0]["base_offset"]) == (True, 1, 0)
    text = gantry("inspect", root).output
    assert "this one" in text
    assert f"replay up to {wrote - committed} bytes of 1 write buffers" in text


def test_verify_reports_buffered_messages_as_unsettled(killed: tuple[str, int, int]) -> None:
    """Queue units of messages that are only in a buffer are not damage."""
    report = document("verify", killed[0])

    assert not report["is_damaged"]
    assert (report["end"], report["records"]) == (killed[2], 20)
    assert {finding["harm"] for finding in report["findings"]} == {"unsettled"}


def test_recover_replays_write_buffers_as_planned(killed: tuple[str, int, int], buffers: Path) -> None:
    """After `recover` the log has all messages, no live buffer is left, and the store verifies."""
    root, wrote, committed = killed
    plan = document("repair-plan", root)
    assert (plan["end"], plan["lost_messages"], [one["action"] for one in plan["buffers"]]) == (wrote, 0, ["replay"])
    assert plan["buffers"][0]["start"] == committed

    report = document("recover", root, "--yes")

    assert (report["end"], report["replayed_records"]) == (wrote, 40)
    verified = document("verify", root)
    assert (verified["records"], verified["units"], verified["findings"]) == (COUNT, COUNT, [])
    assert list(buffers.glob("buffer-*")) == []
    assert not (Path(root) / "abort").exists()


def test_buffers_option_finds_moved_buffers(killed: tuple[str, int, int], buffers: Path) -> None:
    """The directory of the buffers was moved; --buffers overrides the path in the store."""
    root, wrote, _ = killed
    moved = buffers / "moved"
    moved.mkdir()
    for path in buffers.glob("buffer-*"):
        path.rename(moved / path.name)

    assert document("repair-plan", root)["end"] < wrote
    assert document("repair-plan", root, "--buffers", str(moved))["end"] == wrote
    assert document("inspect", root, "--buffers", str(moved))["buffers"]["path"] == str(moved)
    assert document("recover", root, "--buffers", str(moved), "--yes")["end"] == wrote
