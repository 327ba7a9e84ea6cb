"""Helpers for tests of `gantry store`: stores in every state, processes with an open store, and fingerprints of files.

A fingerprint has the bytes, times and modes of all files, so that a test detects any change of a store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result

from gantry_cli.main import cli
from gantry_testing.store_world import StoreWorld, make_world

LOG: Final = "commitlog/00000000000000000000"
"""The name of the first file of a log, relative to its store."""

READING_COMMANDS: Final = {
    "inspect": ["inspect"],
    "inspect-all": ["inspect", "--all", "--json"],
    "verify": ["verify"],
    "verify-quick": ["verify", "--quick", "--json"],
    "verify-part": ["verify", "--from", "5000", "--to", "20000"],
    "dump": ["dump", "--count", "0"],
    "dump-queue": ["dump", "--topic", "orders", "--queue", "1", "--from", "3", "--body", "hex", "--json"],
    "repair-plan": ["repair-plan"],
    "repair-plan-json": ["repair-plan", "--json"],
}
"""Subcommands of `gantry store` that only read, with their options, by the name of the test."""


_PROCESS_WITH_STORE: Final = """
import sys
from pathlib import Path
from gantry_testing.store_world import make_world
world = make_world("real", Path(sys.argv[1]))
world.open()
if sys.argv[2] == "hold":
    print("open", flush=True)
    sys.stdin.read()
while True:
    world.send("orders", 20)
    world.send("bills", 20, queue_id=1)
    world.store.flush_step()
    print("sent", flush=True)
"""


def gantry_store(*words: str) -> Result:
    """Run `gantry store` with these words."""
    return CliRunner().invoke(cli, ["store", *words])


def run_reading_command(command: str, root: str, *more: str) -> Result:
    """Run one of the reading commands."""
    name, *options = READING_COMMANDS[command]
    return gantry_store(name, root, *options, *more)


def fill_store(directory: Path) -> StoreWorld:
    """Return an open store with 220 messages, 20 of them after the recovery point."""
    world = make_world("real", directory)
    world.open()
    for i in range(100):
        world.send("orders", queue_id=i % 3)
        world.send("bills", queue_id=i % 2)
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", 20)
    return world


@contextlib.contextmanager
def another_process(directory: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has the store open, and either does nothing (`hold`) or keeps writing (`write`)."""
    words = [sys.executable, "-c", _PROCESS_WITH_STORE, str(directory), what]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def fingerprint(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Return the names, bytes, times and modes of every file and directory."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        file_status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        times = (file_status.st_mtime_ns, file_status.st_ctime_ns)
        found[str(path)] = (
            file_status.st_mode,
            file_status.st_ino,
            file_status.st_nlink,
            file_status.st_size,
            file_status.st_blocks,
            *times,
            digest,
        )
    return found


def make_clean_store(directory: Path) -> None:
    """Create a store that was stopped cleanly."""
    fill_store(directory).close()


def make_killed_store(directory: Path) -> None:
    """Create a store whose process was killed."""
    fill_store(directory).kill()


def make_damaged_store(directory: Path) -> None:
    """Create a killed store with damage in every kind of file."""
    world = fill_store(directory)
    world.kill()
    for name, position in ((LOG, 5000), ("consumequeue/orders/1/00000000000000000000", 60), ("checkpoint", 3)):
        world.overwrite(name, position, b"XXXX")
    for name in ("recovery-point.json", "store.json", f"index/{world.disk.list(world.path('index'))[0]}"):
        Path(world.path(name)).write_bytes(b"nonsense")
    shutil.rmtree(world.path("consumequeue/bills/1"))
    os.remove(world.path("commitlog/00000000000000016384"))


def make_empty_store(directory: Path) -> None:
    """Create an empty directory for a store."""
    (directory / "store").mkdir()


def make_garbage_store(directory: Path) -> None:
    """Create a store whose files have random bytes and invalid names."""
    root = directory / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(os.urandom(50_000))
    (root / "commitlog" / f"{50_000:020d}").write_bytes(b"")
    (root / "consumequeue" / "topic" / "0").mkdir(parents=True)
    (root / "consumequeue" / "topic" / "0" / f"{0:020d}").write_bytes(os.urandom(5_003))
    (root / "consumequeue" / "topic" / "0" / f"{7:020d}").mkdir()
    (root / "consumequeue" / "..;rm").mkdir()
    (root / "index").mkdir()
    (root / "index" / ("2" * 17)).write_bytes(os.urandom(5_000))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_bytes(os.urandom(100))
    for name in ("checkpoint", "store.json", "recovery-point.json", "flush-failed", "lock", "abort"):
        (root / name).write_bytes(os.urandom(100))


STORES: Final[dict[str, Callable[[Path], None]]] = {
    "clean": make_clean_store,
    "killed": make_killed_store,
    "damaged": make_damaged_store,
    "empty": make_empty_store,
    "garbage": make_garbage_store,
}
"""Functions that create a store in this state below a directory, and leave it without a process."""
